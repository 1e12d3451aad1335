package transport_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

// patient is a node that doesn't find its edge dead, so that only the edge's judgement is looked at.
func patient(id string) edgetest.NodeOptions {
	return edgetest.NodeOptions{Hello: edgetest.Hello(id), Dead: time.Hour}
}

// owner registers node a on a cable that can go silent, and makes it ready.
func owner(t *testing.T, l *edgetest.Listener) (*edgetest.Node, *edgetest.Cable) {
	t.Helper()
	cable := &edgetest.Cable{Conn: l.Dial()}
	n := edgetest.Connect(t, cable, patient("a"))
	n.AwaitReady(t)
	synctest.Wait() // nothing is on its way when the cable goes silent
	return n, cable
}

// stranger is the hello of another process with the same token.
func stranger(name string) *pb.RegisterRequest {
	hello := edgetest.Hello("a")
	hello.InstanceId = edgetest.Instance(name)
	return hello
}

// §2.A contending: predecessor answered the probe. E29, faults.md row 32, TU-04: whoever comes second is refused within
// 3.5 s, each time with an event, and the first doesn't notice.
func TestDuplicateOfALiveNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		first, _ := owner(t, l)
		const tries = 100
		for range tries {
			start := time.Now()
			c, resp := register(t, l, stranger("second"))
			wantRefused(t, c, resp, duplicate)
			if d := time.Since(start); d > 3500*time.Millisecond {
				t.Errorf("refused after %v", d)
			}
			if !resp.GetRetryable() || resp.GetRetryAfterMs() != 3000 {
				t.Errorf("answer %v", resp)
			}
		}
		synctest.Wait()
		if n := seen.count(events.KindRefused, "duplicate_connection"); n != tries {
			t.Errorf("%d events for %d refusals", n, tries)
		}
		if n := seen.count(events.KindFenced, ""); n != 0 {
			t.Errorf("%d connections were fenced", n)
		}
		if c := e.Registry.Current("a"); c == nil || c.Generation != first.Generation() || c.State() != "ready" {
			t.Errorf("current connection %+v", c)
		}
		// Its link works: work goes over it.
		wantWork(t, e, "a")
	})
}

// §2.A contending: any byte read after the probe was flushed is an answer, not the echo alone.
func TestAnyByteAnswersTheProbe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, _ := inMemory(t, edgetest.Options{})
		first := raw(t, l, "a") // never echoes
		if err := first.OpenStream(edgetest.ControlStream); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.AfterFunc(2*time.Second, func() {
			_ = first.Send(&pb.NodeControl{Message: &pb.NodeControl_Heartbeat{Heartbeat: &pb.Heartbeat{Nonce: 1}}})
		})
		start := time.Now()
		c, resp := register(t, l, stranger("second"))
		wantRefused(t, c, resp, duplicate)
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("refused after %v", d)
		}
		if e.Registry.Lookup("a", first.Response.GetConnectionGeneration()) == nil {
			t.Error("the predecessor was touched")
		}
	})
}

// §2.A contending: edge grace over → close.
func TestEndWhileContending(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, _ := inMemory(t, edgetest.Options{})
		_, cable := owner(t, l)
		cable.Silence()
		c := l.Dial()
		defer c.Close()
		if err := link.WriteMessage(c, stranger("second")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
		wantClosed(t, c)
	})
}

// §2.A contending: probe 3 s silent → commit(replace). TU-02, faults.md rows 5 and 8: the first try of a node whose old
// connection is silent is accepted within 3.5 s, again and again.
func TestReplaceASilentConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		_, cable := owner(t, l)
		last := e.Registry.Current("a").Generation
		for cycle := range 50 {
			synctest.Wait()
			cable.Silence()
			start := time.Now()
			cable = &edgetest.Cable{Conn: l.Dial()}
			hello := stranger("after a reboot")
			n := edgetest.Connect(t, cable, edgetest.NodeOptions{Hello: hello})
			if d := time.Since(start); d > 3500*time.Millisecond {
				t.Errorf("cycle %d: accepted after %v", cycle, d)
			}
			if n.Generation() <= last {
				t.Errorf("cycle %d: generation %d after %d", cycle, n.Generation(), last)
			}
			last = n.Generation()
			n.AwaitReady(t)
			if c := e.Registry.Current("a"); c == nil || c.Generation != last {
				t.Errorf("cycle %d: current %+v", cycle, c)
			}
		}
		synctest.Wait()
		if n := seen.count(events.KindFenced, "superseded"); n != 50 {
			t.Errorf("%d connections were superseded, want 50", n)
		}
		if n := len(e.Registry.Connections()); n != 1 {
			t.Errorf("%d connections", n)
		}
		wantWork(t, e, "a")
	})
}

// §2.A contending: predecessor ended → commit at once.
func TestPredecessorEndsWhileProbed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, l, _ := inMemory(t, edgetest.Options{})
		_, cable := owner(t, l)
		cable.Silence()
		start := time.Now()
		time.AfterFunc(time.Second, func() { _ = cable.Close() })
		_, resp := register(t, l, stranger("second"))
		if d := time.Since(start); !resp.GetAccepted() || d < time.Second || d > 1100*time.Millisecond {
			t.Errorf("after %v: %v", d, resp)
		}
	})
}

// §2.A contending: a second candidate is refused at once, and there is one probe.
func TestSecondCandidate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, l, _ := inMemory(t, edgetest.Options{})
		_, cable := owner(t, l)
		cable.Silence()
		start := time.Now()
		var first sync.WaitGroup
		first.Go(func() {
			c := l.Dial()
			t.Cleanup(func() { _ = c.Close() })
			if resp, err := edgetest.Register(c, stranger("second")); err != nil || !resp.GetAccepted() {
				t.Errorf("the first candidate: %v, %v", resp, err)
			}
			if d := time.Since(start); d != 3*time.Second {
				t.Errorf("the first candidate was accepted after %v", d)
			}
		})
		synctest.Wait()
		for range 5 {
			c, resp := register(t, l, stranger("third"))
			wantRefused(t, c, resp, duplicate)
			if resp.GetRetryAfterMs() != 3000 || !resp.GetRetryable() {
				t.Errorf("answer %v", resp)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("the others were refused after %v", d)
		}
		first.Wait()
	})
}

// §2.A contending: RegisterRequest → K, and EOF → stop the probe, close. The predecessor is untouched either way, and
// the next candidate may probe at once.
func TestCandidateThatSpeaksOrLeaves(t *testing.T) {
	for name, act := range map[string]func(net.Conn){
		"a byte":          func(c net.Conn) { _, _ = c.Write([]byte{0}) },
		"another request": func(c net.Conn) { _ = link.WriteMessage(c, stranger("second")) },
		"the end":         func(c net.Conn) { _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{})
				first, cable := owner(t, l)
				cable.Silence()
				c := l.Dial()
				if err := link.WriteMessage(c, stranger("second")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				start := time.Now()
				go act(c)
				synctest.Wait()
				if got, _ := io.ReadAll(c); len(got) != 0 || time.Since(start) != 0 {
					t.Errorf("answered %q after %v", got, time.Since(start))
				}
				if cur := e.Registry.Current("a"); cur == nil || cur.Generation != first.Generation() {
					t.Error("the predecessor was touched")
				}
				if n := seen.count(events.KindFenced, ""); n != 0 {
					t.Errorf("%d fenced", n)
				}
				if _, resp := register(t, l, stranger("third")); !resp.GetAccepted() {
					t.Errorf("the next candidate: %v", resp)
				}
			})
		})
	}
}

// §2.A contending: handshake 10 s over before the probe is → refuse(duplicate, retryable, 3 s).
func TestHandshakeEndsWhileContending(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, _ := inMemory(t, edgetest.Options{})
		first, cable := owner(t, l)
		cable.Silence()
		c := l.Dial()
		defer c.Close()
		time.Sleep(8 * time.Second) // accepted, and silent so far
		resp, err := edgetest.Register(c, stranger("slow"))
		if err != nil {
			t.Fatal(err)
		}
		wantRefused(t, c, resp, duplicate)
		if resp.GetRetryAfterMs() != 3000 || !resp.GetRetryable() {
			t.Errorf("answer %v", resp)
		}
		if cur := e.Registry.Current("a"); cur == nil || cur.Generation != first.Generation() {
			t.Error("the predecessor was touched")
		}
	})
}

// Takeover at once: the same process instance names the current generation. E29: with a stale generation, or from
// another process, the old connection is probed instead.
func TestTakeover(t *testing.T) {
	for name, c := range map[string]struct {
		instance string
		offset   int
		wait     time.Duration
	}{
		"same instance, current generation":  {"a", 0, 0},
		"same instance, stale generation":    {"a", -1, 3 * time.Second},
		"same instance, no generation":       {"a", -1_000_000, 3 * time.Second},
		"same instance, later generation":    {"a", 1, 3 * time.Second},
		"other instance, current generation": {"other", 0, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{})
				// a generation before, so that a stale one exists
				gone, _ := owner(t, l)
				gone.Close()
				synctest.Wait()
				first, cable := owner(t, l)
				cable.Silence()
				hello := stranger(c.instance)
				hello.LastGeneration = uint64(max(0, int(first.Generation())+c.offset))
				start := time.Now()
				_, resp := register(t, l, hello)
				if d := time.Since(start); !resp.GetAccepted() || d != c.wait {
					t.Errorf("after %v, want %v: %v", d, c.wait, resp)
				}
				ev := seen.want(t, events.KindFenced, "superseded")
				if ev.Generation != first.Generation() {
					t.Errorf("event %+v", ev)
				}
				if cur := e.Registry.Current("a"); cur == nil || cur.Generation != resp.GetConnectionGeneration() {
					t.Errorf("current %+v", cur)
				}
			})
		})
	}
}

// A live predecessor isn't taken over by an instance that names a stale generation, and a process that dials the same
// edge twice keeps one link: the second try is refused for as long as the first lives (protocol.md §8, duplicate rule).
func TestSameProcessTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		first, _ := owner(t, l)
		for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(3 * time.Second) {
			c, resp := register(t, l, edgetest.Hello("a")) // same instance, no generation of its own yet
			wantRefused(t, c, resp, duplicate)
		}
		if cur := e.Registry.Current("a"); cur == nil || cur.Generation != first.Generation() {
			t.Error("the link flapped")
		}
		if n := seen.count(events.KindFenced, ""); n != 0 {
			t.Errorf("%d fenced", n)
		}
	})
}

// handover is for a planned change of identity, which this version doesn't have: it makes no difference.
func TestHandoverContends(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, l, _ := inMemory(t, edgetest.Options{})
		owner(t, l)
		hello := stranger("second")
		hello.Handover = true
		c, resp := register(t, l, hello)
		wantRefused(t, c, resp, duplicate)
	})
}

// §2.A contending: what changes meanwhile counts at commit, which reads record and state again.
func TestChangesWhileContending(t *testing.T) {
	disabled := nodes("a", "b")
	disabled[0].Enabled = false
	rotated := nodes("a", "b")
	rotated[0].TokenHashes[0].SHA256 = hexOf(config.HashSecret("another token"))
	for name, c := range map[string]struct {
		change func(*edgetest.Edge)
		reason pb.RegisterReason
	}{
		"record disabled": {func(e *edgetest.Edge) { e.Configure(disabled) }, nodeDisabled},
		"token gone":      {func(e *edgetest.Edge) { e.Configure(rotated) }, unknownToken},
		"record gone":     {func(e *edgetest.Edge) { e.Configure(nodes("b")) }, unknownToken},
		"edge drains":     {func(e *edgetest.Edge) { e.Server.Drain(30 * time.Second) }, edgeDraining},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{})
				first, cable := owner(t, l)
				cable.Silence()
				time.AfterFunc(time.Second, func() { c.change(e) })
				conn, resp := register(t, l, stranger("second"))
				wantRefused(t, conn, resp, c.reason)
				if cur := e.Registry.Current("a"); cur == nil || cur.Generation != first.Generation() {
					t.Error("the predecessor was touched")
				}
				if n := seen.count(events.KindFenced, ""); n != 0 {
					t.Errorf("%d fenced", n)
				}
			})
		})
	}
}

// A changed projection at commit: one more round, in which the node is told the new one.
func TestProjectionChangesWhileContending(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, _ := inMemory(t, edgetest.Options{})
		_, cable := owner(t, l)
		cable.Silence()
		changed := nodes("a", "b")
		changed[0].Adapters[0].MaxConcurrency = 9
		time.AfterFunc(time.Second, func() { e.Configure(changed) })
		start := time.Now()
		_, resp := register(t, l, stranger("second"))
		if !resp.GetAccepted() || resp.GetConfig().GetAdapters()[0].GetMaxConcurrency() != 9 {
			t.Errorf("answer %v", resp)
		}
		if want := e.State().Projection("a").Number; resp.GetConfig().GetProjection() != want {
			t.Errorf("projection %d, want %d", resp.GetConfig().GetProjection(), want)
		}
		if d := time.Since(start); d != 6*time.Second { // two probes
			t.Errorf("accepted after %v", d)
		}
	})
}

// §2.A commit: predecessor generation not as expected → one more round, then refuse(duplicate). Here a faster
// connection gets in each time between the look at the predecessor and the commit.
func TestCommitThatLosesTheRace(t *testing.T) {
	for _, losses := range []int{1, 2} {
		bubble(t, func(t *testing.T) {
			var e *edgetest.Edge
			var l *edgetest.Listener
			var rounds, left int
			overtake := func(p *config.Projection) (*pb.NodeConfigPayload, error) {
				if left == 0 || p != e.State().Projection("a") {
					return &pb.NodeConfigPayload{Projection: p.Number}, nil
				}
				rounds++
				if rounds > losses {
					return &pb.NodeConfigPayload{Projection: p.Number}, nil
				}
				left = 0 // the faster one isn't overtaken
				hello := stranger("faster")
				hello.LastGeneration = 0
				if cur := e.Registry.Current("a"); cur != nil {
					hello.LastGeneration = cur.Generation
				}
				register(t, l, hello)
				left = 1
				return &pb.NodeConfigPayload{Projection: p.Number}, nil
			}
			e, l, _ = inMemory(t, edgetest.Options{Payload: overtake})
			left = 1
			c, resp := register(t, l, stranger("slow"))
			switch losses {
			case 1: // the second round finds the faster connection, which never opened its control stream, and replaces it
				if !resp.GetAccepted() {
					t.Errorf("after one loss: %v", resp)
				}
			case 2:
				wantRefused(t, c, resp, duplicate)
			}
		})
	}
}

// wantWork opens a work stream to the node and wants an answer on it.
func wantWork(t *testing.T, e *edgetest.Edge, id string) {
	t.Helper()
	c := e.Registry.Current(id)
	if c == nil {
		t.Fatalf("%s isn't connected", id)
	}
	s, err := c.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.Write(&pb.WorkOpen{ConnectionGeneration: c.Generation, Attempt: 1,
		Work: &pb.WorkOpen_Tunnel{Tunnel: &pb.ProviderTunnelRequest{RunId: "run-1", Adapter: "loopback"}}})
	if err != nil {
		t.Fatal(err)
	}
	if f, err := s.ReadTunnel(); err != nil || f.Msg.GetRejected() == nil {
		t.Errorf("the node answered %v, %v", f.Msg, err)
	}
}
