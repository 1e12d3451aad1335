package node_test

import (
	"testing"
	"time"

	"iop/apps/node/internal/node"
	"iop/packages/go/credentiallease"
	pb "iop/proto/iop"
)

// A node that doesn't know the Edge's time any more refuses leases: it says so, and when it knows it again.
func TestClockStateIsTold(t *testing.T) {
	r, _ := newLeasedRig(t, timers(func(t *node.Timers) { t.ProbeEvery = 5 * time.Millisecond }))
	is := func(state pb.ClockState) func(*pb.NodeStatus) bool {
		return func(s *pb.NodeStatus) bool { return s.GetClockState() == state }
	}
	known := r.lender.Now()
	r.lender.SetNow(credentiallease.Time{})
	r.Status("not in step", is(pb.ClockState_CLOCK_STATE_UNSYNCED))
	r.lender.SetNow(known)
	r.Status("in step", is(pb.ClockState_CLOCK_STATE_SYNCED))
}
