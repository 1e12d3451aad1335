package anthropic

import (
	"context"
	"errors"

	"iop/packages/go/execution"
)

// Execute implements [execution.Executor] by a streamed request to /v1/messages, which is sent once.
func (p *Provider) Execute(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
	return execution.Completion{}, errors.New("not yet")
}

// Probe implements [execution.Provider].
func (p *Provider) Probe(ctx context.Context) execution.Capabilities { return execution.Capabilities{} }
