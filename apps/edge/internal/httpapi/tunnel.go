package httpapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"iop/apps/edge/internal/dialect"
	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
)

// forward carries a request of a provider's API to a node: as it is where the adapter that gets it carries the path, else
// as the run that it amounts to.
func (h *Handler) forward(c *call) *refusal {
	// The path that goes out is the table's own; what the caller wrote was equal to it.
	c.tunnel.Path = c.endpoint.Path
	if ref := h.prepare(c); ref != nil {
		return ref
	}
	b, ref := h.receive(c)
	if ref != nil {
		return ref
	}
	defer b.close()
	q, err := scan(b)
	if err != nil {
		return scanRefusal(err)
	}
	if q.background && c.endpoint.Path == responsesPath {
		// The provider would go on behind an answer that has ended: without a place, whatever the caller's limits, and
		// for a result that can't be fetched here.
		return badRequest("background", "background: isn't supported here; leave it out, and stream a response that takes long")
	}
	f, ref := h.resolve(c, q.model)
	if ref != nil {
		return ref
	}
	c.tunnel.Model, c.tunnel.Route, c.tunnel.Target = f.model, f.route, f.target
	run, ref := h.alternative(c, b, f)
	switch {
	case ref != nil:
		return ref
	case run != nil && run.atOnce != "":
		return h.answerAtOnce(c, run)
	}
	if f.target != q.model {
		c.tunnel.Body = &aliased{of: b, start: q.start, end: q.end, value: quote(f.target)}
	}
	return h.submit(c, run)
}

// receive reads the body of a call. The caller closes it.
func (h *Handler) receive(c *call) (*body, *refusal) {
	b, ref := h.bodies.read(c.w, c.r)
	if ref != nil {
		if ref.failure.Code == execution.CodeClientSlow {
			c.patience = 0 // it was waited for long enough; the deadline has passed and stays
		}
		return nil, ref
	}
	c.patience = 0
	c.tunnel.Body, c.body = b, b
	return b, nil
}

// alternative reads a request as the run that it amounts to, for the adapters that don't carry its path; nil when there
// are none. What a run can't carry is refused, unless an adapter could take the request as it is: then only those do.
func (h *Handler) alternative(c *call, b *body, f found) (*rendering, *refusal) {
	carry, others := h.ways(c.state, f, c.endpoint.Path)
	api := c.endpoint.api
	switch {
	case !others:
		return nil, nil
	case api == nil && carry:
		return nil, nil
	case api == nil:
		return nil, badRequest("model", fmt.Sprintf(
			"no adapter of the route %q that has this model carries %s; ask for a model that an adapter of this API serves", f.route.Model, c.endpoint.Path))
	}
	run, ref := h.parse(b, api, f.target)
	if run != nil && run.request.AtOnce != "" && carry {
		run = nil // an adapter that knows what is meant
	}
	if ref != nil && carry {
		ref = nil
	}
	if run == nil {
		return nil, ref
	}
	run.out, run.atOnce, run.body = c.out, run.request.AtOnce, b
	run.answer = api.Answer(run.request, dialect.About{RunID: c.tunnel.RunID, Model: run.request.Model, Created: c.started})
	c.tunnel.Run = &service.Alternative{Input: &run.request.Input, Events: run}
	return run, nil
}

// parse reads a request as a run of a target.
func (h *Handler) parse(b *body, api dialect.Endpoint, target string) (*rendering, *refusal) {
	text, ref := b.text()
	if ref != nil {
		return nil, ref
	}
	request, bad := api.Parse(text)
	if bad != nil {
		return nil, badField(bad)
	}
	if request.AtOnce == "" {
		request.Input.Target = target
		if err := request.Input.Check(); err != nil {
			return nil, &refusal{failure: execution.AsFailure(err, execution.OriginCaller), status: http.StatusBadRequest}
		}
	}
	return &rendering{request: request}, nil
}

// prepare takes from the head what the tunnel needs, before a body is read for nothing.
func (h *Handler) prepare(c *call) *refusal {
	c.tunnel.RunID = "run-" + rand.Text()
	if values := c.r.Header["X-Iop-Session"]; len(values) > 0 {
		if len(values) > 1 || !validSession(values[0]) {
			return badRequest("", "header X-IOP-Session: one value of at most 64 letters, digits, dots, dashes and underscores")
		}
		c.tunnel.SessionID = values[0]
	}
	c.tunnel.Header = forwardHeader(c.r.Header)
	if headerBytes(c.tunnel.Header) > h.cfg.Limits.Header {
		ref := badRequest("", "request head: longer than this edge's limit (limits.header)")
		ref.status = http.StatusRequestHeaderFieldsTooLarge
		return ref
	}
	return nil
}

func scanRefusal(err error) *refusal {
	var bad *scanError
	if errors.As(err, &bad) {
		return badRequest(bad.param, bad.text)
	}
	ref := refuseCode(execution.CodeInternal, execution.OriginEdge, "the request body couldn't be read again")
	ref.cause = err
	return ref
}

// quote spells a target as a JSON string without changing more characters than JSON demands.
func quote(text string) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(text); err != nil { // strings always encode
		return []byte(`""`)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'})
}

// lastWord is how long a run whose caller has left with its whole answer may take to end. Without a limit it would never
// end, and keep its place, at a node that doesn't say how it did.
const lastWord = 10 * time.Second

// sleep waits for d; false = ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// submit runs the tunnel and ends the response by its outcome. Run is what it may become, nil = nothing else.
func (h *Handler) submit(c *call, run *rendering) *refusal {
	// The run's context ends with the caller's, but says more: why.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.r.Context()))
	defer cancel(nil)
	stop := context.AfterFunc(c.r.Context(), func() {
		// Who has the whole answer may leave. How the run ended and what it used is behind it, on its way.
		if c.out.whole.Load() && !sleep(ctx, lastWord) {
			return
		}
		cancel(c.out.gone())
	})
	defer stop()
	c.w.Header()["X-Iop-Run-Id"] = []string{c.tunnel.RunID}
	h.cfg.Log.Debug().Str("request_id", c.id).Str("run_id", c.tunnel.RunID).Msg("run submitted") // the run's line has no request_id
	o := h.cfg.Tunnels.SubmitProviderTunnel(ctx, &c.tunnel, c.out)
	f := o.Failure
	if run != nil && o.Kind == execution.KindRun {
		f = run.finish(o)
	}
	if f == nil {
		return nil
	}
	if c.out.begun {
		c.traceFailure(f, 0)
		c.out.abort()
	}
	// The run was observed by who drove it: only the response is left to write.
	ref := &refusal{failure: f, sent: maybeSeen(f, o.Attempts)}
	if run != nil && f.Code == execution.CodeBadRequest {
		run.inItsWords(ref)
	}
	h.writeError(c, ref)
	return nil
}
