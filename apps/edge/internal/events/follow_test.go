package events

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"iop/packages/go/patience"
)

// numbers are the IDs of events.
func numbers(all []Event) []uint64 {
	ids := make([]uint64, len(all))
	for i := range all {
		ids[i] = all[i].ID
	}
	return ids
}

// A bus of four events: 1 ready, 2 submitted, 3 fenced, 4 ended.
func small() *Bus {
	b := NewBus()
	for _, k := range []Kind{KindReady, KindRunSubmitted, KindFenced, KindRunEnded} {
		b.Publish(Event{Kind: k, NodeID: "n"})
	}
	return b
}

// What happens to a node isn't pushed out by the steps of runs, of which there are thousands.
func TestLastEachKeepsBoth(t *testing.T) {
	b := NewBus()
	b.Publish(Event{Kind: KindFenced})
	for range 100 {
		b.Publish(Event{Kind: KindRunSubmitted})
	}
	s, before, missed := b.Follow(Query{LastEach: 2})
	s.Close()
	if got := numbers(before); !slices.Equal(got, []uint64{1, 100, 101}) || missed != 0 {
		t.Errorf("%v, missed %d", got, missed)
	}
}

func TestFollow(t *testing.T) {
	after := func(id uint64) *uint64 { return &id }
	for _, c := range []struct {
		name string
		q    Query
		want []uint64
	}{
		{"from now on", Query{}, nil},
		{"all", Query{After: after(0)}, []uint64{1, 2, 3, 4}},
		{"some", Query{After: after(2)}, []uint64{3, 4}},
		{"none", Query{After: after(4)}, nil},
		{"one that never was", Query{After: after(99)}, nil},
		{"no runs", Query{After: after(0), NoRuns: true}, []uint64{1, 3}},
		{"runs only", Query{After: after(0), NoOthers: true}, []uint64{2, 4}},
		{"what matches", Query{After: after(1), Match: func(e *Event) bool { return e.Kind == KindRunEnded }}, []uint64{4}},
		{"last", Query{Last: 2}, []uint64{3, 4}},
		{"last of more than there are", Query{Last: 9, NoRuns: true}, []uint64{1, 3}},
		{"last of each", Query{LastEach: 1}, []uint64{3, 4}},
		{"last of each, more than there are", Query{LastEach: 9}, []uint64{1, 2, 3, 4}},
		{"last of each, no runs", Query{LastEach: 1, NoRuns: true}, []uint64{3}},
		{"last goes before last of each", Query{Last: 1, LastEach: 1}, []uint64{4}},
		{"after goes before last", Query{After: after(3), Last: 3}, []uint64{4}},
	} {
		b := small()
		c.q.Buffer = 4
		s, before, missed := b.Follow(c.q)
		if got := numbers(before); !slices.Equal(got, c.want) || missed != 0 {
			t.Errorf("%s: %v, missed %d; want %v", c.name, got, missed, c.want)
		}
		// What comes then is what the query wants, too, and follows without a gap.
		b.Publish(Event{Kind: KindReady})
		b.Publish(Event{Kind: KindRunEnded})
		then := []uint64{5, 6}
		switch {
		case c.q.NoRuns:
			then = then[:1]
		case c.q.NoOthers, c.q.Match != nil:
			then = then[1:]
		}
		if got := numbers(drain(s)); !slices.Equal(got, then) || s.Dropped() != 0 {
			t.Errorf("%s: then %v, want %v", c.name, got, then)
		}
	}
}

// EV-02: what is remembered is bounded, and how much isn't remembered any more is told exactly.
func TestRingIsBounded(t *testing.T) {
	b := NewBus()
	b.Publish(Event{Kind: KindRegistered})
	b.Publish(Event{Kind: KindReady})
	const runs = keptRuns + 1000
	for range runs {
		b.Publish(Event{Kind: KindRunPlaced})
	}
	id := uint64(1)
	_, before, missed := b.Follow(Query{After: &id})
	if len(before) != keptRuns+1 || missed != 1000 || before[0].Kind != KindReady {
		t.Errorf("%d remembered, %d missed, first %v", len(before), missed, before[0].Kind)
	}
	// Runs push out runs only, and who doesn't want them has missed nothing.
	if _, before, missed = b.Follow(Query{After: &id, NoRuns: true}); len(before) != 1 || missed != 0 {
		t.Errorf("of nodes: %d remembered, %d missed", len(before), missed)
	}
	id = 2 + 1000
	if _, before, missed = b.Follow(Query{After: &id}); len(before) != keptRuns || missed != 0 || before[0].ID != 1003 {
		t.Errorf("just all: %d remembered, %d missed", len(before), missed)
	}
	id--
	if _, _, missed = b.Follow(Query{After: &id}); missed != 1 {
		t.Errorf("one too many: missed %d", missed)
	}
	if !slices.IsSorted(numbers(before)) || len(b.runs.list) != keptRuns || len(b.others.list) != 2 {
		t.Errorf("%d and %d remembered", len(b.runs.list), len(b.others.list))
	}
}

// EV-02: the bus's own counts, which /metrics shows, are those of all subscribers, also of those that left.
func TestStats(t *testing.T) {
	b := NewBus()
	deaf, wide := b.Subscribe(1), b.Subscribe(100)
	picky, _, _ := b.Follow(Query{Buffer: 1, NoRuns: true})
	for range 5 {
		b.Publish(Event{Kind: KindRunEnded})
		b.Publish(Event{Kind: KindReady})
	}
	if deaf.Dropped() != 9 || wide.Dropped() != 0 || picky.Dropped() != 4 {
		t.Errorf("dropped %d, %d, %d", deaf.Dropped(), wide.Dropped(), picky.Dropped())
	}
	deaf.Close()
	b.Publish(Event{Kind: KindRunEnded})
	if got, want := b.Stats(), (Stats{Published: 11, Dropped: 13, Subscribers: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// An event has room for names, numbers and a line of text. Bodies can't travel here: there is no field for bytes.
func TestEventsCarryNoBodies(t *testing.T) {
	e := reflect.TypeFor[Event]()
	for i := range e.NumField() {
		switch f := e.Field(i); f.Type.Kind() {
		case reflect.String, reflect.Int, reflect.Uint8, reflect.Uint32, reflect.Uint64, reflect.Int64:
		default:
			if f.Type != reflect.TypeFor[time.Time]() {
				t.Errorf("%s is a %v", f.Name, f.Type)
			}
		}
	}
}

// Publishing makes no garbage, whoever listens.
func TestPublishAllocatesNothing(t *testing.T) {
	b := NewBus()
	for range keptRuns + 1 {
		b.Publish(Event{Kind: KindRunEnded})
	}
	b.Subscribe(1)
	e := Event{At: time.Now(), Kind: KindRunEnded, RunID: "r", NodeID: "n"}
	patience.Allocations(t, 0, 1000, func() { b.Publish(e) })
}

func BenchmarkPublish(b *testing.B) {
	for _, c := range []struct {
		name string
		subs int
	}{{"nobody", 0}, {"one", 1}, {"sixteen", 16}} {
		b.Run(c.name, func(b *testing.B) {
			bus := NewBus()
			for range c.subs {
				bus.Subscribe(1)
			}
			e := Event{At: time.Now(), Kind: KindRunEnded, RunID: "run-0123456789", NodeID: "gpu-1", Adapter: "llama"}
			b.ReportAllocs()
			for b.Loop() {
				bus.Publish(e)
			}
		})
	}
}

// Many requests at once, as the edge has them.
func BenchmarkPublishParallel(b *testing.B) {
	bus := NewBus()
	e := Event{At: time.Now(), Kind: KindRunEnded, RunID: "run-0123456789", NodeID: "gpu-1", Adapter: "llama"}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			bus.Publish(e)
		}
	})
}
