package transport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	pb "iop/proto/iop"
)

// §2.A: edge starts draining → DrainNotice; registered gets no ReadyAck, ready and draining take no new work, and none of
// them is closed. Grace over → Goodbye, fence(edge_draining).
func TestEdgeDrains(t *testing.T) {
	for _, before := range []node.State{node.StateRegistered, node.StateReady, node.StateDraining} {
		t.Run(string(before), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &spy{}
				e, l, seen := inMemory(t, edgetest.Options{Wrap: s.wrap})
				n := inState(t, e, l, before)
				e.Server.Drain(30 * time.Second)
				e.Server.Drain(30 * time.Second) // asked twice, told twice, no harm
				notice := edgetest.Await(t, n, time.Second, (*pb.EdgeControl).GetDrainNotice)
				if notice.GetGraceMs() != 30_000 || notice.GetReconnectAfterMs() == 0 {
					t.Errorf("notice %v", notice)
				}
				seen.want(t, events.KindDraining, "draining")
				n.Ready()
				n.SendStatus(&pb.NodeStatus{Adapters: n.Adapters()}) // the node doesn't drain: the edge still does
				synctest.Wait()
				wantState(t, e, "a", node.StateDraining)
				if s.published("a").Dispatchable {
					t.Error("dispatchable while the edge drains")
				}
				for len(n.Heard) > 0 {
					if m := <-n.Heard; m.GetReadyAck() != nil {
						t.Error("a ReadyAck while the edge drains")
					}
				}
				time.Sleep(29 * time.Second)
				if e.Registry.Lookup("a", n.Generation()) == nil {
					t.Fatal("the connection ended within the grace")
				}
				start := time.Now()
				if err := e.Stop(); err != nil {
					t.Error(err)
				}
				if d := time.Since(start); d > 2*time.Second {
					t.Errorf("ended after %v", d)
				}
				bye := edgetest.Await(t, n, time.Second, (*pb.EdgeControl).GetGoodbye)
				if bye.GetCode() != pb.GoodbyeCode_GOODBYE_CODE_EDGE_DRAINING {
					t.Errorf("goodbye %v", bye)
				}
				seen.want(t, events.KindFenced, "edge_draining")
				<-n.Link.Down()
			})
		})
	}
}

// An edge that ends at once ends for a node, too, that takes nothing any more.
func TestEndWithASilentNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		_, cable := owner(t, l)
		cable.Silence()
		start := time.Now()
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("ended after %v", d)
		}
		seen.want(t, events.KindFenced, "edge_draining")
	})
}
