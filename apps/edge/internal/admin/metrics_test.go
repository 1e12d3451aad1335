package admin

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// scrape returns the lines of an exposition, by what stands before the value.
func scrape(t *testing.T, m *Metrics) map[string]string {
	t.Helper()
	g := newRig(t, here)
	h := g.h.(*handler)
	h.cfg.Metrics = m
	resp, body := g.ask("GET", "/metrics", here)
	if resp.StatusCode != 200 {
		t.Fatalf("%s %s", resp.Status, body)
	}
	lines := map[string]string{}
	for line := range strings.Lines(body) {
		if at := strings.LastIndexByte(line, ' '); at > 0 && line[0] != '#' {
			lines[line[:at]] = strings.TrimSpace(line[at:])
		}
	}
	return lines
}

func wantLines(t *testing.T, got map[string]string, want ...string) {
	t.Helper()
	for _, line := range want {
		name, value, _ := strings.Cut(line, " ")
		if got[name] != value {
			t.Errorf("%s is %q, want %s", name, got[name], value)
		}
	}
}

func tokens(n int64) *int64 { return &n }

func TestMetricsOfRuns(t *testing.T) {
	m := NewMetrics("v9", Sources{})
	const asked = "S3CR3T-what-the-caller-asked"
	route := &config.Route{Model: "*"}
	m.Ended(&service.Outcome{Model: asked, Route: route, NodeID: "n", Adapter: "a", Attempts: 1, Queued: 20 * time.Millisecond, FirstByte: 30 * time.Millisecond,
		Duration: 2 * time.Second, BytesIn: 100, BytesOut: 2000, Usage: execution.Usage{Input: tokens(11), Output: tokens(7), Cached: tokens(-1)}})
	m.Ended(&service.Outcome{Model: asked, Route: route, NodeID: "n", Adapter: "a", Attempts: 2, Failure: execution.Failf(execution.CodeNodeLost, execution.OriginEdge, "x")})
	m.Ended(&service.Outcome{Model: asked, Route: route, Failure: execution.Failf(execution.CodeQueueFull, execution.OriginEdge, "x")})
	m.Ended(&service.Outcome{Failure: execution.Failf(execution.CodeUnauthorized, execution.OriginCaller, "x")})
	got := scrape(t, m)
	wantLines(t, got,
		`iop_requests_total{adapter="a",code="ok",node="n",route="*"} 1`,
		`iop_requests_total{adapter="a",code="node_lost",node="n",route="*"} 1`,
		`iop_requests_total{adapter="",code="queue_full",node="",route="*"} 1`,
		`iop_requests_total{adapter="",code="unauthorized",node="",route=""} 1`,
		`iop_refused_total{code="queue_full"} 1`,
		`iop_refused_total{code="unauthorized"} 1`,
		`iop_refused_total{code="node_lost"}`, // had a place
		`iop_queue_seconds_count{route="*"} 2`,
		`iop_queue_seconds_bucket{route="*",le="0.025"} 2`,
		`iop_request_duration_seconds_sum{adapter="a",node="n",route="*"} 2`,
		`iop_first_byte_seconds_count{adapter="a",node="n",route="*"} 1`,
		`iop_request_body_bytes_total{adapter="a",node="n",route="*"} 100`,
		`iop_response_body_bytes_total{adapter="a",node="n",route="*"} 2000`,
		`iop_tokens_total{adapter="a",kind="input",node="n",route="*"} 11`,
		`iop_tokens_total{adapter="a",kind="output",node="n",route="*"} 7`,
		`iop_tokens_total{adapter="a",kind="cached",node="n",route="*"} 0`,
		`iop_build_info{version="v9"} 1`,
	)
	for name := range got {
		if strings.Contains(name, "S3CR3T") {
			t.Errorf("what a caller chose became a label: %s", name)
		}
	}
	if got["go_goroutines"] == "" || got["process_open_fds"] == "" {
		t.Error("the process itself isn't there")
	}
}

func TestGauges(t *testing.T) {
	at := admission.Place{Node: "n", Adapter: "a"}
	m := NewMetrics("", Sources{
		Nodes: func() []node.NodeView {
			return []node.NodeView{{State: node.StateReady}, {State: node.StateReady}, {State: node.StateOffline}}
		},
		Places: func() admission.Snapshot {
			return admission.Snapshot{Draining: true, Queued: 3, Places: []admission.PlaceSnapshot{
				{Place: at, Generation: 1, InFlight: 2, Unconfirmed: 1}, {Place: at, Generation: 2, InFlight: 1, Capacity: 4, Adopted: 1}},
				Ignored: admission.Ignored{Ended: 5}}
		},
		Live: func() int { return 6 }, OpenStreams: func() map[string]int { return map[string]int{"n": 7} },
		LateFrames: func() map[string]uint64 { return map[string]uint64{"body": 8} }, EventsDropped: func() uint64 { return 9 },
		BodyBytes: func() int64 { return 10 },
		NodeIgnored: func() node.Ignored {
			return node.Ignored{RunEnded: 21, Status: 22, Events: 23, Other: 24, Late: 25}
		},
		Listener: func() ListenerStats {
			return ListenerStats{Accepted: 11, AcceptErrors: 12, Refused: map[string]uint64{"unknown_token": 13}, Unregistered: 14}
		},
	})
	wantLines(t, scrape(t, m), `iop_nodes{state="ready"} 2`, `iop_nodes{state="offline"} 1`, `iop_nodes{state="draining"} 0`,
		`iop_places_in_flight{adapter="a",node="n"} 3`, `iop_places_capacity{adapter="a",node="n"} 4`,
		`iop_places_unconfirmed{adapter="a",node="n"} 1`, `iop_places_adopted{adapter="a",node="n"} 1`, `iop_queue_length 3`, `iop_draining 1`,
		`iop_admission_ignored_total{about="ended"} 5`, `iop_runs_live 6`, `iop_open_streams{node="n"} 7`, `iop_late_frames_total{kind="body"} 8`,
		`iop_events_dropped_total 9`, `iop_request_body_held_bytes 10`, `iop_node_connections_accepted_total 11`,
		`iop_node_connections_failed_total 12`, `iop_node_registrations_refused_total{reason="unknown_token"} 13`,
		`iop_node_connections_unregistered 14`,
		`iop_node_messages_ignored_total{reason="run_ended"} 21`, `iop_node_messages_ignored_total{reason="status"} 22`,
		`iop_node_messages_ignored_total{reason="events"} 23`, `iop_node_messages_ignored_total{reason="other"} 24`,
		`iop_node_messages_ignored_total{reason="late"} 25`)
}

// The number of series is bounded, whatever the configuration and however many at once.
func TestSeriesAreBounded(t *testing.T) {
	m := NewMetrics("", Sources{})
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range mostSeries {
				route := &config.Route{Model: fmt.Sprintf("m%d-%d", worker, i)}
				m.Ended(&service.Outcome{Route: route, NodeID: "n", Attempts: 1, Failure: execution.Failf(execution.CodeNodeLost, execution.OriginEdge, "x")})
			}
		})
	}
	all.Wait()
	if n := len(m.handles); n > mostSeries+4 {
		t.Errorf("%d combinations have series", n)
	}
	n := 0
	for name := range scrape(t, m) {
		if strings.HasPrefix(name, "iop_requests_total") {
			n++
		}
	}
	if n > 2*(mostSeries+4) {
		t.Errorf("%d series of requests", n)
	}
}

// A request pays for its metrics in nanoseconds and without garbage.
func TestEndedAllocatesNothing(t *testing.T) {
	m := NewMetrics("", Sources{})
	o := &service.Outcome{Route: &config.Route{Model: "m"}, NodeID: "n", Adapter: "a", Attempts: 1, FirstByte: time.Second, Usage: execution.Usage{Input: tokens(1)}}
	if n := testing.AllocsPerRun(100, func() { m.Ended(o) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkEnded(b *testing.B) {
	m := NewMetrics("", Sources{})
	o := &service.Outcome{Route: &config.Route{Model: "m"}, NodeID: "n", Adapter: "a", Attempts: 1, FirstByte: time.Second}
	b.ReportAllocs()
	for b.Loop() {
		m.Ended(o)
	}
}
