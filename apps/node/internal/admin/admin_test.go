package admin

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/router"
	"iop/apps/node/internal/store"
	"iop/apps/node/internal/transport"
	"iop/packages/go/execution"
	"iop/packages/go/identity"
)

func handler(m *Metrics) http.Handler {
	return New(Config{
		Listen: "node.internal:9000", Version: "1.2", Metrics: m,
		Certificates: func() map[string]identity.Validity {
			return map[string]identity.Validity{"node": {Begins: time.Unix(1600000000, 0), Ends: time.Unix(1900000000, 0)}}
		},
		Warnings: func() []string { return []string{"the certificate …"} },
		Store:    func() store.Health { return store.Health{Degraded: true, Queued: 2, Written: 3, Lost: 4} },
		Links: func() []transport.Status {
			return []transport.Status{{Edge: "e:1", State: transport.StateBackoff, Generation: 7, LastError: "refused",
				NextDial: time.Unix(1000, 0), Dials: 3, Registrations: 2}}
		},
		Work: func() []node.Snapshot {
			return []node.Snapshot{{
				Edge: "e:1", Draining: true, Lingering: 1,
				Running: []node.Running{{RunID: "r1", Attempt: 1, Adapter: "gpu", Target: "m", Generation: 7}},
				Adapters: []router.State{{Name: "gpu", Kind: "openai", Revision: 4, Capacity: 2, InFlight: 1,
					Caps: execution.Capabilities{Available: true, Version: "9", Models: []execution.Model{{Name: "m", Loaded: true}}}}},
			}}
		},
	})
}

func get(t *testing.T, h http.Handler, host, path string, header ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = host
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	body, _ := io.ReadAll(w.Body)
	return w.Code, string(body)
}

func TestHealthAndStatus(t *testing.T) {
	h := handler(NewMetrics())
	if code, body := get(t, h, "127.0.0.1:9000", "/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("healthz: %d %q", code, body)
	}
	code, body := get(t, h, "localhost:9000", "/admin/v1/status")
	var s status
	if err := json.Unmarshal([]byte(body), &s); code != 200 || err != nil {
		t.Fatalf("status: %d %v", code, err)
	}
	if !s.Draining || s.Lingering != 1 || s.Goroutines < 1 || s.Version != "1.2" || len(s.Links) != 1 || len(s.Running) != 1 {
		t.Errorf("status = %+v", s)
	}
	if len(s.Warnings) != 1 || s.Store == nil || s.Store.State != "degraded" {
		t.Errorf("warnings %q, store %+v", s.Warnings, s.Store)
	}
	if l := s.Links[0]; l.State != "backoff" || l.Generation != 7 || l.NextDial == nil || l.LastRead != nil {
		t.Errorf("link = %+v", l)
	}
	if a := s.Adapters[0]; a.InFlight != 1 || a.Capacity != 2 || a.Edge != "e:1" || len(a.Models) != 1 || !a.Models[0].Loaded {
		t.Errorf("adapter = %+v", a)
	}
}

func TestMetrics(t *testing.T) {
	m := NewMetrics()
	h := handler(m)
	for range 2 {
		m.Ended(node.Ended{Adapter: "gpu", Status: execution.StatusError, Code: execution.CodeUpstreamError, Duration: time.Second, BytesIn: 3, BytesOut: 5})
	}
	m.Refused(execution.CodeAdapterBusy)
	m.Late("emit")
	code, body := get(t, h, "[::1]:9000", "/metrics")
	if code != 200 {
		t.Fatalf("metrics: %d", code)
	}
	for _, want := range []string{
		`iop_node_executions_total{adapter="gpu",code="upstream_error",status="error"} 2`,
		`iop_node_body_bytes_total{adapter="gpu",direction="out"} 10`,
		`iop_node_rejected_total{code="adapter_busy"} 1`,
		`iop_node_late_frames_total{kind="emit"} 1`,
		`iop_node_link_up{edge="e:1"} 0`,
		`iop_node_link_state{edge="e:1",state="backoff"} 1`,
		`iop_node_link_dials_total{edge="e:1"} 3`,
		`iop_node_adapter_in_flight{adapter="gpu",edge="e:1"} 1`,
		`iop_node_adapter_available{adapter="gpu",edge="e:1"} 1`,
		`iop_node_draining{edge="e:1"} 1`,
		`iop_identity_not_after_seconds{what="node"} 1.9e+09`, `iop_identity_not_before_seconds{what="node"} 1.6e+09`,
		`iop_node_store_degraded 1`, `iop_node_store_lost_total 4`,
		"go_goroutines ",
	} {
		if !strings.Contains(body, want+"\n") && !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// Each metric of ours has a line in the docs, and the docs name none that isn't there.
func TestMetricsAreDocumented(t *testing.T) {
	m := NewMetrics()
	m.Ended(node.Ended{Adapter: "gpu", Status: execution.StatusError, Code: execution.CodeUpstreamError})
	m.Refused(execution.CodeAdapterBusy)
	m.Late("emit")
	_, body := get(t, handler(m), "localhost", "/metrics")
	docs, err := os.ReadFile("../../../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(docs), "\n## Metrics of a node\n")
	if !ok {
		t.Fatal("docs/monitoring.md has no section about the metrics of a node")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	there := map[string]bool{}
	for _, help := range regexp.MustCompile(`(?m)^# HELP (iop_[a-z_]+) .+$`).FindAllStringSubmatch(body, -1) {
		if there[help[1]] = true; !strings.Contains(table, "`"+help[1]+"`") {
			t.Errorf("docs/monitoring.md lacks %s", help[1])
		}
	}
	for _, name := range regexp.MustCompile("`(iop_[a-z_]+)`").FindAllStringSubmatch(table, -1) {
		if !there[name[1]] {
			t.Errorf("docs/monitoring.md has %s, which isn't there", name[1])
		}
	}
}

// A page of another origin must not read the node's state through the browser of somebody on this machine.
func TestGuard(t *testing.T) {
	h := handler(NewMetrics())
	for _, c := range []struct {
		host, origin string
		want         int
	}{
		{"127.0.0.1:9000", "", 200},
		{"localhost", "", 200},
		{"[::1]", "", 200},
		{"node.internal:9000", "", 200},
		{"127.0.0.1:9000", "http://127.0.0.1:9000", 200},
		{"evil.example", "", http.StatusMisdirectedRequest},
		{"localhost.evil.example:9000", "", http.StatusMisdirectedRequest},
		{"10.0.0.1:9000", "", http.StatusMisdirectedRequest},
		{"", "", http.StatusMisdirectedRequest},
		{"127.0.0.1:9000", "http://evil.example", http.StatusForbidden},
		{"127.0.0.1:9000", "null", http.StatusForbidden},
	} {
		if got, _ := get(t, h, c.host, "/healthz", "Origin", c.origin); got != c.want {
			t.Errorf("Host %q, Origin %q: %d, want %d", c.host, c.origin, got, c.want)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/admin/v1/status", nil)
	r.Host = "localhost"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d, want 405", w.Code)
	}
}
