package upstream

import (
	"context"
	"maps"
	"net/http"

	"iop/packages/go/execution"
	"iop/packages/go/tracing"
)

// traced returns the request as it goes out where ctx says at which place in a trace this happens: it names that place
// and not the caller's. The given one isn't changed.
func traced(ctx context.Context, req *execution.TunnelRequest) *execution.TunnelRequest {
	at := tracing.From(ctx)
	if !at.Valid() {
		return req
	}
	own := *req
	if own.Header = maps.Clone(req.Header); own.Header == nil {
		own.Header = http.Header{}
	}
	at.Put(own.Header)
	return &own
}
