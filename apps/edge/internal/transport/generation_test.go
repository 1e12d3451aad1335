package transport_test

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

// CP-18: frames of generation g after g+1 is live change nothing of g+1, and are counted.
func TestFramesOfAnOlderGeneration(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		old := raw(t, l, "a")
		_ = old.OpenStream(edgetest.ControlStream)
		synctest.Wait()
		before := e.Registry.Current("a")
		hello := edgetest.Hello("a")
		hello.LastGeneration = before.Generation
		n := edgetest.Connect(t, l.Dial(), edgetest.NodeOptions{Hello: hello}) // takes over
		n.AwaitReady(t)
		grant(t, e, "a", "run-1")

		// What still comes over the old connection, and what a handler of it would do that was slow.
		_ = old.Send(&pb.NodeControl{Message: &pb.NodeControl_RunEnded{RunEnded: &pb.RunEnded{Ends: []*pb.RunEnd{{RunId: "run-1", Attempt: 1}}}}})
		_ = old.Send(&pb.NodeControl{Message: &pb.NodeControl_NodeStatus{NodeStatus: &pb.NodeStatus{Number: 9, Draining: true}}})
		if before.RunEnded(&pb.RunEnd{RunId: "run-1", Attempt: 1}) {
			t.Error("an old connection ended a run of the new one")
		}
		before.Status(&pb.NodeStatus{Number: 10, Draining: true})
		before.NodeEvent(&pb.EdgeNodeEvent{Kind: pb.EventKind_EVENT_KIND_CAPACITY_DRIFT})
		if err := before.Ready(&pb.Ready{Projection: 99}); err != nil {
			t.Errorf("a late Ready was judged: %v", err)
		}
		before.DispatchTimeout()
		before.DispatchTimeout()
		before.DispatchTimeout()
		before.ReadyOverdue()
		e.Registry.Fence(before, node.FenceDead, "late")
		e.Registry.Unconfirmed("a", before.Generation)
		synctest.Wait()

		if c := e.Registry.Current("a"); c == nil || c.Generation != n.Generation() || c.State() != node.StateReady {
			t.Errorf("current %+v", c)
		}
		wantPlaces(t, e, "a", 1)
		if n := before.Ignored().Late; n < 4 {
			t.Errorf("%d late messages counted", n)
		}
		if n := seen.count(events.KindFenced, ""); n != 1 {
			t.Errorf("%d fenced", n)
		}
		wantWork(t, e, "a")
	})
}

// TU-20: the old connection's end comes late, at any moment of the new one's life; it never takes the new one with it.
// faults.md row 35.
func TestLateEndOfTheOldConnection(t *testing.T) {
	const cycles = 500
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		hello := edgetest.Hello("a")
		var old *edgetest.Node
		for i := range cycles {
			cable := &edgetest.Cable{Conn: l.Dial()}
			n := edgetest.Connect(t, cable, edgetest.NodeOptions{Hello: hello})
			if old != nil { // it ends up to 500 ms later, often in the middle of a later takeover
				time.AfterFunc(time.Duration(i)*time.Millisecond, old.Close)
			}
			n.AwaitReady(t)
			if cur := e.Registry.Current("a"); cur == nil || cur.Generation != n.Generation() {
				t.Fatalf("cycle %d: current %+v", i, cur)
			}
			if i%50 == 0 {
				wantWork(t, e, "a")
			}
			time.Sleep(time.Duration(i%7) * 50 * time.Millisecond)
			if i%2 == 1 {
				cable.Silence() // so that it learns of its end late
			}
			hello = edgetest.Hello("a")
			hello.LastGeneration = n.Generation()
			old = n
		}
		old.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := seen.count(events.KindRegistered, ""); n != cycles {
			t.Errorf("%d registered", n)
		}
		if n := seen.count(events.KindFenced, ""); n != cycles {
			t.Errorf("%d fenced", n)
		}
		if n := len(e.Registry.Connections()); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}

// faults.md row 34: all nodes of a large site come back at once.
func TestManyNodesAtOnce(t *testing.T) { manyNodes(t, 300) }

func TestManyNodesAtOnceLong(t *testing.T) {
	if os.Getenv("IOP_LONG") == "" {
		t.Skip("set IOP_LONG=1: make test-long")
	}
	manyNodes(t, 1000)
}

func manyNodes(t *testing.T, count int) {
	var ids []string
	for i := range count {
		ids = append(ids, fmt.Sprintf("node-%d", i))
	}
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{Nodes: nodes(ids...)})
		start := time.Now()
		var dialing sync.WaitGroup
		for _, id := range ids {
			dialing.Go(func() {
				_ = l.Dial().Close() // the first try of each is cut
				for {
					c := l.Dial()
					resp, err := edgetest.Register(c, edgetest.Hello(id))
					if err == nil && resp.GetAccepted() {
						edgetest.Run(t, c, resp, edgetest.NodeOptions{}).Ready()
						return
					}
					_ = c.Close()
					time.Sleep(time.Second)
				}
			})
			if len(id)%2 == 0 { // and some come twice
				dialing.Go(func() {
					c := l.Dial()
					_ = link.WriteMessage(c, edgetest.Hello(id))
					_ = c.Close()
				})
			}
		}
		dialing.Wait()
		for _, id := range ids {
			wantState(t, e, id, node.StateReady)
		}
		if d := time.Since(start); d > 30*time.Second {
			t.Errorf("all ready after %v", d)
		}
		time.Sleep(5 * time.Minute)
		if n := seen.count(events.KindFenced, "dead"); n != 0 {
			t.Errorf("%d died", n)
		}
		if n := len(e.Registry.Connections()); n != count {
			t.Errorf("%d connections", n)
		}
	})
}
