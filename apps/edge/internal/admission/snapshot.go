package admission

import (
	"cmp"
	"slices"
	"time"
)

// Snapshot is the state of a Scheduler at one moment, sorted by name.
type Snapshot struct {
	Draining bool
	Queued   int // in all sets
	Sets     []SetSnapshot
	Places   []PlaceSnapshot
	Ignored  Ignored
}

// SetSnapshot is one candidate set.
type SetSnapshot struct {
	Set        string
	Queued     int
	Candidates int
}

// PlaceSnapshot is one adapter of one connection that is current or still has holders.
type PlaceSnapshot struct {
	Place
	Generation  uint64
	Capacity    int  // 0 also when the adapter was removed or the connection is over
	InFlight    int  // holders, the two below included
	Unconfirmed int  // outcome decided, end not yet confirmed
	Adopted     int  // running since an earlier connection
	Candidate   bool // dispatchable and available
	Saturated   bool
	Broken      *Broken // nil = it isn't
}

// Broken says why an adapter is taken out for a while.
type Broken struct {
	Failures int // in a row
	Why      string
	Until    time.Time // when one execution may try
	Trying   bool      // one does now
}

// Ignored counts the calls that changed nothing because of the state that they found.
type Ignored struct {
	Sent, Release, Rejected, Decided uint64 // not allowed in that state, or the place was freed before
	Ended                            uint64 // unknown run, other attempt, other generation
	Adopt                            uint64 // runs beyond what a connection may report
	Stale                            uint64 // Publish, Adopt, Saturated of a generation that is over
}

// Snapshot returns what is held and who waits. It holds the lock for one walk over places and their holders.
func (s *Scheduler) Snapshot() Snapshot {
	snap := s.collect()
	slices.SortFunc(snap.Sets, func(a, b SetSnapshot) int { return cmp.Compare(a.Set, b.Set) })
	slices.SortFunc(snap.Places, func(a, b PlaceSnapshot) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Adapter, b.Adapter))
	})
	return snap
}

func (s *Scheduler) collect() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := Snapshot{Draining: s.draining, Ignored: s.ignored, Sets: make([]SetSnapshot, 0, len(s.sets))}
	for _, set := range s.sets {
		snap.Queued += set.queued
		snap.Sets = append(snap.Sets, SetSnapshot{set.name, set.queued, len(set.candidates)})
	}
	for _, c := range s.conns {
		for _, p := range c.places {
			snap.Places = append(snap.Places, p.snapshot())
		}
	}
	return snap
}

func (p *place) snapshot() PlaceSnapshot {
	snap := PlaceSnapshot{
		Place:      Place{p.conn.key.node, p.name},
		Generation: p.conn.key.generation,
		Capacity:   p.capacity(),
		InFlight:   len(p.holders),
		Candidate:  p.candidate(),
		Saturated:  p.saturated,
	}
	if b := p.breaker; b.tripped() {
		snap.Broken = &Broken{Failures: b.failures, Why: b.why, Until: b.until, Trying: b.trial != nil}
	}
	for _, g := range p.holders {
		switch g.state {
		case heldDecided:
			snap.Unconfirmed++
		case heldAdopted:
			snap.Adopted++
		}
	}
	return snap
}
