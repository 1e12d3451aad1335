// Package events is the edge's in-process fan-out of what happens to nodes, links and runs.
//
// It owns the subscribers' buffers and nothing else. It must not block a publisher, keep history, start goroutines,
// limit rates or carry bodies; an event that a subscriber has no room for is dropped for that subscriber and counted.
package events

import (
	"sync"
	"sync/atomic"
	"time"
)

// Event is one thing that happened. Text is for people; code branches on Kind and Code. Fields that don't apply are
// zero. No field holds a secret or a caller's input.
type Event struct {
	At         time.Time // set by Publish when zero
	Kind       Kind
	NodeID     string
	Generation uint64 // the connection's, 0 = none yet
	Adapter    string
	RunID      string
	Code       string // the reason's stable name
	Text       string

	// Gap is how many events this subscriber lost directly before this one. Set by the bus.
	Gap uint64
}

// Bus passes events on to every subscriber that has room. The zero value is not usable, use [NewBus]. All methods may
// be called concurrently, also by a subscriber in the middle of its receive loop.
type Bus struct {
	mu   sync.Mutex
	subs map[*Subscription]struct{}
}

// NewBus returns a bus without subscribers.
func NewBus() *Bus { return &Bus{subs: make(map[*Subscription]struct{})} }

// Publish offers e to every subscriber. It never waits for one: who has no room loses the event and is told how many
// it lost. All subscribers see events in the same order.
func (b *Bus) Publish(e Event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		s.offerLocked(e)
	}
}

// Subscribe returns a subscription to what is published from now on, with room for buffer events (at least one).
func (b *Bus) Subscribe(buffer int) *Subscription {
	c := make(chan Event, max(buffer, 1))
	s := &Subscription{C: c, bus: b, send: c}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs[s] = struct{}{}
	return s
}

// Subscription is one subscriber's end. For every event published between Subscribe and Close it holds that received +
// Dropped = published.
type Subscription struct {
	// C delivers the events. It is closed by Close; what was buffered before can still be received.
	C <-chan Event

	bus     *Bus
	send    chan<- Event
	dropped atomic.Uint64

	// guarded by bus.mu
	gap uint64
}

// Dropped returns how many events were lost since Subscribe because the buffer was full.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Close ends the subscription; it returns at once, also while publishers publish, and may be called again.
func (s *Subscription) Close() {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	if _, ok := s.bus.subs[s]; !ok {
		return
	}
	delete(s.bus.subs, s)
	close(s.send)
}

func (s *Subscription) offerLocked(e Event) {
	e.Gap = s.gap
	select {
	case s.send <- e:
		s.gap = 0
	default:
		s.gap++
		s.dropped.Add(1)
	}
}
