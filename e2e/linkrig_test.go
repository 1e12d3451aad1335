package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// scale is how many times faster than in real life a test's timers run. All of them are divided alike, but for the
// heartbeat: more of them to a dead limit than in life, so that a stall of seconds doesn't end a link that lives.
type scale int64

// of is a real time in a test's.
func (s scale) of(d time.Duration) time.Duration { return d / time.Duration(s) }

// real is what becomes d once it is scaled.
func (s scale) real(d time.Duration) time.Duration { return d * time.Duration(s) }

// timers are every timer of both programs, as configuration. How long a peer may take to say its first word stays as it
// is: on a loaded machine that is real time.
//
// The link of a test whose machine stands still for longer than a scaled dead limit less a heartbeat is lost. Those that
// don't wait for a dead link use only.
func (s scale) timers() (edge, node string) {
	return s.scaled(func(string) bool { return true })
}

// only is timers with these scaled, and the others as they are in life.
func (s scale) only(names ...string) (edge, node string) {
	return s.scaled(func(name string) bool { return slices.Contains(names, name) })
}

func (s scale) scaled(is func(name string) bool) (edge, node string) {
	list := func(timers map[string]time.Duration) string {
		var parts []string
		for name, d := range timers {
			if is(name) {
				d = s.of(d)
			}
			parts = append(parts, fmt.Sprintf("%s: %s", name, d))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	word := func(name string, d time.Duration) time.Duration { // of a peer, the first
		if is(name) {
			return s.real(d)
		}
		return d
	}
	beat := heartbeat
	if s > 1 {
		beat = 5 * time.Second
	}
	edge = list(map[string]time.Duration{
		"heartbeat": beat, "dead": dead, "handshake": word("handshake", 10*time.Second), "probe": probe, "ready_limit": time.Minute,
		"control_open": word("control_open", 5*time.Second), "dispatch_limit": dispatchLimit, "confirm_limit": time.Minute, "write_idle": time.Minute,
		"terminal_wait": 10 * time.Second, "stream_reset": streamReset, "drain": drain,
	})
	node = list(map[string]time.Duration{
		"adapter_stop": 10 * time.Second, "linger": 10 * time.Minute, "drain": drain, "open_read": 10 * time.Second,
		"handshake": 10 * time.Second, "backoff_start": backoffStart, "backoff_max": 30 * time.Second,
		"backoff_reset": 30 * time.Second, "backoff_permanent": 5 * time.Minute, "probe_interval": 10 * time.Hour,
	})
	return edge, node
}

// The real times that tests speak of.
const (
	heartbeat     = 30 * time.Second
	dead          = 45 * time.Second
	probe         = 3 * time.Second
	dispatchLimit = 10 * time.Second
	streamReset   = 10 * time.Second
	drain         = 30 * time.Second
	backoffStart  = time.Second
)

// late is what a loaded machine may add to any time without failing a test. How quick things are on one that isn't
// loaded is for the tests on real time, and for the benchmark, to say.
const late = 20 * time.Second

// linked is a rig whose node reaches the edge through a relay.
type linked struct {
	*rig
	relay *harness.Relay
	s     scale
}

// newLinked starts edge, relay, node and provider.
func newLinked(t *testing.T, s scale, script fakeprovider.Script, o setup) *linked {
	t.Helper()
	provider := fakeprovider.New(t, behindProbe(script))
	if o.places == 0 {
		o.places = 4
	}
	if o.Adapters == "" {
		o.Adapters = "[" + adapter("gpu", provider.URL(), o.places) + "]"
	}
	edge, node := s.timers()
	if o.scaled != nil {
		edge, node = s.only(o.scaled...)
	}
	if o.Timers == "" {
		o.Timers = edge
	}
	if o.NodeTimers == "" {
		o.NodeTimers = node
	}
	l := &linked{rig: &rig{t: t, provider: provider}, s: s}
	l.Edge = harness.StartEdge(t, o.Options)
	l.relay = harness.NewRelay(t, l.Addr.Nodes.String())
	if !o.NoNode {
		l.node = harness.StartNode(t, l.relay.Addr(), o.NodeTimers)
		l.AwaitReady("box")
	}
	t.Cleanup(func() {
		if !t.Failed() {
			l.rest()
		}
	})
	return l
}

// rest waits until nothing is held on either side: places, streams, runs, bodies. A program that was stopped holds
// nothing.
func (l *linked) rest() {
	l.t.Helper()
	select {
	case <-l.Done():
	default:
		restEdge(l.t, l.Edge)
	}
	if l.node == nil {
		return
	}
	select {
	case <-l.node.Done():
	default:
		l.node.AwaitIdle(limit)
		harness.Until(l.t, limit, "the node has no work stream", func() bool {
			open := 0
			for _, link := range l.node.Status().Links {
				open += link.OpenStreams
			}
			return open == 0
		})
	}
}

// restEdge waits until an edge holds nothing.
func restEdge(t *testing.T, e *harness.Edge) {
	t.Helper()
	e.AwaitIdle(limit)
	for _, metric := range []string{"iop_open_streams", "iop_runs_live", "iop_queue_length", "iop_request_body_held_bytes"} {
		harness.Until(t, limit, metric+" is 0", func() bool {
			// Without a connected node there is no sample of its streams.
			return !strings.Contains(string(e.Admin("/metrics")), "\n"+metric) || e.Metric(metric) == 0
		})
	}
}

// newFakeSite starts an edge whose node the test plays.
func newFakeSite(t *testing.T, s scale, places int, o harness.Options) *harness.Edge {
	t.Helper()
	if o.Adapters == "" {
		o.Adapters = fmt.Sprintf("[{name: loopback, kind: loopback, max_concurrency: %d}]", places)
	}
	if o.Timers == "" {
		o.Timers, _ = s.timers()
	}
	return harness.StartEdge(t, o)
}

// events returns the edge's log lines about a node, of one kind.
func events(e *harness.Edge, kind, node string) []map[string]any {
	var found []map[string]any
	for _, line := range e.Log.Entries("node " + kind) {
		if line["node_id"] == node {
			found = append(found, line)
		}
	}
	return found
}

// logged counts the lines of a log for which is holds.
func logged(log *harness.Log, is func(line map[string]any) bool) int {
	n := 0
	for text := range strings.Lines(log.Tail(1 << 30)) {
		line := map[string]any{}
		if json.Unmarshal([]byte(text), &line) == nil && is(line) {
			n++
		}
	}
	return n
}

// awaitFenced waits until the connections of a node that were fenced for a reason are n, and returns when.
func awaitFenced(t *testing.T, e *harness.Edge, node, reason string, n int, within time.Duration) time.Time {
	t.Helper()
	harness.Until(t, within, fmt.Sprintf("%d connections of %s are over as %s", n, node, reason), func() bool {
		have := 0
		for _, line := range events(e, "fenced", node) {
			if line["code"] == reason {
				have++
			}
		}
		return have >= n
	})
	return time.Now()
}

// follower is a caller that streams.
type follower struct {
	*harness.Caller
	response *http.Response
}

// follow sends a streaming request and waits for the first event.
func follow(t *testing.T, addr, body, first string) *follower {
	t.Helper()
	c := harness.Dial(t, addr)
	c.Post(chatPath, body)
	b := &follower{Caller: c, response: c.Head(limit, "POST")}
	if b.response.StatusCode != http.StatusOK {
		t.Fatalf("status %d", b.response.StatusCode)
	}
	c.Expect(b.response.Body, first, limit)
	return b
}

// cut reads on until the response ends, which must be without an end, and returns when.
func (b *follower) cut(t *testing.T, within time.Duration) time.Time {
	t.Helper()
	_ = b.SetReadDeadline(time.Now().Add(within))
	buf := make([]byte, 32<<10)
	for {
		if _, err := b.response.Body.Read(buf); err != nil {
			if err.Error() == "EOF" || isTimeout(err) {
				t.Fatalf("within %v the response ended with %v, want it cut", within, err)
			}
			return time.Now()
		}
	}
}

// runID is the id that the edge gave a response.
func (b *follower) runID() string { return b.response.Header.Get("X-IOP-Run-Id") }

func isTimeout(err error) bool {
	t, ok := err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// code is the failure code of an error response.
func code(a *harness.Answer) string {
	var body struct{ Error struct{ Code string } }
	_ = json.Unmarshal(a.Bytes, &body) // no JSON, no code
	return body.Error.Code
}

// brief shows an answer in a line.
func brief(a *harness.Answer) string {
	if a == nil {
		return "no answer"
	}
	return fmt.Sprintf("%d, %d bytes, %v: %.300s", a.StatusCode, len(a.Bytes), a.Cut, a.Bytes)
}

// between checks a time.
func between(t *testing.T, what string, got, least, most time.Duration) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s took %v, want %v to %v", what, got, least, most)
	}
}

// noise is a body that looks like none other, the same one for the same seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 7))
	for i := range b {
		b[i] = 'a' + byte(r.Uint32()%26)
	}
	return b
}
