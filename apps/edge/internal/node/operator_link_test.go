package node_test

import (
	"testing"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/node"
	"iop/packages/go/config"
	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

// A node that an operator drained is told that its Ready was taken and that no work comes, and when that is over.
func TestDrainedNodeIsTold(t *testing.T) {
	e := edgetest.Start(t, edgetest.Options{Nodes: []config.NodeRecord{edgetest.Record("a", 2)}})
	e.Registry.SetDrained("a", true)
	n := edgetest.Dial(t, e, "a", edgetest.NodeOptions{})
	n.Ready()
	const limit = patience.Limit
	if ack := edgetest.Await(t, n, limit, (*pb.EdgeControl).GetReadyAck); ack.GetDispatchable() {
		t.Error("work may come to a node that is drained")
	}
	e.Registry.SetDrained("a", false)
	if ack := edgetest.Await(t, n, limit, (*pb.EdgeControl).GetReadyAck); !ack.GetDispatchable() || ack.GetProjection() == 0 {
		t.Errorf("%v", ack)
	}
	if s := e.Registry.Current("a").State(); s != node.StateReady {
		t.Errorf("%v", s)
	}
}
