package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

func fail(t *testing.T, s *Scheduler, node string, times int) {
	t.Helper()
	for i := range times {
		r := request(name("f", i))
		r.Set, r.Match = "only "+node, onNode(node)
		g := mustGrant(t, s, r)
		g.Sent()
		end(t, s, g)
		g.Judge(Faulty, "connection refused")
	}
}

// design §7: an adapter that fails repeatedly is taken out, tried again after a pause, and comes back when that works.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("bad", 4))
		s.Publish(oneNode("good", 1))
		fail(t, s, "bad", breakerFailures-1)
		ok := mustGrant(t, s, &Request{RunID: "ok", Attempt: 1, Set: "only bad", Match: onNode("bad")})
		ok.Judge(Healthy, "")
		ok.Release()
		fail(t, s, "bad", breakerFailures-1) // the count began anew
		if b := s.Snapshot().Places[0].Broken; b != nil {
			t.Fatalf("tripped by failures that weren't in a row: %+v", b)
		}
		fail(t, s, "bad", 1)
		b := s.Snapshot().Places[0].Broken
		if b == nil || b.Failures != breakerFailures || b.Why != "connection refused" || time.Until(b.Until) != breakerPause || b.Trying {
			t.Fatalf("%+v", b)
		}
		// Others take what they can; the rest waits for the try, and isn't served by the broken one.
		first := mustGrant(t, s, request("first"))
		if first.Node != "good" {
			t.Fatal("a broken adapter was chosen")
		}
		one, two := begin(s, request("one")), begin(s, request("two"))
		time.Sleep(breakerPause - 1)
		one.waits(t)
		time.Sleep(time.Nanosecond)
		g := one.granted(t)
		if g.Node != "bad" || !s.Snapshot().Places[0].Broken.Trying {
			t.Fatalf("%+v", g.Place)
		}
		two.waits(t)
		g.Sent()
		end(t, s, g)
		two.waits(t) // the place is free, but how the try went isn't known
		g.Judge(Faulty, "connection refused")
		two.waits(t)
		time.Sleep(2*breakerPause - 1)
		two.waits(t)
		time.Sleep(time.Nanosecond)
		g = two.granted(t)
		g.Sent()
		three := begin(s, request("three"))
		three.waits(t)
		g.Judge(Healthy, "") // before its end: the first byte is enough
		three.granted(t).Release()
		if b := s.Snapshot().Places[0].Broken; b != nil {
			t.Errorf("still %+v", b)
		}
	})
}

// A try that ends without a word about the adapter lets another one try at once.
func TestBreakerTrialThatSaysNothing(t *testing.T) {
	give := map[string]func(*testing.T, *Scheduler, *Grant){
		"released": func(_ *testing.T, _ *Scheduler, g *Grant) { g.Release() },
		"rejected": func(_ *testing.T, _ *Scheduler, g *Grant) { g.Sent(); g.Rejected() },
		"unsaid":   func(t *testing.T, s *Scheduler, g *Grant) { g.Sent(); end(t, s, g); g.Judge(Unsaid, "") },
		"unsaid while held": func(_ *testing.T, _ *Scheduler, g *Grant) {
			g.Sent()
			g.Decided()
			g.Judge(Unsaid, "")
		},
		"reconnected": func(_ *testing.T, s *Scheduler, g *Grant) {
			g.Sent()
			s.Fence("bad", 1)
			s.Publish(nodeOf("bad", 2, adapterOf("a", 4)))
			g.Judge(Unsaid, "")
		},
	}
	for how, f := range give {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{})
				s.Publish(oneNode("bad", 4))
				fail(t, s, "bad", breakerFailures)
				first, second := begin(s, request("first")), begin(s, request("second"))
				time.Sleep(breakerPause)
				g := first.granted(t)
				second.waits(t)
				f(t, s, g)
				second.granted(t)
			})
		})
	}
}

// The pause is bounded, what ran before the breaker tripped doesn't move it, and another configuration is another adapter.
func TestBreakerBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(nodeOf("bad", 1, adapterOf("a", 9)))
		before := mustGrant(t, s, request("before"))
		fail(t, s, "bad", breakerFailures)
		before.Judge(Healthy, "")
		if s.Snapshot().Places[0].Broken == nil {
			t.Fatal("an execution that began before closed the breaker")
		}
		for range 9 {
			r := request("try")
			r.Wait = time.Hour
			p := begin(s, r)
			time.Sleep(breakerMost)
			g := p.granted(t)
			g.Sent()
			end(t, s, g)
			g.Judge(Faulty, "")
		}
		if left := time.Until(s.Snapshot().Places[0].Broken.Until); left != breakerMost {
			t.Errorf("a pause of %v", left)
		}
		changed := adapterOf("a", 9)
		changed.Revision = 2
		s.Publish(nodeOf("bad", 1, changed))
		if s.Snapshot().Places[0].Broken != nil {
			t.Error("the breaker outlived the configuration that it was about")
		}
		mustGrant(t, s, request("again"))
	})
}

// A provider that dies ends all that it had in work: that is one failure. Who waits is told by trying.
func TestOneIncidentIsOneFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("bad", 64))
		var all []*Grant
		for i := range 64 {
			g := mustGrant(t, s, request(name("r", i)))
			g.Sent()
			all = append(all, g)
		}
		time.Sleep(time.Second)
		for _, g := range all {
			end(t, s, g)
			g.Judge(Faulty, "broke off")
		}
		if b := s.Snapshot().Places[0].Broken; b != nil {
			t.Fatalf("%+v", b)
		}
		time.Sleep(time.Millisecond)
		fail(t, s, "bad", breakerFailures-1)
		if s.Snapshot().Places[0].Broken == nil {
			t.Error("failures one after the other don't count")
		}
	})
}
