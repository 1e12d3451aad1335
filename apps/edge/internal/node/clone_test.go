package node_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	pb "iop/proto/iop"
)

// arrives commits a connection of a process, which takes the place of what is there.
func (b *bench) arrives(id string, process byte, tokenOf string) error {
	c := b.fresh(id)
	c.InstanceID, c.Token = [16]byte{process}, token(tokenOf)
	var expected uint64
	if old := b.Current(id); old != nil {
		expected = old.Generation
	}
	return b.Commit(c, expected)
}

func (b *bench) clones() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.seen {
		if e.Kind == events.KindClone {
			n++
		}
	}
	return n
}

// Security C3: two processes that take turns have one token between them. Neither can be told from the other, so both are out until
// there is another token. A node that restarts, however often, isn't one.
func TestClone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, record("a"), record("b"))
		for process := range byte(30) {
			if err := b.arrives("a", process, "a"); err != nil {
				t.Fatalf("restart %d: %v", process, err)
			}
		}
		for turn := range 6 { // slowly: a machine that was asleep, a disk that was copied to a new one
			if err := b.arrives("a", byte(100+turn%2), "a"); err != nil {
				t.Fatalf("turn %d: %v", turn, err)
			}
			time.Sleep(6 * time.Minute)
		}
		var refused *node.Refusal
		for turn := 0; refused == nil && turn < 10; turn++ {
			if err := b.arrives("a", byte(100+turn%2), "a"); err != nil && !errors.As(err, &refused) {
				t.Fatal(err)
			}
		}
		if refused == nil || refused.Reason != pb.RegisterReason_REGISTER_REASON_NODE_DISABLED || b.Current("a") != nil || b.clones() != 1 {
			t.Fatalf("%v, still there: %v, told %d times", refused, b.Current("a"), b.clones())
		}
		if _, f := b.Verify(token("a"), nil); f == nil || f.Reason != pb.RegisterReason_REGISTER_REASON_NODE_DISABLED {
			t.Errorf("comes again: %v", f)
		}
		if err := b.arrives("b", 100, "b"); err != nil {
			t.Errorf("another node: %v", err)
		}
		rec := record("a")
		rec.TokenHashes = record("new").TokenHashes
		b.configure(rec, record("b"))
		if err := b.arrives("a", 100, "new"); err != nil {
			t.Errorf("with a new token: %v", err)
		}
	})
}
