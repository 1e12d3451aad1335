package upstream

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"

	"iop/packages/go/execution"
)

// observer looks for token counts in the pieces of an answer's body, beside the stream: it keeps no piece, holds back
// nothing, and what it can't read is unknown and never an error. Its memory is bounded by maxCapture whatever comes.
//
// It reads JSON bodies and event streams in which each event's data is a JSON object. A count is taken from a "usage"
// object at the top, or one level below in "response" or "message", which is where the dialects put it. What was
// counted later stands over what was counted before, member by member; a null or all-zero record says nothing, since
// providers send those in each chunk. (ST-10, ST-26, ST-28)
type observer struct {
	form  bodyForm
	lines lineState
	name  int // matched bytes of the field name at the beginning of a line
	json  scanner
	found execution.Usage
}

type bodyForm uint8

const (
	formOpaque bodyForm = iota // not looked at
	formJSON
	formEvents
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
	}
	o.json.found = o.take
	return o
}

// write looks at one piece of the body.
func (o *observer) write(p []byte) {
	switch o.form {
	case formJSON:
		o.json.write(p)
	case formEvents:
		o.events(p)
	}
}

// usage returns what was counted.
func (o *observer) usage() execution.Usage { return o.found }

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

// counts is a usage object in any of the dialects' shapes.
type counts struct {
	Prompt     *int64 `json:"prompt_tokens"`     // chat, completions, embeddings
	Completion *int64 `json:"completion_tokens"` //
	Input      *int64 `json:"input_tokens"`      // responses, messages
	Output     *int64 `json:"output_tokens"`     //
	CacheRead  *int64 `json:"cache_read_input_tokens"`

	PromptDetails     details `json:"prompt_tokens_details"`
	InputDetails      details `json:"input_tokens_details"`
	CompletionDetails details `json:"completion_tokens_details"`
	OutputDetails     details `json:"output_tokens_details"`
}

type details struct {
	Cached    *int64 `json:"cached_tokens"`
	Reasoning *int64 `json:"reasoning_tokens"`
}

// take reads one usage object.
func (o *observer) take(object []byte) { AddUsage(&o.found, object) }

// AddUsage reads a usage object in any of the dialects' shapes and puts what it counts over what u has, member by
// member. A null, an all-zero record, and what isn't a usage object say nothing. (ST-28)
func AddUsage(u *execution.Usage, object []byte) {
	var c counts
	if len(object) == 0 || object[0] != '{' || json.Unmarshal(object, &c) != nil {
		return
	}
	input, output := first(c.Input, c.Prompt), first(c.Output, c.Completion)
	if zero(input) && zero(output) {
		return
	}
	*u = execution.Usage{
		Input:     first(input, u.Input),
		Output:    first(output, u.Output),
		Cached:    first(c.PromptDetails.Cached, c.InputDetails.Cached, c.CacheRead, u.Cached),
		Reasoning: first(c.CompletionDetails.Reasoning, c.OutputDetails.Reasoning, u.Reasoning),
	}
}

// first returns the first count that is known and makes sense.
func first(counts ...*int64) *int64 {
	for _, n := range counts {
		if n != nil && *n >= 0 {
			return n
		}
	}
	return nil
}

func zero(n *int64) bool { return n == nil || *n == 0 }
