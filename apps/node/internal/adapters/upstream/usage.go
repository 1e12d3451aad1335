package upstream

import (
	"bytes"
	"mime"
	"net/http"

	"iop/packages/go/execution"
)

// observer looks for token counts in the pieces of an answer's body, beside the stream: it keeps no piece, holds back
// nothing, and what it can't read is unknown and never an error. Its memory is bounded by maxCapture whatever comes.
//
// It reads JSON bodies, lines of JSON, and event streams in which each event's data is a JSON object. A count is taken
// from a "usage" object at the top, or one level below in "response" or "message", which is where the dialects put it;
// Ollama's own has its two counts at the top. What was counted later stands over what was counted before, member by
// member; a null or all-zero record says nothing, since providers send those in each chunk. (ST-10, ST-26, ST-28)
type observer struct {
	form  bodyForm
	lines lineState
	name  int // matched bytes of the field name at the beginning of a line
	json  scanner
	found Counter
}

type bodyForm uint8

const (
	formOpaque bodyForm = iota // not looked at
	formJSON
	formEvents
	formLines
)

// lineState is where in an event stream the observer is.
type lineState uint8

const (
	lineStart  lineState = iota // at the beginning of a line
	lineName                    // inside a field name that is "data" so far
	lineColon                   // after "data:", where one blank may follow
	lineData                    // inside data
	lineOther                   // inside a line that isn't data
	lineReturn                  // after CR: an LF belongs to it
)

func newObserver(status int, h http.Header) *observer {
	o := &observer{}
	if status < 200 || status > 299 || h.Get("Content-Encoding") != "" && h.Get("Content-Encoding") != "identity" {
		return o
	}
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	switch {
	case err != nil:
	case kind == "application/json":
		o.form = formJSON
	case kind == "text/event-stream":
		o.form = formEvents
	case kind == "application/x-ndjson":
		o.form = formLines
	}
	o.json.found, o.json.counted = o.take, o.takeCount
	return o
}

// write looks at one piece of the body.
func (o *observer) write(p []byte) {
	switch o.form {
	case formJSON:
		o.json.write(p)
	case formEvents:
		o.events(p)
	case formLines:
		o.eachLine(p)
	}
}

// usage returns what was counted.
func (o *observer) usage() execution.Usage { return o.found.Usage() }

// eachLine looks at a piece of a stream of lines. As with events, most pieces are whole lines without a count. (What is
// looked for begins with a rare byte: that makes the search several times as fast.)
func (o *observer) eachLine(p []byte) {
	if o.json.untouched() && bytes.HasSuffix(p, []byte("\n")) && !bytes.Contains(p, []byte("_count")) && !bytes.Contains(p, []byte("usage")) {
		return
	}
	for line := range bytes.Lines(p) {
		o.json.write(line)
		if line[len(line)-1] == '\n' {
			o.json.reset()
		}
	}
}

// events looks at a piece of an event stream. Most pieces are whole events without a count: those are not looked at
// byte by byte.
func (o *observer) events(p []byte) {
	if o.lines == lineStart && o.json.untouched() && endsEvent(p) && !bytes.Contains(p, []byte("usage")) {
		return
	}
	for len(p) > 0 {
		p = o.step(p)
	}
}

// endsEvent reports whether p ends with an empty line, so that what follows is a new event.
func endsEvent(p []byte) bool {
	return bytes.HasSuffix(p, []byte("\n\n")) || bytes.HasSuffix(p, []byte("\r\n\r\n"))
}

// step takes the next bytes of an event stream and returns what is left.
func (o *observer) step(p []byte) []byte {
	const name = "data"
	switch c := p[0]; o.lines {
	case lineReturn:
		o.lines = lineStart
		if c == '\n' {
			return p[1:]
		}
		return p
	case lineStart, lineName:
		switch {
		case c == '\r' || c == '\n':
			if o.lines == lineStart {
				o.json.reset() // an empty line: the event is over
			}
			return o.endLine(p)
		case o.name < len(name) && c == name[o.name]:
			o.name++
			o.lines = lineName
		case o.name == len(name) && c == ':':
			o.lines = lineColon
		default:
			o.lines = lineOther
		}
		return p[1:]
	case lineColon:
		o.lines = lineData
		if c == ' ' {
			return p[1:]
		}
		return p
	}
	return o.restOfLine(p)
}

// restOfLine takes what is left of a line, or all of p.
func (o *observer) restOfLine(p []byte) []byte {
	end := bytes.IndexByte(p, '\n')
	if end < 0 {
		end = len(p)
	}
	if cr := bytes.IndexByte(p[:end], '\r'); cr >= 0 {
		end = cr
	}
	if o.lines == lineData {
		o.json.write(p[:end])
	}
	if end == len(p) {
		return nil
	}
	return o.endLine(p[end:])
}

// endLine takes the CR or LF that p begins with. A further data line of the same event goes on with the same object.
func (o *observer) endLine(p []byte) []byte {
	o.lines, o.name = lineStart, 0
	if p[0] == '\r' {
		o.lines = lineReturn
	}
	return p[1:]
}

// take reads one usage object.
func (o *observer) take(object []byte) { o.found.Add(object) }

// takeCount reads a count of Ollama's own dialect, which leaves out those that are zero.
func (o *observer) takeCount(what keyKind, n int64) {
	switch {
	case n == 0:
	case what == keyInput:
		o.found.input = &n
	default:
		o.found.output = &n
	}
}
