// Package openai is the OpenAI API over a run: a chat completions request is read into a run, and the run's events are
// written as the chunks, or the one object, that OpenAI's clients expect.
//
// It does no I/O. Chat completions are the one endpoint of this API that a run can serve; the errors of the others look
// the same.
package openai

import (
	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// Chat is POST /v1/chat/completions.
func Chat() dialect.Endpoint { return chat{} }

type chat struct{}

// Parse implements [dialect.Endpoint].
func (chat) Parse(body []byte) (*dialect.Request, *dialect.Refusal) { return parse(body) }

// Answer implements [dialect.Endpoint].
func (chat) Answer(r *dialect.Request, about dialect.About) dialect.Answer {
	if r.Stream {
		return newStream(about, r.IncludeUsage)
	}
	return &whole{about: about}
}

// EncodeError implements [dialect.Endpoint].
func (chat) EncodeError(status int, f *execution.Failure, field string) []byte {
	return append(encodeError(errorType(status), f, field), '\n')
}
