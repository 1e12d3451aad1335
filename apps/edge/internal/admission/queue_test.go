package admission

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/execution"
)

// CP-06: a hundred at once against ten places admit ten exactly; who may not wait is refused.
func TestBurst(t *testing.T) {
	for _, depth := range []int{0, 30, 1000} {
		synctest.Test(t, func(t *testing.T) {
			for range 20 {
				burst(t, depth)
			}
		})
	}
}

func burst(t *testing.T, depth int) {
	s := New(Config{})
	s.Publish(oneNode("n", 10))
	results := make(chan outcome, 100)
	for i := range 100 {
		r := request(name("r", i))
		r.Depth = depth
		go func() {
			g, err := s.Acquire(t.Context(), r)
			results <- outcome{g, err}
		}()
	}
	synctest.Wait()
	var grants []*Grant
	full := 0
	for len(results) > 0 {
		o := <-results
		if o.grant != nil {
			grants = append(grants, o.grant)
			continue
		}
		wantCode(t, execution.AsFailure(o.err, execution.OriginEdge), execution.CodeQueueFull)
		full++
	}
	if want := max(0, 90-depth); len(grants) != 10 || full != want {
		t.Fatalf("%d granted, %d refused, want 10 and %d", len(grants), full, want)
	}
	if snap := s.Snapshot(); snap.Queued != 90-full || snap.Places[0].InFlight != 10 {
		t.Fatalf("%+v", snap)
	}
	for served := 0; served < 100-full; served++ { // each place that comes back goes on to one
		g := grants[0]
		g.Release()
		grants = grants[1:]
		synctest.Wait()
		if len(results) > 0 {
			grants = append(grants, (<-results).grant)
		}
	}
	wantInFlight(t, s, 0)
}

// OL-07: in the order of arrival, each after the one before.
func TestFIFO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		var order []int
		var longest time.Duration
		done := make(chan struct{}, 40)
		for i := range 40 {
			go func() {
				g, err := s.Acquire(t.Context(), request(name("r", i)))
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				longest = max(longest, g.Queued)
				g.Sent()
				time.Sleep(100 * time.Millisecond)
				end(t, s, g)
				done <- struct{}{}
			}()
			time.Sleep(10 * time.Millisecond)
		}
		for range 40 {
			<-done
		}
		if !slices.IsSorted(order) || len(order) != 40 || longest > 5*time.Second {
			t.Errorf("served %v, longest wait %v", order, longest)
		}
	})
}

// CP-08: more than there are places wait their turn.
func TestBusyPlacesAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 4))
		start := time.Now()
		served := make(chan error, 10)
		for i := range 10 {
			r := request(name("r", i))
			r.Depth = 16
			go func() {
				g, err := s.Acquire(t.Context(), r)
				if err == nil {
					g.Sent()
					time.Sleep(time.Second)
					if n := inFlight(s); n > 4 {
						t.Errorf("%d in flight", n)
					}
					end(t, s, g)
				}
				served <- err
			}()
		}
		for range 10 {
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("took %v, want 3s", took)
		}
	})
}

// CA-04, fault 16: who leaves the queue is gone at once and is never served.
func TestCallersLeaveTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		busy := mustGrant(t, s, request("busy"))
		busy.Sent()
		var waiting []*pending
		for i := range 10 {
			waiting = append(waiting, begin(s, request(name("r", i))))
		}
		gone := errors.New("gone")
		for i := range 8 {
			waiting[i].cancel(gone)
		}
		synctest.Wait()
		if q := s.Snapshot().Queued; q != 2 {
			t.Fatalf("%d wait, want 2", q)
		}
		for i := range 8 {
			if o := waiting[i].now(t); !errors.Is(o.err, gone) || o.grant != nil {
				t.Errorf("%+v, want the cause of the cancel", o)
			}
		}
		end(t, s, busy)
		g := waiting[8].granted(t)
		waiting[9].waits(t)
		g.Release()
		waiting[9].granted(t)
		wantInFlight(t, s, 1)
	})
}

// A caller that leaves in the moment of its grant gives the place back.
func TestLeaveRacesGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		for i := range 200 {
			g := mustGrant(t, s, request("holder"))
			w, next := begin(s, request(name("w", i))), begin(s, request(name("next", i)))
			if i%2 == 0 {
				w.cancel(errGone)
				g.Release()
			} else {
				g.Release()
				w.cancel(errGone)
			}
			synctest.Wait()
			if o := w.now(t); o.err == nil { // it had returned before it was cancelled
				o.grant.Release()
			}
			next.granted(t).Release()
			wantInFlight(t, s, 0)
		}
	})
}

// Fault 31: refused when the queue is full, when the wait is over, and with no_node when there is nobody to wait for.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		short := func(run string) *Request {
			r := request(run)
			r.Depth, r.Wait = 1, 5*time.Second
			return r
		}
		w := begin(s, short("nobody there"))
		wantCode(t, refused(t, s, short("second")), execution.CodeQueueFull)
		time.Sleep(5*time.Second - 1)
		w.waits(t)
		time.Sleep(time.Nanosecond)
		w.refused(t, execution.CodeNoNode)

		s.Publish(oneNode("n", 1))
		g := mustGrant(t, s, request("busy"))
		w = begin(s, short("too long"))
		time.Sleep(5 * time.Second)
		w.refused(t, execution.CodeQueueTimeout)
		noWait := short("no wait")
		noWait.Wait = 0
		wantCode(t, refused(t, s, noWait), execution.CodeQueueTimeout)

		w = begin(s, short("its node leaves"))
		s.Fence("n", 1)
		w.waits(t) // fails slowly: a node may come back
		s.Publish(nodeOf("n", 2, adapterOf("a", 1)))
		w.granted(t)
		if g.Sent() {
			t.Error("sent at a fenced generation")
		}
	})
}

func TestFailFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		fast := func(run string, exclude ...Place) *Request {
			r := request(run)
			r.FailFast, r.Exclude = true, exclude
			return r
		}
		wantCode(t, refused(t, s, fast("nobody")), execution.CodeNoNode)
		s.Publish(oneNode("n1", 1))
		s.Publish(oneNode("n2", 1))
		mustGrant(t, s, request("r1"))
		mustGrant(t, s, request("r2"))
		slow, w, picky := begin(s, request("slow")), begin(s, fast("w")), begin(s, fast("picky", Place{"n2", "a"}))
		s.Fence("n1", 1)
		picky.refused(t, execution.CodeNoNode)
		w.waits(t)
		s.Publish(nodeOf("n2", 2, adapterOf("a", 0))) // a successor is no reason to give up, even if it has no place
		w.waits(t)
		s.Fence("n2", 2)
		w.refused(t, execution.CodeNoNode)
		slow.waits(t)
		slow.cancel(errGone)
	})
}

// Faults 29, 30: who comes back for another attempt stands where it stood, with what is left of its wait.
func TestRequeueKeepsPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		holder := mustGrant(t, s, request("holder"))
		first, second, third := request("first"), request("second"), request("third")
		first.Depth, second.Depth, third.Depth = 3, 3, 3
		w1, w2, w3 := begin(s, first), begin(s, second), begin(s, third)
		time.Sleep(20 * time.Second)
		s.Publish(nodeOf("n", 1, adapterOf("a", 2)))
		g := w1.granted(t)
		if g.Queued != 20*time.Second || g.Position != 1 {
			t.Errorf("%+v", g)
		}
		w4 := begin(s, request("fourth"))
		time.Sleep(7 * time.Second) // not in the queue: this doesn't count
		s.Publish(oneNode("n", 1))
		g.Sent()
		g.Rejected()
		first.Attempt++
		w1 = begin(s, first) // the queue is full: it has its position already
		time.Sleep(10 * time.Second)
		holder.Release()
		w2.waits(t)
		g = w1.granted(t)
		if g.Queued != 30*time.Second || g.Position != 1 {
			t.Errorf("%+v", g)
		}
		g.Release()
		if g = w2.granted(t); g.Position != 2 || g.Queued != 37*time.Second {
			t.Errorf("%+v", g)
		}
		w1 = begin(s, first)
		time.Sleep(30 * time.Second) // 60 s in all
		w1.refused(t, execution.CodeQueueTimeout)
		w3.refused(t, execution.CodeQueueTimeout)
		w4.waits(t)
		w4.cancel(errGone)
	})
}

// Who comes back stands between those who came before it and those who came after.
func TestRequeueInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n1", 1))
		holder := mustGrant(t, s, request("holder"))
		first, second := request("first"), request("second")
		first.Exclude = []Place{{"n2", "a"}}
		w1, w2, w3 := begin(s, first), begin(s, second), begin(s, request("third"))
		s.Publish(oneNode("n2", 1))
		g := w2.granted(t)
		s.Fence("n2", 1)
		if g.Sent() {
			t.Fatal("sent at a fenced place")
		}
		w2 = begin(s, second)
		holder.Release()
		w2.waits(t)
		w1.granted(t).Release()
		w3.waits(t)
		if g = w2.granted(t); g.Position != 2 {
			t.Errorf("position %d, want that of the first time", g.Position)
		}
		g.Release()
		g = w3.granted(t)
		w2 = begin(s, second) // alone now
		g.Release()
		if g = w2.granted(t); g.Position != 2 {
			t.Errorf("position %d, want that of the first time", g.Position)
		}
	})
}

// A request that was granted at once and comes back stands before those who came after it.
func TestRequeueOfTheNeverQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		r := request("early")
		g, err := s.Acquire(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		late := begin(s, request("late"))
		g.Sent()
		g.RejectedBusy()
		late.waits(t) // saturated
		r.Attempt++
		early := begin(s, r)
		time.Sleep(time.Second)
		if g = early.granted(t); g.Position != 1 {
			t.Errorf("position %d", g.Position)
		}
		late.waits(t)
		late.cancel(errGone)
	})
}

// No head of line: a waiter that only one node can serve, or that excludes the free place, holds nobody up.
func TestSetsDontBlockEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n1", 1))
		s.Publish(oneNode("n2", 1))
		h1 := mustGrant(t, s, &Request{RunID: "h1", Set: "n1", Match: onNode("n1")})
		h2 := mustGrant(t, s, &Request{RunID: "h2", Set: "n2", Match: onNode("n2")})
		explicit := request("explicit")
		explicit.Set, explicit.Match = "n1", onNode("n1")
		picky := request("picky")
		picky.Exclude = []Place{{"n2", "a"}}
		other := request("pool 2")
		other.Set = "pool 2"
		w1, w2, w3, w4 := begin(s, explicit), begin(s, picky), begin(s, request("pool 1")), begin(s, other)
		h2.Release()
		g := w3.granted(t)
		g.Release()
		w4.granted(t)
		w1.waits(t)
		w2.waits(t)
		h1.Release()
		g = w1.granted(t)
		w2.waits(t)
		g.Release()
		w2.granted(t)
	})
}

// A route for every model: the names that callers ask for have candidates of their own, but wait in one queue. With a
// queue for each name, depth bounded nothing.
func TestManySetsShareAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		held := mustGrant(t, s, request("held"))
		held.Sent()
		ask := func(i int) *Request {
			r := request(name("r", i))
			r.Set, r.Target, r.Queue, r.Depth = name("*/", i), name("m", i), "*", 2
			return r
		}
		first, second := begin(s, ask(0)), begin(s, ask(1))
		for i := range 50 {
			wantCode(t, refused(t, s, ask(2+i)), execution.CodeQueueFull)
		}
		other := begin(s, request("of another queue"))
		other.waits(t)
		second.cancel(context.Canceled) // who leaves makes room
		synctest.Wait()
		third := begin(s, ask(60))
		end(t, s, held)
		g := first.granted(t) // who is served makes room, too
		begin(s, ask(61)).waits(t)
		wantCode(t, refused(t, s, ask(62)), execution.CodeQueueFull)
		third.waits(t)
		g.Sent()
		s.Drain()
		if len(s.queued) != 0 {
			t.Errorf("nobody waits, and %v are counted", s.queued)
		}
	})
}

// The first request of a changed configuration brings its whole set up to date, and overtakes nobody.
func TestSetRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n1", 1))
		s.Publish(oneNode("n2", 1))
		ask := func(run string, revision uint64, node string) *Request {
			r := request(run)
			r.SetRevision, r.Match = revision, onNode(node)
			return r
		}
		h := mustGrant(t, s, ask("holder", 1, "n1"))
		fast := ask("fast", 1, "n1")
		fast.FailFast = true
		w, f := begin(s, ask("w", 1, "n1")), begin(s, fast)
		newer := begin(s, ask("newer", 2, "n2"))
		if g := w.granted(t); g.Node != "n2" {
			t.Errorf("granted %v, want what the new configuration says", g.Place)
		}
		older := begin(s, ask("older", 1, "n1"))
		h.Release() // n1 is no candidate any more
		newer.waits(t)
		older.waits(t)
		nobody := begin(s, ask("nobody", 3, "none"))
		f.refused(t, execution.CodeNoNode)
		s.Drain()
		for _, p := range []*pending{newer, older, nobody} {
			p.refused(t, execution.CodeEdgeDraining)
		}
	})
}

// A set that loses its last waiter while it is brought up to date is still the one that the newcomer waits in.
func TestSetRevisionOfAnUnusedSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n1", 1))
		mustGrant(t, s, &Request{RunID: "holder", Set: "holder", Match: everywhere})
		fast, newer := request("fast"), request("newer")
		fast.FailFast = true
		newer.SetRevision, newer.Match = 1, onNode("n2")
		f, w := begin(s, fast), begin(s, newer)
		f.refused(t, execution.CodeNoNode)
		s.Publish(oneNode("n2", 1))
		w.granted(t)
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		g := mustGrant(t, s, request("running"))
		other := request("other")
		other.Set = "other"
		waiting := []*pending{begin(s, request("w1")), begin(s, request("w2")), begin(s, other)}
		s.Drain()
		for _, w := range waiting {
			w.refused(t, execution.CodeEdgeDraining)
		}
		wantCode(t, refused(t, s, request("late")), execution.CodeEdgeDraining)
		if !g.Sent() { // what is admitted goes on
			t.Error("a granted run was stopped")
		}
		end(t, s, g)
		if snap := s.Snapshot(); !snap.Draining || snap.Queued != 0 {
			t.Errorf("%+v", snap)
		}
	})
}

func TestAcquireOfTheGone(t *testing.T) {
	s := New(Config{})
	s.Publish(oneNode("n", 1))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errGone)
	if g, err := s.Acquire(ctx, request("r")); g != nil || !errors.Is(err, errGone) {
		t.Errorf("%v, %v", g, err)
	}
	wantInFlight(t, s, 0)
}

// protocol §2.F reload: who waits is sent back to look again, and stands where it stood when it asks again; what it has
// waited counts.
func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		s.Recall() // nobody
		busy := mustGrant(t, s, request("busy"))
		busy.Sent()
		first, second := request("first"), request("second")
		one, two := begin(s, first), begin(s, second)
		time.Sleep(40 * time.Second)
		s.Recall()
		for _, p := range []*pending{one, two} {
			if o := p.now(t); !errors.Is(o.err, ErrRecalled) || o.grant != nil {
				t.Fatalf("%+v, %v", o.grant, o.err)
			}
		}
		if snap := s.Snapshot(); snap.Queued != 0 || len(snap.Sets) != 1 {
			t.Fatalf("%+v", snap)
		}
		two, one = begin(s, second), begin(s, first)
		time.Sleep(10 * time.Second)
		end(t, s, busy)
		if g := one.granted(t); g.Queued != 50*time.Second || g.Position != 1 {
			t.Errorf("queued %v at %d", g.Queued, g.Position)
		}
		two.waits(t)
		time.Sleep(10 * time.Second)
		two.refused(t, execution.CodeQueueTimeout) // a minute in all
	})
}
