package admin

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/identity"
	"iop/packages/go/patience"
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
	m.Ended(&service.Outcome{Model: asked, Route: route, Principal: "alice", Duration: 4 * time.Second, Failure: execution.Failf(execution.CodeQueueTimeout, execution.OriginEdge, "x")})
	for range 2 {
		m.Ended(&service.Outcome{Model: asked, Route: route, Principal: "alice", Failure: execution.Failf(execution.CodeLimitExceeded, execution.OriginEdge, "x")})
	}
	m.Ended(&service.Outcome{Failure: execution.Failf(execution.CodeUnauthorized, execution.OriginCaller, "x")})
	got := scrape(t, m)
	wantLines(t, got,
		`iop_requests_total{adapter="a",code="ok",node="n",route="*"} 1`,
		`iop_requests_total{adapter="a",code="node_lost",node="n",route="*"} 1`,
		`iop_requests_total{adapter="",code="queue_full",node="",route="*"} 1`,
		`iop_requests_total{adapter="",code="unauthorized",node="",route=""} 1`,
		`iop_admissions_total{outcome="waited"} 1`,
		`iop_admissions_total{outcome="immediate"} 1`,
		`iop_admissions_total{outcome="queue_full"} 1`,
		`iop_admissions_total{outcome="queue_timeout"} 1`,
		`iop_admissions_total{outcome="limit_exceeded"} 2`,
		`iop_admissions_total{outcome="unauthorized"} 1`,
		`iop_admissions_total{outcome="node_lost"}`, // had a place
		`iop_quota_refusals_total{principal="alice"} 2`,
		`iop_queue_seconds_count{route="*"} 3`,
		`iop_queue_seconds_bucket{route="*",le="2.5"} 2`,
		`iop_request_duration_seconds_sum{adapter="a",node="n",route="*"} 2`,
		`iop_request_duration_seconds_count{adapter="a",node="n",route="*"} 2`,
		`iop_first_byte_seconds_count{adapter="a",node="n",route="*"} 1`,
		`iop_request_body_bytes_total{adapter="a",node="n",route="*"} 100`,
		`iop_response_body_bytes_total{adapter="a",node="n",route="*"} 2000`,
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

// Tokens are by the model that the configuration or the provider names, and by no name of the caller's. Unknown isn't 0.
func TestMetricsOfTokens(t *testing.T) {
	m := NewMetrics("v9", Sources{Offered: func(node, adapter, target string) string {
		return map[string]string{"n a tiny": "tiny:latest"}[node+" "+adapter+" "+target]
	}})
	const asked = "S3CR3T-what-the-caller-asked"
	route, known := &config.Route{Model: "*"}, execution.Usage{Input: tokens(3)}
	m.Ended(&service.Outcome{Model: asked, Target: asked, Route: route, NodeID: "n", Adapter: "a", Attempts: 1,
		Usage: execution.Usage{Input: tokens(11), Output: tokens(7), Cached: tokens(-1)}})
	m.Ended(&service.Outcome{Model: "tiny", Target: "tiny", Route: route, NodeID: "n", Adapter: "a", Attempts: 1, Usage: known})
	m.Ended(&service.Outcome{Model: "alias", Target: "real", Route: &config.Route{Model: "alias", Target: "real"}, NodeID: "n", Adapter: "a", Attempts: 1, Usage: known})
	m.Ended(&service.Outcome{Model: "plain:latest", Target: "plain:latest", Route: &config.Route{Model: "plain"}, NodeID: "n", Adapter: "a", Attempts: 1, Usage: execution.Usage{Output: tokens(0)}})
	m.Ended(&service.Outcome{Target: asked, NodeID: "n", Adapter: "a", Attempts: 1, Usage: known}) // a run
	// A refusal of the provider's has no usage that could be known.
	m.Ended(&service.Outcome{Route: route, NodeID: "n", Adapter: "quiet", Attempts: 1, Status: 200})
	m.Ended(&service.Outcome{Route: route, NodeID: "n", Adapter: "quiet", Attempts: 1, Status: 404})
	got := scrape(t, m)
	for name := range got {
		if strings.Contains(name, "S3CR3T") {
			t.Errorf("what a caller chose became a label: %s", name)
		}
	}
	wantLines(t, got,
		`iop_tokens_total{adapter="a",kind="input",model="other",node="n",route="*"} 11`,
		`iop_tokens_total{adapter="a",kind="output",model="other",node="n",route="*"} 7`,
		`iop_tokens_total{adapter="a",kind="cached",model="other",node="n",route="*"}`, // it made no sense
		`iop_tokens_total{adapter="a",kind="input",model="tiny:latest",node="n",route="*"} 3`,
		`iop_tokens_total{adapter="a",kind="input",model="real",node="n",route="alias"} 3`,
		`iop_tokens_total{adapter="a",kind="output",model="plain",node="n",route="plain"} 0`,
		`iop_tokens_total{adapter="a",kind="input",model="plain",node="n",route="plain"}`,
		`iop_tokens_total{adapter="a",kind="input",model="other",node="n",route=""} 3`,
		`iop_usage_unknown_total{adapter="quiet",node="n",route="*"} 1`,
		`iop_usage_unknown_total{adapter="a",node="n",route="*"} 0`,
	)
}

// whole is a source of everything.
func whole() Sources {
	at, since := admission.Place{Node: "n", Adapter: "a"}, time.Unix(1700000000, 0)
	return Sources{
		Nodes: func() []node.NodeView {
			return []node.NodeView{{ID: "n", State: node.StateReady, Generation: 7, Since: &since, LastHeartbeat: &since,
				Adapters: []node.AdapterView{{Name: "a", Available: true}, {Name: "b"}}}, {ID: "m", State: node.StateReady},
				{ID: "o", State: node.StateOffline, Drained: true}, {ID: "p", State: node.StateDisabled}}
		},
		Places: func() admission.Snapshot {
			return admission.Snapshot{Draining: true, Queued: 3, Places: []admission.PlaceSnapshot{
				{Place: at, Generation: 1, InFlight: 2, Unconfirmed: 1, Saturated: true},
				{Place: at, Generation: 2, InFlight: 1, Capacity: 4, Adopted: 1, Broken: &admission.Broken{}}},
				Ignored: admission.Ignored{Ended: 5}}
		},
		Live: func() int { return 6 }, SlowAnswers: func() int { return 31 },
		Links: func() []LinkStats {
			return []LinkStats{{Node: "n", OpenStreams: 7, Pending: 32, BytesIn: 33, BytesOut: 34, RoundTrip: 250 * time.Millisecond}, {Node: "m"}}
		},
		LateFrames: func() map[string]uint64 { return map[string]uint64{"body": 8} }, Frames: func() map[string]uint64 { return map[string]uint64{"delta": 35} },
		Bus:       func() events.Stats { return events.Stats{Published: 36, Dropped: 9, Subscribers: 2} },
		BodyBytes: func() int64 { return 10 }, Config: func() uint64 { return 37 },
		Slots: func() []SlotStatus { return []SlotStatus{{ID: "s", State: SlotRevoked, Revision: 41}} },
		Leases: func() LeaseCounts {
			return LeaseCounts{Leases: map[string]map[string]uint64{"s": {"committed": 42, "void": 43}}, Refusals: map[string]uint64{"expired": 44},
				RefreshFailures: map[string]uint64{"s": 45}, Security: 46, Unknown: 47}
		},
		Health: func() []node.Health {
			return []node.Health{{NodeID: "n", StoreDegraded: true, Certificate: identity.Validity{Begins: time.Unix(1700000000, 0), Ends: time.Unix(1800000000, 0)}, Configured: map[string]int{"a": 48}},
				{NodeID: "m", ClockUnsynced: true}}
		},
		Certificates: func() map[string]identity.Validity {
			return map[string]identity.Validity{"ca": {Begins: time.Unix(1600000000, 0), Ends: time.Unix(1900000000, 0)}}
		},
		Ended: func() map[node.FenceReason]uint64 { return map[node.FenceReason]uint64{node.FenceLost: 38} },
		NodeIgnored: func() node.Ignored {
			return node.Ignored{RunEnded: 21, Status: 22, Events: 23, Other: 24, Late: 25}
		},
		Listener: func() ListenerStats {
			return ListenerStats{Accepted: 11, AcceptErrors: 12, Refused: map[string]uint64{"unknown_token": 13}, Unregistered: 14}
		},
	}
}

func TestGauges(t *testing.T) {
	got := scrape(t, NewMetrics("", whole()))
	wantLines(t, got, `iop_nodes{state="ready"} 2`, `iop_nodes{state="offline"} 1`, `iop_nodes{state="draining"} 0`,
		`iop_node_connected{node="n"} 1`, `iop_node_connected{node="o"} 0`, `iop_node_ready{node="n"} 1`, `iop_node_ready{node="o"} 0`,
		`iop_node_disabled{node="n"} 0`, `iop_node_disabled{node="p"} 1`, `iop_node_store_degraded{node="n"} 1`,
		`iop_node_store_degraded{node="m"} 0`, `iop_node_clock_unsynced{node="m"} 1`, `iop_places_configured{adapter="a",node="n"} 48`,
		`iop_node_identity_not_after_seconds{node="n"} 1.8e+09`, `iop_node_identity_not_after_seconds{node="m"}`,
		`iop_node_identity_not_before_seconds{node="n"} 1.7e+09`,
		`iop_identity_not_after_seconds{what="ca"} 1.9e+09`, `iop_identity_not_before_seconds{what="ca"} 1.6e+09`,
		`iop_node_drained{node="n"} 0`, `iop_node_drained{node="o"} 1`, `iop_node_connection_generation{node="n"} 7`,
		`iop_node_last_heard_timestamp_seconds{node="n"} 1.7e+09`, `iop_node_last_heard_timestamp_seconds{node="o"}`,
		`iop_adapter_available{adapter="a",node="n"} 1`, `iop_adapter_available{adapter="b",node="n"} 0`,
		`iop_node_connections_ended_total{reason="lost"} 38`, `iop_node_connections_ended_total{reason="dead"} 0`,
		`iop_places_in_flight{adapter="a",node="n"} 3`, `iop_places_capacity{adapter="a",node="n"} 4`,
		`iop_places_unconfirmed{adapter="a",node="n"} 1`, `iop_places_adopted{adapter="a",node="n"} 1`, `iop_queue_length 3`, `iop_draining 1`,
		`iop_places_saturated{adapter="a",node="n"} 1`, `iop_breaker_open{adapter="a",node="n"} 1`,
		`iop_admission_ignored_total{about="ended"} 5`, `iop_runs_live 6`, `iop_answers_unread 31`, `iop_open_streams{node="n"} 7`,
		`iop_link_pending_bytes{node="n"} 32`, `iop_link_received_bytes_total{node="n"} 33`, `iop_link_sent_bytes_total{node="n"} 34`,
		`iop_link_round_trip_seconds{node="n"} 0.25`, `iop_link_round_trip_seconds{node="m"}`,
		`iop_late_frames_total{kind="body"} 8`, `iop_frames_received_total{kind="delta"} 35`, `iop_events_published_total 36`,
		`iop_events_dropped_total 9`, `iop_event_subscribers 2`, `iop_config_version 37`,
		`iop_request_body_held_bytes 10`, `iop_node_connections_accepted_total 11`,
		`iop_node_connections_failed_total 12`, `iop_node_registrations_refused_total{reason="unknown_token"} 13`,
		`iop_node_connections_unregistered 14`,
		`iop_node_messages_ignored_total{reason="run_ended"} 21`, `iop_node_messages_ignored_total{reason="status"} 22`,
		`iop_node_messages_ignored_total{reason="events"} 23`, `iop_node_messages_ignored_total{reason="other"} 24`,
		`iop_node_messages_ignored_total{reason="late"} 25`)
}

// Names, units and help texts keep Prometheus' conventions, and each of ours has a line in the docs.
func TestMetricsKeepConventions(t *testing.T) {
	m := NewMetrics("v9", whole())
	m.Ended(&service.Outcome{Route: &config.Route{Model: "m"}, NodeID: "n", Adapter: "a", Attempts: 1, FirstByte: time.Second, Usage: execution.Usage{Input: tokens(1)}})
	m.Ended(&service.Outcome{Principal: "alice", Failure: execution.Failf(execution.CodeLimitExceeded, execution.OriginEdge, "x")})
	g := newRig(t, here)
	g.h.(*handler).cfg.Metrics = m
	_, body := g.ask("GET", "/metrics", here)
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	docs, err := os.ReadFile("../../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	listed, there := map[string]bool{}, map[string]bool{}
	for _, name := range regexp.MustCompile("`(iop_[a-z_]+)").FindAllStringSubmatch(string(docs), -1) {
		listed[name[1]] = true
	}
	for _, help := range regexp.MustCompile(`(?m)^# HELP (iop_[a-z_]+) .+$`).FindAllStringSubmatch(body, -1) {
		if there[help[1]] = true; !listed[help[1]] {
			t.Errorf("docs/metrics.md lacks %s", help[1])
		}
	}
	for name := range listed {
		if !there[name] {
			t.Errorf("docs/metrics.md has %s, which isn't there", name)
		}
	}
	if len(there) < 40 {
		t.Errorf("only %d metrics were looked at", len(there))
	}
}

func TestReloadsAreCounted(t *testing.T) {
	m := NewMetrics("", Sources{})
	began := float64(time.Now().Unix()) - 1
	m.Reloaded(true, nil)
	m.Reloaded(false, nil)
	m.Reloaded(false, errors.New("bad"))
	m.Reloaded(false, errors.New("bad"))
	got := scrape(t, m)
	wantLines(t, got, `iop_config_reloads_total{result="ok"} 1`, `iop_config_reloads_total{result="unchanged"} 1`, `iop_config_reloads_total{result="refused"} 2`)
	if at, err := strconv.ParseFloat(got["iop_config_last_reload_success_timestamp_seconds"], 64); err != nil || at < began {
		t.Errorf("last success at %v, %v", at, err)
	}
	m.reloads.last.Set(7)
	m.Reloaded(false, errors.New("bad"))
	wantLines(t, scrape(t, m), `iop_config_last_reload_success_timestamp_seconds 7`)
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
	for i := range 2 * mostSeries {
		name := fmt.Sprint("p", i)
		m.Ended(&service.Outcome{Principal: name, Failure: execution.Failf(execution.CodeLimitExceeded, execution.OriginEdge, "x")})
		m.Ended(&service.Outcome{Route: &config.Route{Model: name, Target: name}, NodeID: "n", Attempts: 1, Usage: execution.Usage{Input: tokens(1)}})
	}
	if n := len(m.counted); n > mostSeries+4 {
		t.Errorf("%d series of tokens and principals", n)
	}
}

// A request pays for its metrics in nanoseconds and without garbage.
func TestEndedAllocatesNothing(t *testing.T) {
	m := NewMetrics("", Sources{})
	o := &service.Outcome{Route: &config.Route{Model: "m"}, NodeID: "n", Adapter: "a", Attempts: 1, FirstByte: time.Second, Usage: execution.Usage{Input: tokens(1)}}
	patience.Allocations(t, 0, 100, func() { m.Ended(o) })
}

func BenchmarkEnded(b *testing.B) {
	m := NewMetrics("", Sources{})
	o := &service.Outcome{Route: &config.Route{Model: "m"}, NodeID: "n", Adapter: "a", Attempts: 1, FirstByte: time.Second}
	b.ReportAllocs()
	for b.Loop() {
		m.Ended(o)
	}
}
