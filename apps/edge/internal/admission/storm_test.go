package admission

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/execution"
)

// CP-07: callers, nodes and reports at random and at once; nothing is admitted over capacity, nothing is left.
func TestStorm(t *testing.T) {
	const callers, rounds, capacity = 8, 4000, 3
	s := New(Config{})
	st := &storm{s: s, capacity: capacity}
	st.republish(1)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for c := range callers {
		wg.Go(func() { st.caller(t, c, rounds) })
	}
	var side sync.WaitGroup
	side.Go(func() { st.reports(stop) })
	side.Go(func() { st.watch(t, stop) })
	wg.Wait()
	close(stop)
	side.Wait()
	for generation := range st.generation.Load() + 1 {
		s.Fence("n", generation)
	}
	wantInFlight(t, s, 0)
	if q := s.Snapshot().Queued; q != 0 {
		t.Errorf("%d still wait", q)
	}
}

type storm struct {
	s          *Scheduler
	capacity   int
	generation atomic.Uint64
}

func (st *storm) republish(generation uint64) {
	st.s.Publish(nodeOf("n", generation, adapterOf("a", st.capacity), adapterOf("b", st.capacity)))
}

// caller plays runs that end in every way, with a release too many now and then.
func (st *storm) caller(t *testing.T, c, rounds int) {
	rng := rand.New(rand.NewPCG(uint64(c), 1))
	for i := range rounds {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Duration(rng.IntN(2000))*time.Microsecond, errGone)
		g, err := st.s.Acquire(ctx, &Request{RunID: name(name("c", c)+"-", i), Attempt: 1, Set: name("set", rng.IntN(3)),
			Match: everywhere, Depth: rng.IntN(8), Wait: time.Millisecond, FailFast: rng.IntN(4) == 0})
		cancel()
		if err != nil {
			if !errors.Is(err, errGone) && execution.AsFailure(err, 0).Code == execution.CodeInternal {
				t.Error(err)
			}
			continue
		}
		if rng.IntN(4) == 0 || !g.Sent() {
			g.Release()
			g.Release()
			continue
		}
		switch rng.IntN(4) {
		case 0:
			g.RejectedBusy()
		case 1:
			g.Rejected()
			g.Rejected()
		case 2:
			g.Decided()
		}
		st.s.Ended(g.Node, g.Generation, g.key.runID, 2)
		st.s.Ended(g.Node, g.Generation, g.key.runID, 1)
		g.Decided()
	}
}

// reports reconnects, repeats and withdraws the node.
func (st *storm) reports(stop <-chan struct{}) {
	rng := rand.New(rand.NewPCG(99, 1))
	st.generation.Store(1)
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rng.IntN(300)) * time.Microsecond):
		}
		g := st.generation.Load()
		switch rng.IntN(6) {
		case 0:
			st.s.Fence("n", g)
			st.republish(st.generation.Add(1))
		case 1:
			st.republish(st.generation.Add(1))
			st.s.Fence("n", g)
		case 2:
			st.republish(g - 1)
		case 3:
			down := nodeOf("n", g, adapterOf("b", st.capacity))
			st.s.Publish(down)
			st.republish(g)
		default:
			st.republish(g)
		}
	}
}

func (st *storm) watch(t *testing.T, stop <-chan struct{}) {
	for {
		for _, p := range st.s.Snapshot().Places {
			if p.InFlight < 0 || p.InFlight > st.capacity {
				t.Errorf("%+v", p)
			}
		}
		select {
		case <-stop:
			return
		case <-time.After(200 * time.Microsecond):
		}
	}
}

// CP-04: 400 callers that leave at random times give everything back.
func TestAbandonedRunsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 4))
		rng := rand.New(rand.NewPCG(4, 4))
		for i := range 400 {
			life := time.Duration(rng.IntN(300)) * time.Millisecond
			go func() {
				ctx, cancel := context.WithTimeoutCause(t.Context(), life, errGone)
				defer cancel()
				g, err := s.Acquire(ctx, request(name("r", i)))
				if err != nil {
					return
				}
				defer g.Decided()
				if !g.Sent() {
					return
				}
				<-ctx.Done()
				time.AfterFunc(20*time.Millisecond, func() { end(t, s, g) }) // the node, once it has cancelled
			}()
		}
		time.Sleep(5 * time.Second)
		wantInFlight(t, s, 0)
		for i := range 4 {
			mustGrant(t, s, request(name("good", i)))
		}
	})
}

// CP-10: a node that goes and comes in the very moment of an admission leaves nothing stuck.
func TestWithdrawRacesAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		down := oneNode("n", 1)
		down.Adapters[0].Available = false
		removed := nodeOf("n", 1)
		for i := range 2000 {
			w := make(chan outcome, 1)
			go func() {
				g, err := s.Acquire(t.Context(), request(name("r", i)))
				w <- outcome{g, err}
			}()
			go s.Publish([]Node{down, removed}[i%2])
			synctest.Wait()
			s.Publish(oneNode("n", 1))
			synctest.Wait()
			select {
			case o := <-w:
				if o.err != nil {
					t.Fatal(o.err)
				}
				o.grant.Release()
			default:
				t.Fatal("waits though a place is free")
			}
		}
		start := time.Now()
		mustGrant(t, s, request("last")).Release()
		if time.Since(start) > 0 {
			t.Error("the last one waited")
		}
		wantInFlight(t, s, 0)
	})
}

// Fault 31: ten thousand callers too many are refused at once, and leave nothing behind.
func TestMassShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		mustGrant(t, s, request("busy"))
		results := make(chan error, 10_000)
		for i := range 10_000 {
			r := request(name("r", i))
			r.Depth = 64
			go func() {
				_, err := s.Acquire(t.Context(), r)
				results <- err
			}()
		}
		synctest.Wait()
		if full := len(results); full != 10_000-64 {
			t.Errorf("%d refused, want all but 64", full)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(results) != 10_000 || s.Snapshot().Queued != 0 {
			t.Errorf("%d have returned, %d wait", len(results), s.Snapshot().Queued)
		}
	})
}
