// Package anthropic says what Anthropic's Messages API looks like as a run: its request, its answer as one object or as
// a stream of events, and its errors. Shapes are those of the official SDKs (anthropic-sdk-go 1.84, @anthropic-ai/sdk
// 1.14); what is carried, ignored and refused is listed in docs/dialects.md.
//
// It does no I/O, and nothing that needs a server of Anthropic's is imitated: server tools, files, documents and
// citations are refused by name.
package anthropic

import (
	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// Messages is POST /v1/messages.
func Messages() dialect.Endpoint { return messages{} }

type messages struct{}

// Parse implements [dialect.Endpoint].
func (messages) Parse(body []byte) (*dialect.Request, *dialect.Refusal) {
	var p parser
	if ref := dialect.Object("", body, p.member); ref != nil {
		return nil, ref
	}
	return p.finish()
}

// Answer implements [dialect.Endpoint].
func (messages) Answer(r *dialect.Request, about dialect.About) dialect.Answer {
	if r.Stream {
		return &stream{about: about, silent: r.HideReasoning, most: maxHeld}
	}
	return &whole{about: about, silent: r.HideReasoning}
}

// EncodeError implements [dialect.Endpoint].
func (messages) EncodeError(status int, f *execution.Failure, field string) []byte {
	return append(appendError(nil, errorType(status), f, field), '\n')
}
