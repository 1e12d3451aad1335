package httpapi

import (
	"net/http"

	"iop/packages/go/execution"
	"iop/packages/go/tracing"
)

// trace begins the span of a call, below what its headers name.
func (h *Handler) trace(c *call) {
	at := tracing.FromHeader(c.r.Header)
	c.span = h.cfg.Tracer.Start(at, tracing.Server, method(c.r.Method))
	c.tunnel.Trace = c.span.Within(at)
}

// method is a caller's method as a span shows it: one that HTTP doesn't know may be anything.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "HTTP"
}

// traceFailure shows why a call failed. Of what a caller did wrong the span itself doesn't fail: that is its caller's.
func (c *call) traceFailure(f *execution.Failure, status int) {
	if status >= http.StatusInternalServerError || status == statusUnanswered || c.out.begun {
		c.span.Fail(f.Code.String())
		return
	}
	c.span.Text(tracing.KeyErrorType, f.Code.String())
}

// endTrace ends the span of a call. Of what the caller sent it has nothing: paths are the table's.
func (c *call) endTrace() {
	defer c.span.End()
	if !c.span.Recorded() {
		return
	}
	c.span.Text(tracing.KeyMethod, method(c.r.Method))
	scheme := "http"
	if c.r.TLS != nil {
		scheme = "https"
	}
	c.span.Text(tracing.KeyScheme, scheme)
	if c.out.status != 0 {
		c.span.Number(tracing.KeyStatus, int64(c.out.status))
	}
	if c.endpoint == nil {
		return
	}
	c.span.Name(method(c.r.Method) + " " + c.endpoint.Path)
	c.span.Text(tracing.KeyRoute, c.endpoint.Path)
	if c.pathID == "" {
		c.span.Text(tracing.KeyPath, c.endpoint.Path)
	}
	if id := c.w.Header()["X-Iop-Run-Id"]; len(id) > 0 {
		c.span.Text(tracing.KeyRun, id[0])
	}
	c.span.Text(tracing.KeyPrincipal, c.tunnel.Principal)
	if c.tunnel.Route != nil {
		c.span.Text(tracing.KeyModel, c.tunnel.Route.Model)
	}
}
