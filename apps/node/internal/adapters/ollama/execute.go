package ollama

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// Execute implements [execution.Executor] by a streamed request to /api/chat, which is sent once. A model that has to be
// loaded first takes as long as it takes: only the request's own timers bound the wait. (OL-01)
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
		Path:   httprules.RunPath("ollama"),
		Header: http.Header{
			"Accept":          {"application/x-ndjson, application/json"},
			"Accept-Encoding": {"identity"},
			"Content-Type":    {"application/json"},
		},
		Body:          io.NopCloser(bytes.NewReader(text)),
		ContentLength: int64(len(text)),
		Target:        req.Target,
		Timers:        req.Timers,
		Credential:    req.Credential,
	}, a)
	return a.end(ctx, err)
}

// refused is a request that nothing was sent of.
func refused(text string) error {
	return &execution.Failure{Code: execution.CodeBadRequest, Origin: execution.OriginCaller, Text: text, NothingSent: true}
}
