// Package sse reads event streams (text/event-stream) as the WHATWG has them, from pieces that are cut anywhere: LF, CR
// and CRLF line ends, fields with and without a blank after the colon, several data lines, comments, a byte order mark.
//
// It knows no dialect: what an event's data means belongs to who asked. It does no I/O and keeps nothing but the event
// that is being read.
package sse

import (
	"bytes"

	"iop/packages/go/execution"
)

// DefaultLimit is the largest data of one event that a reader takes when nobody says otherwise.
const DefaultLimit = 16 << 20

// keep is how much memory a reader holds on to between two events.
const keep = 64 << 10

// maxName is the longest name of an event that is told; a longer one is cut.
const maxName = 128

// Event is one event. Its data is valid until the function that got it returns.
type Event struct {
	Name string // "" = none was given, which means "message"
	Data []byte
}

// Reader takes a stream in pieces and gives its events. It isn't safe for concurrent use.
type Reader struct {
	limit int
	give  func(Event) error

	state   state
	afterCR bool // an LF that comes next belongs to the line's end
	mark    int  // matched bytes of a byte order mark at the start of the stream, -1 = its time is over
	field   [maxField]byte
	n       int // bytes of the line's field name, maxField+1 = too many for any that matters

	name    []byte
	data    []byte
	hasData bool
	err     error // what ended the stream early
}

type state uint8

const (
	lineStart state = iota
	fieldName
	valueStart // after the colon, where one blank may follow
	dataValue
	nameValue
	otherValue // of a field that doesn't matter, or a comment
)

const maxField = len("event")

// New returns a reader that gives events to give, of up to limit bytes of data each; 0 is [DefaultLimit].
func New(limit int, give func(Event) error) *Reader {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Reader{limit: limit, give: give}
}

// Feed takes the next piece of the stream and gives the events that it completes. An error is give's own, or an
// adapter_decode when an event is over the limit; the reader then takes nothing more. What is left of an event when
// the stream ends is no event.
func (r *Reader) Feed(p []byte) error {
	if r.err != nil {
		return r.err
	}
	p = r.skipMark(p)
	for len(p) > 0 && r.err == nil {
		p = r.step(p)
	}
	return r.err
}

// skipMark skips a byte order mark, which may come in pieces too.
func (r *Reader) skipMark(p []byte) []byte {
	const mark = "\xef\xbb\xbf"
	for r.mark >= 0 && len(p) > 0 {
		switch {
		case r.mark == len(mark):
			r.mark = -1
		case p[0] == mark[r.mark]:
			r.mark++
			p = p[1:]
		default:
			if r.mark > 0 { // so it was the beginning of a field that nobody knows
				r.state, r.n = fieldName, maxField+1
			}
			r.mark = -1
		}
	}
	return p
}

// step takes the next bytes and returns what is left.
func (r *Reader) step(p []byte) []byte {
	switch r.state {
	case lineStart:
		return r.startLine(p)
	case fieldName:
		return r.takeName(p)
	case valueStart:
		if r.startValue(); p[0] == ' ' {
			return p[1:]
		}
		return p
	}
	end := lineEnd(p)
	r.takeValue(p[:end])
	if end == len(p) {
		return nil
	}
	return r.endLine(p[end:])
}

// lineEnd returns the index of the first CR or LF, or the length of p.
func lineEnd(p []byte) int {
	end := bytes.IndexByte(p, '\n')
	if end < 0 {
		end = len(p)
	}
	if cr := bytes.IndexByte(p[:end], '\r'); cr >= 0 {
		end = cr
	}
	return end
}

func (r *Reader) startLine(p []byte) []byte {
	afterCR := r.afterCR
	r.afterCR = false
	switch c := p[0]; {
	case c == '\n' && afterCR:
		return p[1:]
	case c == '\n' || c == '\r':
		r.dispatch()
		return r.endLine(p)
	case c == ':':
		r.state = otherValue
		return p[1:]
	}
	r.state, r.n = fieldName, 0
	return p
}

// takeName takes bytes of a field's name, up to the colon or the end of the line.
func (r *Reader) takeName(p []byte) []byte {
	for i, c := range p {
		switch {
		case c == ':':
			r.state = valueStart
			return p[i+1:]
		case c == '\r' || c == '\n':
			r.startValue() // a name alone has an empty value
			return r.endLine(p[i:])
		case r.n < maxField:
			r.field[r.n] = c
			r.n++
		default:
			r.n = maxField + 1
		}
	}
	return nil
}

// startValue begins the value of the field whose name was taken.
func (r *Reader) startValue() {
	r.state = otherValue
	switch string(r.field[:min(r.n, maxField)]) {
	case "data":
		r.state = dataValue
		if r.hasData {
			r.append([]byte{'\n'})
		}
		r.hasData = true
	case "event":
		if r.n == maxField {
			r.state = nameValue
			r.name = r.name[:0]
		}
	}
}

func (r *Reader) takeValue(p []byte) {
	switch r.state {
	case dataValue:
		r.append(p)
	case nameValue:
		r.name = append(r.name, p[:min(len(p), maxName-len(r.name))]...)
	}
}

func (r *Reader) append(p []byte) {
	if len(r.data)+len(p) > r.limit {
		r.err = execution.Failf(execution.CodeAdapterDecode, execution.OriginProvider,
			"an event of the provider's stream is over the limit of %d bytes", r.limit)
		r.data = nil
		return
	}
	r.data = append(r.data, p...)
}

// endLine takes the CR or LF that p begins with.
func (r *Reader) endLine(p []byte) []byte {
	r.state, r.afterCR = lineStart, p[0] == '\r'
	return p[1:]
}

// dispatch gives the event that an empty line ends.
func (r *Reader) dispatch() {
	if r.hasData && r.err == nil {
		r.err = r.give(Event{Name: string(r.name), Data: r.data})
	}
	r.name, r.data, r.hasData = r.name[:0], r.data[:0], false
	if cap(r.data) > keep {
		r.data = nil
	}
}
