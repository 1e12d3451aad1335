package e2e

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// OL-08: two hosts serve one model; the link of one goes silent. What runs on it ends with a failure by the dead
// limit, no request waits longer than that, and afterwards every request goes to the other.
func TestOneOfTwoHostsIsGone(t *testing.T) {
	t.Parallel()
	oneOfTwo(t, 6)
}

// OL-08 in real time.
func TestLongOneOfTwoHostsIsGone(t *testing.T) {
	long(t, "a host that is silent for 45 s")
	oneOfTwo(t, 1)
}

func oneOfTwo(t *testing.T, s scale) {
	script, _ := endless(20 * time.Millisecond)
	second := fakeprovider.New(t, behindProbe(fakeprovider.Events(0, delta("well"), done)))
	l := newLinked(t, s, script, setup{Options: harness.Options{
		MoreNodes: harness.Record("other", "["+adapter("gpu", second.URL(), 4)+"]"),
		Routes:    `[{model: "*"}, {model: on-box, target: m, nodes: [box]}]`}})
	_, nodeTimers := s.timers()
	harness.StartNodeAs(t, harness.TokenOf("other"), l.Addr.Nodes.String(), nodeTimers)
	l.AwaitReady("other")
	c := follow(t, l.HTTP(), `{"model":"on-box","stream":true}`, delta("tick"))

	start := time.Now()
	l.relay.Set(harness.Drop, harness.Drop)
	var fenced atomic.Int64 // when, since start
	var load sync.WaitGroup
	outcomes := marks{count: map[string]int{}}
	for range 3 {
		load.Go(func() {
			for {
				asked := time.Since(start)
				a, err := harness.Ask(l.HTTP(), chat(), s.of(dead+5*time.Second)+late)
				if err != nil {
					t.Error(err)
					return
				}
				after := fenced.Load() != 0 && asked > time.Duration(fenced.Load())
				outcomes.add(fmt.Sprintf("%v %d", after, a.StatusCode))
				if after {
					return
				}
				<-time.After(s.of(300 * time.Millisecond))
			}
		})
	}
	awaitFenced(t, l.Edge, "box", "dead", 1, s.of(dead)+late)
	fenced.Store(int64(time.Since(start)))
	between(t, "the terminal of what ran there", c.cut(t, late).Sub(start), s.of(dead-heartbeat), s.of(dead)+late)
	load.Wait()
	for o := range outcomes.count {
		if o != "true 200" && o != "false 200" && o != "false 504" && o != "false 502" {
			t.Errorf("a request ended as %s", o)
		}
	}
	for range 50 {
		if a := l.ask(chat()); a.StatusCode != 200 || a.Header.Get("X-IOP-Node") != "other" {
			t.Fatalf("after the limit: %d from %s", a.StatusCode, a.Header.Get("X-IOP-Node"))
		}
	}
	l.relay.Set(harness.Pass, harness.Pass)
}

// TU-19: a node whose connection is fine but that says nothing isn't kept as connected: the edge closes the TCP
// connection, so that the node can notice and come again.
func TestMuteNodeIsClosed(t *testing.T) {
	t.Parallel()
	mute(t, 6)
}

// TU-19 in real time.
func TestLongMuteNodeIsClosed(t *testing.T) {
	long(t, "a node that says nothing for 45 s")
	mute(t, 1)
}

func mute(t *testing.T, s scale) {
	e := newFakeSite(t, s, 4, harness.Options{})
	mux, resp := rawNode(t, e, "box")
	ready(t, e, mux, resp)
	between(t, "the end", mux.AwaitEnd(s.of(dead)+late), s.of(dead-heartbeat), s.of(dead)+late)
	awaitFenced(t, e, "box", "dead", 1, late)
	if n := e.Node("box"); n.State != "offline" {
		t.Errorf("the node is %s", n.State)
	}
	harness.DialFake(t, e.Addr.Nodes.String(), harness.FakeNodeOptions{}).Ready(t, nil)
}

// rawNode registers a node that speaks the multiplexer by hand, and opens its control stream.
func rawNode(t *testing.T, e *harness.Edge, id string) (*harness.Mux, *pb.RegisterResponse) {
	t.Helper()
	resp, conn, err := harness.Register(e.Addr.Nodes.String(), harness.Hello(id, id))
	if err != nil || !resp.GetAccepted() {
		t.Fatal(err, resp)
	}
	mux := harness.NewMux(t, conn)
	if err := mux.Open(harness.ControlStream); err != nil {
		t.Fatal(err)
	}
	return mux, resp
}

// ready says Ready by hand.
func ready(t *testing.T, e *harness.Edge, mux *harness.Mux, resp *pb.RegisterResponse) {
	t.Helper()
	say(t, mux, &pb.NodeControl{Message: &pb.NodeControl_Ready{Ready: harness.FakeReady(resp)}})
	e.AwaitReady(resp.GetNodeId())
}

// say writes a control message by hand.
func say(t *testing.T, mux *harness.Mux, m *pb.NodeControl) {
	t.Helper()
	if err := mux.Send(harness.ControlStream, harness.Framed(t, m)); err != nil {
		t.Fatal(err)
	}
}

// TU-26: the heartbeat is fine, the data path is dead. Each request fails within its limit, the third makes the node
// unresponsive, from then on everything goes to the other node, and once it answers the edge's own command it is used
// again.
func TestDeadDataPath(t *testing.T) {
	t.Parallel()
	const s scale = 3 // the other node must keep within the same limit
	var alive atomic.Bool
	edgeTimers, nodeTimers := s.only("dispatch_limit", "heartbeat")
	provider := fakeprovider.New(t, behindProbe(fakeprovider.Events(0, delta("well"), done)))
	e := newFakeSite(t, s, 20, harness.Options{Timers: edgeTimers,
		MoreNodes: harness.Record("other", "["+adapter("gpu", provider.URL(), 4)+"]"),
		Routes:    `[{model: "*"}, {model: on-box, target: m, nodes: [box], queue: {wait: 200ms}}]`})
	harness.StartNodeAs(t, harness.TokenOf("other"), e.Addr.Nodes.String(), nodeTimers)
	e.AwaitReady("other")
	var opens atomic.Int64
	fake := harness.DialFake(t, e.Addr.Nodes.String(), harness.FakeNodeOptions{Deaf: true,
		Work: func(n *harness.FakeNode, s *transport.Stream, open *pb.WorkOpen) {
			opens.Add(1)
			if alive.Load() {
				_ = n.Answer(s, open, "ok")
			}
			harness.Discard(s)
		}})
	fake.Ready(t, nil)
	for i := range 3 {
		start := time.Now()
		a := ask(t, e, `{"model":"on-box"}`)
		if a.StatusCode != 504 || code(a) != "dispatch_timeout" {
			t.Errorf("request %d: %d %s", i, a.StatusCode, a.Bytes)
		}
		between(t, "a failure", time.Since(start), s.of(dispatchLimit), s.of(dispatchLimit)+late)
	}
	harness.Until(t, late, "the node is unresponsive", func() bool { return e.Node("box").State == "unresponsive" })
	if a := ask(t, e, `{"model":"on-box"}`); a.StatusCode != 503 {
		t.Errorf("nobody else may serve it: %d %s", a.StatusCode, a.Bytes)
	}
	for range 20 {
		if a := ask(t, e, chatBody); a.StatusCode != 200 || a.Header.Get("X-IOP-Node") != "other" {
			t.Errorf("%d from %s: %s", a.StatusCode, a.Header.Get("X-IOP-Node"), a.Bytes)
		}
	}
	if n := opens.Load(); n != 3 {
		t.Errorf("the node was sent %d opens", n)
	}
	alive.Store(true)
	fake.Undeafen()
	harness.Until(t, s.of(2*heartbeat)+late, "the node is used again", func() bool { return e.Node("box").State == "ready" })
	if a := ask(t, e, `{"model":"on-box"}`); a.StatusCode != 200 {
		t.Errorf("the node serves again: %d %s", a.StatusCode, a.Bytes)
	}
	fake.Close() // it never confirmed the three, whose places are free when it is gone
	e.AwaitIdle(limit)
}

// ask sends a chat request and returns the whole answer.
func ask(t *testing.T, e *harness.Edge, body string) *harness.Answer {
	t.Helper()
	a, err := harness.Ask(e.HTTP(), harness.Post(chatPath, body), limit)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// busyHost loads both cores and the link of a node, and reports whether the heartbeat was late enough to matter.
func busyHost(t *testing.T, s scale, lasts time.Duration) (lost bool) {
	body := noise(27, 1<<20)
	timers, _ := s.timers() // the limit of a dispatch isn't what is looked at
	timers = strings.Replace(timers, fmt.Sprint("dispatch_limit: ", s.of(dispatchLimit)), fmt.Sprint("dispatch_limit: ", dispatchLimit), 1)
	l := newLinked(t, s, func(x *fakeprovider.Exchange) {
		x.Body()
		x.Begin(200, fmt.Sprintf("Content-Length: %d", len(body)))
		_, _ = x.Write(body)
	}, setup{places: 8, Options: harness.Options{Timers: timers}})
	before := l.Node("box").Generation
	var end atomic.Bool
	var burn sync.WaitGroup
	for range runtime.NumCPU() {
		burn.Go(func() {
			for n := uint64(1); !end.Load(); n++ {
				n *= n
			}
		})
	}
	deadline := time.Now().Add(lasts)
	var bytes atomic.Int64
	var failed sync.Map
	all(8, func(caller int) {
		for time.Now().Before(deadline) {
			a, err := harness.Ask(l.HTTP(), chat(), limit)
			if err != nil || a.StatusCode != 200 || a.Cut != nil || sum(a.Bytes) != sum(body) {
				failed.Store(caller, fmt.Sprintf("%v %s", err, brief(a)))
				return
			}
			bytes.Add(int64(len(a.Bytes)))
		}
	})
	end.Store(true)
	burn.Wait()
	n := l.Node("box")
	t.Logf("%d MiB; the node is %s at %d, was at %d; %d registrations", bytes.Load()>>20, n.State, n.Generation, before, l.relay.Accepted())
	if n.State != "ready" || n.Generation != before || len(events(l.Edge, "fenced", "box")) != 0 || l.relay.Accepted() != 1 {
		return true
	}
	failed.Range(func(_, how any) bool {
		t.Errorf("under load: %s", how)
		return true
	})
	return false
}

// TU-27, faults row 55. Where others load the machine, too, what is a moment in life is too short for a heartbeat.
func TestBusyHostIsNotDead(t *testing.T) {
	for _, s := range []scale{10, 4, 2} {
		if !busyHost(t, s, 60*time.Second/time.Duration(s)) {
			return
		}
	}
	t.Error("the node was lost, however long a heartbeat could take")
}

// TU-27 in real time.
func TestLongBusyHostIsNotDead(t *testing.T) {
	long(t, "two minutes of load")
	if busyHost(t, 1, 2*time.Minute) {
		t.Error("the node was lost")
	}
}

// Faults row 33: a token that nobody knows is refused with its reason, at once, and the node doesn't ask again for
// minutes.
func TestUnknownToken(t *testing.T) {
	t.Parallel()
	e := newFakeSite(t, 1, 4, harness.Options{})
	n := harness.StartNodeAs(t, harness.TokenOf("nobody"), e.Addr.Nodes.String(), "")
	harness.Until(t, late, "the node was refused", func() bool { return len(waitsOf(n)) > 0 })
	if wait := waitsOf(n)[0]; wait < 4*time.Minute {
		t.Errorf("the node comes again in %v", wait)
	}
	if line := n.Log.Entries("no link to the edge")[0]; line["code"] != "unknown_token" {
		t.Errorf("the node's line: %v", line)
	}
	harness.Until(t, limit, "the edge's log has the refusal once", func() bool { // it follows the refusal
		return logged(e.Log, func(line map[string]any) bool { return line["code"] == "unknown_token" }) == 1
	})
	start := time.Now()
	if err := n.Stop(late); err != nil {
		t.Error(err)
	}
	between(t, "stopping a node that waits", time.Since(start), 0, late)
}
