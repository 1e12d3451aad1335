package node_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/node"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

func isDown(c *node.Connection) bool {
	select {
	case <-c.Down():
		return true
	default:
		return false
	}
}

// protocol.md §1.5: a fence happens once, and in this order: out of the registry, link closed, places released,
// published.
func TestFenceOrder(t *testing.T) {
	b := newBench(t, record("a"))
	c := b.commit(t, "a")
	c.Start()
	b.take()
	b.hook = func(what string) {
		if b.Current("a") != nil || b.Lookup("a", c.Generation) != nil {
			t.Errorf("%s: still in the registry", what)
		}
		if !isDown(c) {
			t.Errorf("%s: the link isn't closed", what)
		}
	}
	if !b.Fence(c, node.FenceDead, "silent") {
		t.Error("the first fence did nothing")
	}
	if b.Fence(c, node.FenceLost, "again") {
		t.Error("the second fence did something")
	}
	want := []string{fmt.Sprintf("fence a %d", c.Generation), fmt.Sprintf("event fenced dead a %d", c.Generation)}
	if got := b.take(); !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	if c.State() != node.StateFenced || c.Start() {
		t.Error("a fenced connection is of use")
	}
}

// Whoever fences, and however many at once: one of them does it.
func TestFenceOnceUnderConcurrency(t *testing.T) {
	b := newBench(t, record("a"))
	for range 50 {
		c := b.commit(t, "a")
		var did atomic.Int32
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				switch i % 4 {
				case 0:
					_ = c.Ready(b.ready("a"))
				case 1:
					c.DispatchTimeout()
				case 2:
					c.Status(&pb.NodeStatus{Number: uint64(i)})
				}
				if b.Fence(c, node.FenceLost, "") {
					did.Add(1)
				}
			})
		}
		all.Wait()
		if did.Load() != 1 {
			t.Errorf("%d fences", did.Load())
		}
	}
	if len(b.wrong) != 0 {
		t.Error(b.wrong)
	}
}

// Fencing an older connection, at whatever moment, leaves the current one alone. TU-20.
func TestFenceOfAReplacedConnection(t *testing.T) {
	b := newBench(t, record("a"))
	old := b.commit(t, "a")
	cur := b.fresh("a")
	b.hook = func(what string) {
		if strings.HasPrefix(what, "fence") && b.Current("a") != cur {
			t.Errorf("%s: the new connection isn't in the registry", what)
		}
	}
	b.take()
	if err := b.Commit(cur, old.Generation); err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprintf("fence a %d", old.Generation), fmt.Sprintf("event fenced superseded a %d", old.Generation),
		fmt.Sprintf("event registered registered a %d", cur.Generation), fmt.Sprintf("publish a %d false", cur.Generation)}
	if got := b.take(); !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	b.hook = nil
	b.Fence(old, node.FenceLost, "late")
	b.Unconfirmed("a", old.Generation)
	if b.Lookup("a", cur.Generation) != cur || len(b.take()) != 0 || isDown(cur) || !isDown(old) {
		t.Error("the end of the old connection touched the new one")
	}
	b.Unconfirmed("a", cur.Generation)
	if b.Current("a") != nil {
		t.Error("not fenced")
	}
}

// A node whose connection ended by itself may be back before anybody noticed that: the reason is what ended it. §4.6.
func TestReplacedAfterItsEnd(t *testing.T) {
	for how, want := range map[transport.Reason]node.FenceReason{transport.ReasonProtocol: node.FenceProtocol, transport.ReasonLost: node.FenceLost,
		transport.ReasonDead: node.FenceDead, transport.ReasonSendOverflow: node.FenceSendOverflow, 0: node.FenceSuperseded} {
		b := newBench(t, record("a"))
		old := b.commit(t, "a")
		if how != 0 {
			old.Link.Close(how)
		}
		b.commit(t, "a")
		if e := b.seen[1]; e.Code != string(want) || e.Generation != old.Generation {
			t.Errorf("replaced after %v: %+v, want %s", how, e, want)
		}
	}
}

// What connections ignored is counted on after they are gone.
func TestIgnoredOutlivesConnections(t *testing.T) {
	b := newBench(t, record("a"))
	for i := range uint64(3) {
		c := b.commit(t, "a")
		c.Unknown()
		c.RunEnded(&pb.RunEnd{RunId: "r", Attempt: 1})
		b.Fence(c, node.FenceLost, "")
		c.Unknown()
		if own, all := c.Ignored(), b.Ignored(); own != (node.Ignored{Other: 1, RunEnded: 1, Late: 1}) || all != (node.Ignored{Other: i + 1, RunEnded: i + 1, Late: i + 1}) {
			t.Errorf("own %+v, all %+v", own, all)
		}
	}
}

// Commit is a compare-and-swap on the generation, and reads record and state again.
func TestCommit(t *testing.T) {
	refused := func(t *testing.T, err error, want pb.RegisterReason) {
		t.Helper()
		var f *node.Refusal
		if !errors.As(err, &f) || f.Reason != want {
			t.Errorf("err %v, want %v", err, want)
		}
	}
	t.Run("another predecessor", func(t *testing.T) {
		b := newBench(t, record("a"))
		c, faster := b.fresh("a"), b.fresh("a")
		if err := b.Commit(faster, 0); err != nil {
			t.Fatal(err)
		}
		for _, expected := range []uint64{0, faster.Generation + 1, c.Generation} {
			if err := b.Commit(c, expected); !errors.Is(err, node.ErrRaced) {
				t.Errorf("expected %d: %v", expected, err)
			}
		}
		// Its number is below one that was in force: even with the faster one gone it can't come in.
		b.Fence(faster, node.FenceLost, "")
		if err := b.Commit(c, faster.Generation); !errors.Is(err, node.ErrRaced) {
			t.Errorf("a lower generation came in: %v", err)
		}
		b.commit(t, "a")
	})
	t.Run("the predecessor ended by itself", func(t *testing.T) {
		b := newBench(t, record("a"))
		old := b.commit(t, "a")
		c := b.fresh("a")
		b.Fence(old, node.FenceLost, "")
		if err := b.Commit(c, old.Generation); err != nil {
			t.Error(err)
		}
	})
	t.Run("record disabled", func(t *testing.T) {
		b := newBench(t, record("a"))
		c := b.fresh("a")
		rec := record("a")
		rec.Enabled = false
		b.configure(rec)
		refused(t, b.Commit(c, 0), pb.RegisterReason_REGISTER_REASON_NODE_DISABLED)
	})
	t.Run("token gone", func(t *testing.T) {
		b := newBench(t, record("a"))
		c := b.fresh("a")
		b.configure(record("b"))
		refused(t, b.Commit(c, 0), pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN)
	})
	t.Run("token expired", func(t *testing.T) {
		b := newBench(t, record("a"))
		c := b.fresh("a")
		rec := record("a")
		rec.TokenHashes[0].NotAfter = time.Now().Add(-time.Second)
		b.configure(rec)
		refused(t, b.Commit(c, 0), pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN)
	})
	t.Run("token is another's now", func(t *testing.T) {
		b := newBench(t, record("a"), record("b"))
		c := b.fresh("a")
		x, y := record("a"), record("b")
		x.TokenHashes, y.TokenHashes = y.TokenHashes, x.TokenHashes
		b.configure(x, y)
		if err := b.Commit(c, 0); !errors.Is(err, node.ErrRaced) {
			t.Error(err)
		}
	})
	t.Run("projection changed", func(t *testing.T) {
		b := newBench(t, record("a"))
		c := b.fresh("a")
		rec := record("a")
		rec.Adapters[0].MaxConcurrency++
		b.configure(rec)
		if err := b.Commit(c, 0); !errors.Is(err, node.ErrRaced) {
			t.Error(err)
		}
	})
	t.Run("another node's part changed", func(t *testing.T) {
		b := newBench(t, record("a"), record("b"))
		c := b.fresh("a")
		rec := record("b")
		rec.Adapters[0].MaxConcurrency++
		b.configure(record("a"), rec)
		if err := b.Commit(c, 0); err != nil {
			t.Error(err)
		}
	})
	t.Run("edge drains", func(t *testing.T) {
		b := newBench(t, record("a"))
		c := b.fresh("a")
		b.Drain(time.Second, time.Second)
		refused(t, b.Commit(c, 0), pb.RegisterReason_REGISTER_REASON_EDGE_DRAINING)
		if !b.Draining() {
			t.Error("not draining")
		}
	})
}

// One hundred candidates commit on the same predecessor: one of them replaces it.
func TestCommitRaces(t *testing.T) {
	b := newBench(t, record("a"))
	old := b.commit(t, "a")
	var won atomic.Int32
	var all sync.WaitGroup
	for range 100 {
		c := b.fresh("a")
		all.Go(func() {
			if err := b.Commit(c, old.Generation); err == nil {
				won.Add(1)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || len(b.Connections()) != 1 {
		t.Errorf("%d commits, %d connections", won.Load(), len(b.Connections()))
	}
}

// Whoever contends for a node does so alone.
func TestContend(t *testing.T) {
	b := newBench(t, record("a"), record("b"))
	settle, ok := b.Contend("a")
	if !ok {
		t.Fatal("refused")
	}
	if _, ok := b.Contend("a"); ok {
		t.Error("two at a time")
	}
	if other, ok := b.Contend("b"); !ok {
		t.Error("nodes share it")
	} else {
		other()
	}
	settle()
	if again, ok := b.Contend("a"); !ok {
		t.Error("not given back")
	} else {
		again()
	}
}

// closer calls a function for a Close.
type closer func()

func (f closer) Close() error {
	f()
	return nil
}

// A fence between commit and start closes the bare connection, after the connection left the registry, and the link never
// starts.
func TestFenceBeforeStart(t *testing.T) {
	b := newBench(t, record("a"))
	closed := 0
	c := b.freshOn("a", closer(func() {
		closed++
		if len(b.Connections()) != 0 {
			t.Error("closed while still in the registry")
		}
	}))
	if err := b.Commit(c, 0); err != nil {
		t.Fatal(err)
	}
	b.Fence(c, node.FenceEdgeDraining, "")
	if !isDown(c) || c.Start() || closed != 1 {
		t.Errorf("down %v, closed %d times", isDown(c), closed)
	}
}

// What is published is the state at that moment: calls from many sides never leave an older one behind.
func TestPublishedInOrder(t *testing.T) {
	b := newBench(t, record("a"))
	c := b.commit(t, "a")
	for range 200 {
		var all sync.WaitGroup
		all.Go(func() { _ = c.Ready(b.ready("a")) })
		all.Go(c.DispatchTimeout)
		all.Go(c.DispatchTimeout)
		all.Go(c.DispatchTimeout)
		all.Go(c.Dispatched)
		all.Go(c.CommandTimeout)
		all.Wait()
		if got, want := b.published("a").Dispatchable, c.State() == node.StateReady; got != want {
			t.Fatalf("published dispatchable %v in state %v", got, c.State())
		}
	}
}

// A node whose labels or adapters changed offers what it was told at registration.
func TestOffer(t *testing.T) {
	b := newBench(t, record("a"))
	c := b.commit(t, "a")
	if err := c.Ready(b.ready("a", "m1", "m2")); err != nil {
		t.Fatal(err)
	}
	n := b.published("a")
	if n.Labels["of"] != "a" || n.Generation != c.Generation || len(n.Adapters) != 2 || n.Reason != "" {
		t.Errorf("published %+v", n)
	}
	one, two := n.Adapters[0], n.Adapters[1]
	if one.Capacity != 4 || one.Kind != "loopback" || !one.Offers("m2") || one.Offers("x") {
		t.Errorf("one: %+v", one)
	}
	if two.Capacity != 2 || !two.Offers("x") || two.Offers("m1") {
		t.Errorf("two: %+v", two)
	}
	var _ admission.Node = n
}
