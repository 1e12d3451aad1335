package upstream

import (
	"context"
	"net/http"
	"testing"

	"iop/packages/go/execution"
	"iop/packages/go/tracing"
)

// A provider is told where the request stands now, in place of where the caller stood.
func TestTraced(t *testing.T) {
	const callers, ours = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
	req := &execution.TunnelRequest{Header: http.Header{"Traceparent": {callers}, "Tracestate": {"a=1"}, "Accept": {"x"}}}
	if got := traced(context.Background(), req); got != req {
		t.Error("a request without a trace is another one")
	}
	got := traced(tracing.With(context.Background(), tracing.Parse(ours, "")), req)
	if h := got.Header; h.Get("Traceparent") != ours || h.Get("Accept") != "x" || len(h) != 2 {
		t.Errorf("goes out with %v", h)
	}
	if req.Header.Get("Traceparent") != callers || req.Header.Get("Tracestate") != "a=1" {
		t.Errorf("the given request was changed: %v", req.Header)
	}
	if got := traced(tracing.With(context.Background(), tracing.Parse(ours, "b=2")), &execution.TunnelRequest{}); got.Header.Get("Tracestate") != "b=2" {
		t.Errorf("a request without headers goes out with %v", got.Header)
	}
}
