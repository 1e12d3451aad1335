package admission

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"iop/packages/go/execution"
)

// caller keeps many requests of one principal in the system, each holding its place for a while once granted.
type caller struct {
	principal string
	weight    float64
	set       string
	match     func(*Node, *Adapter) bool
	waiting   int           // requests it keeps in the system
	hold      time.Duration // what each takes
	had       time.Duration // place-time, filled in
	served    int
}

// ask plays one request of a caller; false = there is nothing more to get.
func (c *caller) ask(t *testing.T, s *Scheduler, run string, end <-chan struct{}) bool {
	r := request(run)
	r.Principal, r.Weight, r.Wait = c.principal, c.weight, time.Hour
	if c.match != nil {
		r.Set, r.Match = c.set, c.match
	}
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		return false
	}
	g.Sent()
	began := time.Now()
	select {
	case <-time.After(c.hold):
	case <-end:
	}
	s.mu.Lock()
	c.had += time.Since(began)
	c.served++
	s.mu.Unlock()
	s.Ended(g.Node, g.Generation, r.RunID, 1)
	g.Decided()
	return true
}

// contend runs callers against s for a while and sums what each had.
func contend(t *testing.T, s *Scheduler, length time.Duration, callers ...*caller) {
	t.Helper()
	end := make(chan struct{})
	time.AfterFunc(length, func() { close(end) })
	for i, c := range callers {
		for j := range c.waiting {
			go func() {
				for n := 0; c.ask(t, s, fmt.Sprintf("%d-%d-%d", i, j, n), end); n++ {
					select {
					case <-end:
						return
					default:
					}
				}
			}()
		}
	}
	<-end
	s.Drain()
	synctest.Wait()
}

// jain is Jain's fairness index of what the callers had over their weights: 1 when all are equal.
func jain(callers ...*caller) float64 {
	var sum, squares float64
	for _, c := range callers {
		x := c.had.Seconds() / max(c.weight, 1)
		sum, squares = sum+x, squares+x*x
	}
	return sum * sum / (float64(len(callers)) * squares)
}

// design §7: place-seconds over weight, whatever the number of requests and their length.
func TestShares(t *testing.T) {
	cases := map[string]struct {
		capacity int
		callers  []*caller
	}{
		"ten to one":           {4, []*caller{{principal: "script", waiting: 40, hold: time.Second}, {principal: "chat", waiting: 4, hold: time.Second}}},
		"long and short":       {4, []*caller{{principal: "long", waiting: 8, hold: 9 * time.Second}, {principal: "short", waiting: 8, hold: 200 * time.Millisecond}}},
		"long and short, one":  {1, []*caller{{principal: "long", waiting: 8, hold: 9 * time.Second}, {principal: "short", waiting: 8, hold: 200 * time.Millisecond}}},
		"weights":              {4, []*caller{{principal: "three", weight: 3, waiting: 12, hold: time.Second}, {principal: "one", weight: 1, waiting: 12, hold: time.Second}}},
		"a third of two":       {2, []*caller{{principal: "a", waiting: 9, hold: time.Second}, {principal: "b", waiting: 9, hold: time.Second}, {principal: "c", waiting: 9, hold: time.Second}}},
		"sixteen of different": {4, nil},
	}
	sixteen := cases["sixteen of different"]
	for i := range 16 {
		sixteen.callers = append(sixteen.callers,
			&caller{principal: name("p", i), waiting: 2 + 3*i, hold: time.Duration(200+100*i) * time.Millisecond})
	}
	cases["sixteen of different"] = sixteen
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{})
				s.Publish(oneNode("n", k.capacity))
				contend(t, s, 20*time.Minute, k.callers...)
				if j := jain(k.callers...); j < 0.98 {
					t.Errorf("Jain index %.3f", j)
				}
				var all, weights float64
				for _, c := range k.callers {
					all, weights = all+c.had.Seconds(), weights+max(c.weight, 1)
				}
				for _, c := range k.callers {
					want := all * max(c.weight, 1) / weights
					if math.Abs(c.had.Seconds()-want) > 0.05*want {
						t.Errorf("%s had %.0f place-seconds, want %.0f", c.principal, c.had.Seconds(), want)
					}
				}
				if whole := float64(k.capacity) * 1200; all < whole*0.99 {
					t.Errorf("%.0f place-seconds of %.0f were used", all, whole)
				}
				wantInFlight(t, s, 0)
			})
		})
	}
}

// Places that become free at one moment don't all go to one principal, whoever was there first, and nobody pays for
// time in which nobody else wanted anything.
func TestNoCreditAndNoDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 4))
		of := func(principal, run string) *Request {
			r := request(run)
			r.Principal, r.Wait = principal, time.Hour
			return r
		}
		var held []*Grant
		for i := range 4 {
			held = append(held, mustGrant(t, s, of("a", name("a", i))))
			held[i].Sent()
		}
		time.Sleep(time.Hour) // a has the machine to itself
		var as, bs []*pending
		for i := range 8 {
			as = append(as, begin(s, of("a", name("wa", i))))
		}
		for i := range 8 {
			bs = append(bs, begin(s, of("b", name("wb", i))))
		}
		synctest.Wait()
		s.mu.Lock() // the four end at one moment
		now := time.Now()
		places := s.conns[connKey{"n", 1}].places
		for _, g := range held {
			s.dropHolderLocked(g, now)
		}
		s.offerLocked(places, now)
		s.mu.Unlock()
		synctest.Wait()
		count := func(list []*pending) (n int) {
			for _, p := range list {
				n += len(p.done)
			}
			return n
		}
		if a, b := count(as), count(bs); a != 2 || b != 2 {
			t.Errorf("of 4 places a got %d and b %d, want 2 each", a, b)
		}
		s.Drain()
	})
}

// No head of line between sets: a principal whose set has no place doesn't keep another's from flowing.
func TestPrincipalsDontBlockEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n1", 1))
		s.Publish(oneNode("n2", 1))
		stuck := mustGrant(t, s, &Request{RunID: "stuck", Attempt: 1, Set: "one", Match: onNode("n1"), Principal: "a"})
		stuck.Sent()
		waits := begin(s, &Request{RunID: "w", Attempt: 1, Set: "one", Match: onNode("n1"), Principal: "b", Depth: 9, Wait: time.Hour})
		flows := &caller{principal: "c", waiting: 3, hold: time.Second, set: "two", match: onNode("n2")}
		contend(t, s, time.Minute, flows)
		if flows.served < 59 {
			t.Errorf("%d served in a minute", flows.served)
		}
		waits.now(t)
	})
}

// arrivals follows what becomes of requests of several principals.
type arrivals struct {
	next    map[string]int // per principal: the arrival that must be served next
	waiting map[string][]*pending
	held    []*Grant
}

func (a *arrivals) look(t *rapid.T) {
	synctest.Wait()
	for principal, list := range a.waiting {
		for len(list) > 0 && len(list[0].done) > 0 {
			o := <-list[0].done
			if o.err != nil {
				t.Fatal(o.err)
			}
			o.grant.Sent()
			a.held = append(a.held, o.grant)
			list = list[1:]
			a.next[principal]++
		}
		for i, p := range list {
			if len(p.done) > 0 {
				t.Fatalf("arrival %d of %s was served before %d", a.next[principal]+i, principal, a.next[principal])
			}
		}
		a.waiting[principal] = list
	}
}

func (a *arrivals) end(t *rapid.T, s *Scheduler, k int) {
	s.Ended("n", 1, a.held[k].key.runID, 1)
	a.held = append(a.held[:k], a.held[k+1:]...)
	a.look(t)
}

// Whatever comes and goes: within a principal who came first is served first, all are served, and nothing is left.
func TestOrderWithinPrincipals(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			s := New(Config{})
			s.Publish(oneNode("n", rapid.IntRange(1, 3).Draw(rt, "capacity")))
			a := &arrivals{next: map[string]int{}, waiting: map[string][]*pending{}}
			arrived := map[string]int{}
			for i := range rapid.IntRange(1, 60).Draw(rt, "steps") {
				switch rapid.SampledFrom([]string{"arrive", "arrive", "end", "pass"}).Draw(rt, "step") {
				case "arrive":
					principal := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "principal")
					r := request(name("r", i))
					r.Principal, r.Wait = principal, 24*time.Hour
					arrived[principal]++
					a.waiting[principal] = append(a.waiting[principal], begin(s, r))
					a.look(rt)
				case "end":
					if len(a.held) > 0 {
						a.end(rt, s, rapid.IntRange(0, len(a.held)-1).Draw(rt, "which"))
					}
				case "pass":
					time.Sleep(time.Duration(rapid.IntRange(1, 5000).Draw(rt, "ms")) * time.Millisecond)
				}
			}
			for len(a.held) > 0 {
				a.end(rt, s, 0)
			}
			for principal, n := range arrived {
				if a.next[principal] != n {
					rt.Fatalf("%s: %d of %d served", principal, a.next[principal], n)
				}
			}
			if len(s.contending) != 0 || len(s.waiting) != 0 {
				rt.Fatalf("%d contend though nobody waits", len(s.contending))
			}
			for _, a := range s.accounts {
				if a.held != 0 || len(a.lines) != 0 {
					rt.Fatalf("%s holds %d and waits in %d lines", a.principal, a.held, len(a.lines))
				}
			}
		})
	})
}

// Of equal claims the earliest arrival is served, whichever way the search goes: over the sets of the place, or over
// those that the principal waits in.
func TestEarliestOfEquals(t *testing.T) {
	for name, sets := range map[string]int{"few sets at the place": 1, "many sets at the place": 5} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{})
				s.Publish(oneNode("n1", 1))
				s.Publish(oneNode("n2", 1))
				of := func(principal, set, node string) *Request {
					r := request(fmt.Sprint(principal, set))
					r.Principal, r.Set, r.Match = principal, set, onNode(node)
					return r
				}
				one, two := mustGrant(t, s, of("x", "held1", "n1")), mustGrant(t, s, of("y", "held2", "n2"))
				one.Sent()
				two.Sent()
				for i := range 3 { // b waits elsewhere, too
					begin(s, of("b", fmt.Sprint("n2 ", i), "n2"))
				}
				first, second := begin(s, of("b", "first", "n1")), begin(s, of("a", "second", "n1"))
				for i := range sets { // sets that the place is in and b isn't
					begin(s, of("c", fmt.Sprint("n1 ", i), "n1"))
				}
				end(t, s, one)
				g := first.granted(t)
				second.waits(t)
				g.Sent()
				end(t, s, g)
				second.granted(t)
				s.Drain()
			})
		})
	}
}

// Whoever asks fastest doesn't get all of a full queue: who is over its share of it makes room for the others, and the
// places are shared as ever.
func TestSharesOfAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		ask := func(principal string, weight float64, run int) chan error {
			r := request(name(principal, run))
			r.Principal, r.Weight, r.Depth, r.Wait = principal, weight, 8, time.Hour
			done := make(chan error, 1)
			go func() {
				_, err := s.Acquire(t.Context(), r)
				done <- err
			}()
			synctest.Wait()
			return done
		}
		refused := func(done chan error) bool {
			select {
			case err := <-done:
				wantCode(t, execution.AsFailure(err, execution.OriginEdge), execution.CodeQueueFull)
				return true
			default:
				return false
			}
		}
		if err := <-ask("script", 1, 0); err != nil { // holds the one place
			t.Fatal(err)
		}
		var script []chan error
		for i := range 8 {
			script = append(script, ask("script", 1, 1+i))
		}
		if !refused(ask("script", 1, 9)) {
			t.Error("the queue is full, and the script isn't refused")
		}
		for i := range 4 {
			if refused(ask("chat", 1, i)) {
				t.Errorf("request %d of the chat was refused", i)
			}
			if !refused(script[7-i]) {
				t.Errorf("the script's request %d didn't make room", 7-i)
			}
		}
		if !refused(ask("chat", 1, 4)) || refused(script[3]) {
			t.Error("the chat got more than its share")
		}
		if refused(ask("heavy", 3, 0)) {
			t.Error("a third principal was refused")
		}
		if got := s.Snapshot().Queued; got != 8 {
			t.Errorf("%d wait, want 8", got)
		}
		s.Drain()
		synctest.Wait()
	})
}
