// Package jsonbody writes the JSON bodies of requests to providers, member by member: in a fixed order, so that the same
// run is the same bytes, and so that a picture is copied once.
//
// It knows no dialect, and it checks nothing: what it is given was checked, see [execution.Request.Check].
package jsonbody

import (
	"bytes"
	"encoding/base64"
	"encoding/json"

	"iop/packages/go/execution"
)

// Writer collects a body.
type Writer struct {
	buf bytes.Buffer
	enc *json.Encoder
}

// New returns an empty body with room for what req says.
func New(req *execution.Request) *Writer {
	w := &Writer{}
	w.buf.Grow(sizeOf(req))
	w.enc = json.NewEncoder(&w.buf)
	w.enc.SetEscapeHTML(false)
	return w
}

func sizeOf(req *execution.Request) int {
	n := 1 << 10
	for i := range req.Messages {
		for _, p := range req.Messages[i].Parts {
			n += 64 + len(p.Text)
			if p.Image != nil {
				n += 64 + base64.StdEncoding.EncodedLen(len(p.Image.Data))
			}
		}
	}
	return n
}

// Raw writes JSON as it is.
func (w *Writer) Raw(s string) { w.buf.WriteString(s) }

// Comma writes the comma before the i-th thing of a list, counted from 0.
func (w *Writer) Comma(i int) {
	if i > 0 {
		w.Raw(",")
	}
}

// Value writes v: valid text, a finite number, valid JSON, or a list of these.
func (w *Writer) Value(v any) {
	if w.enc.Encode(v) == nil {
		w.buf.Truncate(w.buf.Len() - 1) // the encoder's line end
	}
}

// Member writes a further member of an object.
func (w *Writer) Member(name string, v any) {
	w.Raw(`,"` + name + `":`)
	w.Value(v)
}

// Append writes what f appends to the body, JSON as it is.
func (w *Writer) Append(f func(dst []byte) []byte) { w.buf.Write(f(w.buf.AvailableBuffer())) }

// Bytes returns the body.
func (w *Writer) Bytes() []byte { return w.buf.Bytes() }

// Refused is the failure of a request that its provider can't be told; nothing of it was sent.
func Refused(text string) error {
	return &execution.Failure{Code: execution.CodeBadRequest, Origin: execution.OriginCaller, Text: text, NothingSent: true}
}
