package node_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"iop/apps/edge/internal/node"
	pb "iop/proto/iop"
)

// protocol.md §2.A, "ctl drain NODE / --undo".
func TestDrainedByAnOperator(t *testing.T) {
	b := newBench(t, record("a"), record("b"))
	c := b.commit(t, "a")
	if err := c.Ready(b.ready("a", "m")); err != nil || c.State() != node.StateReady {
		t.Fatalf("%v, %v", c.State(), err)
	}
	b.take()
	for range 2 { // the second time changes nothing
		if !b.SetDrained("a", true) {
			t.Fatal("a isn't known")
		}
	}
	p := b.published("a")
	if c.State() != node.StateDraining || p.Dispatchable || p.Reason != "an operator keeps new work from the node" {
		t.Errorf("%v, published %v %q", c.State(), p.Dispatchable, p.Reason)
	}
	// The act and what it did to the connection, each told once.
	if told := kinds(b.take()); !slices.Equal(told, []string{"drained", "draining"}) {
		t.Errorf("told %v", told)
	}
	// Neither its own words nor a new connection bring it back.
	c.Status(&pb.NodeStatus{Number: 1, Adapters: b.ready("a", "m").Adapters})
	again := b.commit(t, "a")
	if e := b.seen[len(b.seen)-1]; e.Text != "registered from there; an operator keeps new work from the node" {
		t.Errorf("told %+v", e)
	}
	if v := b.Nodes()[0]; again.State() != node.StateDraining || !v.Drained || v.State != node.StateDraining {
		t.Errorf("back as %v, %+v", again.State(), v)
	}
	if err := again.Ready(b.ready("a", "m")); err != nil || again.State() != node.StateDraining || b.published("a").Dispatchable {
		t.Errorf("ready as %v, %v", again.State(), err)
	}
	b.Fence(again, node.FenceLost, "")
	if v := b.Nodes()[0]; !v.Drained || v.State != node.StateOffline {
		t.Errorf("offline: %+v", v)
	}
	again = b.commit(t, "a")
	b.take()
	if !b.SetDrained("a", false) || again.State() != node.StateRegistered {
		t.Errorf("undone before it was ready: %v", again.State())
	}
	if err := again.Ready(b.ready("a", "m")); err != nil || again.State() != node.StateReady {
		t.Errorf("%v, %v", again.State(), err)
	}
	if told := kinds(b.take()); !slices.Equal(told, []string{"undrained", "ready"}) {
		t.Errorf("told %v", told)
	}
	if b.Nodes()[1].Drained {
		t.Error("b is drained, too")
	}
}

// What a node or the edge says of itself stands when the operator's wish is taken back.
func TestUndoLeavesOtherReasons(t *testing.T) {
	b := newBench(t, record("a"))
	c := b.commit(t, "a")
	if err := c.Ready(b.ready("a", "m")); err != nil {
		t.Fatal(err)
	}
	c.Status(&pb.NodeStatus{Number: 1, Draining: true, Adapters: b.ready("a", "m").Adapters})
	b.SetDrained("a", true)
	b.SetDrained("a", false)
	if p := b.published("a"); c.State() != node.StateDraining || p.Reason != "the node is stopping, and takes no new work" {
		t.Errorf("%v, %q", c.State(), p.Reason)
	}
	b.Drain(0, 0)
	b.SetDrained("a", true)
	c.Status(&pb.NodeStatus{Number: 2, Adapters: b.ready("a", "m").Adapters})
	b.SetDrained("a", false)
	if p := b.published("a"); c.State() != node.StateDraining || p.Reason != "the edge is stopping, and sends no new work" {
		t.Errorf("the edge drains: %v, %q", c.State(), p.Reason)
	}
}

func TestDrainOfUnknownNodes(t *testing.T) {
	b := newBench(t, record("a"), record("b"))
	if b.SetDrained("x", true) || len(b.take()) != 0 {
		t.Error("a node that nobody knows was drained")
	}
	// One that was taken out of the configuration can be forgotten, and isn't drained when it is back.
	b.SetDrained("b", true)
	b.configure(record("a"))
	if !b.SetDrained("b", false) || b.SetDrained("b", false) {
		t.Error("undo of a node that isn't configured any more")
	}
}

// Whoever comes last decides, also for the connection and for one that is made at the same moment.
func TestDrainRaces(t *testing.T) {
	b := newBench(t, record("a"))
	for range 200 {
		c := b.fresh("a")
		var expected uint64
		if cur := b.Current("a"); cur != nil {
			expected = cur.Generation
		}
		var all sync.WaitGroup
		all.Go(func() { b.SetDrained("a", true) })
		all.Go(func() { b.SetDrained("a", false) })
		all.Go(func() {
			if err := b.Commit(c, expected); err != nil {
				t.Error(err)
			}
			_ = c.Ready(b.ready("a", "m"))
		})
		all.Wait()
		if v := b.Nodes()[0]; v.Drained != (c.State() == node.StateDraining) || b.published("a").Dispatchable == v.Drained {
			t.Fatalf("%+v, connection %v, published %v", v, c.State(), b.published("a").Dispatchable)
		}
	}
}

// kinds are the events in what was told.
func kinds(told []string) (found []string) {
	for _, line := range told {
		if rest, is := strings.CutPrefix(line, "event "); is {
			kind, _, _ := strings.Cut(rest, " ")
			found = append(found, kind)
		}
	}
	return found
}

// A provider that comes and goes is told of; one that is there from the beginning is no news.
func TestAdaptersComeAndGo(t *testing.T) {
	b := newBench(t, record("a"))
	c := b.commit(t, "a")
	m := b.ready("a", "m")
	m.Adapters[1].Available, m.Adapters[1].Reason = false, "connection refused"
	b.take()
	if err := c.Ready(m); err != nil {
		t.Fatal(err)
	}
	if told := kinds(b.take()); !slices.Equal(told, []string{"ready", "adapter_unavailable"}) {
		t.Errorf("at first: %v", told)
	}
	if e := b.seen[len(b.seen)-1]; e.Adapter != "two" || e.Text != "connection refused" || e.NodeID != "a" || e.Generation != c.Generation {
		t.Errorf("%+v", e)
	}
	for i, there := range []bool{true, true, false, false} {
		m.Adapters[0].Available = there
		m.Adapters[1].Available = !there
		c.Status(&pb.NodeStatus{Number: uint64(i + 1), Adapters: m.Adapters})
	}
	// Both of the third status; the others say nothing new.
	if told := kinds(b.take()); !slices.Equal(told, []string{"adapter_unavailable", "adapter_available"}) {
		t.Errorf("then: %v", told)
	}
}

func TestEndedConnectionsAreCounted(t *testing.T) {
	b := newBench(t, record("a"))
	for _, why := range []node.FenceReason{node.FenceLost, node.FenceDead, node.FenceLost} {
		c := b.commit(t, "a")
		b.Fence(c, why, "")
		b.Fence(c, node.FenceLeft, "") // over already
	}
	if got := b.Ended(); len(got) != 2 || got[node.FenceLost] != 2 || got[node.FenceDead] != 1 {
		t.Errorf("%v", got)
	}
}
