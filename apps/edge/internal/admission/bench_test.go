package admission

import (
	"context"
	"strconv"
	"testing"
	"time"

	"iop/packages/go/execution"
)

// BenchmarkRun is what admission costs a run that finds a place: Acquire, Sent, RunEnded, Decided.
func BenchmarkRun(b *testing.B) {
	for _, nodes := range []int{1, 10, 100} {
		b.Run("nodes="+strconv.Itoa(nodes), func(b *testing.B) {
			s := New(Config{})
			for i := range nodes {
				s.Publish(nodeOf(name("n", i), 1, adapterOf("a", 64, "m")))
			}
			b.ReportAllocs()
			for b.Loop() {
				r := Request{RunID: "r", Attempt: 1, Set: "all", Match: everywhere, Target: "m", Depth: 64, Wait: time.Minute}
				g, err := s.Acquire(context.Background(), &r)
				if err != nil {
					b.Fatal(err)
				}
				g.Sent()
				s.Ended(g.Node, g.Generation, "r", 1)
				g.Decided()
			}
		})
	}
}

// queueOf returns a scheduler whose only place is held and in whose queue n wait.
func queueOf(b *testing.B, n int) (*Scheduler, *Grant, []*waiter) {
	s := New(Config{})
	s.Publish(oneNode("n", 1))
	busy, err := s.Acquire(context.Background(), request("busy"))
	if err != nil {
		b.Fatal(err)
	}
	waiters := make([]*waiter, n)
	for i := range waiters {
		r := request(name("r", i))
		r.Depth = n
		_, waiters[i], _ = s.enter(r)
	}
	return s, busy, waiters
}

// BenchmarkLeave is a caller that leaves from the middle of the queue and another that enters.
func BenchmarkLeave(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run("waiting="+strconv.Itoa(n), func(b *testing.B) {
			s, _, waiters := queueOf(b, n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i = (i + 7) % n
				s.leave(waiters[i])
				waiters[i].req.ticket = ticket{}
				_, waiters[i], _ = s.enter(waiters[i].req)
			}
		})
	}
}

// BenchmarkShed is a refusal at a full queue.
func BenchmarkShed(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run("waiting="+strconv.Itoa(n), func(b *testing.B) {
			s, _, _ := queueOf(b, n)
			b.ReportAllocs()
			for b.Loop() {
				r := Request{RunID: "r", Attempt: 1, Set: "all", Match: everywhere, Target: "m", Depth: n, Wait: time.Minute}
				_, _, f := s.enter(&r)
				if f == nil || f.Code != execution.CodeQueueFull {
					b.Fatal(f)
				}
			}
		})
	}
}

// BenchmarkHandOver is a place that goes from one run to the next in the queue.
func BenchmarkHandOver(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run("waiting="+strconv.Itoa(n), func(b *testing.B) {
			s, g, waiters := queueOf(b, n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				g.Sent()
				s.Ended(g.Node, g.Generation, g.key.runID, g.key.attempt)
				w := waiters[i]
				g = w.grant
				w.req.ticket = ticket{}
				_, waiters[i], _ = s.enter(w.req)
				i = (i + 1) % n
			}
		})
	}
}

// BenchmarkPublish is a node's news with many sets and nodes about.
func BenchmarkPublish(b *testing.B) {
	s := New(Config{})
	for i := range 100 {
		s.Publish(nodeOf(name("n", i), 1, adapterOf("a", 4), adapterOf("b", 4)))
	}
	for i := range 100 {
		g, err := s.Acquire(context.Background(), &Request{RunID: "r", Set: name("set", i), Match: everywhere})
		if err != nil {
			b.Fatal(err)
		}
		g.Release()
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		s.Publish(nodeOf("n7", 1, adapterOf("a", 4+i%2), adapterOf("b", 4)))
	}
}

// BenchmarkSnapshot walks 200 places with 10,000 holders.
func BenchmarkSnapshot(b *testing.B) {
	s := New(Config{})
	for i := range 200 {
		s.Publish(oneNode(name("n", i), 50))
	}
	for i := range 10_000 {
		if _, err := s.Acquire(context.Background(), request(name("r", i))); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Snapshot()
	}
}

// BenchmarkDecision is one freed place given to one of those who wait: 16 principals, 64 pools over 64 nodes, pools
// overlapping by half. It costs the same however many wait (perf: under 5 µs).
func BenchmarkDecision(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run("waiting="+strconv.Itoa(n), func(b *testing.B) {
			s := New(Config{})
			for i := range 64 {
				s.Publish(oneNode(name("n", i), 1))
			}
			var held []*Grant
			for i := range 64 {
				r := request(name("held", i))
				r.Set, r.Match = name("only", i), onNode(name("n", i))
				g, err := s.Acquire(context.Background(), r)
				if err != nil {
					b.Fatal(err)
				}
				g.Sent()
				held = append(held, g)
			}
			waiting := map[string]*waiter{}
			wait := func(i int) {
				first, second := name("n", i%64), name("n", (i+1)%64)
				r := &Request{RunID: name("w", i), Attempt: 1, Principal: name("p", i*7%16), Set: name("pool", i%64), Target: "m",
					Match: func(n *Node, _ *Adapter) bool { return n.ID == first || n.ID == second }, Depth: n, Wait: time.Hour}
				_, w, f := s.enter(r)
				if w == nil {
					b.Fatal(f)
				}
				waiting[r.RunID] = w
			}
			for i := range n {
				wait(i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				g := held[i%64]
				s.Ended(g.Node, g.Generation, g.key.runID, 1)
				// The place has a new holder: find it, and let another one wait.
				b.StopTimer()
				var next *Grant
				for _, h := range g.p.holders {
					next = h
				}
				if next == nil {
					b.Fatal("a place stayed free though many wait")
				}
				next.Sent()
				held[i%64] = next
				delete(waiting, next.key.runID)
				wait(n + i)
				b.StartTimer()
			}
		})
	}
}
