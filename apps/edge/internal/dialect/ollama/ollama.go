// Package ollama is Ollama's native API over a run: a chat or generate request is read into a run, the run's events are
// written as the lines, or the one object, that Ollama's clients expect, and what its lists say of models that no Ollama
// serves is made up here. Facts about the API are those of Ollama 0.17.4 and of the clients of that time.
//
// It does no I/O. What a run can't carry is refused by name; which models there are, and who may see them, is its
// caller's business.
package ollama

import (
	"encoding/json"
	"time"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// Chat is POST /api/chat.
func Chat() dialect.Endpoint { return endpoint{} }

// Generate is POST /api/generate.
func Generate() dialect.Endpoint { return endpoint{generate: true} }

type endpoint struct{ generate bool }

// Parse implements [dialect.Endpoint].
func (e endpoint) Parse(body []byte) (*dialect.Request, *dialect.Refusal) {
	if e.generate {
		return parseGenerate(body)
	}
	return parseChat(body)
}

// Answer implements [dialect.Endpoint].
func (e endpoint) Answer(r *dialect.Request, about dialect.About) dialect.Answer {
	return &answer{generate: e.generate, stream: r.Stream && r.AtOnce == "", ran: r.AtOnce == "", about: about, now: time.Now}
}

// EncodeError implements [dialect.Endpoint].
func (endpoint) EncodeError(_ int, f *execution.Failure, _ string) []byte { return encodeError(f) }

// errorBody is Ollama's error shape with a stable code beside it. Its clients take error for a text.
type errorBody struct {
	Error string `json:"error"`
	Code  string `json:"code"`
}

func encodeError(f *execution.Failure) []byte {
	body := errorBody{Error: f.Text, Code: f.Code.String()}
	switch {
	case f.Text == "":
		body.Error = body.Code
	case f.Code == execution.CodeUnknownModel:
		body.Error = "model not found: " + f.Text // the command line looks for these two words
	}
	return encode(body)
}

// encode returns v as JSON. What can't be encoded never gets here.
func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		return []byte(`{"error":"internal error","code":"internal"}`)
	}
	return text
}
