package node

import (
	"encoding/hex"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// These look at what needs more than one projection, which an edge of this version never sends.

type nobody struct{ fenced []uint64 }

func (*nobody) Publish(admission.Node)                    {}
func (*nobody) Adopt(string, uint64, []admission.Adopted) {}
func (*nobody) Ended(string, uint64, string, uint32) bool { return false }
func (n *nobody) Fence(_ string, generation uint64)       { n.fenced = append(n.fenced, generation) }

type told struct{ list []events.Event }

func (t *told) Publish(e events.Event) { t.list = append(t.list, e) }
func (*told) Control(*pb.NodeControl)  {}

// afterRefresh is a connection that was told of projections 3 and 5 and is ready with 3.
func afterRefresh(t *testing.T) (*Connection, *told) {
	t.Helper()
	seen := &told{}
	r := New(Config{Scheduler: &nobody{}, Events: seen, Log: zerolog.New(io.Discard)})
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	first := &config.Projection{Number: 3, Adapters: []config.ProjectedAdapter{
		{Adapter: config.Adapter{Name: "x", MaxConcurrency: 1}, Revision: 3}}}
	second := &config.Projection{Number: 5, Adapters: []config.ProjectedAdapter{
		{Adapter: config.Adapter{Name: "x", MaxConcurrency: 2}, Revision: 5}, {Adapter: config.Adapter{Name: "y", MaxConcurrency: 1}, Revision: 5}}}
	c := r.NewConnection(Identity{NodeID: "a", Generation: 1}, &config.NodeRecord{ID: "a"}, first, near)
	c.Link = transport.NewEdgeLink(near, transport.Config{}, seen)
	c.st.sent = append(c.st.sent, second)
	if err := c.Ready(&pb.Ready{Projection: 3, Adapters: []*pb.AdapterState{{Name: "x", Revision: 3, Available: true, Capacity: 1}}}); err != nil {
		t.Fatal(err)
	}
	return c, seen
}

func (c *Connection) names() (names []string) {
	for _, a := range c.st.adapters {
		names = append(names, a.Name)
	}
	return names
}

// §2.A: Ready(p) with p lower than the last Ready → K; the same or a higher one that was sent is a new snapshot.
func TestReadyGoesForwardOnly(t *testing.T) {
	c, _ := afterRefresh(t)
	if err := c.Ready(&pb.Ready{Projection: 3}); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := c.Ready(&pb.Ready{Projection: 5}); err != nil {
		t.Errorf("the next: %v", err)
	}
	if got := c.names(); !slices.Equal(got, []string{"x", "y"}) {
		t.Errorf("adapters %v", got)
	}
	if err := c.Ready(&pb.Ready{Projection: 3}); err == nil {
		t.Error("a lower one")
	}
	if n := len(c.st.sent); n != 1 {
		t.Errorf("%d projections are remembered", n)
	}
	if err := c.Ready(&pb.Ready{Projection: 4}); err == nil {
		t.Error("one between that was never sent")
	}
}

// §2.A ready: Ready.refused_projection → event. The node works by the old one, and gets no work that is due to be done
// by another.
func TestRefusedRefreshKeepsTheOldProjection(t *testing.T) {
	c, seen := afterRefresh(t)
	err := c.Ready(&pb.Ready{Projection: 3, RefusedProjection: 5, RefuseText: strings.Repeat("é", 300),
		Adapters: []*pb.AdapterState{{Name: "x", Revision: 3, Available: true, Capacity: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	if x := c.st.adapters[0]; c.State() != StateReady || x.Available || !strings.Contains(x.Reason, "runs revision 3, 5 is due") {
		t.Errorf("state %v, adapters %+v", c.State(), c.st.adapters)
	}
	if last := seen.list[len(seen.list)-1]; last.Kind != events.KindRefusedProjection || len(last.Text) > maxText {
		t.Errorf("event %+v", last)
	}
}

// What a node says of itself can't fill the log, whatever it is: each way of saying something new is bounded, and the
// scheduler is told all the same.
func TestNodeCantFillTheLog(t *testing.T) {
	for name, say := range map[string]func(c *Connection, i int) error{
		"draining": func(c *Connection, i int) error {
			c.Status(&pb.NodeStatus{Number: uint64(i), Draining: i%2 == 0})
			return nil
		},
		"store": func(c *Connection, i int) error {
			c.Status(&pb.NodeStatus{Number: uint64(i), StoreState: pb.StoreState(1 + i%2)})
			return nil
		},
		"clock": func(c *Connection, i int) error {
			c.Status(&pb.NodeStatus{Number: uint64(i), ClockState: pb.ClockState(1 + i%2)})
			return nil
		},
		"refusal": func(c *Connection, _ int) error { return c.Ready(&pb.Ready{Projection: 3, RefusedProjection: 5}) },
		"event": func(c *Connection, _ int) error {
			c.NodeEvent(&pb.EdgeNodeEvent{Kind: pb.EventKind_EVENT_KIND_CAPACITY_DRIFT})
			return nil
		},
	} {
		synctest.Test(t, func(t *testing.T) { // how much is let through depends on the time
			c, seen := afterRefresh(t)
			seen.list = nil
			for i := range 1000 {
				if err := say(c, i+1); err != nil {
					t.Fatal(err)
				}
			}
			if n := len(seen.list); n == 0 || n > 21 {
				t.Errorf("%s: %d events", name, n)
			}
			if n := c.Ignored().Events; n < 400 {
				t.Errorf("%s: %d counted", name, n)
			}
			c.Status(&pb.NodeStatus{Number: 1001, Draining: true})
			if c.State() != StateDraining {
				t.Errorf("%s: the node drains, and is %s", name, c.State())
			}
		})
	}
}

// What a node says that its providers have is looked through with each request.
func TestModelsAreBounded(t *testing.T) {
	c, _ := afterRefresh(t)
	long := &pb.ModelState{Name: strings.Repeat("x", maxModel+1)}
	list := []*pb.ModelState{long, {Name: strings.Repeat("y", maxModel), Loaded: true}}
	for range 2 * maxModels {
		list = append(list, &pb.ModelState{Name: "m"})
	}
	err := c.Ready(&pb.Ready{Projection: 5, Adapters: []*pb.AdapterState{{Name: "x", Revision: 5, Available: true, Capacity: 1, Models: list}}})
	if got := c.models()[0].Models; err != nil || len(got) != maxModels || len(got[0].Name) != maxModel || !got[0].Loaded {
		t.Errorf("%v, %d models, the first %+v", err, len(got), got[0])
	}
}

// A fence sets its mark before it takes the connection out of the registry. A commit that falls in between finds nobody
// to reckon with, as the look at the predecessor before it did.
func TestCommitBetweenMarkAndRemoval(t *testing.T) {
	sum := config.HashSecret("token")
	state := config.NewState(&config.Edge{Nodes: []config.NodeRecord{{ID: "a", Enabled: true,
		TokenHashes: []config.TokenHash{{SHA256: hex.EncodeToString(sum[:])}}}}}, 1, nil)
	places, seen := &nobody{}, &told{}
	r := New(Config{State: func() *config.State { return state }, Scheduler: places, Events: seen, Log: zerolog.Nop()})
	connection := func(generation uint64) *Connection {
		near, far := net.Pipe()
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		c := r.NewConnection(Identity{NodeID: "a", Generation: generation, Token: sum}, state.Node("a"), state.Projection("a"), near)
		c.Link = transport.NewEdgeLink(near, transport.Config{}, seen)
		return c
	}
	old, c := connection(1), connection(2)
	if err := r.Commit(old, 0); err != nil {
		t.Fatal(err)
	}
	old.over.Store(true) // Fence has come this far
	if r.Current("a") != nil {
		t.Error("shown though it is fenced")
	}
	if err := r.Commit(c, 0); err != nil {
		t.Fatal(err)
	}
	r.remove(old, "lost") // and goes on
	if r.Current("a") != c || len(places.fenced) != 0 {
		t.Errorf("current %v, fenced %v", r.Current("a"), places.fenced)
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{{"", 0, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aé", 2, "a"}, {"éé", 3, "é"}, {"€", 2, ""}, {"a€", 4, "a€"}} {
		if got := cut(c.in, c.n); got != c.want {
			t.Errorf("cut(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}
