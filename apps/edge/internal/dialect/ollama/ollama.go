// Package ollama is Ollama's native API over a run: a chat or generate request is read into a run, the run's events are
// written as the lines, or the one object, that Ollama's clients expect, and what its lists say of models that no Ollama
// serves is made up here.
//
// It does no I/O. What a run can't carry is refused by name; which models there are, and who may see them, is its
// caller's business.
package ollama

import (
	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// Chat is POST /api/chat.
func Chat() dialect.Endpoint { return endpoint{} }

// Generate is POST /api/generate.
func Generate() dialect.Endpoint { return endpoint{generate: true} }

type endpoint struct{ generate bool }

// Parse implements [dialect.Endpoint].
func (e endpoint) Parse([]byte) (*dialect.Request, *dialect.Refusal) {
	return nil, dialect.Refuse("", "isn't there yet")
}

// Answer implements [dialect.Endpoint].
func (e endpoint) Answer(*dialect.Request, dialect.About) dialect.Answer { return nil }

// EncodeError implements [dialect.Endpoint].
func (e endpoint) EncodeError(int, *execution.Failure, string) []byte { return nil }
