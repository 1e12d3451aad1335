package transport_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	link "iop/packages/go/transport"
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

// §2.A: frame error on control → the link ends before anything is reserved. TU-28, E31, faults.md row 46.
func TestControlFrameFaults(t *testing.T) {
	for name, send := range map[string]func(r *edgetest.Raw) error{
		"length 2^32-1":    func(r *edgetest.Raw) error { return r.SendBytes(0xffffffff, nil) },
		"length 2^31-1":    func(r *edgetest.Raw) error { return r.SendBytes(0x7fffffff, nil) },
		"one over the cap": func(r *edgetest.Raw) error { return r.SendBytes(link.MaxControl+1, nil) },
		"length 0":         func(r *edgetest.Raw) error { return r.SendBytes(0, nil) },
		"not a message":    func(r *edgetest.Raw) error { return r.SendBytes(2, []byte{0x08, 0x80}) },
		"over its kind's cap": func(r *edgetest.Raw) error {
			return r.Send(&pb.NodeControl{Message: &pb.NodeControl_Event{Event: &pb.EdgeNodeEvent{Text: strings.Repeat("x", 2000)}}})
		},
		"the edge's message": func(r *edgetest.Raw) error { // ConfigRefresh{} decodes as NodeStatus: nothing of it may count
			return r.SendBytes(2, []byte{0x22, 0xff})
		},
		"end of the stream": func(r *edgetest.Raw) error {
			return r.Frame(edgetest.MuxWindow, edgetest.FlagFIN, edgetest.ControlStream, 0, nil)
		},
		"reset of the stream": func(r *edgetest.Raw) error {
			return r.Frame(edgetest.MuxWindow, edgetest.FlagRST, edgetest.ControlStream, 0, nil)
		},
		"not a multiplexer": func(r *edgetest.Raw) error { _, err := r.Conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); return err },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{})
				other := connect(t, l, "b", edgetest.NodeOptions{})
				other.AwaitReady(t)
				r := raw(t, l, "a")
				if err := r.OpenStream(edgetest.ControlStream); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				if err := send(r); err != nil {
					t.Fatal(err)
				}
				seen.want(t, events.KindFenced, "protocol")
				if d := time.Since(start); d > time.Second {
					t.Errorf("fenced after %v", d)
				}
				<-r.Ended
				wantState(t, e, "b", node.StateReady)
			})
		})
	}
}

// faults.md row 48: a kind of message that this version doesn't know, or that wasn't negotiated, is ignored and counted.
func TestUnknownControlMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		r := raw(t, l, "a")
		_ = r.OpenStream(edgetest.ControlStream)
		if err := r.SendBytes(5, []byte{0x9a, 0x06, 0x02, 0x08, 0x01}); err != nil { // field 99
			t.Fatal(err)
		}
		_ = r.Send(&pb.NodeControl{Message: &pb.NodeControl_RevokeAck{RevokeAck: &pb.RevokeAck{Epoch: 1}}})
		_ = r.Send(&pb.NodeControl{Message: &pb.NodeControl_CancelResult{CancelResult: &pb.CancelResult{RunId: "x"}}})
		_ = r.Send(&pb.NodeControl{Message: &pb.NodeControl_Ready{Ready: &pb.Ready{Projection: r.Response.GetConfig().GetProjection()}}})
		wantState(t, e, "a", node.StateReady)
		if c := e.Registry.Current("a"); c.Ignored().Other != 1 || c.Link.Status().UnknownControl != 1 {
			t.Errorf("ignored %+v, unknown %d", c.Ignored(), c.Link.Status().UnknownControl)
		}
		if n := seen.count(events.KindFenced, ""); n != 0 {
			t.Errorf("%d fenced", n)
		}
	})
}

// §2.A: NodeStatus(draining) → draining, and no new work; available again → ready only if Ready was seen.
func TestNodeDrains(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &spy{}
		e, l, seen := inMemory(t, edgetest.Options{Wrap: s.wrap})
		n := inState(t, e, l, node.StateReady)
		n.SendStatus(&pb.NodeStatus{Draining: true, Adapters: n.Adapters()})
		seen.want(t, events.KindDraining, "draining")
		if p := s.published("a"); p.Dispatchable || p.Reason == "" {
			t.Errorf("published %+v", p)
		}
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

// A NodeStatus whose number isn't above the last is ignored and counted; its adapters are a full snapshot otherwise.
func TestNodeStatusNumbers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		r := raw(t, l, "a")
		_ = r.OpenStream(edgetest.ControlStream)
		send := func(m *pb.NodeStatus) {
			_ = r.Send(&pb.NodeControl{Message: &pb.NodeControl_NodeStatus{NodeStatus: m}})
			synctest.Wait()
		}
		adapters := []*pb.AdapterState{{Name: "loopback", Revision: 1, Available: true, Capacity: 3, Version: "9",
			Models: []*pb.ModelState{{Name: "m", Loaded: true}}}, {Name: "unheard of", Available: true, Capacity: 99}}
		send(&pb.NodeStatus{Number: 5, Adapters: adapters, StoreState: pb.StoreState_STORE_STATE_DEGRADED})
		for _, old := range []uint64{5, 4, 0} {
			send(&pb.NodeStatus{Number: old, Draining: true})
		}
		v := wantState(t, e, "a", node.StateRegistered)
		if a := v.Adapters; len(a) != 1 || !a[0].Available || a[0].Capacity != 3 || a[0].Version != "9" || len(a[0].Models) != 1 {
			t.Errorf("view %+v", v)
		}
		if c := e.Registry.Current("a"); c.Ignored().Status != 3 {
			t.Errorf("ignored %+v", c.Ignored())
		}
		send(&pb.NodeStatus{Number: 6, Adapters: adapters, StoreState: pb.StoreState_STORE_STATE_DEGRADED,
			ClockState: pb.ClockState_CLOCK_STATE_UNSYNCED})
		send(&pb.NodeStatus{Number: 7}) // nothing about the adapter any more
		if v := wantState(t, e, "a", node.StateRegistered); v.Adapters[0].Available {
			t.Errorf("view %+v", v)
		}
		if n := seen.count(events.KindStoreDegraded, "store_degraded"); n != 1 { // news once, not with each snapshot
			t.Errorf("%d events", n)
		}
		if n := seen.count(events.KindClockSkew, "clock_skew"); n != 1 {
			t.Errorf("%d events", n)
		}
	})
}

// A node can't offer more than it was told: neither places nor another revision.
func TestReportedAgainstProjection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &spy{}
		e, l, _ := inMemory(t, edgetest.Options{Wrap: s.wrap})
		n := connect(t, l, "a", edgetest.NodeOptions{})
		more := n.Adapters("m")
		more[0].Capacity = 400
		n.SendReady(&pb.Ready{Projection: 1, Adapters: more})
		wantState(t, e, "a", node.StateReady)
		if a := s.published("a").Adapters[0]; a.Capacity != 4 || !a.Offers("m") || a.Offers("other") {
			t.Errorf("published %+v", a)
		}
		more[0].Revision, more[0].Capacity = 77, -5
		n.SendStatus(&pb.NodeStatus{Adapters: more})
		synctest.Wait()
		if a := s.published("a").Adapters[0]; a.Available || a.Capacity != 0 || !strings.Contains(a.Reason, "revision") {
			t.Errorf("published %+v", a)
		}
	})
}

// runs remembers the ends that a service would be told of.
type runsSpy struct {
	mu    sync.Mutex
	ended []string
}

func (r *runsSpy) RunEnded(id string, attempt uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, fmt.Sprintf("%s/%d", id, attempt))
}

func (r *runsSpy) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ended)
}

// grant takes a place of the node for a run and marks it as sent.
func grant(t *testing.T, e *edgetest.Edge, id, run string) *admission.Grant {
	t.Helper()
	g, err := e.Scheduler.Acquire(t.Context(), &admission.Request{RunID: run, Attempt: 1, Set: id, Depth: 1, Wait: time.Second,
		Match: func(n *admission.Node, _ *admission.Adapter) bool { return n.ID == id }})
	if err != nil {
		t.Fatal(err)
	}
	if !g.Sent() {
		t.Fatal("not sent")
	}
	return g
}

// §2.A: RunEnded known → release, unknown → I. CP-18: what another node says of a run changes nothing of it.
func TestRunEnded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		runs := &runsSpy{}
		e, l, _ := inMemory(t, edgetest.Options{Runs: runs})
		a := connect(t, l, "a", edgetest.NodeOptions{})
		a.AwaitReady(t)
		b := connect(t, l, "b", edgetest.NodeOptions{})
		b.AwaitReady(t)
		grant(t, e, "a", "run-1")
		b.Link.SendRunEnded(&pb.RunEnd{RunId: "run-1", Attempt: 1})
		a.Link.SendRunEnded(&pb.RunEnd{RunId: "run-1", Attempt: 2})
		a.Link.SendRunEnded(&pb.RunEnd{RunId: "run-2", Attempt: 1})
		a.Link.SendRunEnded(&pb.RunEnd{})
		synctest.Wait()
		wantPlaces(t, e, "a", 1)
		if got := runs.all(); len(got) != 0 {
			t.Errorf("the service was told of %v", got)
		}
		if n := e.Registry.Current("b").Ignored().RunEnded; n != 1 {
			t.Errorf("b: %d ignored", n)
		}
		if n := e.Registry.Current("a").Ignored().RunEnded; n != 3 {
			t.Errorf("a: %d ignored", n)
		}
		a.Link.SendRunEnded(&pb.RunEnd{RunId: "run-1", Attempt: 1})
		a.Link.SendRunEnded(&pb.RunEnd{RunId: "run-1", Attempt: 1})
		wantPlaces(t, e, "a", 0)
		synctest.Wait()
		if got := runs.all(); !slices.Equal(got, []string{"run-1/1"}) {
			t.Errorf("the service was told of %v", got)
		}
	})
}

// Ends of background runs are confirmed, known or not; those of others aren't.
func TestRunEndedAck(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, l, _ := inMemory(t, edgetest.Options{})
		n := connect(t, l, "a", edgetest.NodeOptions{})
		n.AwaitReady(t)
		n.Link.SendRunEnded(&pb.RunEnd{RunId: "foreground", Attempt: 1})
		n.Link.SendRunEnded(&pb.RunEnd{RunId: "background", Attempt: 1, Background: true})
		ack := edgetest.Await(t, n, time.Second, (*pb.EdgeControl).GetRunEndedAck)
		if got := ack.GetRunIds(); !slices.Equal(got, []string{"background"}) {
			t.Errorf("confirmed %v", got)
		}
	})
}

// A node's own events reach the bus, at most one a second after a burst of 20, and none that only the edge can know.
func TestNodeEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		r := raw(t, l, "a")
		_ = r.OpenStream(edgetest.ControlStream)
		send := func(kind pb.EventKind) {
			_ = r.Send(&pb.NodeControl{Message: &pb.NodeControl_Event{Event: &pb.EdgeNodeEvent{Kind: kind, Code: "drift",
				Adapter: "loopback", Text: strings.Repeat("é", 200)}}})
		}
		for range 50 {
			send(pb.EventKind_EVENT_KIND_CAPACITY_DRIFT)
		}
		for _, kind := range []pb.EventKind{0, pb.EventKind_EVENT_KIND_NOT_READY, pb.EventKind_EVENT_KIND_REGISTERED,
			pb.EventKind_EVENT_KIND_FENCED, pb.EventKind_EVENT_KIND_READY, 999, 258} {
			send(kind)
		}
		ev := seen.want(t, events.KindCapacityDrift, "drift")
		if ev.NodeID != "a" || ev.Adapter != "loopback" || len(ev.Text) > 256 || !strings.HasSuffix(ev.Text, "é") {
			t.Errorf("event %+v", ev)
		}
		synctest.Wait()
		if n := seen.count(events.KindCapacityDrift, ""); n != 20 {
			t.Errorf("%d events, want the burst of 20", n)
		}
		if ig := e.Registry.Current("a").Ignored(); ig.Events != 30 || ig.Other != 7 {
			t.Errorf("ignored %+v", ig)
		}
		if n := seen.count(events.KindRegistered, ""); n != 1 {
			t.Errorf("%d registered events", n)
		}
		time.Sleep(2 * time.Second)
		send(pb.EventKind_EVENT_KIND_CAPACITY_DRIFT)
		synctest.Wait()
		if n := seen.count(events.KindCapacityDrift, ""); n != 21 {
			t.Errorf("%d events after a pause", n)
		}
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
