package node_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"iop/apps/edge/internal/node"
	pb "iop/proto/iop"
)

// machine drives a registry with connections of a few nodes in any order, also events that come too late, and keeps what
// must be true beside it (faults.md row 56).
type machine struct {
	t        *testing.T
	b        *bench
	all      []*node.Connection // committed or not
	current  map[string]*node.Connection
	fenced   map[*node.Connection]bool
	highest  map[string]uint64
	drained  map[string]bool // by an operator
	draining bool
}

func (m *machine) pick(t *rapid.T) *node.Connection {
	if len(m.all) == 0 {
		t.Skip("no connection yet")
	}
	// mostly recent ones: both the current and those just replaced
	return m.all[rapid.IntRange(max(0, len(m.all)-6), len(m.all)-1).Draw(t, "connection")]
}

func (m *machine) prepare(t *rapid.T) {
	m.all = append(m.all, m.b.fresh(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node")))
}

func (m *machine) commit(t *rapid.T) {
	c := m.pick(t)
	cur := m.current[c.NodeID]
	var expected uint64
	if cur != nil && rapid.Bool().Draw(t, "right") {
		expected = cur.Generation
	}
	want := !m.draining && c.Generation > m.highest[c.NodeID] && (cur == nil || expected == cur.Generation)
	if err := m.b.Commit(c, expected); (err == nil) != want {
		t.Fatalf("commit of %d over %d (highest %d, drains %v): %v", c.Generation, expected, m.highest[c.NodeID], m.draining, err)
	}
	if !want {
		return
	}
	if cur != nil {
		m.fenced[cur] = true
	}
	m.current[c.NodeID], m.highest[c.NodeID] = c, c.Generation
}

func (m *machine) fence(t *rapid.T) {
	c := m.pick(t)
	if c.Generation > m.highest[c.NodeID] {
		t.Skip("never committed")
	}
	if m.current[c.NodeID] != c && !m.fenced[c] {
		t.Skip("lost its race")
	}
	reason := rapid.SampledFrom([]node.FenceReason{node.FenceLost, node.FenceDead, node.FenceLeft, node.FenceProtocol,
		node.FenceEdgeDraining, node.FenceUnconfirmedRun}).Draw(t, "reason")
	if did := m.b.Fence(c, reason, "x"); did == m.fenced[c] {
		t.Fatalf("fence of %d: %v", c.Generation, did)
	}
	m.fenced[c] = true
	if m.current[c.NodeID] == c {
		delete(m.current, c.NodeID)
	}
}

func (m *machine) say(t *rapid.T) {
	c := m.pick(t)
	if m.current[c.NodeID] != c && !m.fenced[c] {
		t.Skip("its link was never started")
	}
	switch rapid.IntRange(0, 10).Draw(t, "what") {
	case 0, 1, 2:
		if err := c.Ready(m.b.ready(c.NodeID, "m")); err != nil {
			t.Fatal(err)
		}
	case 3:
		_ = c.Ready(&pb.Ready{Projection: rapid.Uint64Range(0, 3).Draw(t, "projection"), RefusedProjection: rapid.Uint64Range(0, 3).Draw(t, "refused")})
	case 4:
		c.Status(&pb.NodeStatus{Number: rapid.Uint64Range(0, 20).Draw(t, "number"), Draining: rapid.Bool().Draw(t, "drains"),
			Adapters: m.b.ready(c.NodeID, "m").Adapters})
	case 5:
		c.DispatchTimeout()
	case 6:
		c.Dispatched()
	case 7:
		c.CommandTimeout()
	case 8:
		c.CommandAccepted()
	case 9:
		c.ReadyOverdue()
	case 10:
		run := fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "run"))
		if rapid.Bool().Draw(t, "held") && !m.fenced[c] {
			m.b.hold(c.Generation, run, 1)
		}
		if c.RunEnded(&pb.RunEnd{RunId: run, Attempt: 1}) && m.fenced[c] {
			t.Fatal("a fenced connection ended a run")
		}
	}
}

func (m *machine) drain(t *rapid.T) {
	if rapid.IntRange(0, 30).Draw(t, "rarely") != 0 {
		t.Skip("not now")
	}
	m.b.Drain(time.Second, time.Second)
	m.draining = true
}

func (m *machine) operate(t *rapid.T) {
	id, on := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node"), rapid.Bool().Draw(t, "drain")
	if !m.b.SetDrained(id, on) {
		t.Fatalf("%s isn't known", id)
	}
	m.drained[id] = on
}

func (m *machine) check(t *rapid.T) {
	if len(m.b.wrong) != 0 {
		t.Fatal(m.b.wrong)
	}
	for _, id := range []string{"a", "b"} {
		cur := m.current[id]
		if got := m.b.Current(id); got != cur {
			t.Fatalf("%s: current %v, want %v", id, got, cur)
		}
		p := m.b.published(id)
		if cur == nil {
			if p.Dispatchable && !m.b.over[p.Generation] {
				t.Fatalf("%s: nobody told the scheduler that %d is over", id, p.Generation)
			}
			continue
		}
		if p.Generation != cur.Generation || p.Dispatchable != (cur.State() == node.StateReady) {
			t.Fatalf("%s: published %d %v, current %d is %v", id, p.Generation, p.Dispatchable, cur.Generation, cur.State())
		}
		if m.draining && cur.State() != node.StateDraining {
			t.Fatalf("%s is %v while the edge drains", id, cur.State())
		}
		if m.drained[id] && cur.State() != node.StateDraining {
			t.Fatalf("%s is %v although an operator drained it", id, cur.State())
		}
	}
	for _, c := range m.all {
		if m.fenced[c] != m.b.over[c.Generation] || m.fenced[c] != (c.State() == node.StateFenced) {
			t.Fatalf("generation %d: fenced %v, scheduler told %v, state %v", c.Generation, m.fenced[c], m.b.over[c.Generation], c.State())
		}
	}
	for _, v := range m.b.Nodes() {
		if v.Drained != m.drained[v.ID] {
			t.Fatalf("%s is shown as drained: %v", v.ID, v.Drained)
		}
	}
	m.b.Models()
}

func TestRegistryMachine(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &machine{t: t, b: newBench(t, record("a"), record("b")), current: make(map[string]*node.Connection),
			fenced: make(map[*node.Connection]bool), highest: make(map[string]uint64), drained: make(map[string]bool)}
		rt.Repeat(map[string]func(*rapid.T){
			"prepare": m.prepare, "commit": m.commit, "fence": m.fence, "say": m.say, "say more": m.say, "drain": m.drain, "operate": m.operate, "": m.check,
		})
	})
}
