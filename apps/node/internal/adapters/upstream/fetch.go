package upstream

import (
	"bytes"
	"context"
	"io"
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
// may have a query. An answer over max bytes is an error, and so is an end that [Client.Tunnel] would call a failure.
// It takes a connection of its own: on a kept one the answer to a probe could be lost to the provider's close, and a
// provider would look down that isn't.
func (c *Client) Fetch(ctx context.Context, path string, max int) (*Answer, error) {
	return c.ask(ctx, &execution.TunnelRequest{Method: http.MethodGet, Header: c.header}, path, max)
}

// Ask is [Client.Fetch] by POST with a JSON body, for what a provider tells of itself in no other way.
func (c *Client) Ask(ctx context.Context, path string, body []byte, max int) (*Answer, error) {
	header := c.header.Clone()
	header.Set("Content-Type", "application/json")
	return c.ask(ctx, &execution.TunnelRequest{
		Method: http.MethodPost, Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}, path, max)
}

func (c *Client) ask(ctx context.Context, req *execution.TunnelRequest, path string, max int) (*Answer, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	prefix, rest := c.base.Root(), path
	if strings.HasPrefix(path, "/v1/") {
		prefix, rest = c.base.Join(path)
	}
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
