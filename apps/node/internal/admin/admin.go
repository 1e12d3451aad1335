// Package admin is the node's own listener: health, metrics and status, for the people and programs on this machine.
// It only reads snapshots, changes nothing, and shows no secret.
package admin

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/store"
	"iop/apps/node/internal/transport"
	"iop/packages/go/identity"
)

// Config is what the listener shows.
type Config struct {
	// Listen is the configured address; its host is accepted in a request's Host, as loopback's names are.
	Listen string
	// Version is what the node calls itself.
	Version string
	// Links and Work return the current state of every link and of what it carries.
	Links func() []transport.Status
	Work  func() []node.Snapshot
	// Store returns the state of the node's record; nil shows none.
	Store func() store.Health
	// Certificates returns how long those are good that the node relies on, by what they are for; nil shows none.
	Certificates func() map[string]identity.Validity
	// Warnings returns what people should do something about although the node works; nil = nothing.
	Warnings func() []string
	// Metrics counts what Links and Work don't show.
	Metrics *Metrics
	// Log takes refused requests.
	Log zerolog.Logger
}

// New returns the handler.
func New(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", ready(cfg.Links))
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Metrics.gather(cfg), promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /admin/v1/status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(statusOf(cfg))
	})
	return guard(cfg, mux)
}

// guard refuses what a web page of somebody else could make a browser send here: a Host that isn't this listener's
// (DNS rebinding), and an Origin that isn't its own.
func guard(cfg Config, next http.Handler) http.Handler {
	own, _, _ := net.SplitHostPort(cfg.Listen)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !local(hostOf(r.Host), own):
			refuse(w, http.StatusMisdirectedRequest, "this listener doesn't answer for that host")
		case r.Header.Get("Origin") != "" && !sameOrigin(r):
			refuse(w, http.StatusForbidden, "this listener doesn't answer to other web pages")
		default:
			w.Header().Set("X-Content-Type-Options", "nosniff")
			next.ServeHTTP(w, r)
		}
	})
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"code": "bad_request", "message": text}})
}

// hostOf is the host of a Host header, without port and brackets.
func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

// local reports whether host names this machine's loopback, or is the listener's own.
func local(host, own string) bool {
	if strings.EqualFold(host, "localhost") || own != "" && strings.EqualFold(host, own) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func sameOrigin(r *http.Request) bool {
	u, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && u.Host == r.Host
}

// status is the answer of /admin/v1/status.
type status struct {
	Version    string    `json:"version"`
	Draining   bool      `json:"draining"`
	Goroutines int       `json:"goroutines"`
	Links      []link    `json:"links"`
	Adapters   []adapter `json:"adapters"`
	Running    []running `json:"running"`
	Lingering  int       `json:"lingering"`
	Store      *record   `json:"store,omitempty"`
	Warnings   []string  `json:"warnings"`
}

// record is how the node's own record is.
type record struct {
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
	Queued  int    `json:"queued"`
	Written uint64 `json:"written"`
	Lost    uint64 `json:"lost"`
}

func recordOf(h store.Health) *record {
	r := &record{State: "ok", Reason: h.Reason, Queued: h.Queued, Written: h.Written, Lost: h.Lost}
	if h.Degraded {
		r.State = "degraded"
	}
	return r
}

type link struct {
	Edge          string     `json:"edge"`
	State         string     `json:"state"`
	Since         time.Time  `json:"since"`
	Generation    uint64     `json:"generation"`
	NodeID        string     `json:"node_id,omitempty"`
	EdgeID        string     `json:"edge_id,omitempty"`
	Projection    uint64     `json:"projection"`
	Dials         int        `json:"dials"`
	Registrations int        `json:"registrations"`
	LastError     string     `json:"last_error,omitempty"`
	NextDial      *time.Time `json:"next_dial,omitempty"`
	OpenStreams   int        `json:"open_streams"`
	LastRead      *time.Time `json:"last_read,omitempty"`
	RTTMillis     float64    `json:"rtt_ms,omitempty"`
}

type adapter struct {
	Edge      string  `json:"edge"`
	Name      string  `json:"name"`
	Kind      string  `json:"kind"`
	Revision  uint64  `json:"revision"`
	Available bool    `json:"available"`
	Reason    string  `json:"reason,omitempty"`
	Version   string  `json:"version,omitempty"`
	InFlight  int     `json:"in_flight"`
	Capacity  int     `json:"capacity"`
	Models    []model `json:"models"`
}

type model struct {
	Name   string `json:"name"`
	Loaded bool   `json:"loaded"`
}

type running struct {
	Edge       string    `json:"edge"`
	RunID      string    `json:"run_id"`
	Attempt    uint32    `json:"attempt"`
	Kind       string    `json:"kind"`
	Adapter    string    `json:"adapter"`
	Target     string    `json:"target,omitempty"`
	Background bool      `json:"background,omitempty"`
	Generation uint64    `json:"generation"`
	Since      time.Time `json:"since"`
}

func statusOf(cfg Config) status {
	s := status{
		Version: cfg.Version, Goroutines: runtime.NumGoroutine(),
		Links: []link{}, Adapters: []adapter{}, Running: []running{}, Warnings: []string{},
	}
	if cfg.Warnings != nil {
		s.Warnings = cfg.Warnings()
	}
	for _, l := range cfg.Links() {
		s.Links = append(s.Links, linkOf(l))
	}
	for _, w := range cfg.Work() {
		s.Draining = s.Draining || w.Draining
		s.Lingering += w.Lingering
		for _, a := range w.Adapters {
			out := adapter{
				Edge: w.Edge, Name: a.Name, Kind: a.Kind, Revision: a.Revision, Available: a.Caps.Available,
				Reason: a.Caps.Reason, Version: a.Caps.Version, InFlight: a.InFlight, Capacity: a.Capacity, Models: []model{},
			}
			for _, m := range a.Caps.Models {
				out.Models = append(out.Models, model{m.Name, m.Loaded})
			}
			s.Adapters = append(s.Adapters, out)
		}
		for _, r := range w.Running {
			s.Running = append(s.Running, running{
				w.Edge, r.RunID, r.Attempt, r.Kind.String(), r.Adapter, r.Target, r.Background, r.Generation, r.Since})
		}
	}
	if cfg.Store != nil {
		s.Store = recordOf(cfg.Store())
	}
	return s
}

func linkOf(l transport.Status) link {
	out := link{
		Edge: l.Edge, State: string(l.State), Since: l.Since, Generation: l.Generation, NodeID: l.NodeID, EdgeID: l.EdgeID,
		Projection: l.Projection, Dials: l.Dials, Registrations: l.Registrations, LastError: l.LastError,
		OpenStreams: l.Mux.OpenStreams, RTTMillis: float64(l.Mux.RTT) / float64(time.Millisecond),
	}
	if !l.NextDial.IsZero() {
		out.NextDial = &l.NextDial
	}
	if !l.Mux.LastRead.IsZero() {
		out.LastRead = &l.Mux.LastRead
	}
	return out
}
