package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

// What a node never confirms is taken back by an operator, and nothing else is without force.
func TestReleaseByAnOperator(t *testing.T) {
	s := New(Config{})
	s.Publish(nodeOf("n", 7, adapterOf("a", 4), adapterOf("b", 1)))
	at := Place{"n", "a"}
	running, stuck := mustGrant(t, s, request("running")), mustGrant(t, s, request("stuck"))
	for _, g := range []*Grant{running, stuck} {
		if !g.Sent() {
			t.Fatal("not sent")
		}
	}
	stuck.Decided()
	s.Adopt("n", 7, []Adopted{{RunID: "old", Attempt: 1, Adapter: at.Adapter}})
	for _, c := range []struct {
		at    Place
		run   string
		force bool
		want  Released
	}{
		{running.Place, "nobody", false, Released{}},
		{Place{"n", "none"}, "stuck", true, Released{}},
		{Place{"other", stuck.Adapter}, "stuck", true, Released{}},
		{running.Place, "running", false, Released{Held: 1}},
		{at, "old", false, Released{Held: 1}},
		{stuck.Place, "stuck", false, Released{Places: 1}},
		{stuck.Place, "stuck", true, Released{}},
		{running.Place, "running", true, Released{Places: 1}},
		{at, "old", true, Released{Places: 1}},
	} {
		if got := s.Release(c.at, c.run, c.force); got != c.want {
			t.Errorf("%s at %v, force %v: %+v, want %+v", c.run, c.at, c.force, got, c.want)
		}
	}
	// What the driver and the node say later changes nothing.
	if running.Decided() || running.Rejected() || s.Ended("n", 7, "running", 1) || s.Ended("n", 7, "stuck", 1) {
		t.Error("a place was given back twice")
	}
	for _, p := range s.Snapshot().Places {
		if p.InFlight != 0 || p.Unconfirmed != 0 {
			t.Errorf("%+v", p)
		}
	}
}

// A place that an operator took back goes to who waits, and its node isn't fenced for it any more.
func TestReleasedPlaceIsOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fenced := false
		s := New(Config{ConfirmLimit: time.Minute, OnUnconfirmed: func(string, uint64) { fenced = true }})
		s.Publish(oneNode("n", 1))
		g := mustGrant(t, s, request("stuck"))
		g.Sent()
		g.Decided()
		var positions []int
		r := request("next")
		r.Wait, r.OnWait = 2*time.Minute, func(position int) { positions = append(positions, position) }
		p := begin(s, r)
		synctest.Wait()
		if got := s.Release(g.Place, "stuck", false); got.Places != 1 {
			t.Fatalf("%+v", got)
		}
		out := <-p.done
		if out.grant == nil || len(positions) != 1 || positions[0] != 1 {
			t.Fatalf("%+v, told %v", out, positions)
		}
		time.Sleep(2 * time.Minute)
		if fenced {
			t.Error("the node was fenced for a place that it no longer holds")
		}
		out.grant.Release()
	})
}

// Who needn't wait isn't told so.
func TestOnWaitOnlyWhenWaiting(t *testing.T) {
	s := New(Config{})
	s.Publish(oneNode("n", 1))
	told := 0
	r := request("at-once")
	r.OnWait = func(int) { told++ }
	mustGrant(t, s, r).Release()
	r = request("refused")
	r.OnWait, r.Set, r.Match = func(int) { told++ }, "elsewhere", onNode("x")
	r.Wait, r.Depth = 0, 0
	refused(t, s, r)
	if told != 0 {
		t.Errorf("told %d times", told)
	}
}
