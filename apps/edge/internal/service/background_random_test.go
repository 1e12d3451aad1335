package service

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// ST-20 and CA-05 over lost links: random orders of a node's words, links that go and come back, cancels and ends.
// Each run has exactly one outcome, a cancel that was accepted is it, and no place is left.
func TestRandomReturns(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 250
	if testing.Short() {
		rounds = 25
	}
	const each = 4
	r := newRig(t, setup{capacity: each, work: says})
	generation := uint64(1)
	for round := range rounds {
		rng := rand.New(rand.NewPCG(seed, uint64(round)))
		ids := make([]string, each)
		hears := make([]*hearing, each)
		for i := range ids {
			ids[i] = fmt.Sprintf("run-%d-%d", round, i)
			hears[i] = r.start(r.inBackground(ids[i]), &listener{})
			if rng.IntN(2) == 0 {
				heardSomething(r, hears[i])
			} else {
				r.poll("sent", func() bool { _, ok := r.svc.Run(ids[i]); return ok })
			}
		}
		n := r.node("a", generation)
		n.await("all opens", func() bool { return len(n.opens)%each == 0 && len(n.opens) > 0 })
		// A run whose link goes while its request is being written is lost, and rightly so.
		r.poll("the node's answers", func() bool { return n.dispatched.Load() == int64(n.openCount()) })
		r.mayhem(rng, ids, hears, &generation)
	}
	r.poll("nothing live", func() bool { return r.svc.Live() == 0 })
	r.idle()
}

// mayhem cuts links, cancels, and lets the node come back and say how each run ended, in any order.
func (r *rig) mayhem(rng *rand.Rand, ids []string, hears []*hearing, generation *uint64) {
	r.Helper()
	var cancelled sync.Map
	var wg sync.WaitGroup
	for _, id := range ids {
		if rng.IntN(3) == 0 {
			wait := time.Duration(rng.IntN(2000)) * time.Microsecond
			wg.Go(func() {
				<-time.After(wait)
				if r.svc.Cancel(id, execution.CauseAPI) == Cancelling {
					cancelled.Store(id, true)
				}
			})
		}
	}
	var runs []*pb.RunningExecution
	for range 1 + rng.IntN(3) {
		r.node("a", *generation).edge.Close(transport.ReasonLost)
		*generation++
		runs = nil // the writer of the last connection may still have it
		for _, id := range ids {
			if rng.IntN(4) > 0 {
				runs = append(runs, running(id, 1))
			}
		}
		r.join("a", *generation, len(ids), says, runs...)
	}
	n := r.node("a", *generation)
	rng.Shuffle(len(ids), func(i, j int) {
		ids[i], ids[j], hears[i], hears[j] = ids[j], ids[i], hears[j], hears[i]
	})
	wg.Wait()
	for i, id := range ids {
		n.far.SendRunEnded(end(id, 1, statusComplete, 0))
		if i%2 == 0 {
			n.far.SendRunEnded(end(id, 1, statusError, execution.CodeInternal))
		}
	}
	for i, id := range ids {
		o := r.result(hears[i])
		want := execution.CodeOK
		if _, ok := cancelled.Load(id); ok {
			want = execution.CodeCancelled
		}
		if o == nil || code(o) != want {
			r.Errorf("%s: %+v, want %v", id, o, want)
		}
		r.once(id)
		n.awaitAck(id)
	}
}
