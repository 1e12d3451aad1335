package admission

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/execution"
)

// Every cell of the place table that the driver or the node can cause, one grant each.
func TestPlaceTable(t *testing.T) {
	type step func(*Scheduler, *Grant) bool
	sent := func(_ *Scheduler, g *Grant) bool { return g.Sent() }
	release := func(_ *Scheduler, g *Grant) bool { return g.Release() }
	rejected := func(_ *Scheduler, g *Grant) bool { return g.Rejected() }
	decided := func(_ *Scheduler, g *Grant) bool { return g.Decided() }
	ended := func(s *Scheduler, g *Grant) bool { return s.Ended("n", 1, "r", 1) }
	other := func(s *Scheduler, g *Grant) bool { return s.Ended("n", 1, "r", 2) }
	fence := func(s *Scheduler, g *Grant) bool { s.Fence("n", 1); return true }
	for _, tc := range []struct {
		name  string
		reach []step
		step  step
		want  bool // its answer
		held  int  // after it
		count Ignored
	}{
		{"unsent sent", nil, sent, true, 1, Ignored{}},
		{"unsent release", nil, release, true, 0, Ignored{}},
		{"unsent rejected", nil, rejected, false, 1, Ignored{Rejected: 1}},
		{"unsent decided", nil, decided, true, 0, Ignored{}},
		{"unsent ended", nil, ended, false, 1, Ignored{Ended: 1}},
		{"unsent ended of another attempt", nil, other, false, 1, Ignored{Ended: 1}},
		{"unsent fenced", nil, fence, true, 0, Ignored{}},
		{"sent sent", []step{sent}, sent, false, 1, Ignored{Sent: 1}},
		{"sent release", []step{sent}, release, false, 1, Ignored{Release: 1}},
		{"sent rejected", []step{sent}, rejected, true, 0, Ignored{}},
		{"sent decided", []step{sent}, decided, true, 1, Ignored{}},
		{"sent ended", []step{sent}, ended, true, 0, Ignored{}},
		{"sent ended of another attempt", []step{sent}, other, false, 1, Ignored{Ended: 1}},
		{"sent fenced", []step{sent}, fence, true, 0, Ignored{}},
		{"decided release", []step{sent, decided}, release, false, 1, Ignored{Release: 1}},
		{"decided rejected", []step{sent, decided}, rejected, true, 0, Ignored{}},
		{"decided decided", []step{sent, decided}, decided, false, 1, Ignored{Decided: 1}},
		{"decided ended", []step{sent, decided}, ended, true, 0, Ignored{}},
		{"decided ended of another attempt", []step{sent, decided}, other, false, 1, Ignored{Ended: 1}},
		{"decided fenced", []step{sent, decided}, fence, true, 0, Ignored{}},
		{"free sent", []step{release}, sent, false, 0, Ignored{Sent: 1}},
		{"free release", []step{release}, release, false, 0, Ignored{Release: 1}},
		{"free rejected", []step{sent, rejected}, rejected, false, 0, Ignored{Rejected: 1}},
		{"free decided", []step{sent, ended}, decided, false, 0, Ignored{}},
		{"free ended", []step{sent, ended}, ended, false, 0, Ignored{Ended: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := New(Config{})
			s.Publish(oneNode("n", 1))
			g := mustGrant(t, s, request("r"))
			for _, step := range tc.reach {
				step(s, g)
			}
			if got := tc.step(s, g); got != tc.want {
				t.Errorf("answered %v, want %v", got, tc.want)
			}
			wantInFlight(t, s, tc.held)
			if got := s.Snapshot().Ignored; got != tc.count {
				t.Errorf("ignored %+v, want %+v", got, tc.count)
			}
		})
	}
}

// CP-01: however an attempt ends, its place comes back.
func TestPlacesComeBack(t *testing.T) {
	s := New(Config{})
	s.Publish(oneNode("n", 4))
	ends := []func(g *Grant){
		func(g *Grant) { g.Release() },
		func(g *Grant) { g.Sent(); g.Rejected() },
		func(g *Grant) { g.Sent(); g.RejectedBusy(); s.Publish(oneNode("n", 5)); s.Publish(oneNode("n", 4)) },
		func(g *Grant) { g.Sent(); g.Decided(); end(t, s, g) },
		func(g *Grant) { g.Sent(); end(t, s, g); g.Decided() },
		func(g *Grant) { g.Decided() },
	}
	for i := range 40 {
		ends[i%len(ends)](mustGrant(t, s, request(name("bad", i))))
	}
	for i := range 20 {
		g := mustGrant(t, s, request(name("good", i)))
		g.Sent()
		end(t, s, g)
	}
	wantInFlight(t, s, 0)
}

// Fault 29, I6: what is held at one generation is freed with it, and its words change nothing elsewhere.
func TestFenceIsPerGeneration(t *testing.T) {
	s := New(Config{})
	s.Publish(oneNode("n", 2))
	old, unsent := mustGrant(t, s, request("old")), mustGrant(t, s, request("unsent"))
	old.Sent()
	s.Publish(nodeOf("n", 2, adapterOf("a", 2)))
	fresh := mustGrant(t, s, request("fresh"))
	if fresh.Generation != 2 {
		t.Fatalf("granted at generation %d", fresh.Generation)
	}
	fresh.Sent()
	wantInFlight(t, s, 3) // the old generation's are not over before its fence
	s.Fence("n", 1)
	wantInFlight(t, s, 1)
	if unsent.Sent() || old.Rejected() {
		t.Error("a fenced place could still be used")
	}
	if s.Ended("n", 1, "fresh", 1) || s.Ended("n", 3, "fresh", 1) {
		t.Error("an end of another generation freed a place")
	}
	s.Fence("n", 1)
	s.Publish(oneNode("n", 9)) // late, of generation 1
	wantInFlight(t, s, 1)
	if p := s.Snapshot().Places; len(p) != 1 || p[0].Capacity != 2 {
		t.Fatalf("%+v, want generation 2 alone and as published", p)
	}
	end(t, s, fresh)
	wantInFlight(t, s, 0)
	if got := s.Snapshot().Ignored; got.Stale != 1 || got.Ended != 2 || got.Sent != 1 || got.Rejected != 1 {
		t.Errorf("ignored %+v", got)
	}
}

// A fence that overtakes the first words of its own generation wins.
func TestFenceBeforePublish(t *testing.T) {
	s := New(Config{})
	s.Fence("n", 7)
	s.Publish(nodeOf("n", 7, adapterOf("a", 1)))
	s.Adopt("n", 7, []Adopted{{"r", 1, "a"}})
	wantInFlight(t, s, 0)
	wantCode(t, refused(t, s, &Request{RunID: "r", Set: "all", Match: everywhere}), execution.CodeNoNode)
	s.Publish(nodeOf("n", 8, adapterOf("a", 1)))
	mustGrant(t, s, request("r"))
}

// Fault 38: a lowered capacity ends nobody, and admits nobody until there is room.
func TestCapacityLowered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 3))
		var held []*Grant
		for i := range 3 {
			held = append(held, mustGrant(t, s, request(name("r", i))))
			held[i].Sent()
		}
		s.Publish(oneNode("n", 1))
		wantInFlight(t, s, 3)
		w := begin(s, request("w"))
		end(t, s, held[0])
		end(t, s, held[1])
		w.waits(t)
		end(t, s, held[2])
		w.granted(t)
		wantInFlight(t, s, 1)
	})
}

// An adapter that is removed keeps its holders until they end; who hasn't sent yet is told to ask again.
func TestAdapterRemoved(t *testing.T) {
	s := New(Config{})
	s.Publish(nodeOf("n", 1, adapterOf("a", 3), adapterOf("b", 1)))
	onlyA := func(run string) *Request {
		return &Request{RunID: run, Set: "a", Match: func(_ *Node, a *Adapter) bool { return a.Name == "a" }}
	}
	sent, unsent := mustGrant(t, s, onlyA("sent")), mustGrant(t, s, onlyA("unsent"))
	sent.Sent()
	s.Publish(nodeOf("n", 1, adapterOf("b", 1)))
	wantInFlight(t, s, 2)
	if unsent.Sent() {
		t.Error("sent to an adapter that is gone")
	}
	wantInFlight(t, s, 1)
	wantCode(t, refused(t, s, onlyA("late")), execution.CodeNoNode)
	end(t, s, sent)
	if p := s.Snapshot().Places; len(p) != 1 || p[0].Adapter != "b" {
		t.Errorf("%+v, want the removed adapter's place dead", p)
	}
}

// A node that takes no work, or an adapter that is down, is no candidate and keeps its holders.
func TestNotDispatchable(t *testing.T) {
	s := New(Config{})
	s.Publish(oneNode("n", 2))
	g := mustGrant(t, s, request("r"))
	g.Sent()
	draining := oneNode("n", 2)
	draining.Dispatchable = false
	down := oneNode("n", 2)
	down.Adapters[0].Available = false
	for _, n := range []Node{draining, down} {
		s.Publish(n)
		wantInFlight(t, s, 1)
		r := request("late")
		r.FailFast = true
		wantCode(t, refused(t, s, r), execution.CodeNoNode)
	}
	end(t, s, g)
	wantInFlight(t, s, 0)
}

func TestAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{OnUnconfirmed: func(string, uint64) { t.Error("an adopted place has no confirm limit") }})
		runs := []Adopted{{"bg1", 1, "a"}, {"bg2", 4, "a"}, {"gone", 1, "x"}}
		s.Adopt("n", 1, runs)
		s.Publish(oneNode("n", 1))
		s.Adopt("n", 1, runs) // the next Ready says the same
		wantInFlight(t, s, 3)
		w := begin(s, request("w"))
		time.Sleep(2 * DefaultConfirmLimit / 3)
		if s.Ended("n", 1, "bg1", 2) || !s.Ended("n", 1, "gone", 1) || !s.Ended("n", 1, "bg1", 1) {
			t.Error("an end was not matched by run and attempt")
		}
		w.waits(t) // two adopted at a capacity of one
		if !s.Ended("n", 1, "bg2", 4) {
			t.Error("the adopted run's end is unknown")
		}
		w.granted(t)
		s.Adopt("n", 2, []Adopted{{"bg3", 1, "a"}})
		s.Fence("n", 1)
		wantInFlight(t, s, 1)
		s.Fence("n", 2)
		wantInFlight(t, s, 0)
	})
}

// A node that reports runs which it invents, new ones with each Ready, makes the scheduler keep so many and no more.
func TestAdoptIsBounded(t *testing.T) {
	s := New(Config{})
	s.Publish(oneNode("n", 1))
	for i := range 3 {
		runs := make([]Adopted, maxAdopted-1)
		for j := range runs {
			runs[j] = Adopted{name(name("run", i), j), 1, "a"}
		}
		s.Adopt("n", 1, runs)
	}
	wantInFlight(t, s, maxAdopted)
	if n, want := s.Snapshot().Ignored.Adopt, uint64(2*maxAdopted-3); n != want {
		t.Errorf("%d were counted as ignored, want %d", n, want)
	}
	s.Adopt("n", 2, []Adopted{{"run of the next connection", 1, "a"}})
	s.Fence("n", 1)
	wantInFlight(t, s, 1)
}

// A run can't hold two places of one connection with one attempt: its end would be ambiguous.
func TestDuplicateRun(t *testing.T) {
	s := New(Config{})
	s.Publish(nodeOf("n", 1, adapterOf("a", 2), adapterOf("b", 2)))
	g := mustGrant(t, s, request("r"))
	if f := refused(t, s, request("r")); f.Code != execution.CodeDuplicateRun {
		t.Errorf("%v, want duplicate_run", f)
	}
	second := request("r")
	second.Attempt = 2
	mustGrant(t, s, second)
	g.Release()
	mustGrant(t, s, request("r"))
	wantInFlight(t, s, 2)
}

// Confirm limit: once a connection, without a lock held, counted from the outcome.
func TestConfirmLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type told struct {
			after time.Duration
			id    connID
		}
		var s *Scheduler
		words := make(chan told, 10)
		start := time.Now()
		s = New(Config{OnUnconfirmed: func(n string, g uint64) {
			words <- told{time.Since(start), connID{n, g}}
			if n == "n1" {
				s.Fence(n, g) // it may call back
			}
		}})
		s.Publish(oneNode("n1", 4))
		s.Publish(oneNode("n2", 4))
		decide := func(node, run string) *Grant {
			g := mustGrant(t, s, &Request{RunID: run, Set: node, Match: onNode(node)})
			g.Sent()
			g.Decided()
			return g
		}
		confirmed := decide("n1", "confirmed")
		time.Sleep(10 * time.Second)
		decide("n1", "late1")
		decide("n1", "late2")
		kept := decide("n2", "kept")
		time.Sleep(10 * time.Second)
		decide("n2", "late3")
		end(t, s, confirmed)
		time.Sleep(49 * time.Second)
		wantInFlight(t, s, 4)
		time.Sleep(10 * time.Minute)
		got := []told{<-words, <-words}
		want := []told{{70 * time.Second, connID{"n1", 1}}, {70 * time.Second, connID{"n2", 1}}}
		if !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
		wantInFlight(t, s, 2) // n2 wasn't fenced: its holders stay
		end(t, s, kept)
		wantInFlight(t, s, 1)
		s.Publish(nodeOf("n2", 2, adapterOf("a", 1)))
		decide("n2", "again")
		time.Sleep(DefaultConfirmLimit)
		synctest.Wait()
		if len(words) != 1 || (<-words).id != (connID{"n2", 2}) {
			t.Error("want one word, of the new connection")
		}
	})
}

func TestChoice(t *testing.T) {
	s := New(Config{})
	s.Publish(nodeOf("n1", 1, adapterOf("a", 4)))
	s.Publish(nodeOf("n2", 1, adapterOf("a", 2, "m")))
	s.Publish(nodeOf("n3", 1, adapterOf("a", 8)))
	var got []string
	for i := range 8 {
		got = append(got, mustGrant(t, s, request(name("r", i))).Node)
	}
	// First where the model is in memory, then by in_flight over capacity: 0/4 and 0/8 tie, then 1/8 before 1/4, …
	count := map[string]int{}
	for _, n := range got {
		count[n]++
	}
	if got[0] != "n2" || got[1] != "n2" || count["n1"] != 2 || count["n3"] != 4 {
		t.Errorf("granted %v", got)
	}
}

func TestTiesRotate(t *testing.T) {
	s := New(Config{})
	for _, id := range []string{"n1", "n2", "n3"} {
		s.Publish(oneNode(id, 4))
	}
	count := map[string]int{}
	for i := range 30 {
		g := mustGrant(t, s, request(name("r", i)))
		count[g.Node]++
		g.Release()
	}
	if count["n1"] != 10 || count["n2"] != 10 || count["n3"] != 10 {
		t.Errorf("%v, want ten each", count)
	}
}

func TestOffers(t *testing.T) {
	models := []execution.Model{{Name: "m"}}
	for _, tc := range []struct {
		name string
		a    Adapter
		want bool
	}{
		{"by its targets", Adapter{Targets: []string{"m"}}, true},
		{"its targets go before its models", Adapter{Targets: []string{"x"}, Models: models}, false},
		{"by its models", Adapter{Models: models}, true},
		{"another model", Adapter{Models: []execution.Model{{Name: "x"}}}, false},
		{"it doesn't tell", Adapter{}, true},
		{"by its targets, with a tag", Adapter{Targets: []string{"x", "m:latest"}}, true},
		{"by its models, with a tag", Adapter{Models: []execution.Model{{Name: "m:latest"}}}, true},
		{"of another tag", Adapter{Targets: []string{"m:8b"}, Models: models}, false},
	} {
		if got := tc.a.Offers("m"); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		tc.a.Name, tc.a.Capacity, tc.a.Available = "a", 1, true
		s := New(Config{})
		s.Publish(nodeOf("n", 1, tc.a))
		g, _ := s.Acquire(t.Context(), &Request{RunID: "r", Set: "s", Target: "m"}) // Match nil
		if (g != nil) != tc.want {
			t.Errorf("%s: granted %v, want %v", tc.name, g != nil, tc.want)
		}
	}
}
