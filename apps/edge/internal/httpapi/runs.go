package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"iop/apps/edge/internal/dialect"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// Runs starts and shows normalized runs; *service.Service does.
type Runs interface {
	// SubmitRun returns the run's one outcome, or nil when it stopped following a background run.
	SubmitRun(ctx context.Context, spec *service.RunSpec, sink service.EventSink) *service.Outcome
	// Run returns a run that is live or has ended lately.
	Run(runID string) (service.RunView, bool)
	// Cancel ends a run.
	Cancel(runID string, cause execution.CancelCause) service.CancelResult
}

// runRequest is the body of POST /iop/v1/runs.
type runRequest struct {
	RunID      string
	Adapter    string
	Target     string
	Node       string
	SessionID  string
	Background bool
	Stream     bool
	DeadlineMS int64
	Metadata   map[string]string
	Input      execution.Request
}

// maxDeadline bounds deadline_ms: a day is longer than any provider generates.
const maxDeadline = 24 * time.Hour

// parseRun reads a run request. A refusal names the field.
func parseRun(body []byte) (*runRequest, *refusal) {
	r := &runRequest{}
	bad := dialect.Object("", body, func(name string) any {
		switch name {
		case "run_id":
			return &r.RunID
		case "adapter":
			return &r.Adapter
		case "target":
			return &r.Target
		case "node":
			return &r.Node
		case "session_id":
			return &r.SessionID
		case "background":
			return &r.Background
		case "stream":
			return &r.Stream
		case "deadline_ms":
			return &r.DeadlineMS
		case "metadata":
			return &r.Metadata
		case "messages":
			return (*messageList)(&r.Input.Messages)
		case "tools":
			return (*toolList)(&r.Input.Tools)
		case "tool_choice":
			return (*toolChoice)(&r.Input.ToolChoice)
		case "options":
			return (*options)(&r.Input.Options)
		}
		return nil
	})
	if bad != nil {
		return nil, badField(bad)
	}
	return r, r.check()
}

func (r *runRequest) check() *refusal {
	for _, id := range []struct{ name, value string }{{"run_id", r.RunID}, {"adapter", r.Adapter}, {"node", r.Node}, {"session_id", r.SessionID}} {
		if id.value != "" && !config.ValidID(id.value) {
			return badRequest(id.name, id.name+": must be 1 to 64 letters, digits, dots, dashes and underscores")
		}
	}
	switch {
	case r.Adapter == "":
		return badRequest("adapter", "adapter: name the adapter that is to run this; GET /admin/v1/nodes on the admin listener lists them")
	case r.Target == "" || !validModel(r.Target):
		return badRequest("target", "target: name what the adapter is asked to run, a model as a rule")
	case r.DeadlineMS < 0 || r.DeadlineMS > maxDeadline.Milliseconds():
		return badRequest("deadline_ms", "deadline_ms: must be 0 (none) to 86400000 (a day)")
	case len(r.Metadata) > 16:
		return badRequest("metadata", "metadata: must have at most 16 members")
	}
	for name, value := range r.Metadata {
		if name == "" || len(name) > 64 || len(value) > 512 {
			return badRequest("metadata", "metadata: names must have 1 to 64 bytes and values at most 512")
		}
	}
	r.Input.Target = r.Target
	if err := r.Input.Check(); err != nil {
		return &refusal{failure: execution.AsFailure(err, execution.OriginCaller), status: http.StatusBadRequest}
	}
	return nil
}

// createRun answers POST /iop/v1/runs.
func (h *Handler) createRun(c *call) *refusal {
	b, ref := h.receive(c)
	if ref != nil {
		return ref
	}
	defer b.close()
	text, ref := b.text()
	if ref != nil {
		return ref
	}
	r, ref := parseRun(text)
	if ref != nil {
		return ref
	}
	if ref := h.mayRun(c, r); ref != nil {
		return ref
	}
	spec := &service.RunSpec{RunID: r.RunID, Principal: c.tunnel.Principal, SessionID: r.SessionID, Adapter: r.Adapter,
		Target: r.Target, Node: r.Node, Background: r.Background, Deadline: time.Duration(r.DeadlineMS) * time.Millisecond,
		Metadata: r.Metadata, Input: &r.Input, Trace: c.tunnel.Trace}
	if r.Background && !r.Stream {
		return h.launch(c, spec)
	}
	return h.follow(c, spec, r.Stream)
}

// mayRun refuses what the principal's routes don't lead to: a run without a route is no way past an allow-list.
func (h *Handler) mayRun(c *call, r *runRequest) *refusal {
	if c.principal == nil || len(c.principal.Routes) == 0 {
		return nil
	}
	routes := c.state.Routes()
	for i := range routes {
		route := &routes[i]
		if mayUse(c.principal, route) && h.leads(c.state, route, r) && onNode(c.state, route, r.Node) {
			return nil
		}
	}
	return refuseCode(execution.CodeUnknownAdapter, execution.OriginCaller,
		"no such adapter and target, or they aren't this key's; a route that is bound to nodes needs a node that it allows")
}

// leads reports whether a route may end at the adapter and target of a run. The wildcard leads to what requests for a
// model get by it: never to a model that has a route of its own, and to no name that no adapter lists, which may be
// another spelling of such a one.
func (h *Handler) leads(state *config.State, route *config.Route, r *runRequest) bool {
	if route.Adapter != "" && route.Adapter != r.Adapter {
		return false
	}
	switch {
	case route.Target != "":
		return route.Target == r.Target
	case route.Model != wildcard:
		return route.Model == r.Target
	}
	there := *route
	there.Adapter = r.Adapter
	if r.Node != "" {
		there.Nodes = []string{r.Node}
	}
	_, ref := h.bestTarget(state, found{route: &there}, []string{r.Target})
	return ref == nil && r.Target != wildcard && !taken(state, r.Target)
}

// onNode reports whether a route permits the node that a run names; one that is bound to nodes needs a name.
func onNode(state *config.State, route *config.Route, id string) bool {
	if len(route.Nodes) == 0 && len(route.Labels) == 0 {
		return true
	}
	record := state.Node(id)
	return record != nil && (&Offer{Node: id, Labels: record.Labels, Adapter: route.Adapter}).matches(route)
}

// launch starts a background run and answers at once.
func (h *Handler) launch(c *call, spec *service.RunSpec) *refusal {
	ctx, leave := context.WithCancel(context.WithoutCancel(c.r.Context()))
	leave() // an ended context is the way to start a run and leave
	if o := h.cfg.Runs.SubmitRun(ctx, spec, nil); o != nil && o.Failure != nil {
		return h.runFailed(c, o)
	}
	c.w.Header()["X-Iop-Run-Id"] = []string{spec.RunID}
	c.w.Header().Set("Location", "/iop/v1/runs/"+spec.RunID)
	return h.writeStatus(c, http.StatusAccepted, map[string]any{"run_id": spec.RunID, "background": true, "session_id": spec.SessionID})
}

// follow carries a run's events to the caller, as a stream or as one object.
func (h *Handler) follow(c *call, spec *service.RunSpec, stream bool) *refusal {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.r.Context()))
	defer cancel(nil)
	stop := context.AfterFunc(c.r.Context(), func() { cancel(c.out.gone()) })
	defer stop()
	var o *service.Outcome
	if stream {
		events := &eventStream{out: c.out, spec: spec}
		if o = h.cfg.Runs.SubmitRun(ctx, spec, events); o == nil {
			c.out.abort() // a background run goes on without its caller
		}
		if events.begun || o.OK() {
			return h.streamed(c, events, o)
		}
		return h.runFailed(c, o)
	}
	whole := &wholeRun{out: c.out, body: c.body}
	if o = h.cfg.Runs.SubmitRun(ctx, spec, whole); o == nil {
		c.out.abort()
	}
	c.w.Header()["X-Iop-Run-Id"] = []string{o.RunID}
	if o.Failure != nil {
		return h.runFailed(c, o)
	}
	h.respond(c, http.StatusOK, whole.result(o))
	return nil
}

// streamed ends an event stream with the run's terminal.
func (h *Handler) streamed(c *call, events *eventStream, o *service.Outcome) *refusal {
	if o.Failure != nil {
		c.traceFailure(o.Failure, 0)
	}
	if err := events.terminal(o); err != nil {
		c.out.abort()
	}
	return nil
}

// runFailed answers a run that failed before anything was written. Who drove it has observed it.
func (h *Handler) runFailed(c *call, o *service.Outcome) *refusal {
	c.w.Header()["X-Iop-Run-Id"] = []string{o.RunID}
	h.writeError(c, &refusal{failure: o.Failure, sent: maybeSeen(o.Failure, o.Attempts)})
	return nil
}

// getRun answers GET /iop/v1/runs/{id}. A run of somebody else is as unknown as one that never was.
func (h *Handler) getRun(c *call) *refusal {
	view, ref := h.ownRun(c)
	if ref != nil {
		return ref
	}
	return h.writeStatus(c, http.StatusOK, view)
}

// cancelRun answers POST /iop/v1/runs/{id}/cancel.
func (h *Handler) cancelRun(c *call) *refusal {
	if _, ref := h.ownRun(c); ref != nil {
		return ref
	}
	switch h.cfg.Runs.Cancel(c.pathID, execution.CauseAPI) {
	case service.Cancelling:
		return h.writeStatus(c, http.StatusAccepted, map[string]string{"run_id": c.pathID, "result": "cancelling"})
	case service.AlreadyEnded:
		ref := badRequest("", "the run has ended already")
		ref.status = http.StatusConflict
		return ref
	}
	return unknownRun()
}

func (h *Handler) ownRun(c *call) (service.RunView, *refusal) {
	view, found := h.cfg.Runs.Run(c.pathID)
	if !found || c.principal != nil && view.Principal != c.principal.ID {
		return view, unknownRun()
	}
	return view, nil
}

func unknownRun() *refusal {
	return notFound("no such run, or it isn't this key's; only those that ended lately are remembered")
}

// writeStatus answers a request that no run carried.
func (h *Handler) writeStatus(c *call, status int, v any) *refusal {
	h.observe(c, nil, status)
	h.respond(c, status, v)
	return nil
}

// respond writes v as JSON.
func (h *Handler) respond(c *call, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // what is written here are our own plain types
		panic(err)
	}
	c.write(status, append(body, '\n'))
}

// encodeRunError is the error shape of the runs API.
func encodeRunError(_ int, f *execution.Failure, field string) []byte {
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Origin  string `json:"origin"`
			Param   string `json:"param,omitempty"`
		} `json:"error"`
	}
	body.Error.Code, body.Error.Message = f.Code.String(), f.Text
	body.Error.Origin, body.Error.Param = f.Origin.String(), field
	text, err := json.Marshal(body)
	if err != nil { // strings always encode
		return []byte(`{"error":{"code":"internal","message":"internal error","origin":"edge"}}`)
	}
	return append(text, '\n')
}
