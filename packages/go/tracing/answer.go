package tracing

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strings"
)

// Answer looks beside a provider's answer for the two words of it that a span has: which model answered, and why it
// stopped. It reads whole JSON bodies, lines of JSON and event streams of the dialects that adapters speak, keeps a
// bounded piece at most, and takes what it can't read for unknown. It is for answers whose span is recorded: others
// aren't worth the work, and have nil, which takes everything and finds nothing. One goroutine uses it.
type Answer struct {
	form   answerForm
	line   []byte // what there is of the current line, or of the whole body
	over   bool   // the line is longer than is looked at
	model  string
	finish string
}

type answerForm uint8

const (
	formOther answerForm = iota // isn't looked at
	formWhole
	formLines // of JSON, or of events
)

const (
	maxLine  = 16 << 10 // of a line that is looked at
	maxWhole = 256 << 10
	maxWord  = 128 // of a word that is taken
)

// NewAnswer returns what looks at an answer with this head.
func NewAnswer(status int, h http.Header) *Answer {
	a := &Answer{}
	if encoding := h.Get("Content-Encoding"); status < 200 || status > 299 || encoding != "" && encoding != "identity" {
		return a
	}
	switch kind, _, _ := mime.ParseMediaType(h.Get("Content-Type")); kind { // what can't be parsed is no kind
	case "application/json":
		a.form = formWhole
	case "text/event-stream", "application/x-ndjson":
		a.form = formLines
	}
	return a
}

// Write takes a piece of the body.
func (a *Answer) Write(p []byte) {
	if a == nil {
		return
	}
	switch a.form {
	case formWhole:
		a.keep(p, maxWhole)
	case formLines:
		for len(p) > 0 {
			line, rest, ended := bytes.Cut(p, []byte("\n"))
			a.keep(line, maxLine)
			if ended {
				a.endLine()
			}
			p = rest
		}
	}
}

func (a *Answer) keep(p []byte, most int) {
	if a.over = a.over || len(a.line)+len(p) > most; !a.over {
		a.line = append(a.line, p...)
	}
}

// endLine looks at a line that has one of the words, or the only answer of a body.
func (a *Answer) endLine() {
	line := a.line
	a.line = a.line[:0]
	if a.over {
		a.over = false
		return
	}
	if a.model != "" && !bytes.Contains(line, []byte(`_reason"`)) && !bytes.Contains(line, []byte(`"response.`)) {
		return
	}
	line = bytes.TrimPrefix(bytes.TrimPrefix(line, []byte("data:")), []byte(" "))
	if len(line) == 0 || line[0] != '{' {
		return
	}
	a.read(line)
}

// Words returns what was found, "" = nothing. It is for after the last piece.
func (a *Answer) Words() (model, finish string) {
	if a == nil {
		return "", ""
	}
	if len(a.line) > 0 {
		a.endLine()
	}
	return a.model, a.finish
}

// words are the members of a JSON object that say which model answers, or why it stopped, in any of the dialects.
type words struct {
	Model      string `json:"model"`
	DoneReason string `json:"done_reason"` // Ollama
	StopReason string `json:"stop_reason"` // Anthropic
	Status     string `json:"status"`      // of the Responses API
	Choices    []struct {
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Delta struct {
		StopReason string `json:"stop_reason"`
	} `json:"delta"`
	Message  named `json:"message"`
	Response named `json:"response"`
}

// named is a model one level below.
type named struct {
	Model  string `json:"model"`
	Status string `json:"status"`
}

// UnmarshalJSON takes what is no object for one without members: Ollama's response is a text.
func (n *named) UnmarshalJSON(p []byte) error {
	type plain named
	if len(p) > 0 && p[0] == '{' {
		return json.Unmarshal(p, (*plain)(n))
	}
	return nil
}

func (a *Answer) read(object []byte) {
	var w words
	if json.Unmarshal(object, &w) != nil {
		return
	}
	if a.model == "" {
		a.model = word(w.Model, w.Message.Model, w.Response.Model)
	}
	finish := []string{w.DoneReason, w.StopReason, w.Delta.StopReason}
	for _, c := range w.Choices {
		finish = append(finish, c.FinishReason)
	}
	if found := word(append(finish, w.Response.Status, w.Status)...); found != "" {
		a.finish = found
	}
}

// word returns the first that there is, if it is a word: names have no blanks, and what has may be somebody's text.
func word(of ...string) string {
	for _, s := range of {
		if s == "" {
			continue
		}
		if len(s) > maxWord || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return ""
		}
		return s
	}
	return ""
}
