package admission

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/execution"
)

func TestRetryAfter(t *testing.T) {
	for _, tc := range []struct {
		name     string
		ended    int // evenly over the minute before
		silence  time.Duration
		position int
		want     time.Duration
	}{
		{"nothing ended", 0, 0, 5, 30 * time.Second},
		{"one a second", 60, 0, 7, 7 * time.Second},
		{"rounded up", 40, 0, 1, 2 * time.Second},
		{"at least a second", 6000, 0, 1, time.Second},
		{"at most five minutes", 1, 0, 1000, 300 * time.Second},
		{"the minute is four minutes ago", 60, 4*time.Minute - 10*time.Second, 4, 20 * time.Second}, // 60 in 290 s
		{"and begins to be forgotten", 60, 4 * time.Minute, 4, 24 * time.Second},                    // 50 in 290 s
		{"everything is forgotten after five minutes", 60, 5*time.Minute + 10*time.Second, 4, 30 * time.Second},
		{"and stays so", 60, 5 * time.Hour, 4, 30 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := time.Now()
			e := endings{began: now}
			for i := range tc.ended {
				e.add(now.Add(time.Minute * time.Duration(i) / time.Duration(tc.ended)))
			}
			if got := e.retryAfter(tc.position, now.Add(time.Minute+tc.silence)); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// Fault 31: the answer says when a place may be expected, from what was seen of this set.
func TestRefusalsSayWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 1))
		for i := range 10 { // one ends every two seconds
			g := mustGrant(t, s, request(name("r", i)))
			g.Sent()
			time.Sleep(2 * time.Second)
			end(t, s, g)
		}
		busy := mustGrant(t, s, request("busy"))
		other := request("other set")
		other.Set, other.Depth = "other", 0
		if f := refused(t, s, other); f.RetryAfter != 30*time.Second {
			t.Errorf("another set's queue_full: retry after %v, want 30s", f.RetryAfter)
		}
		var waiting []*pending
		for i := range 5 {
			r := request(name("w", i))
			r.Depth, r.Wait = 5, 10*time.Second
			waiting = append(waiting, begin(s, r))
		}
		full := request("full")
		full.Depth = 5
		if f := refused(t, s, full); f.Code != execution.CodeQueueFull || f.RetryAfter != 12*time.Second {
			t.Errorf("%v: retry after %v, want 6 positions at one in 2 s", f, f.RetryAfter)
		}
		waiting[0].cancel(errGone)
		time.Sleep(10 * time.Second) // ten in thirty seconds now
		var after []time.Duration
		for _, w := range waiting[1:] {
			after = append(after, w.refused(t, execution.CodeQueueTimeout).RetryAfter)
		}
		slices.Sort(after) // they go one after the other, in any order, and each would come back as the last
		want := []time.Duration{3 * time.Second, 6 * time.Second, 9 * time.Second, 12 * time.Second}
		if !slices.Equal(after, want) {
			t.Errorf("retry after %v, want %v", after, want)
		}
		busy.Release()
	})
}

// Sets that were used a moment ago are forgotten, too, when there are very many: where a provider takes any name for a
// model, callers make them.
func TestManySetsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 2))
		held := mustGrant(t, s, &Request{RunID: "held", Set: "held", Match: everywhere})
		held.Sent()
		for i := range 5 * mostSets {
			g := mustGrant(t, s, &Request{RunID: name("r", i), Set: name("set", i), Match: everywhere})
			g.Sent()
			end(t, s, g)
			if n := len(s.Snapshot().Sets); n > 2*mostSets {
				t.Fatalf("%d sets", n)
			}
		}
		end(t, s, held)
		if f := refused(t, s, &Request{RunID: "x", Set: "held", Exclude: []Place{{"n", "a"}}}); f.RetryAfter == retryUnknown {
			t.Error("a set of which a place was held is forgotten")
		}
	})
}

// Names that match nothing, and sets that nobody asks for any more, are forgotten.
func TestSetsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 2*minSweep))
		for i := range 1000 {
			r := request("r")
			r.Set, r.Match, r.FailFast = name("nothing", i), onNode("none"), true
			wantCode(t, refused(t, s, r), execution.CodeNoNode)
		}
		if n := len(s.Snapshot().Sets); n != 0 {
			t.Fatalf("%d sets of nothing are kept", n)
		}
		held := mustGrant(t, s, &Request{RunID: "held", Set: "held", Match: everywhere})
		held.Sent()
		for i := range minSweep - 1 {
			g := mustGrant(t, s, &Request{RunID: name("r", i), Set: name("set", i), Match: everywhere})
			g.Sent()
			end(t, s, g)
		}
		if n := len(s.Snapshot().Sets); n != minSweep {
			t.Fatalf("%d sets, want %d", n, minSweep)
		}
		time.Sleep(6 * time.Minute)
		mustGrant(t, s, &Request{RunID: "new", Set: "new", Match: everywhere})
		if n := len(s.Snapshot().Sets); n != 2 {
			t.Fatalf("%d sets after the sweep, want the held one and the new one", n)
		}
		end(t, s, held)
		if f := refused(t, s, &Request{RunID: "x", Set: "held", Exclude: []Place{{"n", "a"}}}); f.RetryAfter == retryUnknown {
			t.Error("the end of a long run was forgotten with its set")
		}
	})
}
