// Package admin is the Edge's administration side: health, readiness, metrics, what people want to see of nodes, runs, the
// queue and what happens, and the few things that they may do: cancel a run, ask a node, keep work from it, take a place
// back.
//
// It owns its table of endpoints, the checks that keep web pages and strangers out, and the metrics. It gets read-only
// snapshot functions, the bus, and one function for each thing that it does; it must not reach into the registry, the
// scheduler or a run, and it shows no secret and nothing of what was asked or answered.
package admin

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// Config is what the handler is built from.
type Config struct {
	// Listen is the address of the listener, as host:port. On loopback no key is asked for, and only loopback names are
	// answered; elsewhere it is the other way round.
	Listen string
	// State returns the configuration in force, for the admin keys.
	State func() *config.State
	// NotReady returns why the Edge takes no work, for people; nothing = it does.
	NotReady func() []string
	// Nodes returns every configured node.
	Nodes func() []node.NodeView
	// Queue returns places and waiters.
	Queue func() admission.Snapshot
	// Runs returns the live runs and tunnels and those that ended last, the newest first.
	Runs func() []service.RunView
	// Explain returns one of them with its steps.
	Explain func(id string) (service.Explanation, bool)
	// Events is what GET /admin/v1/events follows.
	Events *events.Bus
	// Find says where a request of a principal (nil = one that may use every route) for a model goes, and why callers are
	// refused, nil = they aren't. The route is nil when there is none.
	Find func(s *config.State, p *config.Principal, model string) (route *config.Route, target string, refused *execution.Failure)
	// AsRun reports whether a request for a path can be served by adapters that don't carry it.
	AsRun func(path string) bool
	// Steer is what may be done.
	Steer Steering
	// Metrics are what GET /metrics shows.
	Metrics *Metrics
	// Log gets a line for each refused request, and for each that does something.
	Log zerolog.Logger
}

// Steering is what operators may do.
type Steering struct {
	// Cancel ends a run or tunnel, as its caller could.
	Cancel func(id string) service.CancelResult
	// Command asks a node.
	Command func(ctx context.Context, c *service.Command) *service.CommandResult
	// SetDrained keeps new work from a node, or doesn't any more. False: no such node is configured.
	SetDrained func(nodeID string, on bool) bool
	// Release takes back what a run holds at a place.
	Release func(at admission.Place, runID string, force bool) admission.Released
}

// Access says who may use an endpoint.
type Access uint8

// The kinds of access. The zero value is none of them, so that an endpoint can't lack one.
const (
	// AccessOpen is for everyone who reaches the listener: probes have no keys.
	AccessOpen Access = 1
	// AccessKey needs an admin key, unless the listener is on loopback.
	AccessKey Access = 2
)

// Endpoint is one row of the table. HEAD is served where GET is.
type Endpoint struct {
	Method string
	Path   string // with at most one {id}, which is what config.ValidID lets through
	Access Access

	handle func(*handler, http.ResponseWriter, *http.Request)
}

// Endpoints returns the whole table.
func Endpoints() []Endpoint {
	return []Endpoint{
		{http.MethodGet, "/healthz", AccessOpen, (*handler).health},
		{http.MethodGet, "/readyz", AccessOpen, (*handler).ready},
		{http.MethodGet, "/metrics", AccessKey, (*handler).metrics},
		{http.MethodGet, "/admin/v1/nodes", AccessKey, (*handler).nodes},
		{http.MethodPost, "/admin/v1/nodes/{id}/commands", AccessKey, (*handler).command},
		{http.MethodPost, "/admin/v1/nodes/{id}/drain", AccessKey, (*handler).drain},
		{http.MethodGet, "/admin/v1/queue", AccessKey, (*handler).queue},
		{http.MethodPost, "/admin/v1/places/release", AccessKey, (*handler).releasePlace},
		{http.MethodGet, "/admin/v1/why", AccessKey, (*handler).why},
		{http.MethodGet, "/admin/v1/events", AccessKey, (*handler).events},
		{http.MethodGet, "/admin/v1/runs", AccessKey, (*handler).runs},
		{http.MethodGet, "/admin/v1/runs/{id}", AccessKey, (*handler).run},
		{http.MethodPost, "/admin/v1/runs/{id}/cancel", AccessKey, (*handler).cancelRun},
	}
}

type handler struct {
	cfg      Config
	loopback bool
	table    map[string]Endpoint
	epoch    string // names this process in the ids of events

	followers atomic.Int32
}

// New returns the handler of the admin listener. It starts nothing.
func New(cfg Config) http.Handler {
	h := &handler{cfg: cfg, loopback: config.Loopback(cfg.Listen), table: map[string]Endpoint{}, epoch: rand.Text()[:8]}
	for _, e := range Endpoints() {
		h.table[e.Path] = e
	}
	return h
}

// NewServer returns a server for the handler, with limits that fit short answers. It starts nothing.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	// The raw target, as everywhere: what needs interpretation isn't ours.
	e, id, found := h.find(r.URL.EscapedPath())
	r.SetPathValue("id", id)
	if refused := h.check(r, e, found); refused != nil {
		h.refuse(w, r, refused)
		return
	}
	e.handle(h, w, r)
}

// find returns the row of a path, and what stands for {id} in it.
func (h *handler) find(path string) (e Endpoint, id string, found bool) {
	if e, found = h.table[path]; found {
		return e, "", true
	}
	for _, e := range h.table {
		before, after, pattern := strings.Cut(e.Path, "{id}")
		if !pattern || len(path) <= len(before)+len(after) || !strings.HasPrefix(path, before) || !strings.HasSuffix(path, after) {
			continue
		}
		if id := path[len(before) : len(path)-len(after)]; config.ValidID(id) {
			return e, id, true
		}
	}
	return Endpoint{}, "", false
}

func (h *handler) health(w http.ResponseWriter, _ *http.Request) {
	h.write(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readiness is the answer of /readyz.
type readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

func (h *handler) ready(w http.ResponseWriter, _ *http.Request) {
	answer := readiness{Reasons: h.cfg.NotReady()}
	status := http.StatusServiceUnavailable
	if len(answer.Reasons) == 0 {
		status, answer = http.StatusOK, readiness{Ready: true, Reasons: []string{}}
	}
	h.write(w, status, answer)
}

func (h *handler) metrics(w http.ResponseWriter, r *http.Request) { h.cfg.Metrics.serve(w, r) }

func (h *handler) nodes(w http.ResponseWriter, _ *http.Request) {
	nodes := h.cfg.Nodes()
	if nodes == nil {
		nodes = []node.NodeView{}
	}
	h.write(w, http.StatusOK, map[string]any{"nodes": nodes})
}

// queueView is the answer of /admin/v1/queue.
type queueView struct {
	Draining bool        `json:"draining"`
	Queued   int         `json:"queued"`
	Sets     []setView   `json:"sets"`
	Places   []placeView `json:"places"`
}

type setView struct {
	Set        string `json:"set"`
	Queued     int    `json:"queued"`
	Candidates int    `json:"candidates"`
}

type placeView struct {
	Node        string `json:"node"`
	Adapter     string `json:"adapter"`
	Generation  uint64 `json:"generation"`
	Capacity    int    `json:"capacity"`
	InFlight    int    `json:"in_flight"`
	Unconfirmed int    `json:"unconfirmed"`
	Adopted     int    `json:"adopted"`
	Candidate   bool   `json:"candidate"`
	Saturated   bool   `json:"saturated"`

	Broken *brokenView `json:"broken"` // null = it isn't
}

// brokenView says why an adapter is taken out for a while.
type brokenView struct {
	Failures int       `json:"failures"` // in a row
	Why      string    `json:"why"`
	Until    time.Time `json:"until"`  // when one request may try
	Trying   bool      `json:"trying"` // one does now
}

func (h *handler) queue(w http.ResponseWriter, _ *http.Request) {
	snap := h.cfg.Queue()
	view := queueView{Draining: snap.Draining, Queued: snap.Queued,
		Sets: make([]setView, len(snap.Sets)), Places: make([]placeView, len(snap.Places))}
	for i, s := range snap.Sets {
		view.Sets[i] = setView{Set: s.Set, Queued: s.Queued, Candidates: s.Candidates}
	}
	for i, p := range snap.Places {
		view.Places[i] = placeView{Node: p.Node, Adapter: p.Adapter, Generation: p.Generation, Capacity: p.Capacity,
			InFlight: p.InFlight, Unconfirmed: p.Unconfirmed, Adopted: p.Adopted, Candidate: p.Candidate, Saturated: p.Saturated}
		if b := p.Broken; b != nil {
			view.Places[i].Broken = &brokenView{Failures: b.Failures, Why: b.Why, Until: b.Until, Trying: b.Trying}
		}
	}
	h.write(w, http.StatusOK, view)
}

func (h *handler) write(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":{"message":"internal error","code":"internal"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// Whoever asked may be gone already; there is nobody else to tell.
	_, _ = w.Write(append(body, '\n'))
}
