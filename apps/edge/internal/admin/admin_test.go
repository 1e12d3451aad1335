package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

const adminKey = "sk-iop-admin-S3CR3T"

// rig is a handler on snapshots that a test sets.
type rig struct {
	t        *testing.T
	h        http.Handler
	log      strings.Builder
	notReady []string
	warnings []string
	nodes    []node.NodeView
	queue    admission.Snapshot
	runs     []service.RunView
	bus      *events.Bus
	find     func(p *config.Principal, model string) (*config.Route, string, *execution.Failure)
	state    *config.State

	slots     fakeSlots
	drained   []string // as "node on"
	released  []string // as "node adapter run force"
	holds     admission.Released
	cancelled []string
	asked     []service.Command
	answer    func(ctx context.Context, c *service.Command) *service.CommandResult
}

func newRig(t *testing.T, listen string) *rig {
	g := &rig{t: t, bus: events.NewBus()}
	sum := sha256.Sum256([]byte(adminKey))
	g.state = config.NewState(&config.Edge{AdminKeyHashes: []string{hex.EncodeToString(sum[:])}, Nodes: []config.NodeRecord{{ID: "x"}, {ID: "gpu-1"}}}, 1, nil)
	sources := Sources{Nodes: func() []node.NodeView { return g.nodes }, Places: func() admission.Snapshot { return g.queue }}
	g.h = New(Config{Listen: listen, State: func() *config.State { return g.state }, NotReady: func() []string { return g.notReady },
		Version: "test", Warnings: func() []string { return g.warnings },
		Nodes: sources.Nodes, Queue: sources.Places, Runs: func() []service.RunView { return g.runs }, Explain: g.explain, Events: g.bus,
		Find: func(_ *config.State, p *config.Principal, model string) (*config.Route, string, *execution.Failure) {
			return g.find(p, model)
		},
		AsRun:   func(path string) bool { return path == "/as-run" },
		Steer:   Steering{Cancel: g.cancel, Command: g.command, SetDrained: g.setDrained, Release: g.release},
		Slots:   g.slots.slots(),
		Usage:   func(context.Context, string, string, []string) ([]UsageView, error) { return []UsageView{}, nil },
		Metrics: NewMetrics("test", sources), Log: zerolog.New(zerolog.SyncWriter(&g.log))})
	return g
}

func (g *rig) explain(id string) (service.Explanation, bool) {
	v, found := g.run(id)
	return service.Explanation{RunView: v, Timeline: []service.StepView{{Event: "run_submitted"}}}, found
}

func (g *rig) setDrained(id string, on bool) bool {
	g.drained = append(g.drained, fmt.Sprint(id, " ", on))
	return g.state.Node(id) != nil
}

func (g *rig) release(at admission.Place, run string, force bool) admission.Released {
	g.released = append(g.released, fmt.Sprint(at.Node, " ", at.Adapter, " ", run, " ", force))
	return g.holds
}

func (g *rig) run(id string) (service.RunView, bool) {
	i := slices.IndexFunc(g.runs, func(v service.RunView) bool { return v.RunID == id })
	if i < 0 {
		return service.RunView{}, false
	}
	return g.runs[i], true
}

func (g *rig) cancel(id string) service.CancelResult {
	v, found := g.run(id)
	switch {
	case !found:
		return service.NotFound
	case v.Code != "":
		return service.AlreadyEnded
	}
	g.cancelled = append(g.cancelled, id)
	return service.Cancelling
}

func (g *rig) command(ctx context.Context, c *service.Command) *service.CommandResult {
	g.asked = append(g.asked, *c)
	return g.answer(ctx, c)
}

// post sends a body.
func (g *rig) post(target, body string) (*http.Response, string) {
	g.t.Helper()
	r := httptest.NewRequest("POST", target, strings.NewReader(body))
	r.Host = here
	w := httptest.NewRecorder()
	g.h.ServeHTTP(w, r)
	return w.Result(), w.Body.String()
}

func (g *rig) ask(method, target, host string, headers ...string) (*http.Response, string) {
	g.t.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.Host = host
	if strings.Contains(target, "/events") { // else it would last
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		r = r.WithContext(ctx)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	g.h.ServeHTTP(w, r)
	return w.Result(), w.Body.String()
}

const here = "127.0.0.1:8081"

// The table is walked: each row is whole and does what it says of access, on loopback and elsewhere.
func TestEndpointsAreWhole(t *testing.T) {
	inside, outside := newRig(t, here), newRig(t, "0.0.0.0:8081")
	inside.runs = []service.RunView{{RunID: "x"}}
	outside.runs = inside.runs
	seen := map[string]bool{}
	for _, e := range Endpoints() {
		if e.Method != http.MethodGet && e.Method != http.MethodPost || e.Path == "" || e.handle == nil || seen[e.Path] || e.Access != AccessOpen && e.Access != AccessPage && e.Access != AccessKey {
			t.Errorf("%s isn't whole, or there twice", e.Path)
		}
		seen[e.Path] = true
		if e.Method == http.MethodPost && e.Access != AccessKey {
			t.Errorf("%s does something for everyone", e.Path)
		}
		path, allowed := strings.Replace(e.Path, "{id}", "x", 1), []string{e.Method}
		if e.Method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
			resp, body := inside.ask(method, path, here)
			switch takes := slices.Contains(allowed, method); {
			case takes && (resp.StatusCode == 404 || resp.StatusCode == 405 || resp.StatusCode > 499):
				t.Errorf("%s %s: %s %s", method, path, resp.Status, body)
			case !takes && (resp.StatusCode != 405 || resp.Header.Get("Allow") != strings.Join(allowed, ", ")):
				t.Errorf("%s %s: %s, Allow %q", method, path, resp.Status, resp.Header.Get("Allow"))
			}
		}
		if resp, _ := outside.ask(e.Method, path, "edge.example"); (resp.StatusCode == 401) != (e.Access == AccessKey) {
			t.Errorf("without a key %s: %s", path, resp.Status)
		}
		if resp, _ := outside.ask(e.Method, path, "edge.example", "Authorization", "Bearer "+adminKey); resp.StatusCode == 401 {
			t.Errorf("with a key %s: %s", path, resp.Status)
		}
		for _, asked := range [][]string{{"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
			if resp, _ := inside.ask(e.Method, path, here, asked...); resp.StatusCode != 403 {
				t.Errorf("a web page at %s: %s", path, resp.Status)
			}
		}
		if resp, _ := inside.ask(e.Method, path, "evil.example"); resp.StatusCode != 403 {
			t.Errorf("by another name %s: %s", path, resp.Status)
		}
	}
	for _, path := range []string{"//", "/healthz/", "/admin/v1/nodes/", "/admin%2fv1/nodes", "/debug/pprof/", "/v1/models", "/admin/v1/runs/",
		"/admin/v1/runs//cancel", "/admin/v1/runs/a/b", "/admin/v1/runs/a%2fb", "/admin/v1/runs/a%20b", "/admin/v1/runs/" + strings.Repeat("a", 65),
		"/admin/v1/nodes/commands", "/admin/v1/nodes//commands", "/admin/v1/nodes/x/commands/", "/admin/v1/nodes/x/y/commands", "/admin/v1/nodes/{id}/commands"} {
		for _, method := range []string{"GET", "POST"} {
			if resp, _ := inside.ask(method, path, here); resp.StatusCode != 404 {
				t.Errorf("%s %s: %s", method, path, resp.Status)
			}
		}
	}
	if len(inside.cancelled) != 1 || len(outside.cancelled) != 1 || len(inside.asked)+len(outside.asked) != 0 {
		t.Errorf("what was refused was done: %v, %v", inside.cancelled, outside.cancelled)
	}
	if len(inside.slots.asked) != 6 || len(outside.slots.asked) != 6 {
		t.Errorf("what was refused was done: %v, %v", inside.slots.asked, outside.slots.asked)
	}
	if len(inside.drained) != 1 || len(outside.drained) != 1 || len(inside.released)+len(outside.released) != 0 {
		t.Errorf("what was refused was done: %v, %v, %v", inside.drained, outside.drained, inside.released)
	}
}

// CR-07: nothing of a refused key comes back or is written down.
func TestRefusedKeys(t *testing.T) {
	g := newRig(t, "0.0.0.0:8081")
	for _, value := range []string{"Bearer S3CR3T-wrong", "Basic " + adminKey, adminKey, "Bearer  " + adminKey, "Bearer ", "Bearer " + strings.Repeat("S3CR3T", 1000)} {
		resp, body := g.ask("GET", "/admin/v1/nodes", "edge.example", "Authorization", value)
		if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") != "Bearer" || strings.Contains(body, "S3CR3T") {
			t.Errorf("%.20q: %s %s", value, resp.Status, body)
		}
	}
	if resp, _ := g.ask("GET", "/metrics", "edge.example", "Authorization", "Bearer "+adminKey, "Authorization", "Bearer "+adminKey); resp.StatusCode != 401 {
		t.Error("two keys in one request are ambiguous")
	}
	if log := g.log.String(); strings.Contains(log, "S3CR3T") || strings.Count(log, "admin request refused") != 7 {
		t.Errorf("log:\n%s", log)
	}
}

// A web page must not read this listener, neither by a name that it points here nor from its own origin.
func TestWebPagesStayOut(t *testing.T) {
	g := newRig(t, "localhost:8081")
	for host, status := range map[string]int{here: 200, "localhost": 200, "LOCALHOST:8081": 200, "[::1]:8081": 200, "127.9.9.9": 200, "": 403,
		"evil.example": 403, "evil.example:8081": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example": 403, "10.0.0.1:8081": 403, "0.0.0.0": 403} {
		if resp, _ := g.ask("GET", "/admin/v1/nodes", host); resp.StatusCode != status {
			t.Errorf("host %q: %s", host, resp.Status)
		}
	}
	for _, tt := range []struct {
		name, value string
		status      int
	}{
		{"Origin", "http://" + here, 200}, {"Origin", "http://evil.example", 403}, {"Origin", "null", 403}, {"Origin", "https://" + here, 403},
		{"Origin", "http://127.0.0.1:9999", 403}, {"Sec-Fetch-Site", "cross-site", 403}, {"Sec-Fetch-Site", "same-site", 403},
		{"Sec-Fetch-Site", "same-origin", 200}, {"Sec-Fetch-Site", "none", 200},
	} {
		if resp, _ := g.ask("GET", "/healthz", here, tt.name, tt.value); resp.StatusCode != tt.status {
			t.Errorf("%s %q: %s", tt.name, tt.value, resp.Status)
		}
	}
}

func TestReadiness(t *testing.T) {
	g := newRig(t, here)
	if resp, body := g.ask("GET", "/readyz", here); resp.StatusCode != 200 || body != `{"ready":true,"reasons":[]}`+"\n" {
		t.Errorf("%s %s", resp.Status, body)
	}
	g.notReady = []string{"draining"}
	if resp, body := g.ask("GET", "/readyz", here); resp.StatusCode != 503 || body != `{"ready":false,"reasons":["draining"]}`+"\n" {
		t.Errorf("%s %s", resp.Status, body)
	}
	g.notReady, g.warnings = nil, []string{"insecure: …"} // what people should know doesn't make it unready
	if resp, body := g.ask("GET", "/readyz", here); resp.StatusCode != 200 || body != `{"ready":true,"reasons":[],"warnings":["insecure: …"]}`+"\n" {
		t.Errorf("%s %s", resp.Status, body)
	}
	if resp, body := g.ask("GET", "/healthz", here); resp.StatusCode != 200 || body != `{"status":"ok"}`+"\n" {
		t.Errorf("an edge that drains is healthy: %s %s", resp.Status, body)
	}
}

// The names of the admin API are settled (design, "Admin API").
func TestNodes(t *testing.T) {
	g := newRig(t, here)
	if _, body := g.ask("GET", "/admin/v1/nodes", here); body != `{"nodes":[]}`+"\n" {
		t.Errorf("%s", body)
	}
	at := time.Date(2026, 11, 29, 13, 6, 29, 0, time.UTC)
	g.nodes = []node.NodeView{{ID: "gpu-1", State: node.StateReady, Generation: 7, InstanceID: "ab", Version: "v1", Since: &at, LastHeartbeat: &at,
		Adapters: []node.AdapterView{{Name: "vllm", Kind: "openai", Available: true, Version: "0.9", InFlight: 1, Capacity: 4,
			Models: []node.ModelView{{Name: "m", Loaded: true}}}}}}
	want := `{"nodes":[{"id":"gpu-1","state":"ready","reason":"","drained":false,"generation":7,"instance_id":"ab","version":"v1","since":"2026-11-29T13:06:29Z",` +
		`"last_heartbeat":"2026-11-29T13:06:29Z","adapters":[{"name":"vllm","kind":"openai","available":true,"reason":"","version":"0.9","in_flight":1,` +
		`"capacity":4,"models":[{"name":"m","loaded":true}]}]}]}` + "\n"
	if resp, body := g.ask("GET", "/admin/v1/nodes", here); body != want || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %s\nwant %s", body, want)
	}
}

func TestQueue(t *testing.T) {
	g := newRig(t, here)
	if _, body := g.ask("GET", "/admin/v1/queue", here); body != `{"draining":false,"queued":0,"sets":[],"places":[],"routes":[]}`+"\n" {
		t.Errorf("%s", body)
	}
	g.queue = admission.Snapshot{Queued: 2, Sets: []admission.SetSnapshot{{Set: "s", Queued: 2, Candidates: 1}},
		Places: []admission.PlaceSnapshot{{Place: admission.Place{Node: "n", Adapter: "a"}, Generation: 3, Capacity: 1, InFlight: 1, Unconfirmed: 1, Candidate: true}}}
	want := `{"draining":false,"queued":2,"sets":[{"set":"s","queued":2,"candidates":1}],"places":[{"node":"n","adapter":"a","generation":3,` +
		`"capacity":1,"in_flight":1,"unconfirmed":1,"adopted":0,"candidate":true,"saturated":false,"broken":null}],"routes":[]}` + "\n"
	if _, body := g.ask("GET", "/admin/v1/queue", here); body != want {
		t.Errorf("got %s\nwant %s", body, want)
	}
}

func TestErrorsAreJSON(t *testing.T) {
	g := newRig(t, here)
	_, body := g.ask("GET", "/nothing", here)
	var e struct {
		Error struct{ Message, Code string }
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error.Message == "" || e.Error.Code != "bad_request" {
		t.Errorf("%s %v", body, err)
	}
}

func TestServerHasLimits(t *testing.T) {
	s := NewServer(http.NotFoundHandler())
	if s.ReadHeaderTimeout == 0 || s.ReadTimeout == 0 || s.WriteTimeout == 0 || s.MaxHeaderBytes == 0 {
		t.Errorf("%+v", s)
	}
}
