package e2e

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// comesBack waits until the node is ready at a later generation.
func comesBack(t *testing.T, e *harness.Edge, after uint64, within time.Duration) uint64 {
	t.Helper()
	var n harness.NodeState
	harness.Until(t, within, "the node is ready at a later generation", func() bool {
		n = e.Node("box")
		return n.State == "ready" && n.Generation > after
	})
	return n.Generation
}

// OL-09: the link is down for long and comes back, twenty times. Each time the node registers at a higher generation,
// is told its configuration, is ready, and serves, within two dials.
func TestHostComesBack(t *testing.T) {
	t.Parallel()
	l := newLinked(t, 1, fakeprovider.Events(0, delta("well"), done), setup{Options: harness.Options{
		NodeTimers: "{backoff_start: 10ms, backoff_max: 300ms, probe_interval: 10h}"}})
	generation := l.Node("box").Generation
	for range 20 {
		l.relay.Refuse(true)
		l.relay.Reset()
		dials := l.relay.Accepted()
		harness.Until(t, limit, "some dials fail", func() bool { return l.relay.Accepted() >= dials+2 })
		l.relay.Refuse(false)
		dials = l.relay.Accepted()
		generation = comesBack(t, l.Edge, generation, limit)
		if n := l.relay.Accepted() - dials; n > 2 {
			t.Errorf("it took %d dials after the link was up", n)
		}
		if a := l.ask(chat()); a.StatusCode != 200 || a.Cut != nil {
			t.Fatalf("%d %v %s", a.StatusCode, a.Cut, a.Bytes)
		}
	}
}

// orphan loses a link in one way or another, and looks at what ran there. The node must have stopped it soon after.
func orphan(t *testing.T, s scale, lose func(*harness.Relay), after time.Duration) {
	script, gone := endless(20 * time.Millisecond)
	l := newLinked(t, s, script, setup{})
	generation := l.Node("box").Generation
	c := follow(t, l.HTTP(), chatBody, delta("tick"))
	start := time.Now()
	lose(l.relay)
	between(t, "the caller's terminal", c.cut(t, s.of(after)+late).Sub(start), 0, s.of(after)+late)
	between(t, "the end at the provider", await(t, gone, "the provider's connection is closed").Sub(start), 0, s.of(after)+late)
	comesBack(t, l.Edge, generation, time.Minute)
	l.node.AwaitIdle(limit)
	l.AwaitIdle(limit)
}

// OL-10: what runs on a link that is cut, or falls silent, doesn't keep the provider; after the reconnect the node
// reports nothing.
func TestOrphanIsStopped(t *testing.T) {
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		orphan(t, 1, (*harness.Relay).Reset, 0)
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		orphan(t, 6, (*harness.Relay).Silence, dead)
	})
}

// OL-10 in real time.
func TestLongOrphanIsStopped(t *testing.T) {
	long(t, "a link that is silent for 45 s under a run")
	orphan(t, 1, (*harness.Relay).Silence, dead)
}

// soon is how a node dials that is never tired of it.
const soon = "{backoff_start: 5ms, backoff_max: 20ms, probe_interval: 10h}"

// TU-20, faults row 35: the old connection's handler ends late, up to a second after the new one is there, many times.
// It never takes anything of the new one with it.
func TestLateCleanUpSparesTheNewConnection(t *testing.T) {
	t.Parallel()
	l := newLinked(t, 1, fakeprovider.Events(0, delta("well"), done), setup{Options: harness.Options{NodeTimers: soon}})
	generation := l.Node("box").Generation
	random := rand.New(rand.NewPCG(20, 0))
	var ends sync.WaitGroup
	for range 100 {
		l.relay.Halve()
		generation = comesBack(t, l.Edge, generation, limit)
		delay := time.Duration(random.Int64N(int64(500 * time.Millisecond)))
		ends.Go(func() {
			<-time.After(delay)
			l.relay.Release()
		})
		if a := l.ask(chat()); a.StatusCode != 200 || a.Cut != nil {
			t.Fatalf("at generation %d: %d %v %s", generation, a.StatusCode, a.Cut, a.Bytes)
		}
		if n := l.Node("box"); n.State != "ready" || n.Generation != generation {
			t.Fatalf("the node is %s at %d, want it ready at %d", n.State, n.Generation, generation)
		}
	}
	ends.Wait()
	if n := l.Node("box"); n.State != "ready" || n.Generation != generation {
		t.Errorf("after all old ends the node is %s at %d, want it ready at %d", n.State, n.Generation, generation)
	}
}

// marks counts executions by what their callers called them.
type marks struct {
	mu    sync.Mutex
	count map[string]int
}

func (m *marks) add(mark string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count[mark]++
}

// script answers within a few milliseconds.
func (m *marks) script(x *fakeprovider.Exchange) {
	x.Body()
	m.add(x.Header.Get("X-Mark"))
	x.BeginStream(200, "text/event-stream")
	x.Chunk(delta("one"))
	x.Pause(time.Duration(rand.Int64N(int64(4 * time.Millisecond))))
	x.Chunk(done)
	x.EndChunks()
}

// outcome is how an answer of script ended. Whatever came of it, it isn't half of one that looks whole.
func outcome(t *testing.T, a *harness.Answer) string {
	switch {
	case a.Cut != nil:
		return "cut"
	case a.StatusCode == 200 && string(a.Bytes) != delta("one")+done:
		t.Errorf("an answer that ended as if it were whole: %q", a.Bytes)
	case a.StatusCode == 200, a.StatusCode == 502 && code(a) == "node_lost", a.StatusCode == 503 && code(a) == "no_node": // the fourth time
	default:
		t.Errorf("%d %s", a.StatusCode, a.Bytes)
	}
	return fmt.Sprint(a.StatusCode)
}

// Faults row 29: nodes come and go under load, so that generations change in every moment of an admission. Each caller
// gets one whole answer or one failure, nothing is executed twice, and no place is lost.
func TestGenerationsChangeUnderLoad(t *testing.T) {
	t.Parallel()
	executed, outcomes := marks{count: map[string]int{}}, marks{count: map[string]int{}}
	l := newLinked(t, 1, executed.script, setup{Options: harness.Options{NodeTimers: soon}})
	var ended atomic.Bool
	var storm sync.WaitGroup
	storm.Go(func() {
		for generation := l.Node("box").Generation; !ended.Load(); {
			generation = comesBack(t, l.Edge, generation-1, limit)
			<-time.After(time.Duration(rand.Int64N(int64(10 * time.Millisecond))))
			l.relay.Reset()
		}
	})
	all(8, func(caller int) {
		for i := range 60 {
			a, err := harness.Ask(l.HTTP(), chat(fmt.Sprintf("X-Mark: %d-%d", caller, i)), limit)
			if err != nil {
				t.Error(err)
				return
			}
			outcomes.add(outcome(t, a))
		}
	})
	ended.Store(true)
	storm.Wait()
	generations := len(events(l.Edge, "registered", "box"))
	t.Logf("outcomes: %v, generations: %d", outcomes.count, generations)
	if outcomes.count["200"] == 0 || generations < 10 {
		t.Error("the storm was none")
	}
	for mark, n := range executed.count {
		if n > 1 {
			t.Errorf("request %s was executed %d times", mark, n)
		}
	}
	comesBack(t, l.Edge, 0, limit)
}

// Faults row 35, TU-23: a node whose link never lasts waits longer and longer.
func TestFlappingNodeBacksOff(t *testing.T) {
	t.Parallel()
	const s scale = 10
	l := newLinked(t, s, fakeprovider.Events(0, done), setup{scaled: []string{"backoff_start", "backoff_max"}})
	generation := l.Node("box").Generation
	for range 7 {
		l.relay.Reset()
		generation = comesBack(t, l.Edge, generation, limit)
	}
	waits := waitsOf(l.node)
	// Each wait is drawn up to a bound that doubles. Had one stable moment reset it, all would be below the first.
	if longest := slices.Max(waits); len(waits) < 7 || longest < s.of(backoffStart) {
		t.Errorf("the waits were %v; they don't grow", waits)
	}
	for i, w := range waits {
		if most := min(s.of(backoffStart)<<i, s.of(30*time.Second)); w > most {
			t.Errorf("wait %d was %v, at most %v is due", i, w, most)
		}
	}
}

// waitsOf are the pauses that a node drew before its dials.
func waitsOf(n *harness.Node) []time.Duration {
	var waits []time.Duration
	for _, line := range n.Log.Entries("no link to the edge") {
		ms, _ := line["retry_in_ms"].(float64)
		waits = append(waits, time.Duration(ms*float64(time.Millisecond)))
	}
	return waits
}

// TU-23: fifty nodes lose their edge in one moment; it is back some time later. They don't come in step, no two alike,
// and all are ready soon.
func TestFleetDoesNotReconnectInStep(t *testing.T) {
	t.Parallel()
	const fleet = 50
	const s scale = 2
	edgeTimers, nodeTimers := s.timers()
	o := harness.Options{Timers: edgeTimers, MoreNodes: records(fleet)}
	dir := t.TempDir()
	e := harness.StartEdgeIn(t, dir, "127.0.0.1:0", o)
	relay := harness.NewRelay(t, e.Addr.Nodes.String())
	nodes := make([]*harness.Node, fleet)
	for i := range nodes {
		nodes[i] = harness.StartNodeAs(t, harness.TokenOf(fmt.Sprint("n", i)), relay.Addr(), nodeTimers)
	}
	awaitReady(t, e, fleet)
	known := make([]int, fleet)
	for i, n := range nodes {
		known[i] = len(waitsOf(n))
	}
	relay.Refuse(true)
	_ = e.Kill()
	harness.Until(t, limit, "everybody dials again", func() bool { return relay.Accepted() >= 2*fleet })
	e = harness.StartEdgeIn(t, dir, "127.0.0.1:0", o)
	relay.Retarget(e.Addr.Nodes.String())
	relay.Refuse(false)
	awaitReady(t, e, fleet)

	// Without jitter all fifty would draw the same.
	var first []time.Duration
	sequences := map[string]int{}
	for i, n := range nodes {
		waits := waitsOf(n)[known[i]:]
		first = append(first, waits[0])
		sequences[fmt.Sprint(waits)]++
	}
	slices.Sort(first)
	for i := range first[:fleet/2] {
		if gap := first[i+fleet/2] - first[i]; gap < s.of(backoffStart)/10 {
			t.Errorf("half of the fleet waits for the same time, within %v: %v", gap, first)
			break
		}
	}
	if len(sequences) != fleet {
		t.Errorf("%d nodes drew %d different sequences of waits", fleet, len(sequences))
	}
}

// records are further nodes, n0 and so on.
func records(n int) string {
	var list []string
	for i := range n {
		list = append(list, harness.Record(fmt.Sprint("n", i), "[{name: loopback, kind: loopback, max_concurrency: 4}]"))
	}
	return strings.Join(list, ", ")
}

// awaitReady waits until that many nodes are ready.
func awaitReady(t *testing.T, e *harness.Edge, n int) {
	t.Helper()
	harness.Until(t, time.Minute, fmt.Sprint(n, " nodes are ready"), func() bool {
		return strings.Count(string(e.Admin("/admin/v1/nodes")), `"state":"ready"`) >= n
	})
}

// Faults row 34: two hundred nodes lose their links in one moment and come back at once, without any jitter. All are
// ready again soon, and the memory of both moments isn't kept.
func TestManyNodesReconnectAtOnce(t *testing.T) { // not parallel: it looks at the heap
	const fleet = 200
	e := newFakeSite(t, 1, 4, harness.Options{MoreNodes: records(fleet), Limits: "{unregistered: 512}"}) // all may dial before one is served
	relay := harness.NewRelay(t, e.Addr.Nodes.String())
	connect := func(instance string) {
		all(fleet, func(i int) {
			id := fmt.Sprint("n", i)
			n := harness.DialFake(t, relay.Addr(), harness.FakeNodeOptions{ID: id, Instance: id + instance})
			n.Ready(t, nil)
		})
		awaitReady(t, e, fleet)
	}
	connect("a")
	before := heap()
	start := time.Now()
	relay.Reset()
	harness.Until(t, limit, "the edge noticed", func() bool {
		return strings.Count(string(e.Admin("/admin/v1/nodes")), `"state":"ready"`) == 0
	})
	connect("b")
	between(t, "the return of the whole fleet", time.Since(start), 0, 15*time.Second+late)
	if grown := int64(heap()) - int64(before); grown > fleet*64<<10 {
		t.Errorf("the heap grew by %d KiB", grown>>10)
	}
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// heapEver is how much was ever allocated.
func heapEver() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
