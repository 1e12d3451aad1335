package anthropic

import (
	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

func (messages) Parse(body []byte) (*dialect.Request, *dialect.Refusal) {
	return nil, dialect.Refuse("", "not built yet")
}

func (messages) Answer(r *dialect.Request, about dialect.About) dialect.Answer { return nil }

func (messages) EncodeError(status int, f *execution.Failure, field string) []byte { return nil }
