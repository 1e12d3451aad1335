package router

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"iop/packages/go/execution"
)

// driver counts how often it was closed.
type driver struct {
	mu     sync.Mutex
	closed int
}

func (d *driver) Probe(context.Context) execution.Capabilities {
	return execution.Capabilities{Available: true}
}

func (d *driver) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed++
}

func (d *driver) closes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

var up = execution.Capabilities{Available: true, Version: "1"}

func entry(name string, revision uint64, capacity int, d execution.Provider) Entry {
	return entryCaps(name, revision, capacity, d, up)
}

func entryCaps(name string, revision uint64, capacity int, d execution.Provider, caps execution.Capabilities) Entry {
	spec := Spec{Name: name, Kind: "fake", Revision: revision, Capacity: capacity}
	return Entry{Adapter: NewAdapter(spec, d, caps), Revision: revision}
}

func TestTakeRefusals(t *testing.T) {
	r := New()
	down := entryCaps("down", 1, 1, &driver{}, execution.Capabilities{Reason: "connection refused"})
	broken := entryCaps("broken", 1, 1, nil, execution.Capabilities{Reason: "no such kind"})
	r.Swap("e", []Entry{entry("a", 7, 1, &driver{}), down, broken, entry("zero", 1, 0, &driver{})})

	held, f := r.Take("e", "a", 7)
	if f != nil {
		t.Fatalf("first place: %v", f)
	}
	for _, c := range []struct {
		edge, name string
		revision   uint64
		want       execution.Code
	}{
		{"e", "b", 7, execution.CodeUnknownAdapter},
		{"other", "a", 7, execution.CodeUnknownAdapter},
		{"e", "a", 6, execution.CodeStaleProjection},
		{"e", "a", 0, execution.CodeStaleProjection},
		{"e", "down", 1, execution.CodeAdapterUnavailable},
		{"e", "broken", 1, execution.CodeAdapterUnavailable},
		{"e", "a", 7, execution.CodeAdapterBusy},
		{"e", "zero", 1, execution.CodeAdapterBusy},
	} {
		p, f := r.Take(c.edge, c.name, c.revision)
		if p != nil || f == nil || f.Code != c.want || f.Origin != execution.OriginNode {
			t.Errorf("Take(%q, %q, %d) = %v, %v, want %s", c.edge, c.name, c.revision, p, f, c.want)
		}
	}
	held.Release()
	if _, f := r.Take("e", "a", 7); f != nil {
		t.Errorf("the released place isn't free: %v", f)
	}
}

// CP-07: a second release changes nothing and is counted.
func TestDoubleReleaseIsCountedNoOp(t *testing.T) {
	r := New()
	r.Swap("e", []Entry{entry("a", 1, 1, &driver{})})
	p, _ := r.Take("e", "a", 1)
	if !p.Release() || p.Release() || p.Abandon() {
		t.Error("the place was given back more than once")
	}
	if got := r.LateReleases(); got != 2 {
		t.Errorf("LateReleases() = %d, want 2", got)
	}
	if _, f := r.Take("e", "a", 1); f != nil {
		t.Fatal(f)
	}
	if _, f := r.Take("e", "a", 1); f == nil {
		t.Error("a double release made a second place")
	}
}

func TestAbandonedLowersCapacityUntilReleased(t *testing.T) {
	r := New()
	r.Swap("e", []Entry{entry("a", 1, 2, &driver{})})
	p, _ := r.Take("e", "a", 1)
	p.Abandon()
	if s := r.Snapshot("e")[0]; s.Capacity != 1 || s.InFlight != 0 {
		t.Errorf("after abandon: capacity %d, in flight %d, want 1, 0", s.Capacity, s.InFlight)
	}
	second, f := r.Take("e", "a", 1)
	if f != nil {
		t.Fatal(f)
	}
	if _, f := r.Take("e", "a", 1); f == nil || f.Code != execution.CodeAdapterBusy {
		t.Errorf("third place: %v, want adapter_busy", f)
	}
	p.Release()
	second.Release()
	if s := r.Snapshot("e")[0]; s.Capacity != 2 || s.InFlight != 0 {
		t.Errorf("at rest: capacity %d, in flight %d, want 2, 0", s.Capacity, s.InFlight)
	}
}

// §2.D "adapter removed by refresh": what runs goes on, and its driver is closed when the last one has ended.
func TestSwapDrainsRemovedAdapters(t *testing.T) {
	r := New()
	busy, idle, kept := &driver{}, &driver{}, &driver{}
	keptEntry := entry("kept", 1, 1, kept)
	r.Swap("e", []Entry{entry("busy", 1, 1, busy), entry("idle", 1, 1, idle), keptEntry})
	p, _ := r.Take("e", "busy", 1)
	keptEntry.Revision = 2
	r.Swap("e", []Entry{keptEntry})
	if busy.closes() != 0 || idle.closes() != 1 || kept.closes() != 0 {
		t.Errorf("closed busy %d, idle %d, kept %d times, want 0, 1, 0", busy.closes(), idle.closes(), kept.closes())
	}
	if _, f := r.Take("e", "busy", 1); f == nil || f.Code != execution.CodeUnknownAdapter {
		t.Errorf("a removed adapter took work: %v", f)
	}
	if _, f := r.Take("e", "kept", 2); f != nil {
		t.Errorf("the kept adapter at its new revision: %v", f)
	}
	p.Release()
	p.Release()
	if busy.closes() != 1 {
		t.Errorf("busy was closed %d times after its last execution, want 1", busy.closes())
	}
}

// Faults row 38: a lower capacity throws nobody out; nothing is taken until below.
func TestLoweredCapacityWaitsUntilBelow(t *testing.T) {
	r := New()
	r.Swap("e", []Entry{entry("a", 1, 2, &driver{})})
	p1, _ := r.Take("e", "a", 1)
	p2, _ := r.Take("e", "a", 1)
	r.Swap("e", []Entry{entry("a", 2, 1, &driver{})})
	if s := r.Snapshot("e")[0]; s.InFlight != 2 || s.Capacity != 1 {
		t.Errorf("in flight %d of %d, want 2 of 1", s.InFlight, s.Capacity)
	}
	p1.Release()
	if _, f := r.Take("e", "a", 2); f == nil {
		t.Error("a place was taken while one execution was over the capacity")
	}
	p2.Release()
	if _, f := r.Take("e", "a", 2); f != nil {
		t.Errorf("below the capacity: %v", f)
	}
}

// Two Edges that name the same adapter share its places; an adapter of another name doesn't.
func TestPlacesAreSharedAcrossEdges(t *testing.T) {
	r := New()
	r.Swap("e1", []Entry{entry("gpu", 1, 1, &driver{}), entry("other", 1, 1, &driver{})})
	r.Swap("e2", []Entry{entry("gpu", 9, 1, &driver{})})
	p, _ := r.Take("e1", "gpu", 1)
	if _, f := r.Take("e2", "gpu", 9); f == nil || f.Code != execution.CodeAdapterBusy {
		t.Errorf("second edge: %v, want adapter_busy", f)
	}
	if _, f := r.Take("e1", "other", 1); f != nil {
		t.Errorf("another adapter of the same kind: %v", f)
	}
	if n := r.Snapshot("e2")[0].InFlight; n != 0 {
		t.Errorf("the second edge is told of %d executions of the first", n)
	}
	p.Release()
	if _, f := r.Take("e2", "gpu", 9); f != nil {
		t.Errorf("after release: %v", f)
	}
}

// Of two Edges that think differently of one provider the more careful one is right. (e2e/sim, seed 533)
func TestSmallerCapacityOfBothEdges(t *testing.T) {
	r := New()
	r.Swap("e1", []Entry{entry("gpu", 1, 1, &driver{})})
	r.Swap("e2", []Entry{entry("gpu", 9, 3, &driver{})})
	if n := r.Snapshot("e2")[0].Capacity; n != 1 {
		t.Errorf("the second edge is told of %d places", n)
	}
	if _, f := r.Take("e1", "gpu", 1); f != nil {
		t.Fatal(f)
	}
	if _, f := r.Take("e2", "gpu", 9); f == nil || f.Code != execution.CodeAdapterBusy {
		t.Errorf("second edge: %v, want adapter_busy", f)
	}
	r.Swap("e1", nil)
	if _, f := r.Take("e2", "gpu", 9); f != nil {
		t.Errorf("when the first edge doesn't name it any more: %v", f)
	}
}

// An Edge is told when a run of another one takes a place of their provider away for good, and when it is back: else it
// would go on with what it was told last. (e2e/sim, seed 1104301)
func TestCapacityThatAnotherEdgeChanges(t *testing.T) {
	r := New()
	told := map[string]int{}
	for _, edge := range []string{"e1", "e2"} {
		r.Watch(edge, func() { told[edge]++ })
		r.Swap(edge, []Entry{entry("gpu", 1, 1, &driver{})})
	}
	clear(told)
	p, _ := r.Take("e1", "gpu", 1)
	p.Abandon()
	if n := r.Snapshot("e2")[0].Capacity; n != 0 || told["e2"] != 1 {
		t.Errorf("abandoned: %d places, told %d times", n, told["e2"])
	}
	p.Release()
	if n := r.Snapshot("e2")[0].Capacity; n != 1 || told["e2"] != 2 {
		t.Errorf("back: %d places, told %d times", n, told["e2"])
	}
	if told["e1"] != 0 {
		t.Errorf("who did it was told %d times", told["e1"])
	}
}

func TestObserve(t *testing.T) {
	r := New()
	e := entry("a", 1, 1, &driver{})
	r.Swap("e", []Entry{e})
	if r.Observe(e.Adapter, up, false) {
		t.Error("the same capabilities are a change")
	}
	loaded := up
	loaded.Models = []execution.Model{{Name: "m", Loaded: true}}
	if !r.Observe(e.Adapter, loaded, false) {
		t.Error("a new model isn't a change")
	}
	if diff := cmp.Diff(loaded, r.Snapshot("e")[0].Caps); diff != "" {
		t.Error(diff)
	}
	// A provider at work that doesn't answer a probe in time is busy, not down; a refused one is down.
	p, _ := r.Take("e", "a", 1)
	silent := execution.Capabilities{Reason: "no answer"}
	if r.Observe(e.Adapter, silent, true) {
		t.Error("a busy provider was taken for a dead one")
	}
	p.Release()
	if !r.Observe(e.Adapter, silent, true) {
		t.Error("an idle provider that doesn't answer stays available")
	}
}

func TestSameIgnoresRevision(t *testing.T) {
	a := Spec{Name: "a", Kind: "k", BaseURL: "u", Revision: 1, Capacity: 1, Targets: []string{"x"}, Options: map[string]string{"o": "1"}}
	for _, c := range []struct {
		change func(*Spec)
		same   bool
	}{
		{func(s *Spec) { s.Revision = 2 }, true},
		{func(s *Spec) { s.Kind = "l" }, false},
		{func(s *Spec) { s.BaseURL = "v" }, false},
		{func(s *Spec) { s.Capacity = 2 }, false},
		{func(s *Spec) { s.Targets = nil }, false},
		{func(s *Spec) { s.AllowPaths = []string{"/"} }, false},
		{func(s *Spec) { s.Options = map[string]string{"o": "2"} }, false},
	} {
		b := a
		c.change(&b)
		if a.Same(&b) != c.same {
			t.Errorf("Same(%+v) = %v, want %v", b, !c.same, c.same)
		}
	}
}

// CP-07: whatever is taken, abandoned, given back (twice) and swapped, 0 <= in flight <= capacity holds as long as the
// capacity isn't lowered, and everything is free at the end.
func TestPlacesRapid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const capacity = 3
		r := New()
		fresh := func(revision uint64) { r.Swap("e", []Entry{entry("a", revision, capacity, &driver{})}) }
		revision := uint64(1)
		fresh(revision)
		held, abandoned, all := 0, 0, []*Place{}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				p, f := r.Take("e", "a", revision)
				if (p != nil) != (held+abandoned < capacity) {
					t.Fatalf("Take = %v with %d held and %d abandoned", f, held, abandoned)
				}
				if p != nil {
					all = append(all, p)
					held++
				}
			},
			"release": func(t *rapid.T) {
				if len(all) == 0 {
					t.Skip("nothing was taken")
				}
				p := rapid.SampledFrom(all).Draw(t, "place")
				was := p.state
				if p.Release() != (was != placeFree) {
					t.Fatalf("Release of state %d", was)
				}
				held -= btoi(was == placeHeld)
				abandoned -= btoi(was == placeAbandoned)
			},
			"abandon": func(t *rapid.T) {
				if len(all) == 0 {
					t.Skip("nothing was taken")
				}
				p := rapid.SampledFrom(all).Draw(t, "place")
				was := p.state
				if p.Abandon() != (was == placeHeld) {
					t.Fatalf("Abandon of state %d", was)
				}
				held -= btoi(was == placeHeld)
				abandoned += btoi(was == placeHeld)
			},
			"swap": func(*rapid.T) {
				revision++
				fresh(revision)
			},
			"": func(t *rapid.T) {
				s := r.Snapshot("e")[0]
				if s.InFlight != held || s.Capacity != capacity-abandoned || s.InFlight > capacity {
					t.Fatalf("snapshot %+v with %d held and %d abandoned", s, held, abandoned)
				}
			},
		})
		for _, p := range all {
			p.Release()
		}
		if len(r.pools) != 0 {
			t.Fatalf("%d pools left at rest", len(r.pools))
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// CP-06 at the node: a burst never gets more places than there are.
func TestConcurrentTakes(t *testing.T) {
	r := New()
	r.Swap("e", []Entry{entry("a", 1, 4, &driver{})})
	var mu sync.Mutex
	var wg sync.WaitGroup
	peak, now, served := 0, 0, 0
	for range 200 {
		wg.Go(func() {
			p, f := r.Take("e", "a", 1)
			if f != nil {
				return
			}
			mu.Lock()
			now++
			served++
			peak = max(peak, now)
			mu.Unlock()
			mu.Lock()
			now--
			mu.Unlock()
			p.Release()
		})
	}
	wg.Wait()
	if peak > 4 || served == 0 {
		t.Errorf("peak %d of 4, served %d", peak, served)
	}
	if s := r.Snapshot("e")[0]; s.InFlight != 0 {
		t.Errorf("%d in flight at rest", s.InFlight)
	}
}

// A driver that is borrowed stays open when its adapter is removed, takes no place, and can be borrowed of a provider
// that is down or at its capacity.
func TestBorrow(t *testing.T) {
	r := New()
	d, down := &driver{}, &driver{}
	r.Swap("e", []Entry{entry("a", 1, 1, d), entryCaps("down", 1, 1, down, execution.Capabilities{Reason: "refused"}),
		entryCaps("broken", 1, 1, nil, execution.Capabilities{Reason: "no such kind"})})
	for name, want := range map[string]execution.Code{"b": execution.CodeUnknownAdapter, "broken": execution.CodeAdapterUnavailable} {
		if _, _, f := r.Borrow("e", name); f == nil || f.Code != want {
			t.Errorf("Borrow(%s) = %v, want %s", name, f, want)
		}
	}
	if _, _, f := r.Borrow("other", "a"); f == nil || f.Code != execution.CodeUnknownAdapter {
		t.Errorf("another edge's: %v", f)
	}
	place, _ := r.Take("e", "a", 1)
	p, back, f := r.Borrow("e", "a")
	if f != nil || p != execution.Provider(d) {
		t.Fatalf("of a full adapter: %v, %v", p, f)
	}
	_, again, _ := r.Borrow("e", "a")
	if _, backDown, f := r.Borrow("e", "down"); f != nil {
		t.Errorf("of one that is down: %v", f)
	} else {
		backDown()
	}
	if n := r.Snapshot("e")[0].InFlight; n != 1 {
		t.Errorf("%d places are held, want 1", n)
	}
	r.Swap("e", nil)
	place.Release()
	back()
	if n := d.closes(); n != 0 {
		t.Error("closed while it is borrowed")
	}
	again()
	if d.closes() != 1 || down.closes() != 1 {
		t.Errorf("closed %d and %d times, want once each", d.closes(), down.closes())
	}
}
