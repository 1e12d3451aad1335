package admission

import "time"

// How a breaker behaves.
const (
	breakerFailures = 5 // in a row, unless the configuration says otherwise
	breakerPause    = 5 * time.Second
	breakerMost     = 2 * time.Minute
)

// breaker takes an adapter out that fails again and again, so that requests go to others or wait instead of failing
// there. It belongs to the node's adapter and outlives connections: a broken provider isn't mended by a new link. After
// a pause one execution tries; its success closes the breaker, its failure doubles the pause.
type breaker struct {
	failures int       // in a row
	counted  time.Time // when the last of them was
	most     int       // of them
	why      string
	until    time.Time // when the next may try; meaningful when tripped
	pause    time.Duration
	trial    *Grant // who tries
	wake     *time.Timer
}

func (b *breaker) tripped() bool { return b.failures >= b.most }

// closed reports whether a grant is permitted: always, or, when it tripped, one after the pause.
func (b *breaker) closed(now time.Time) bool {
	return !b.tripped() || b.trial == nil && !now.Before(b.until)
}

func (b *breaker) reset() {
	if b.wake != nil {
		b.wake.Stop()
	}
	*b = breaker{most: b.most}
}

// breakerOf returns the breaker of a node's adapter.
func (e *nodeEntry) breakerOf(adapter string) *breaker {
	b := e.breakers[adapter]
	if b == nil {
		b = &breaker{most: e.failures}
		if e.breakers == nil {
			e.breakers = make(map[string]*breaker)
		}
		e.breakers[adapter] = b
	}
	return b
}

// Verdict is what an execution's outcome says about the adapter that it ran at.
type Verdict uint8

// The verdicts. The zero value says nothing: the caller left, the request was bad, the node was lost.
const (
	Unsaid  Verdict = iota
	Healthy         // the provider did what was asked
	Faulty          // the provider couldn't be reached, broke off, or was silent
)

// Judge says what the outcome of an execution says about the adapter, whatever has become of its place. Why is for
// people.
func (g *Grant) Judge(v Verdict, why string) {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	b, now := g.p.breaker, time.Now()
	tried := b.trial == g
	switch {
	case v == Healthy && (tried || !b.tripped()): // one that began before it tripped says nothing new
		b.reset()
		s.offerLocked([]*place{g.p}, now)
	case v == Faulty && !tried && g.since.Before(b.counted): // of one incident, however many it ended
	case v == Faulty && (tried || !b.tripped()):
		b.counted = now
		b.failures++
		b.why = why
		b.trial = nil
		if b.tripped() {
			s.tripLocked(g.p, b, now)
		}
	case tried:
		b.trial = nil
		s.offerLocked([]*place{g.p}, now)
	}
}

// tripLocked keeps the adapter out for a while, and offers it when that is over.
func (s *Scheduler) tripLocked(p *place, b *breaker, now time.Time) {
	b.pause = min(max(2*b.pause, breakerPause), breakerMost)
	b.until = now.Add(b.pause)
	node := p.conn.key.node
	if b.wake != nil {
		b.wake.Stop()
	}
	b.wake = time.AfterFunc(b.pause, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e := s.nodes[node]; e != nil && e.current != nil {
			s.offerLocked(e.current.places, time.Now())
		}
	})
}

// dropTrialLocked lets another try when the one who did has lost its place before anything could be known.
func (g *Grant) dropTrialLocked() {
	if b := g.p.breaker; b.trial == g && !g.ended && g.state != heldDecided {
		b.trial = nil
	}
}
