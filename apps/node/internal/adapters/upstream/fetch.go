package upstream

import (
	"context"
	"net/http"
	"strings"

	"iop/packages/go/execution"
)

// Answer is a whole small answer.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Fetch asks the provider for path by GET, for the node's own use: what a dialect asks a provider about itself. A path
// that begins with /v1/ belongs to the API and is joined as a request's is; any other is below the provider's root. It
// may have a query. An answer over max bytes is an error, and so is an end that [Client.Tunnel] would call a failure. It takes a connection
// of its own: on a kept one the answer to a probe could be lost to the provider's close, and a provider would look
// down that isn't.
func (c *Client) Fetch(ctx context.Context, path string, max int) (*Answer, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	prefix, rest := c.base.root(), path
	if strings.HasPrefix(path, "/v1/") {
		prefix, rest = c.base.join(path)
	}
	req := &execution.TunnelRequest{Method: http.MethodGet, Header: c.header}
	x := &exchange{pool: c.pool, req: req, own: true}
	into := &collector{max: max}
	if err := x.run(ctx, into, prefix, rest); err != nil {
		return nil, err
	}
	return &into.answer, nil
}

// collector is a sink that keeps a small answer.
type collector struct {
	answer Answer
	max    int
}

func (c *collector) Head(status int, header http.Header) error {
	c.answer.Status, c.answer.Header = status, header
	return nil
}

func (c *collector) Body(p []byte) error {
	if len(c.answer.Body)+len(p) > c.max {
		return execution.Failf(execution.CodeUpstreamError, execution.OriginProvider, "answer is over %d bytes", c.max)
	}
	c.answer.Body = append(c.answer.Body, p...)
	return nil
}

func (c *collector) Usage(execution.Usage) error { return nil }
