package transport_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	pb "iop/proto/iop"
)

// connect registers a fake node in memory that keeps the protocol.
func connect(t *testing.T, l *edgetest.Listener, id string, o edgetest.NodeOptions) *edgetest.Node {
	t.Helper()
	o.Hello = edgetest.Hello(id)
	return edgetest.Connect(t, l.Dial(), o)
}

// raw registers a peer that speaks the multiplexer by hand.
func raw(t *testing.T, l *edgetest.Listener, id string) *edgetest.Raw {
	t.Helper()
	return edgetest.ConnectRaw(t, l.Dial(), edgetest.Hello(id))
}

// wantState waits for the state of a node as people see it.
func wantState(t *testing.T, e *edgetest.Edge, id string, want node.State) node.NodeView {
	t.Helper()
	var v node.NodeView
	eventually(t, fmt.Sprintf("%s is %s", id, want), func() bool {
		for _, v = range e.Registry.Nodes() {
			if v.ID == id {
				return v.State == want
			}
		}
		return false
	})
	return v
}

// §2.A registered: Ready → adopt running, capabilities, ReadyAck → ready. What runs is adopted before the places are on
// offer, so that nothing is granted on top of it.
func TestReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &spy{}
		e, l, seen := inMemory(t, edgetest.Options{Wrap: s.wrap})
		n := connect(t, l, "a", edgetest.NodeOptions{})
		wantState(t, e, "a", node.StateRegistered)
		if p := s.published("a"); p.Dispatchable || p.Reason == "" || len(p.Adapters) != 1 || p.Adapters[0].Available {
			t.Errorf("before Ready the scheduler was told %+v", p)
		}
		n.AwaitReady(t, &pb.RunningExecution{RunId: "old-1", Attempt: 2, Adapter: "loopback", Ending: true},
			&pb.RunningExecution{RunId: "old-2", Adapter: "not told of"}, &pb.RunningExecution{Adapter: "loopback"})
		wantState(t, e, "a", node.StateReady)
		seen.want(t, events.KindReady, "ready")
		g := n.Generation()
		if want := []string{fmt.Sprintf("publish a %d false", g), fmt.Sprintf("adopt a %d 1", g), fmt.Sprintf("publish a %d true", g)}; !slices.Equal(s.all(), want) {
			t.Errorf("the scheduler was told %v, want %v", s.all(), want)
		}
		p := s.published("a")
		if a := p.Adapters[0]; !a.Available || a.Capacity != 4 || a.Kind != "loopback" || a.Revision == 0 {
			t.Errorf("published %+v", a)
		}
		wantPlaces(t, e, "a", 1)
		// The end of what was adopted frees its place, once; another attempt's doesn't.
		n.Link.SendRunEnded(&pb.RunEnd{RunId: "old-1", Attempt: 1})
		n.Link.SendRunEnded(&pb.RunEnd{RunId: "old-1", Attempt: 2})
		wantPlaces(t, e, "a", 0)
	})
}

// wantPlaces waits until that many places of a node are held.
func wantPlaces(t *testing.T, e *edgetest.Edge, id string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d places of %s are held", want, id), func() bool {
		held := 0
		for _, p := range e.Scheduler.Snapshot().Places {
			if p.Node == id {
				held += p.InFlight
			}
		}
		return held == want
	})
}

// §2.A ready: Ready again is a new snapshot and gets a ReadyAck again.
func TestReadyAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &spy{}
		e, l, seen := inMemory(t, edgetest.Options{Wrap: s.wrap})
		n := connect(t, l, "a", edgetest.NodeOptions{})
		n.AwaitReady(t)
		down := n.Adapters()
		down[0].Available, down[0].Reason, down[0].InFlight = false, "the provider doesn't answer", 3
		n.SendReady(&pb.Ready{Projection: n.Response.GetConfig().GetProjection(), Adapters: down})
		edgetest.Await(t, n, time.Second, (*pb.EdgeControl).GetReadyAck)
		v := wantState(t, e, "a", node.StateReady) // the node is ready, its adapter isn't available
		if a := v.Adapters[0]; a.Available || a.Reason != "the provider doesn't answer" || a.InFlight != 3 {
			t.Errorf("view %+v", a)
		}
		if a := s.published("a").Adapters[0]; a.Available || a.Reason != "the provider doesn't answer" {
			t.Errorf("published %+v", a)
		}
		if n := seen.count(events.KindReady, ""); n != 1 {
			t.Errorf("%d ready events", n)
		}
	})
}

// §2.A registered, ready, draining: Ready with a projection that was never sent → K.
func TestReadyWithAStrangeProjection(t *testing.T) {
	for _, before := range []node.State{node.StateRegistered, node.StateReady, node.StateDraining} {
		for name, m := range map[string]*pb.Ready{
			"later": {Projection: 99}, "none": {Adapters: []*pb.AdapterState{{Name: "loopback"}}}, "refused": {RefusedProjection: 99},
			"refused one never sent": {Projection: 1, RefusedProjection: 99},
		} {
			t.Run(string(before)+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					e, l, seen := inMemory(t, edgetest.Options{})
					n := inState(t, e, l, before)
					n.SendReady(m)
					ev := seen.want(t, events.KindFenced, "protocol")
					if !strings.Contains(ev.Text, "projection") {
						t.Errorf("event %+v", ev)
					}
					<-n.Link.Down()
					wantState(t, e, "a", node.StateOffline)
				})
			})
		}
	}
}

// inState brings node a into a state.
func inState(t *testing.T, e *edgetest.Edge, l *edgetest.Listener, s node.State) *edgetest.Node {
	t.Helper()
	n := connect(t, l, "a", edgetest.NodeOptions{})
	if s != node.StateRegistered {
		n.AwaitReady(t)
	}
	if s == node.StateDraining {
		n.SendStatus(&pb.NodeStatus{Draining: true, Adapters: n.Adapters()})
	}
	wantState(t, e, "a", s)
	return n
}

// §2.A registered: ready_limit 60 s without Ready → event not_ready, shown, stay. A Ready later is as good as ever.
func TestReadyLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		n := connect(t, l, "a", edgetest.NodeOptions{})
		start := time.Now()
		seen.sub.Close()
		seen = follow(e)
		time.Sleep(61 * time.Second)
		ev := seen.want(t, events.KindNotReady, "not_ready")
		if d := ev.At.Sub(start); d != 60*time.Second {
			t.Errorf("event after %v", d)
		}
		wantState(t, e, "a", node.StateNotReady)
		n.AwaitReady(t)
		wantState(t, e, "a", node.StateReady)
	})
	bubble(t, func(t *testing.T) { // who is ready in time isn't reported
		e, l, seen := inMemory(t, edgetest.Options{})
		connect(t, l, "a", edgetest.NodeOptions{}).AwaitReady(t)
		time.Sleep(2 * time.Minute)
		if n := seen.count(events.KindNotReady, ""); n != 0 {
			t.Errorf("%d events", n)
		}
		wantState(t, e, "a", node.StateReady)
	})
}

// §2.A: Ready.refused_projection → event; registered stays, ready keeps the old projection in force.
func TestRefusedProjection(t *testing.T) {
	for _, before := range []node.State{node.StateRegistered, node.StateReady, node.StateDraining} {
		t.Run(string(before), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{})
				n := inState(t, e, l, before)
				n.SendReady(&pb.Ready{RefusedProjection: 1, RefuseCode: pb.FailureCode_FAILURE_CODE_BAD_REQUEST, RefuseText: "unknown kind"})
				ev := seen.want(t, events.KindRefusedProjection, "bad_request")
				if !strings.Contains(ev.Text, "unknown kind") || ev.NodeID != "a" {
					t.Errorf("event %+v", ev)
				}
				wantState(t, e, "a", before)
			})
		})
	}
}

// §2.A: control stream not opened within 5 s of accept → K (protocol).
func TestControlStreamNotOpened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, l, seen := inMemory(t, edgetest.Options{})
		start := time.Now()
		r := raw(t, l, "a")
		seen.want(t, events.KindFenced, "protocol")
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("fenced after %v", d)
		}
		<-r.Ended
	})
}

// §2.A: any other stream from the node → K (protocol). faults.md row 49.
func TestSecondStreamFromTheNode(t *testing.T) {
	for name, open := range map[string]func(r *edgetest.Raw) error{
		"a second":       func(r *edgetest.Raw) error { _ = r.OpenStream(1); return r.OpenStream(3) },
		"not the first":  func(r *edgetest.Raw) error { return r.OpenStream(3) },
		"an edge's":      func(r *edgetest.Raw) error { _ = r.OpenStream(1); return r.OpenStream(2) },
		"twice the same": func(r *edgetest.Raw) error { _ = r.OpenStream(1); return r.OpenStream(1) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{})
				other := connect(t, l, "b", edgetest.NodeOptions{})
				other.AwaitReady(t)
				r := raw(t, l, "a")
				start := time.Now()
				if err := open(r); err != nil {
					t.Fatal(err)
				}
				ev := seen.want(t, events.KindFenced, "protocol")
				if d := time.Since(start); d > time.Second || ev.NodeID != "a" {
					t.Errorf("after %v: %+v", d, ev)
				}
				<-r.Ended
				wantState(t, e, "b", node.StateReady)
			})
		})
	}
}

// §2.A: NodeStatus(draining) → draining, and no new work; available again → ready only if Ready was seen.
func TestNodeDrains(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &spy{}
		e, l, seen := inMemory(t, edgetest.Options{Wrap: s.wrap})
		n := inState(t, e, l, node.StateReady)
		grant(t, e, "a", "run-1")
		n.SendStatus(&pb.NodeStatus{Draining: true, Adapters: n.Adapters()})
		seen.want(t, events.KindDraining, "draining")
		if p := s.published("a"); p.Dispatchable || p.Reason == "" {
			t.Errorf("published %+v", p)
		}
		n.Link.SendRunEnded(&pb.RunEnd{RunId: "run-1", Attempt: 1}) // runs end as ever
		wantPlaces(t, e, "a", 0)
		n.Ready() // a snapshot only: no ReadyAck
		n.SendStatus(&pb.NodeStatus{Draining: true, Adapters: n.Adapters()})
		synctest.Wait()
		wantState(t, e, "a", node.StateDraining)
		for len(n.Heard) > 0 {
			if m := <-n.Heard; m.GetReadyAck() != nil {
				t.Error("a draining node got a ReadyAck")
			}
		}
		n.SendStatus(&pb.NodeStatus{Adapters: n.Adapters()})
		wantState(t, e, "a", node.StateReady)
		if p := s.published("a"); !p.Dispatchable {
			t.Errorf("published %+v", p)
		}
	})
	bubble(t, func(t *testing.T) { // registered: draining, and back to registered
		e, l, _ := inMemory(t, edgetest.Options{})
		n := inState(t, e, l, node.StateRegistered)
		n.SendStatus(&pb.NodeStatus{Draining: true})
		wantState(t, e, "a", node.StateDraining)
		n.SendStatus(&pb.NodeStatus{Draining: false})
		wantState(t, e, "a", node.StateRegistered)
	})
}

// §2.A: Goodbye from the node → fence(left).
func TestGoodbyeFromTheNode(t *testing.T) {
	for _, before := range []node.State{node.StateRegistered, node.StateReady, node.StateDraining} {
		bubble(t, func(t *testing.T) {
			e, l, seen := inMemory(t, edgetest.Options{})
			n := inState(t, e, l, before)
			n.Link.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_NODE_DRAINING})
			ev := seen.want(t, events.KindFenced, "left")
			if ev.Generation != n.Generation() || ev.Text != "the node has drained" {
				t.Errorf("event %+v", ev)
			}
			wantState(t, e, "a", node.StateOffline)
			<-n.Link.Down()
		})
	}
}

// §2.A: EOF → fence(lost), at once.
func TestConnectionEnds(t *testing.T) {
	for _, before := range []node.State{node.StateRegistered, node.StateReady, node.StateDraining} {
		bubble(t, func(t *testing.T) {
			e, l, seen := inMemory(t, edgetest.Options{})
			cable := &edgetest.Cable{Conn: l.Dial()}
			n := edgetest.Connect(t, cable, edgetest.NodeOptions{Hello: edgetest.Hello("a")})
			if before != node.StateRegistered {
				n.AwaitReady(t)
			}
			if before == node.StateDraining {
				n.SendStatus(&pb.NodeStatus{Draining: true})
			}
			wantState(t, e, "a", before)
			start := time.Now()
			_ = cable.Close()
			seen.want(t, events.KindFenced, "lost")
			if d := time.Since(start); d > time.Second {
				t.Errorf("after %v", d)
			}
			wantState(t, e, "a", node.StateOffline)
		})
	}
}

// §2.A: inbound silence 45 s → fence(dead), and the TCP connection is closed. TU-01, TU-19, faults.md rows 6, 7 and 10.
func TestSilence(t *testing.T) {
	for name, hush := range map[string]func(*edgetest.Cable){
		"both ways": (*edgetest.Cable).Silence, "from the node": (*edgetest.Cable).Mute,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{})
				_, cable := owner(t, l)
				grant(t, e, "a", "run-1")
				start := time.Now()
				hush(cable)
				time.Sleep(46 * time.Second)
				ev := seen.want(t, events.KindFenced, "dead")
				if d := ev.At.Sub(start); d < 43*time.Second || d > 47*time.Second {
					t.Errorf("fenced after %v", d)
				}
				wantState(t, e, "a", node.StateOffline)
				wantPlaces(t, e, "a", 0)
				// After the heal a request works again over a new connection.
				n := connect(t, l, "a", edgetest.NodeOptions{})
				n.AwaitReady(t)
				wantWork(t, e, "a")
			})
		})
	}
	for _, before := range []node.State{node.StateRegistered, node.StateDraining} {
		t.Run(string(before), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{})
				cable := &edgetest.Cable{Conn: l.Dial()}
				n := edgetest.Connect(t, cable, patient("a"))
				if before == node.StateDraining {
					n.AwaitReady(t)
					n.SendStatus(&pb.NodeStatus{Draining: true})
				}
				<-n.Link.Ready()
				wantState(t, e, "a", before)
				synctest.Wait() // the control stream has reached the edge
				cable.Silence()
				time.Sleep(46 * time.Second)
				seen.want(t, events.KindFenced, "dead")
			})
		})
	}
}

// A node that beats its heart lives, however long nothing else happens (faults.md row 53: any byte counts), and a flap
// of 8 s between two beats is nothing (row 9).
func TestIdleNodeLives(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		n, cable := owner(t, l)
		time.Sleep(10*time.Minute + 5*time.Second)
		cable.Silence()
		time.Sleep(8 * time.Second)
		cable.Heal()
		time.Sleep(2 * time.Minute)
		if c := e.Registry.Lookup("a", n.Generation()); c == nil || c.State() != node.StateReady {
			t.Errorf("connection %+v", c)
		}
		if n := seen.count(events.KindFenced, ""); n != 0 {
			t.Errorf("%d fenced", n)
		}
		wantWork(t, e, "a")
	})
}

// §2.A: confirm_limit exceeded → fence(unconfirmed_run).
func TestUnconfirmedRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		n := connect(t, l, "a", edgetest.NodeOptions{})
		n.AwaitReady(t)
		grant(t, e, "a", "run-1").Decided()
		n.SendStatus(&pb.NodeStatus{Draining: true}) // whatever the node does meanwhile
		start := time.Now()
		time.Sleep(61 * time.Second)
		ev := seen.want(t, events.KindFenced, "unconfirmed_run")
		if d := ev.At.Sub(start); d != 60*time.Second || ev.Generation != n.Generation() {
			t.Errorf("after %v: %+v", d, ev)
		}
		<-n.Link.Down()
		wantPlaces(t, e, "a", 0)
	})
}
