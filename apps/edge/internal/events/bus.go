// Package events is the edge's in-process fan-out of what happens to nodes, links and runs.
//
// It owns the subscribers' buffers and two bounded rings of what was published last. It must not block a publisher, start
// goroutines, limit rates or carry bodies; an event that a subscriber has no room for is dropped for that subscriber
// and counted. What a caller must learn of its run doesn't travel here: the run's outcome is returned to it.
package events

import (
	"sync"
	"sync/atomic"
	"time"
)

// Event is one thing that happened. Text is for people; code branches on Kind and Code. Fields that don't apply are
// zero. No field holds a secret, or anything of a prompt or an answer.
type Event struct {
	ID         uint64    // order of publication, from 1 without gaps; set by Publish
	At         time.Time // set by Publish when zero
	Kind       Kind
	NodeID     string
	Generation uint64 // the connection's, 0 = none yet
	Adapter    string
	Code       string // the reason's stable name
	Text       string

	// Of a run.
	RunID     string
	Attempt   uint32
	Principal string
	Model     string        // that was asked for
	Position  int           // in the queue, from 1
	After     time.Duration // since the run was submitted

	// Gap is how many events this subscriber lost directly before this one. Set by the bus.
	Gap uint64
}

// Bus passes events on to every subscriber that has room. The zero value is not usable, use [NewBus]. All methods may
// be called concurrently, also by a subscriber in the middle of its receive loop.
type Bus struct {
	mu      sync.Mutex
	subs    []*Subscription
	last    uint64 // ID of the newest event
	dropped uint64 // by all subscribers there ever were
	// What is remembered. Runs make thousands of events a second; they must not push out what happened to nodes.
	runs, others ring
}

// How many events a bus remembers.
const (
	keptRuns   = 4096
	keptOthers = 1024
)

// NewBus returns a bus without subscribers.
func NewBus() *Bus { return &Bus{runs: ring{most: keptRuns}, others: ring{most: keptOthers}} }

// Publish offers e to every subscriber. It never waits for one: who has no room loses the event and is told how many
// it lost. All subscribers see events in the same order.
func (b *Bus) Publish(e Event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	e.ID, e.Gap = b.last, 0
	r := &b.others
	if e.Kind.Run() {
		r = &b.runs
	}
	at := r.add(e) // not e itself, which then needs no memory of its own
	for _, s := range b.subs {
		s.offerLocked(at)
	}
}

// Query is what a subscriber wants.
type Query struct {
	// Buffer is how many events it may lag behind, at least one.
	Buffer int
	// NoRuns leaves out the steps of runs, NoOthers all else.
	NoRuns, NoOthers bool
	// Match chooses among the rest; nil = all. It is called under the bus's lock: it must be quick and not call the bus.
	Match func(*Event) bool
	// After asks for what was published after the event with this ID, as far as it is remembered. Nil = from now on.
	After *uint64
	// Last asks for this many of the events that were published before, when After is nil.
	Last int
	// LastEach asks for this many of the steps of runs and for as many of all else, when After is nil and Last is 0: the
	// former would push out the latter.
	LastEach int
}

func (q *Query) wants(e *Event) bool {
	if e.Kind.Run() && q.NoRuns || !e.Kind.Run() && q.NoOthers {
		return false
	}
	return q.Match == nil || q.Match(e)
}

// Follow returns a subscription to what is published from now on, and what the query asks for of what was published
// before, the oldest first. missed is 0 when all of that is remembered; else it is how many events after q.After aren't,
// whether they would have matched or not.
func (b *Bus) Follow(q Query) (s *Subscription, before []Event, missed uint64) {
	c := make(chan Event, max(q.Buffer, 1))
	s = &Subscription{C: c, bus: b, send: c, query: q}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs = append(b.subs, s)
	switch {
	case q.After != nil:
		before, missed = b.sinceLocked(*q.After, &s.query)
	case q.Last > 0:
		before, _ = b.sinceLocked(0, &s.query)
		before = before[max(0, len(before)-q.Last):]
	case q.LastEach > 0:
		before, _ = b.sinceLocked(0, &s.query)
		before = lastEach(before, q.LastEach)
	}
	return s, before, missed
}

// lastEach keeps the last n of the steps of runs and of all else.
func lastEach(all []Event, n int) []Event {
	left := map[bool]int{true: n, false: n}
	kept := len(all) // what is kept stands from here on
	for i := len(all) - 1; i >= 0; i-- {
		if run := all[i].Kind.Run(); left[run] > 0 {
			left[run]--
			kept--
			all[kept] = all[i]
		}
	}
	return all[kept:]
}

// sinceLocked copies what is wanted of the events after the one with this ID.
func (b *Bus) sinceLocked(id uint64, q *Query) (found []Event, missed uint64) {
	i, j := b.runs.after(id), b.others.after(id)
	if !q.NoRuns && b.runs.lost > id || !q.NoOthers && b.others.lost > id {
		missed = b.last - id - uint64(len(b.runs.list)-i) - uint64(len(b.others.list)-j)
	}
	for i < len(b.runs.list) || j < len(b.others.list) {
		var e *Event
		if j == len(b.others.list) || i < len(b.runs.list) && b.runs.at(i).ID < b.others.at(j).ID {
			e = b.runs.at(i)
			i++
		} else {
			e = b.others.at(j)
			j++
		}
		if q.wants(e) {
			found = append(found, *e)
		}
	}
	return found, missed
}

// Subscribe returns a subscription to every event that is published from now on, with room for buffer events (at least
// one).
func (b *Bus) Subscribe(buffer int) *Subscription {
	s, _, _ := b.Follow(Query{Buffer: buffer})
	return s
}

// Stats is what a bus has done.
type Stats struct {
	Published   uint64
	Dropped     uint64 // by all subscribers together
	Subscribers int    // now
}

// Stats returns the counts.
func (b *Bus) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Stats{Published: b.last, Dropped: b.dropped, Subscribers: len(b.subs)}
}

// Subscription is one subscriber's end. For every event that its query wants and that is published between its beginning and
// Close it holds that received + Dropped = published.
type Subscription struct {
	// C delivers the events. It is closed by Close; what was buffered before can still be received.
	C <-chan Event

	bus     *Bus
	send    chan<- Event
	query   Query
	dropped atomic.Uint64

	// guarded by bus.mu
	gap uint64
}

// Dropped returns how many events were lost because the buffer was full.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Close ends the subscription; it returns at once, also while publishers publish, and may be called again.
func (s *Subscription) Close() {
	b := s.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.subs {
		if b.subs[i] == s {
			b.subs = append(b.subs[:i:i], b.subs[i+1:]...)
			close(s.send)
			return
		}
	}
}

func (s *Subscription) offerLocked(e *Event) {
	if !s.query.wants(e) {
		return
	}
	out := *e
	out.Gap = s.gap
	select {
	case s.send <- out:
		s.gap = 0
	default:
		s.gap++
		s.dropped.Add(1)
		s.bus.dropped++
	}
}
