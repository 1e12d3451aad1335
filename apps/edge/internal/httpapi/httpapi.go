// Package httpapi is the Edge's caller side: the table of HTTP endpoints, who may use them, the OpenAI, Anthropic, Ollama
// and runs surfaces, and how outcomes become responses in their dialects.
//
// It owns everything between a caller's socket and service.SubmitProviderTunnel: the check of the raw request target,
// API keys, reading request bodies before admission, finding the model in them, whether a request has to be read as a
// run, header rules in both directions, and the writes of a response with their limit. It must not choose nodes or count
// places (admission does), know frames or links (packages/go/transport does), or know what a dialect's bodies look like
// beyond the model that is asked for (dialect does). No secret gets into an error, a header or a log line, and of a body
// nothing but the names of members that are at fault.
package httpapi

import (
	"context"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/tracing"
)

// Tunnels carries requests to nodes; *service.Service does.
type Tunnels interface {
	// SubmitProviderTunnel returns the run's one outcome, after it has observed it.
	SubmitProviderTunnel(ctx context.Context, t *service.Tunnel, sink service.Sink) *service.Outcome
}

// Offer is what one adapter of one node is known to serve. A node that lost its link a moment ago still counts: a list
// that flickers with each reconnect makes clients forget what they use.
type Offer struct {
	Node    string
	Labels  map[string]string
	Adapter string
	Targets []string          // configured; when there are any, nothing else is served
	Models  []execution.Model // what the provider named; none = it doesn't tell, and may serve anything
}

// Config is what a Handler is built from.
type Config struct {
	// State returns the configuration in force; called once for each request.
	State func() *config.State
	// Tunnels carries what was admitted here.
	Tunnels Tunnels
	// Runs starts and shows normalized runs.
	Runs Runs
	// Commands asks nodes what their Ollamas say of their models. Nil = what the nodes report has to do.
	Commands Commands
	// Offers returns what the nodes are known to serve, for the route "*". Nil = nothing is known.
	Offers func() []Offer
	// Observers are told of each request that ended without reaching Tunnels, refused ones above all; Tunnels tells of
	// the others.
	Observers []service.Observer
	// Tracer shows each request, in its caller's trace if it names one; nil = tracing is off.
	Tracer *tracing.Tracer
	// Log gets one line at info for each request that ended here.
	Log zerolog.Logger

	// Limits bound bodies and heads; zero fields take the defaults of package config.
	Limits config.Limits
	// Origins are the web pages that may call from a browser, "*" = all.
	Origins []string
	// WriteIdle bounds one write to a caller. Default 60 s.
	WriteIdle time.Duration
	// BodyIdle is how long a request body may stand still. Default 60 s.
	BodyIdle time.Duration
	// BodyRate is how many bytes of a request body must come each second, on average and once 30 s have passed.
	// Default 1 KiB.
	BodyRate int64
	// TempDir takes large request bodies, as unlinked files. Default: the system's.
	TempDir string
}

// Handler serves the endpoints of [Endpoints]. Build it with [New].
type Handler struct {
	cfg    Config
	table  table
	bodies *bodies
	origin origins
	mixed  mixture
	lists  lists
	since  time.Time    // when it was built
	inWork atomic.Int64 // requests
}

// New returns the handler of the caller listener. It starts nothing.
func New(cfg Config) *Handler {
	if cfg.WriteIdle == 0 {
		cfg.WriteIdle = time.Minute
	}
	if cfg.BodyIdle == 0 {
		cfg.BodyIdle = time.Minute
	}
	cfg.BodyRate = orDefault(cfg.BodyRate, 1<<10)
	if cfg.Offers == nil {
		cfg.Offers = func() []Offer { return nil }
	}
	limits := &cfg.Limits
	limits.Body = orDefault(limits.Body, 64<<20)
	limits.BodyInMemory = orDefault(limits.BodyInMemory, 256<<10)
	limits.BodyMemory = orDefault(limits.BodyMemory, 512<<20)
	limits.Header = orDefault(limits.Header, 32<<10)
	limits.Connections = int(orDefault(int64(limits.Connections), 4096))
	return &Handler{
		cfg:    cfg,
		table:  newTable(Endpoints()),
		bodies: newBodies(cfg),
		origin: newOrigins(cfg.Origins),
		lists:  lists{commands: cfg.Commands, keep: listFor, known: map[listKey]*list{}},
		since:  time.Now(),
	}
}

func orDefault(n, def int64) int64 {
	if n == 0 {
		return def
	}
	return n
}

// BodyBytes returns how many bytes of request bodies are held now, in memory and in files.
func (h *Handler) BodyBytes() int64 { return h.bodies.used.Load() }

// call is one request on its way through the handler.
type call struct {
	w       http.ResponseWriter
	r       *http.Request
	out     *sink
	started time.Time
	id      string // X-Request-Id
	span    *tracing.Span

	state     *config.State
	principal *config.Principal // nil = anonymous
	tunnel    service.Tunnel    // filled as the request is understood
	body      *body             // the whole body, once it was read
	endpoint  *Endpoint
	encode    encoder // the error shape of the path's dialect, nil while it isn't known
	pathID    string  // what stands for {id} in the endpoint's path

	// patience is how long net/http may wait for what is unread of the request body when the response is written.
	patience time.Duration
}

// unreadPatience lets a refused caller end its upload, so that it reads why; without a limit net/http would wait for
// the rest of a body that never comes, and so would the response.
const unreadPatience = 5 * time.Second

// write sends a response in JSON that the edge has made itself.
func (c *call) write(status int, body []byte) { c.respond(status, "application/json", body) }

// respond sends a response that the edge has made itself.
func (c *call) respond(status int, contentType string, body []byte) {
	header := c.w.Header()
	if body != nil {
		header.Set("Content-Type", contentType)
		header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	if c.patience > 0 {
		_ = c.out.rc.SetReadDeadline(time.Now().Add(c.patience))
	}
	c.out.arm()
	c.out.status = status
	c.w.WriteHeader(status)
	// A caller that left before its answer is nobody's failure.
	_, _ = c.w.Write(body)
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{w: w, r: r, started: time.Now(), id: requestID(r.Header.Get("X-Request-Id")),
		patience: unreadPatience}
	c.out = newSink(w, r, h.cfg.WriteIdle)
	w.Header()["X-Request-Id"] = []string{c.id}
	h.trace(c)
	defer c.endTrace()
	defer h.recovered(c)
	defer h.inWork.Add(-1)
	if h.inWork.Add(1) > int64(h.cfg.Limits.Connections) {
		h.refuse(c, failed(crowded()))
		return
	}
	if ref := h.serve(c); ref != nil {
		h.refuse(c, ref)
	}
}

// serve checks a request in the order that costs least and tells a stranger least, and hands it to its endpoint.
func (h *Handler) serve(c *call) *refusal {
	path, query, ref := splitTarget(c.r.RequestURI)
	if ref != nil {
		return ref
	}
	c.state = h.cfg.State()
	if c.state.Anonymous() {
		if ref := checkHost(c.r.Host); ref != nil {
			return ref
		}
	}
	c.tunnel.Method, c.tunnel.Path, c.tunnel.Query = c.r.Method, path, query
	if ref := h.table.find(c, path); ref != nil {
		if h.preflight(c, ref) {
			h.observe(c, nil, http.StatusNoContent)
			return nil
		}
		return ref
	}
	h.origin.allow(c.w.Header(), c.r.Header.Get("Origin"))
	if c.endpoint.Access == AccessPrincipal {
		if ref := h.authenticate(c); ref != nil {
			return ref
		}
	}
	return c.endpoint.handle(h, c)
}

// refuse ends a request that no node will see.
func (h *Handler) refuse(c *call, ref *refusal) {
	h.observe(c, ref, ref.status)
	h.writeError(c, ref)
}

// observe tells the observers of a request that ended here, and writes its line.
func (h *Handler) observe(c *call, ref *refusal, status int) {
	t := &c.tunnel
	o := service.Outcome{RunID: t.RunID, Kind: execution.KindTunnel, Principal: t.Principal, Route: t.Route, Model: t.Model,
		Target: t.Target, Status: status, Duration: time.Since(c.started)}
	if c.tunnel.Body != nil {
		o.BytesIn = c.tunnel.Body.Size()
	}
	line, code := h.cfg.Log.Info(), execution.CodeOK
	if ref != nil {
		o.Failure, code = ref.failure, ref.failure.Code
		line = line.Stringer("origin", o.Failure.Origin).Str("error", o.Failure.Text).AnErr("cause", ref.cause)
	}
	line.Str("request_id", c.id).Str("principal", c.tunnel.Principal).Str("method", c.r.Method).
		Str("path", shorten(c.tunnel.Path)).Stringer("code", code).Int("status", status).
		Int64("duration_ms", o.Duration.Milliseconds()).Int64("bytes_in", o.BytesIn).Msg("request ended")
	for _, observer := range h.cfg.Observers {
		observer.Ended(&o)
	}
}

// recovered turns a panic into a 500, or into an abort once a response has begun. The value isn't logged: it may hold
// what a caller sent.
func (h *Handler) recovered(c *call) {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler {
		panic(v)
	}
	h.cfg.Log.Error().Str("request_id", c.id).Str("run_id", c.tunnel.RunID).Type("panic", v).
		Bytes("stack", debug.Stack()).Msg("panic in a request")
	ref := &refusal{failure: execution.Failf(execution.CodeInternal, execution.OriginEdge, "internal error")}
	h.observe(c, ref, http.StatusInternalServerError)
	if c.out.begun {
		c.traceFailure(ref.failure, 0)
		c.out.abort()
	}
	h.writeError(c, ref)
}

// shorten keeps a path that no endpoint has from filling the log.
func shorten(path string) string {
	if len(path) > 128 {
		return path[:128]
	}
	return path
}
