package openai

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// Execute implements [execution.Executor] by a streamed request to /v1/chat/completions, which is sent once. A
// provider that answers with one JSON object instead of a stream is understood too.
func (p *Provider) Execute(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
	if err := req.Check(); err != nil {
		return execution.Completion{}, err
	}
	text, err := chatBody(req, p.how)
	if err != nil {
		return execution.Completion{}, err
	}
	a := newAnswer(req.RunID, emit)
	err = p.client.Tunnel(ctx, &execution.TunnelRequest{
		Method: http.MethodPost,
		Path:   httprules.RunPath("openai"),
		Header: http.Header{
			"Accept":          {"text/event-stream, application/json"},
			"Accept-Encoding": {"identity"},
			"Content-Type":    {"application/json"},
		},
		Body:          io.NopCloser(bytes.NewReader(text)),
		ContentLength: int64(len(text)),
		Target:        req.Target,
		Timers:        req.Timers,
		Credential:    req.Credential,
	}, a)
	return a.Finish(ctx, err)
}
