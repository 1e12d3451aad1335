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
	"iop/apps/edge/internal/transport"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

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
	mu      sync.Mutex
	ended   []string
	adopted []string
}

func (r *runsSpy) RunEnded(_ string, _ uint64, e *pb.RunEnd, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	word := fmt.Sprintf("%s/%d", e.GetRunId(), e.GetAttempt())
	if !held {
		word += " unknown"
	}
	r.ended = append(r.ended, word)
}

func (r *runsSpy) Adopted(id string, generation uint64, running []*pb.RunningExecution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range running {
		r.adopted = append(r.adopted, fmt.Sprintf("%s/%d %s/%d", id, generation, e.GetRunId(), e.GetAttempt()))
	}
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

// The service is told of the ends of background runs, known or not, and of what goes on at a node that became ready. A
// connection that is over says nothing any more, and is confirmed nothing (CP-18).
func TestBackgroundRunsAreToldOf(t *testing.T) {
	bubble(t, func(t *testing.T) {
		runs := &runsSpy{}
		e, l, _ := inMemory(t, edgetest.Options{Runs: runs})
		n := connect(t, l, "a", edgetest.NodeOptions{})
		n.AwaitReady(t, &pb.RunningExecution{RunId: "goes-on", Attempt: 2, Adapter: "loopback", Background: true})
		n.Link.SendRunEnded(&pb.RunEnd{RunId: "unknown", Attempt: 1, Background: true})
		n.Link.SendRunEnded(&pb.RunEnd{RunId: "goes-on", Attempt: 2, Background: true})
		synctest.Wait()
		if got := runs.all(); !slices.Equal(got, []string{"unknown/1 unknown", "goes-on/2"}) {
			t.Errorf("the service was told of %v", got)
		}
		if want := fmt.Sprintf("a/%d goes-on/2", n.Generation()); len(runs.adopted) != 1 || runs.adopted[0] != want {
			t.Errorf("adopted %v, want %s", runs.adopted, want)
		}
		c := e.Registry.Current("a")
		if c.Background() {
			t.Error("a node that didn't offer background runs has them")
		}
		e.Registry.Fence(c, node.FenceLost, "test")
		control := transport.ControlOf(e.Server, c)
		control(&pb.NodeControl{Message: &pb.NodeControl_RunEnded{RunEnded: &pb.RunEnded{Ends: []*pb.RunEnd{
			{RunId: "late", Attempt: 1, Background: true}}}}})
		control(&pb.NodeControl{Message: &pb.NodeControl_Ready{Ready: &pb.Ready{Projection: 1, Running: []*pb.RunningExecution{
			{RunId: "late", Attempt: 1, Background: true}}}}})
		if len(runs.all()) != 2 || len(runs.adopted) != 1 {
			t.Errorf("told of %v and %v after the fence", runs.all(), runs.adopted)
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
