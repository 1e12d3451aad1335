// Package ndjson reads lines of JSON (application/x-ndjson) from pieces that are cut anywhere.
//
// It knows no dialect and parses nothing: what a line means belongs to who asked. It does no I/O and keeps nothing but
// the line that is being read.
package ndjson

import (
	"bytes"

	"iop/packages/go/execution"
)

// DefaultLimit is the largest line that a reader takes when nobody says otherwise.
const DefaultLimit = 16 << 20

// keep is how much memory a reader holds on to between two lines.
const keep = 64 << 10

// blanks are what JSON allows around a value, line ends aside. A CR before the LF is one of them.
const blanks = " \t\r"

// Reader takes a stream in pieces and gives its lines. It isn't safe for concurrent use.
type Reader struct {
	limit int
	give  func(line []byte) error

	line []byte // the beginning of a line whose end hasn't come
	err  error  // what ended the stream early
}

// New returns a reader that gives lines of up to limit bytes to give, without their ends and the blanks around them; 0
// is [DefaultLimit]. Lines that are blank aren't given. A line is valid until give returns.
func New(limit int, give func(line []byte) error) *Reader {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Reader{limit: limit, give: give}
}

// Feed takes the next piece of the stream and gives the lines that it completes. An error is give's own, or an
// adapter_decode when a line is over the limit; the reader then takes nothing more and has no [Reader.Rest].
func (r *Reader) Feed(p []byte) error {
	for r.err == nil {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			r.err = r.hold(p)
			break
		}
		r.err = r.complete(p[:end])
		p = p[end+1:]
	}
	if r.err != nil {
		r.line = nil
	}
	return r.err
}

// Rest returns what stands after the last line end, without the blanks around it: the last line of a stream that ends
// without one, whole or not. It is valid until the next [Reader.Feed].
func (r *Reader) Rest() []byte { return bytes.Trim(r.line, blanks) }

// hold keeps the beginning of a line.
func (r *Reader) hold(p []byte) error {
	if len(r.line)+len(p) > r.limit {
		return execution.Failf(execution.CodeAdapterDecode, execution.OriginProvider,
			"a line of the provider's answer is over the limit of %d bytes", r.limit)
	}
	r.line = append(r.line, p...)
	return nil
}

// complete gives the line that ends with p. One that came in a single piece isn't copied.
func (r *Reader) complete(p []byte) error {
	if len(r.line) > 0 || len(p) > r.limit {
		if err := r.hold(p); err != nil {
			return err
		}
		p = r.line
	}
	line := bytes.Trim(p, blanks)
	var err error
	if len(line) > 0 {
		err = r.give(line)
	}
	if r.line = r.line[:0]; cap(r.line) > keep {
		r.line = nil
	}
	return err
}
