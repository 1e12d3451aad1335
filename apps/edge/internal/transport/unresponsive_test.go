package transport_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

// §2.A ready: 3 x dispatch_limit without success → not dispatchable; Ready → dispatchable. A success in between starts
// the count again.
func TestThreeDispatchTimeouts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &spy{}
		e, l, seen := inMemory(t, edgetest.Options{Wrap: s.wrap})
		n := connect(t, l, "a", edgetest.NodeOptions{})
		n.AwaitReady(t)
		c := e.Registry.Current("a")
		c.DispatchTimeout()
		c.DispatchTimeout()
		c.Dispatched()
		c.DispatchTimeout()
		c.DispatchTimeout()
		if c.State() != node.StateReady {
			t.Errorf("state %v after two in a row", c.State())
		}
		c.DispatchTimeout()
		seen.want(t, events.KindUnresponsive, "unresponsive")
		if p := s.published("a"); p.Dispatchable || p.Reason == "" {
			t.Errorf("published %+v", p)
		}
		c.DispatchTimeout() // of what was sent before
		if n := seen.count(events.KindUnresponsive, ""); n != 1 {
			t.Errorf("%d events", n)
		}
		n.AwaitReady(t)
		wantState(t, e, "a", node.StateReady)
		if p := s.published("a"); !p.Dispatchable {
			t.Errorf("published %+v", p)
		}
	})
}

// §2.A ready, unresponsive: accepted on a TRANSPORT_STATUS command, which the edge sends each 30 s → dispatchable.
func TestStatusCommandClearsUnresponsive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var asked atomic.Int32
		e, l, _ := inMemory(t, edgetest.Options{})
		n := connect(t, l, "a", edgetest.NodeOptions{Work: func(n *edgetest.Node, s *link.Stream) {
			defer s.Close()
			if open, err := edgetest.AnswerStatus(s); err == nil && open.GetCommand() != nil {
				asked.Add(1)
				if open.GetConnectionGeneration() != n.Generation() || open.GetCommand().GetCommandId() == "" {
					t.Errorf("open %v", open)
				}
			}
		}})
		time.Sleep(time.Minute)
		if asked.Load() != 0 {
			t.Error("work was sent before Ready")
		}
		n.AwaitReady(t)
		c := e.Registry.Current("a")
		for range 3 {
			c.DispatchTimeout()
		}
		wantState(t, e, "a", node.StateUnresponsive)
		start := time.Now()
		for c.State() != node.StateReady && time.Since(start) < time.Minute {
			time.Sleep(time.Second)
		}
		if d := time.Since(start); d > 31*time.Second {
			t.Errorf("dispatchable after %v", d)
		}
		time.Sleep(500 * time.Millisecond) // between two commands
		before := asked.Load()
		time.Sleep(5 * time.Minute)
		if n := asked.Load() - before; n != 10 {
			t.Errorf("%d commands in 5 min, want 10", n)
		}
	})
}

// TU-26: heartbeats go on while nobody serves the work streams. The node is found out by the edge's own command, without
// a single caller, and comes back when it answers again.
func TestDataPathDead(t *testing.T) {
	for name, work := range map[string]func(s *link.Stream){
		"ignored": func(s *link.Stream) { <-s.Link().Down() },
		"reset":   func(s *link.Stream) { s.Close() },
		"refused": nil, // rejected is an answer: the node stays as it is
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var healed atomic.Bool
				e, l, seen := inMemory(t, edgetest.Options{})
				n := connect(t, l, "a", edgetest.NodeOptions{Work: func(_ *edgetest.Node, s *link.Stream) {
					switch {
					case healed.Load():
						defer s.Close()
						_, _ = edgetest.AnswerStatus(s)
					case work != nil:
						work(s)
					default:
						defer s.Close()
						_, _ = s.ReadOpen(time.Second)
						_ = s.Write(&pb.NodeCommandResponse{Seq: 1, Response: &pb.NodeCommandResponse_Rejected{
							Rejected: &pb.Rejected{NeverStarted: true, Failure: &pb.Failure{Code: pb.FailureCode_FAILURE_CODE_BAD_REQUEST}}}})
					}
				}})
				n.AwaitReady(t)
				time.Sleep(101 * time.Second)
				want := node.StateUnresponsive
				if work == nil {
					want = node.StateReady
				}
				wantState(t, e, "a", want)
				if c := e.Registry.Lookup("a", n.Generation()); c == nil {
					t.Fatal("the link was ended")
				}
				healed.Store(true)
				time.Sleep(31 * time.Second)
				wantState(t, e, "a", node.StateReady)
				if n := seen.count(events.KindFenced, ""); n != 0 {
					t.Errorf("%d fenced", n)
				}
			})
		})
	}
}

// A command that is rejected doesn't make an unresponsive node usable.
func TestRejectedCommandClearsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, _ := inMemory(t, edgetest.Options{})
		n := connect(t, l, "a", edgetest.NodeOptions{Work: func(_ *edgetest.Node, s *link.Stream) {
			defer s.Close()
			_, _ = s.ReadOpen(time.Second)
			_ = s.Write(&pb.NodeCommandResponse{Seq: 1, Response: &pb.NodeCommandResponse_Rejected{
				Rejected: &pb.Rejected{NeverStarted: true, Failure: &pb.Failure{Code: pb.FailureCode_FAILURE_CODE_NODE_DRAINING}}}})
		}})
		n.AwaitReady(t)
		for range 3 {
			e.Registry.Current("a").DispatchTimeout()
		}
		time.Sleep(5 * time.Minute)
		wantState(t, e, "a", node.StateUnresponsive)
		n.AwaitReady(t)
		wantState(t, e, "a", node.StateReady)
	})
}

// A node that answers the edge's commands but no runs is unresponsive after three runs, not never.
func TestCommandsDontHideDeadRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, _ := inMemory(t, edgetest.Options{})
		n := connect(t, l, "a", edgetest.NodeOptions{})
		n.AwaitReady(t)
		c := e.Registry.Current("a")
		for i := range 3 {
			if c.State() != node.StateReady {
				t.Fatalf("state %v after %d timeouts", c.State(), i)
			}
			time.Sleep(41 * time.Second) // a command is answered in between, and none at the same moment
			c.DispatchTimeout()
		}
		if c.State() != node.StateUnresponsive {
			t.Errorf("state %v", c.State())
		}
	})
}

// A command in flight doesn't delay what its connection has to notice, nor outlive it.
func TestEndDuringACommand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		cable := &edgetest.Cable{Conn: l.Dial()}
		n := edgetest.Connect(t, cable, edgetest.NodeOptions{Hello: edgetest.Hello("a"),
			Work: func(_ *edgetest.Node, s *link.Stream) { <-s.Link().Down() }})
		n.AwaitReady(t)
		time.Sleep(31 * time.Second) // one is being sent now
		start := time.Now()
		_ = cable.Close()
		ev := seen.want(t, events.KindFenced, "lost")
		if d := ev.At.Sub(start); d != 0 {
			t.Errorf("fenced after %v", d)
		}
		synctest.Wait()
		if n := seen.count(events.KindUnresponsive, ""); n != 0 {
			t.Error("the end counted as a timeout")
		}
		wantState(t, e, "a", node.StateOffline)
	})
}

// The edge's own command isn't a fifth: a connection that has all its commands in work is not asked for its status.
func TestStatusCommandIsNoFifth(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var asked atomic.Int32
		e, l, _ := inMemory(t, edgetest.Options{})
		n := connect(t, l, "a", edgetest.NodeOptions{Work: func(_ *edgetest.Node, s *link.Stream) {
			defer s.Close()
			asked.Add(1)
			_, _ = edgetest.AnswerStatus(s)
		}})
		n.AwaitReady(t)
		c := e.Registry.Current("a")
		var leave func()
		for range 4 {
			var ok bool
			if leave, ok = c.TryCommand(); !ok {
				t.Fatal("there are less than four turns")
			}
		}
		if _, ok := c.TryCommand(); ok {
			t.Error("there is a fifth turn")
		}
		time.Sleep(5*time.Minute - 10*time.Second) // between two of its moments
		if asked.Load() != 0 {
			t.Error("the node was asked")
		}
		leave()
		leave() // does nothing
		time.Sleep(31 * time.Second)
		if asked.Load() != 1 {
			t.Errorf("%d commands when there was room again", asked.Load())
		}
		wantState(t, e, "a", node.StateReady)
	})
}
