// Package admin is the Edge's administration side: health, readiness, metrics, what people want to see of nodes, runs, the
// queue and what happens, and the few things that they may do: cancel a run, ask a node, keep work from it, take a place
// back, stop a provider's key.
//
// It owns its table of endpoints, the checks that keep web pages and strangers out, and the metrics. It gets read-only
// snapshot functions, the bus, and one function for each thing that it does; it must not reach into the registry, the
// scheduler or a run, and it shows no secret and nothing of what was asked or answered.
package admin

import (
	"cmp"
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
	// Version is what the Edge calls itself; "" is "dev".
	Version string
	// NotReady returns why the Edge takes no work, for people; nothing = it does.
	NotReady func() []string
	// Warnings returns what deserves attention though the Edge takes work, for people; nil = there is no such source.
	Warnings func() []string
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
	// Slots are the providers' keys, nil = there are none.
	Slots *Slots
	// Usage sums up the ledger between two days, both included, told apart by some of day, principal, model and node; nil =
	// there is none.
	Usage func(ctx context.Context, from, to string, by []string) ([]UsageView, error)
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
	// AccessPage is AccessOpen, also for who follows a link from another web page.
	AccessPage Access = 3
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
	return append(consoleEndpoints(), []Endpoint{
		{http.MethodGet, "/healthz", AccessOpen, (*handler).health},
		{http.MethodGet, "/readyz", AccessOpen, (*handler).ready},
		{http.MethodGet, "/metrics", AccessKey, (*handler).metrics},
		{http.MethodGet, "/admin/v1/snapshot", AccessKey, (*handler).snapshot},
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
		{http.MethodGet, "/admin/v1/slots", AccessKey, (*handler).slots},
		{http.MethodPost, "/admin/v1/slots/{id}/refresh", AccessKey, (*handler).refreshSlot},
		{http.MethodPost, "/admin/v1/slots/{id}/disable", AccessKey, (*handler).disableSlot},
		{http.MethodPost, "/admin/v1/slots/{id}/enable", AccessKey, (*handler).enableSlot},
		{http.MethodPost, "/admin/v1/slots/{id}/revoke", AccessKey, (*handler).revokeSlot},
		{http.MethodGet, "/admin/v1/usage", AccessKey, (*handler).usage},
		{http.MethodGet, "/admin/v1/lease-keys", AccessKey, (*handler).leaseKeys},
		{http.MethodPost, "/admin/v1/lease-keys/rotate", AccessKey, (*handler).rotateLeaseKey},
		{http.MethodPost, "/admin/v1/lease-keys/{id}/drop", AccessKey, (*handler).dropLeaseKey},
	}...)
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
	cfg.Version = cmp.Or(cfg.Version, "dev")
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
	protect(w.Header())
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
	// Warnings don't make it unready: they are what will, or what isn't as it should be.
	Warnings []string `json:"warnings,omitempty"`
}

func (h *handler) ready(w http.ResponseWriter, _ *http.Request) {
	answer := readiness{Reasons: h.cfg.NotReady()}
	if h.cfg.Warnings != nil {
		answer.Warnings = h.cfg.Warnings()
	}
	status := http.StatusServiceUnavailable
	if len(answer.Reasons) == 0 {
		status, answer.Ready, answer.Reasons = http.StatusOK, true, []string{}
	}
	h.write(w, status, answer)
}

func (h *handler) metrics(w http.ResponseWriter, r *http.Request) { h.cfg.Metrics.serve(w, r) }

func (h *handler) nodes(w http.ResponseWriter, _ *http.Request) {
	h.write(w, http.StatusOK, map[string]any{"nodes": h.nodeViews()})
}

func (h *handler) nodeViews() []node.NodeView {
	if nodes := h.cfg.Nodes(); nodes != nil {
		return nodes
	}
	return []node.NodeView{}
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
