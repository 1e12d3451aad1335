package ollama

import (
	"context"
	"errors"

	"iop/packages/go/execution"
)

// Execute implements [execution.Executor] by a streamed request to /api/chat, which is sent once.
func (p *Provider) Execute(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
	return execution.Completion{}, errors.New("not yet")
}

// refused is a request that nothing was sent of.
func refused(text string) error {
	return &execution.Failure{Code: execution.CodeBadRequest, Origin: execution.OriginCaller, Text: text, NothingSent: true}
}
