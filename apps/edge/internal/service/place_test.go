package service

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// protocol.md 8 "place confirmed behind a slow caller": the caller stops reading, the provider has ended, and the place
// is another run's at once. The slow one's outcome is untouched.
func TestPlaceBehindASlowCaller(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		stalled, proceed := make(chan struct{}), make(chan struct{})
		r := newRig(t, setup{capacity: 1, service: terminalSoon, work: func(w *work) {
			w.accept()
			w.head(200)
			w.body("one")
			w.finish(pb.RunStatus_RUN_STATUS_COMPLETE)
			w.body("two")
			w.end(6)
		}})
		slow := &recorder{onBody: func(p []byte) error {
			if string(p) == "one" {
				close(stalled)
				<-proceed
			}
			return nil
		}}
		first := r.submit(r.tunnel("slow", ""), slow)
		<-stalled
		since := time.Now()
		if o, _ := r.run(r.tunnel("fast", "")); !o.OK() {
			t.Error(o.Failure)
		}
		if took := time.Since(since); took > 0 {
			t.Errorf("the place came after %v", took)
		}
		<-time.After(3 * short) // the limit on a missing terminal is over: it doesn't concern a slow caller
		close(proceed)
		if o := r.outcome(first); !o.OK() || first.text() != "onetwo" {
			t.Errorf("%v, %q", o.Failure, first.text())
		}
		r.idle()
	})
}

// A place stays held after the outcome until the node confirms, and not longer.
func TestPlaceWaitsForTheNode(t *testing.T) {
	confirm := make(chan struct{})
	r := newRig(t, setup{work: func(w *work) {
		w.accept()
		w.node.awaitCancel(w.runID)
		<-confirm
	}})
	p := r.submit(r.tunnel("run-1", ""), &recorder{})
	untilAccepted(r, p)
	p.leave()
	r.outcome(p)
	if n := r.held(); n != 1 {
		t.Errorf("%d places held, the execution is still running", n)
	}
	close(confirm)
	r.idle()
}

// A node that never confirms loses its connection, and with it every place, whoever ended the run.
func TestNodeThatNeverConfirms(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		for _, leave := range []bool{false, true} {
			r := newRig(t, setup{confirm: short, work: func(w *work) {
				w.silent = true
				w.accept()
				if !leave {
					w.head(200)
					w.end(0)
				}
			}})
			n, p := r.node("a", 1), r.submit(r.tunnel("run-1", ""), &recorder{})
			if leave {
				untilAccepted(r, p)
				p.leave()
			}
			if o := r.outcome(p); o.OK() == leave {
				t.Errorf("%v", o.Failure)
			}
			select {
			case <-n.edge.Down():
			case <-time.After(patience.Limit):
				t.Error("the connection is still there")
			}
			r.idle()
		}
	})
}

// RunEnded of another attempt is no word about this one.
func TestRunEndedOfAnotherAttempt(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		proceed := make(chan struct{})
		r := newRig(t, setup{service: terminalSoon, work: func(w *work) {
			w.accept()
			<-proceed
			w.head(200)
			w.end(0)
		}})
		p := r.submit(r.tunnel("run-1", ""), &recorder{})
		untilAccepted(r, p)
		r.svc.RunEnded("a", 1, &pb.RunEnd{RunId: "run-1", Attempt: 7}, true)
		r.svc.RunEnded("a", 1, &pb.RunEnd{RunId: "another", Attempt: 1}, true)
		<-time.After(3 * short)
		close(proceed)
		if o := r.outcome(p); !o.OK() {
			t.Error(o.Failure)
		}
		r.idle()
	})
}

// CP-01, CP-04: runs that time out, fail or are left at random moments, and afterwards all places work.
func TestPlacesSurviveAborts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := newRig(t, setup{capacity: 4, failures: endless, route: ", queue: {depth: 1000}", work: func(w *work) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(w.runID))+w.seqOf()))
		if w.runID[0] == 'g' {
			w.answer("good")
			return
		}
		switch rng.IntN(6) {
		case 0:
			w.reject(execution.CodeAdapterUnavailable, true)
		case 1:
			w.accept()
			w.fail(execution.CodeFirstByteTimeout, false)
		case 2:
			w.accept() // and hangs
		case 3:
			w.answer("x")
		case 4:
			w.accept()
			w.head(502)
			w.end(0)
		case 5:
			streams(w)
			w.fail(execution.CodeUpstreamTruncated, false)
		}
	}})
	var wg sync.WaitGroup
	for i := range 400 {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			p := r.submit(r.tunnel(fmt.Sprintf("bad-%d", i), "body"), &recorder{})
			time.AfterFunc(time.Duration(rng.IntN(300))*time.Millisecond, p.leave)
			r.outcome(p)
		})
	}
	wg.Wait()
	r.idle()
	for i := range 20 {
		if o, c := r.run(r.tunnel(fmt.Sprintf("good-%d", i), "")); !o.OK() || c.text() != "good" {
			t.Errorf("%v", o.Failure)
		}
	}
	r.idle()
}

// seqOf makes each run's script its own.
func (w *work) seqOf() (n uint64) {
	for _, b := range []byte(w.runID) {
		n = n*31 + uint64(b)
	}
	return n
}

// TU-05: opens that the node doesn't take pile up for their limit and no longer, and once it takes them again a request
// works. The path stalls here; what was opened meanwhile arrives late, after its cancel.
func TestNodeThatDoesNotTakeStreams(t *testing.T) {
	relay := &valve{}
	r := newRig(t, setup{manual: true, failures: endless, service: Config{DispatchLimit: 300 * time.Millisecond}})
	r.dial = func(near net.Conn) net.Conn { relay.Conn = near; relay.init(); return relay }
	n := r.join("a", 1, 1000, func(w *work) { w.answer("x") })
	relay.shut()
	since := time.Now()
	runs := make([]*pending, 300)
	for i := range runs {
		runs[i] = r.submit(r.tunnel(fmt.Sprintf("run-%d", i), "body"), &recorder{})
	}
	for _, p := range runs {
		if o := r.outcome(p); code(o) != execution.CodeDispatchTimeout {
			t.Errorf("%v", o.Failure)
		}
	}
	if took := time.Since(since); took > patience.Limit { // one after the other they would take longer
		t.Errorf("they took %v", took)
	}
	if n.timeouts.Load() != 300 {
		t.Errorf("%d dispatch timeouts were reported", n.timeouts.Load())
	}
	relay.open()
	next := 0
	r.poll("a request is served", func() bool { // on a slow machine the first may stand behind all that is late
		next++
		o, _ := r.run(r.tunnel(fmt.Sprintf("next-%d", next), ""))
		return o.OK()
	})
	r.idle()
}

// TU-16: the node accepts streams and says nothing. With the session kept each run ends at the dispatch limit, its
// place stays held; with the session lost each ends at once.
func TestNodeThatSaysNothing(t *testing.T) {
	t.Run("session kept", func(t *testing.T) {
		patience.Widen(t, 2*time.Second, func(limit time.Duration) bool {
			return saysNothing(t, limit, false, execution.CodeDispatchTimeout)
		})
	})
	t.Run("session lost", func(t *testing.T) { saysNothing(t, 2*patience.Limit, true, execution.CodeNodeLost) })
}

// saysNothing reports whether all opens were at the node before the dispatch limit of the first was over.
func saysNothing(t *testing.T, limit time.Duration, drop bool, want execution.Code) (keptUp bool) {
	proceed := make(chan struct{})
	r := newRig(t, setup{capacity: 1000, failures: endless, service: Config{DispatchLimit: limit}, work: func(w *work) { <-proceed }})
	defer sync.OnceFunc(func() { close(proceed) })()
	n, runs := r.node("a", 1), make([]*pending, 500)
	began := time.Now()
	for i := range runs {
		runs[i] = r.submit(r.tunnel(fmt.Sprintf("run-%d", i), "body"), &recorder{})
	}
	r.poll("all opens, or the limit", func() bool { return n.openCount() == len(runs) || time.Since(began) > limit })
	if keptUp = time.Since(began) < limit; !keptUp {
		return false
	}
	if drop {
		n.edge.Close(transport.ReasonLost)
	}
	for _, p := range runs {
		if o := r.outcome(p); code(o) != want {
			t.Errorf("%v", o.Failure)
		}
	}
	if held := r.held(); !drop && held != len(runs) {
		t.Errorf("%d places held; the node may still be executing %d", held, len(runs))
	}
	if r.svc.Live() != 0 {
		t.Errorf("%d runs are live", r.svc.Live())
	}
	return true
}

// TU-26: heartbeats go on, but every stream is dropped. Each run ends, the registry is told each time, and another node
// gets the traffic once the registry has drawn its conclusion.
func TestStreamsThatAreDropped(t *testing.T) {
	r := newRig(t, setup{nodes: []string{"a", "b"}, capacity: 50, work: func(w *work) {
		if w.node.id == "a" {
			w.hangup = true
			return
		}
		w.answer("x")
	}})
	a, failed := r.node("a", 1), 0
	for i := range 20 {
		if a.timeouts.Load() == 3 {
			a.publishAs(50, false) // as the registry does
		}
		o, _ := r.run(r.tunnel(fmt.Sprintf("run-%d", i), "body"))
		if !o.OK() {
			failed++
		}
		r.idle() // equally loaded nodes take turns
	}
	if failed != 3 || a.openCount() > 3 {
		t.Errorf("%d of 20 failed, %d opens went to the broken node", failed, a.openCount())
	}
	if b := r.node("b", 1); b.timeouts.Load() != 0 || b.dispatched.Load() != 17 {
		t.Errorf("the other node answered %d, and was blamed %d times", b.dispatched.Load(), b.timeouts.Load())
	}
	r.idle()
}
