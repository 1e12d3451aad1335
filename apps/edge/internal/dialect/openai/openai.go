// Package openai is the OpenAI API over a run: a chat completions request is read into a run, and the run's events are
// written as the chunks, or the one object, that OpenAI's clients expect.
//
// It does no I/O. What OpenAI's other endpoints ask for no run can carry, so only those have an endpoint here that a run
// serves; their errors look the same.
package openai

import (
	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// Chat is POST /v1/chat/completions.
func Chat() dialect.Endpoint { return chat{} }

type chat struct{}

// Parse implements [dialect.Endpoint].
func (chat) Parse([]byte) (*dialect.Request, *dialect.Refusal) {
	return nil, dialect.Refuse("", "isn't there yet")
}

// Answer implements [dialect.Endpoint].
func (chat) Answer(*dialect.Request, dialect.About) dialect.Answer { return nil }

// EncodeError implements [dialect.Endpoint].
func (chat) EncodeError(status int, f *execution.Failure, field string) []byte {
	return encodeError(status, f, field)
}
