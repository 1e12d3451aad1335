package httpapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// openAI carries a POST of the OpenAI surface to a node.
func (h *Handler) openAI(c *call) *refusal {
	// The path that goes out is the table's own; what the caller wrote was equal to it.
	c.tunnel.Path = c.endpoint.Path
	if ref := h.prepare(c); ref != nil {
		return ref
	}
	b, ref := h.bodies.read(c.w, c.r)
	if ref != nil {
		if ref.failure.Code == execution.CodeClientSlow {
			c.patience = 0 // it was waited for long enough; the deadline has passed and stays
		}
		return ref
	}
	c.patience = 0
	defer b.close()
	c.tunnel.Body = b
	q, err := scan(b)
	if err != nil {
		return scanRefusal(err)
	}
	route, target, ref := h.resolve(c, q.model)
	if ref != nil {
		return ref
	}
	c.tunnel.Model, c.tunnel.Route, c.tunnel.Target = q.model, route, target
	if target != q.model {
		c.tunnel.Body = &aliased{of: b, start: q.start, end: q.end, value: quote(target)}
	}
	return h.submit(c)
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

// submit runs the tunnel and ends the response by its outcome.
func (h *Handler) submit(c *call) *refusal {
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
	if o.Failure == nil {
		return nil
	}
	if c.out.begun {
		c.out.abort()
	}
	// The run was observed by who drove it: only the response is left to write.
	h.writeError(c, &refusal{failure: o.Failure, sent: maybeSeen(o.Failure, o.Attempts)})
	return nil
}

// resolve finds the route of a model for the principal of a call. A model that isn't the principal's is as unknown as
// one that doesn't exist.
func (h *Handler) resolve(c *call, model string) (*config.Route, string, *refusal) {
	route := c.state.Route(model)
	if route == nil || model == wildcard || !mayUse(c.principal, route) {
		return nil, "", unknownModel()
	}
	target := route.Target
	if target == "" {
		target = model
	}
	offered, known := h.offered(c.state, route, target)
	switch {
	case offered:
	case route.Model == wildcard && known != nobody:
		return nil, "", unknownModel()
	case route.Model != wildcard && known == everybody:
		return nil, "", notOffered(route, target)
	}
	return route, target, nil
}

// notOffered says what is wrong with a route whose adapters are all known and all lack its target: waiting for a place
// would end in no_node and tell nothing.
func notOffered(route *config.Route, target string) *refusal {
	ref := refuseCode(execution.CodeUnknownModel, execution.OriginEdge, fmt.Sprintf(
		"the route %q leads to the target %q, which none of its adapters lists; load the model, or name it in the adapter's targets if the provider serves more than it lists",
		route.Model, target))
	ref.param = "model"
	return ref
}

func unknownModel() *refusal {
	ref := refuseCode(execution.CodeUnknownModel, execution.OriginCaller,
		"no such model, or it isn't this key's; GET /v1/models lists those that are")
	ref.param = "model"
	return ref
}

// wildcard is the model name of a route that takes every model under its own name.
const wildcard = "*"

// heard is how many of a route's candidates have told what they serve.
type heard uint8

const (
	nobody heard = iota // the edge has just started: waiting for a node tells
	somebody
	everybody
)

// offered reports whether a candidate of the route serves target, now or when it comes back, and otherwise how much
// that says: of a wildcard route no candidate may serve a model that somebody mistyped; of any other the operator said
// that one does, so that a candidate which hasn't been heard is waited for.
func (h *Handler) offered(state *config.State, route *config.Route, target string) (offered bool, known heard) {
	told := map[[2]string]bool{}
	for _, o := range h.cfg.Offers() {
		if !o.matches(route) {
			continue
		}
		if o.serves(target) {
			return true, somebody
		}
		told[[2]string{o.Node, o.Adapter}] = true
	}
	if len(told) == 0 {
		return false, nobody
	}
	for i := range state.Edge.Nodes {
		n := &state.Edge.Nodes[i]
		for j := range n.Adapters {
			candidate := Offer{Node: n.ID, Labels: n.Labels, Adapter: n.Adapters[j].Name}
			if n.Enabled && candidate.matches(route) && !told[[2]string{n.ID, candidate.Adapter}] {
				return false, somebody
			}
		}
	}
	return false, everybody
}

// matches reports whether the adapter is a candidate of a route.
func (o *Offer) matches(route *config.Route) bool {
	if route.Adapter != "" && route.Adapter != o.Adapter {
		return false
	}
	if len(route.Nodes) > 0 && !slices.Contains(route.Nodes, o.Node) {
		return false
	}
	for name, value := range route.Labels {
		if o.Labels[name] != value {
			return false
		}
	}
	return true
}

func (o *Offer) serves(target string) bool {
	if len(o.Targets) > 0 {
		return slices.Contains(o.Targets, target)
	}
	return len(o.Models) == 0 || slices.ContainsFunc(o.Models, func(m execution.Model) bool { return m.Name == target })
}

var _ service.Body = (*aliased)(nil)
