package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	pb "iop/proto/iop"
)

// endless streams one event each pause, and tells when its client has left.
func endless(pause time.Duration) (fakeprovider.Script, chan time.Time) {
	gone := make(chan time.Time, 1024)
	return func(x *fakeprovider.Exchange) {
		x.Body()
		x.BeginStream(200, "text/event-stream")
		x.Chunk(delta("tick"))
		for x.Pause(pause) {
			x.Chunk(delta("tick"))
		}
		gone <- time.Now()
		x.Close()
	}, gone
}

// once answers whoever asks with one event, and is otherwise endless.
func serve(t *testing.T, l *linked) {
	t.Helper()
	l.provider.Use(behindProbe(fakeprovider.Events(0, delta("well"), done)))
	if a := l.ask(chat()); a.StatusCode != 200 || a.Cut != nil {
		t.Fatalf("after the link healed: %d, %v\n%s", a.StatusCode, a.Cut, a.Bytes)
	}
}

// silent lets a link fall silent while it carries a stream, in one direction or both, and heals it.
func silent(t *testing.T, s scale, toEdge, toNode harness.Mode, reason string) {
	script, gone := endless(20 * time.Millisecond)
	l := newLinked(t, s, script, setup{})
	before, dials := l.Node("box").Generation, l.relay.Accepted()
	c := follow(t, l.HTTP(), chatBody, delta("tick"))

	start := time.Now()
	l.relay.Set(toEdge, toNode)
	limit := s.of(dead) + late
	between(t, "the caller's terminal", c.cut(t, limit).Sub(start), s.of(dead-heartbeat), limit)
	between(t, "the verdict", awaitFenced(t, l.Edge, "box", reason, 1, limit).Sub(start), s.of(dead-heartbeat), limit)
	ends := 0 // of this connection: another that reaches the edge before the link heals ends, too
	for _, line := range events(l.Edge, "fenced", "box") {
		if line["connection_generation"] == float64(before) {
			ends++
		}
	}
	if ends != 1 {
		t.Errorf("%d events of one end", ends)
	}
	between(t, "the end at the provider", await(t, gone, "the provider's connection is closed").Sub(start), s.of(dead-heartbeat), limit)
	harness.Until(t, limit, "the node dials again", func() bool { return l.relay.Accepted() > dials })
	wantLog(t, l.Log.Ended(t, c.runID()), map[string]any{"code": "node_lost", "status": 200})

	l.relay.Set(harness.Pass, harness.Pass)
	harness.Until(t, time.Minute, "the node is back", func() bool {
		n := l.Node("box")
		return n.State == "ready" && n.Generation > before
	})
	serve(t, l)
}

// TU-01, faults rows 6 and 7: silence without FIN or RST is noticed after the dead limit at both sides, whichever
// direction is lost; the caller, the provider and the bus learn of it, and the node dials again.
func TestSilentLink(t *testing.T) {
	for name, lost := range map[string]struct {
		toEdge, toNode harness.Mode
		reason         string
	}{
		"both ways":    {harness.Drop, harness.Drop, "dead"},
		"node to edge": {harness.Drop, harness.Pass, "dead"},
		"edge to node": {harness.Pass, harness.Drop, "lost"}, // the node ends it, and its FIN arrives
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			silent(t, 6, lost.toEdge, lost.toNode, lost.reason)
		})
	}
}

// TU-01 in real time: 45 s ± 2 s.
func TestLongSilentLink(t *testing.T) {
	long(t, "a link that is silent for 45 s")
	silent(t, 1, harness.Drop, harness.Drop, "dead")
}

// Faults row 9: the link stands still for less than the dead limit, again and again, under a stream; nothing is lost
// and nobody is told anything.
func TestFlapsShorterThanTheDeadLimit(t *testing.T) {
	t.Parallel()
	const s scale = 3 // dead after 15 s
	body := string(noise(1, 4<<20))
	l := newLinked(t, s, func(x *fakeprovider.Exchange) {
		x.Body()
		x.BeginStream(200, "text/plain")
		for rest := body; rest != "" && x.Pause(time.Millisecond); {
			n := min(len(rest), 4<<10)
			x.Chunk(rest[:n])
			rest = rest[n:]
		}
		x.EndChunks()
	}, setup{})
	before := l.Node("box").Generation
	flapping := make(chan struct{})
	var flaps sync.WaitGroup
	flaps.Go(func() {
		for range 3 {
			l.relay.Set(harness.Pause, harness.Pause)
			<-time.After(s.of(8 * time.Second))
			l.relay.Set(harness.Pass, harness.Pass)
			<-time.After(s.of(2 * time.Second))
		}
		close(flapping)
	})
	for ended := false; !ended; {
		// A flap of 8 s takes most of the 10 s that an open may take; a stream that has begun isn't bound by them.
		if a := l.ask(chat()); a.StatusCode != 504 {
			if a.Cut != nil {
				t.Fatalf("the stream was cut: %v", a.Cut)
			}
			sameBody(t, a.Bytes, body)
		}
		select {
		case <-flapping:
			ended = true
		default:
		}
	}
	flaps.Wait()
	if after := l.Node("box"); after.State != "ready" || after.Generation != before {
		t.Errorf("after the flaps the node is %s at generation %d, was at %d", after.State, after.Generation, before)
	}
}

// Faults row 8: the node's side sees RST, the edge's sees nothing. The node is back before any probe could have ended: its
// own word that the old connection is over is enough, and the run on the old one ends at that moment.
func TestHalfOpenLink(t *testing.T) {
	t.Parallel()
	script, gone := endless(20 * time.Millisecond)
	const soonest = limit // of a probe's end, were there one
	l := newLinked(t, 1, script, setup{Options: harness.Options{Timers: "{probe: 5m, handshake: 10m}"}})
	c := follow(t, l.HTTP(), chatBody, delta("tick"))
	start := time.Now()
	l.relay.Halve()
	awaitFenced(t, l.Edge, "box", "superseded", 1, soonest)
	between(t, "the caller's terminal", c.cut(t, late).Sub(start), 0, soonest)
	between(t, "the end at the provider", await(t, gone, "the provider's connection is closed").Sub(start), 0, soonest)
	l.AwaitReady("box")
	harness.Until(t, limit, "the node runs nothing", func() bool { return len(l.node.Status().Running) == 0 })
	serve(t, l)
}

// Faults row 5: a node loses its power and boots quickly. Its old connection is silent, a new process registers: it is
// accepted once the old one didn't answer its probe, long before the dead limit, and the old runs end then.
func TestQuickReboot(t *testing.T) {
	t.Parallel()
	script, _ := endless(20 * time.Millisecond)
	l := newLinked(t, 1, script, setup{})
	c := follow(t, l.HTTP(), chatBody, delta("tick"))
	l.relay.Silence()
	if err := l.node.Kill(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, nodeTimers := l.s.timers()
	l.node = harness.StartNode(t, l.relay.Addr(), nodeTimers)
	between(t, "the takeover", awaitFenced(t, l.Edge, "box", "superseded", 1, probe+late).Sub(start), probe, probe+late)
	c.cut(t, late)
	wantLog(t, l.Log.Ended(t, c.runID()), map[string]any{"code": "node_lost"})
	l.AwaitReady("box")
	serve(t, l)
}

// TU-02: the old connection is silent without FIN; a new process of the same node is accepted at its first try, and so
// is the one after it. Nothing piles up.
func TestRegisterBesideASilentConnection(t *testing.T) {
	t.Parallel()
	const s scale = 30
	timers, _ := s.only("probe")
	e := newFakeSite(t, s, 4, harness.Options{Timers: timers})
	relay := harness.NewRelay(t, e.Addr.Nodes.String())
	old := harness.DialFake(t, relay.Addr(), harness.FakeNodeOptions{Instance: "0"})
	old.Ready(t, nil)
	generation := uint64(0)
	for i := range 50 {
		calm(t, old) // what is on its way would be an answer to the probe
		relay.Silence()
		start := time.Now()
		n := harness.DialFake(t, relay.Addr(), harness.FakeNodeOptions{Instance: fmt.Sprint(i + 1)})
		between(t, "a registration beside a silent connection", time.Since(start), s.of(probe), s.of(probe)+late)
		if n.Generation() <= generation {
			t.Fatalf("generation %d after %d", n.Generation(), generation)
		}
		generation = n.Generation()
		n.Ready(t, nil)
		relay.Release()
		old = n
	}
	awaitFenced(t, e, "box", "superseded", 50, late)
	if n := countRefused(e); n != 0 {
		t.Errorf("%d tries were refused", n)
	}
}

// calm waits until nothing has moved on a link for a while.
func calm(t *testing.T, n *harness.FakeNode) {
	t.Helper()
	still, last := 0, int64(-1)
	harness.Until(t, limit, "nothing moves on the link", func() bool {
		s := n.Link.Status()
		if still++; s.BytesIn+s.BytesOut != last || s.Pending > 0 {
			still, last = 0, s.BytesIn+s.BytesOut
		}
		return still >= 15
	})
}

// TU-04, TU-02, E29, faults row 32: a second process shows the token of a node that is alive. It is refused each time,
// with the reason, before the probe's limit, one probe at a time; the node's stream doesn't notice.
func TestDuplicateOfALiveNode(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	// The probe ends by the answer, however late that is, never by its limit: a node that stands still isn't dead.
	l := newLinked(t, 1, f.script, setup{Options: harness.Options{Timers: "{probe: 5m, handshake: 10m}"}})
	c := l.dial()
	c.Send(chat())
	f.begin(t, "text/event-stream")
	response := c.Head(limit, "POST")
	addr := l.Addr.Nodes.String()
	refusal := func(name string) *pb.RegisterResponse {
		start := time.Now()
		resp, _, err := harness.Register(addr, harness.Hello("box", name))
		if err != nil {
			t.Errorf("try %s: %v", name, err)
			return nil
		}
		if took := time.Since(start); resp.GetReason() != pb.RegisterReason_REGISTER_REASON_DUPLICATE_CONNECTION || !resp.GetRetryable() ||
			resp.GetRetryAfterMs() < 1 || took > probe+late {
			t.Errorf("try %s, after %v: %v", name, took, resp)
		}
		return resp
	}
	for i := range 90 {
		refusal(fmt.Sprint(i))
		if i%9 == 0 {
			f.chunk(t, delta("tick"))
			c.Expect(response.Body, delta("tick"), limit)
		}
	}
	all(10, func(i int) { refusal(fmt.Sprintf("at once %d", i)) })
	harness.Until(t, late, "each refusal was noted with its reason", func() bool { return countRefused(l.Edge) == 100 })

	// A whole second program behaves, and is no more successful.
	second := harness.StartNode(t, addr, "")
	harness.Until(t, late, "the second program was refused", func() bool { return countRefused(l.Edge) > 100 })
	f.finish(t)
	c.Expect(response.Body, "", limit)
	if n := l.Node("box"); n.State != "ready" {
		t.Errorf("the node is %s", n.State)
	}
	if err := second.Stop(limit); err != nil {
		t.Error(err)
	}
}

// countRefused counts the refusals of box as a duplicate.
func countRefused(e *harness.Edge) int {
	return logged(e.Log, func(line map[string]any) bool {
		return line["node_id"] == "box" && line["code"] == "duplicate_connection"
	})
}
