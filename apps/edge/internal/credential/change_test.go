package credential

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// disabling has a slot disabled, and returns when nodes were told.
func (r *rig) disabling() (p Push, done chan Change) {
	r.t.Helper()
	done = make(chan Change, 1)
	go func() { // ends with the change
		c, err := r.store.Disable(context.Background(), "main")
		if err != nil {
			r.t.Error(err)
		}
		done <- c
	}()
	return <-r.told, done
}

// A change waits for the connections that have leases, reports what they say, and whom it didn't hear.
func TestChangeWaitsForNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t)
		r.configure(func(e *config.Edge) { e.Slots[0].Nodes = []string{"gpu-1", "gpu-2"} })
		r.store.Reconfigured()
		old, _ := recipient(t, "gpu-1", 1) // at a handover a node has two connections
		now, _ := recipient(t, "gpu-1", 2)
		other, _ := recipient(t, "gpu-2", 1)
		r.lend(old, "old")
		r.lend(now, "now")
		r.lend(other, "other")
		r.lend(other, "silent").Used()
		r.lend(other, "void").Void()
		ended := r.lend(other, "ended")
		r.store.Ended("gpu-2", ended.ID(), true, execution.LeaseRefusal{})

		p, done := r.disabling()
		if !slices.Equal(r.asked[0], []string{"gpu-1", "gpu-2"}) || !p.Disabled || p.Slot != "main" {
			t.Errorf("%v, %+v", r.asked, p)
		}
		r.store.Acked("gpu-1", 2, p.Epoch, []string{"now", "other", "nobody's"})
		r.store.Acked("gpu-1", 2, p.Epoch, nil)               // the first word counts
		r.store.Acked("gpu-1", 9, p.Epoch, []string{"old"})   // who wasn't asked
		r.store.Acked("gpu-1", 1, p.Epoch+9, []string{"old"}) // who was asked something else
		synctest.Wait()
		select {
		case c := <-done:
			t.Fatalf("didn't wait: %+v", c)
		default:
		}
		r.store.Acked("gpu-1", 1, p.Epoch, nil)
		c := <-done // after 30 s
		if !slices.Equal(c.Running, []string{"now", "other", "silent"}) || !slices.Equal(c.Unanswered, []string{"gpu-2"}) ||
			c.State != StateDisabled || c.Revision != p.MinRevision {
			t.Errorf("%+v", c)
		}
		if len(r.store.waits) != 0 {
			t.Error("a wait is left")
		}
	})
}

// A node speaks for itself only: it can't have another's run cancelled, nor one that has another slot's key.
func TestNodesSpeakForThemselves(t *testing.T) {
	r := opened(t)
	r.configure(func(e *config.Edge) { e.Slots[0].Nodes = []string{"gpu-1", "gpu-2"} })
	r.store.Reconfigured()
	one, _ := recipient(t, "gpu-1", 1)
	two, _ := recipient(t, "gpu-2", 1)
	r.lend(one, "one")
	other := r.lend(two, "two")
	p, done := r.disabling()
	r.store.Acked("gpu-1", 1, p.Epoch, []string{"one", "two"})
	r.store.Acked("gpu-2", 1, p.Epoch, nil)
	if c := <-done; !slices.Equal(c.Running, []string{"one"}) || other.entry.state != leaseIssued {
		t.Errorf("%+v, the other's is %v", c, other.entry.state)
	}
}

// Who is gone isn't waited for, before or meanwhile; its runs count as running as long as nobody says otherwise.
func TestChangeDoesNotWaitForTheGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t)
		first, _ := recipient(t, "gpu-1", 1)
		second, _ := recipient(t, "gpu-1", 2)
		lost := r.lend(first, "first")
		lost.Lost()
		lost.Close() // nobody knows whether the provider still works on it
		r.store.Gone("gpu-1", 1)
		r.lend(second, "second")
		begun := time.Now()
		_, done := r.disabling()
		time.Sleep(time.Second)
		r.store.Gone("gpu-1", 2)
		c := <-done
		if time.Since(begun) != time.Second || len(c.Unanswered) != 0 || !slices.Equal(c.Running, []string{"first", "second"}) {
			t.Errorf("after %v: %+v", time.Since(begun), c)
		}
		// Nobody has a lease of it any more: nobody is waited for, though all are told.
		if c, err := r.store.Enable(t.Context(), "main"); err != nil || len(c.Unanswered) != 0 || c.State != StateActive {
			t.Errorf("%+v, %v", c, err)
		}
		if p := <-r.told; p.Disabled || p.MinRevision <= c.Revision {
			t.Errorf("%+v", p)
		}
	})
}

// Asking again changes nothing and asks the nodes again.
func TestChangeAgain(t *testing.T) {
	r := opened(t)
	first, err := r.store.Disable(t.Context(), "main")
	check(t, err)
	one := <-r.told
	again, err := r.store.Disable(t.Context(), "main")
	check(t, err)
	if two := <-r.told; again.Revision != first.Revision || two.MinRevision != one.MinRevision || two.Epoch <= one.Epoch {
		t.Errorf("%+v then %+v", one, two)
	}
}

// Enabling what is active takes nothing back, so that nobody has anything to say to it.
func TestEnableWhatIsActive(t *testing.T) {
	r := opened(t)
	to, _ := recipient(t, "gpu-1", 1)
	l := r.lend(to, "run")
	c, err := r.store.Enable(t.Context(), "main")
	if err != nil || len(c.Running) != 0 || len(c.Unanswered) != 0 || c.State != StateActive || !l.Current() {
		t.Errorf("%+v, %v", c, err)
	}
}

// Who gives up waiting gets what is known; the change is in force.
func TestChangeIsInForceWhenItsCallerLeaves(t *testing.T) {
	r := opened(t)
	to, _ := recipient(t, "gpu-1", 1)
	r.lend(to, "run")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, err := r.store.Revoke(ctx, "main")
	if err != nil || c.State != StateRevoked || !slices.Equal(c.Unanswered, []string{"gpu-1"}) || !slices.Equal(c.Running, []string{"run"}) {
		t.Errorf("%+v, %v", c, err)
	}
	if why := r.refused(r.order(to, "next")); why != "revoked(slot)" {
		t.Error(why)
	}
}
