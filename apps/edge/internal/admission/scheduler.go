// Package admission chooses where a run executes, bounds how many do, and keeps those waiting who find no place.
//
// It owns the places (one set of holders for each adapter of each connection), the candidate sets with their queues,
// and the marks of saturation. It has one mutex and no goroutine. It must not do I/O, know frames, sessions or HTTP, or
// decide an outcome: the caller drives the run and tells it what became of the place.
//
// One invariant carries the queue: when the mutex is free, nobody waits who could take a free place. So a newcomer who
// sees one overtakes nobody, and whatever frees or adds a place offers it before it unlocks.
package admission

import (
	"cmp"
	"sync"
	"time"

	"iop/packages/go/execution"
)

// DefaultConfirmLimit is the ConfirmLimit of a zero Config.
const DefaultConfirmLimit = 60 * time.Second

// Config is what a Scheduler needs. The zero value works.
type Config struct {
	// ConfirmLimit is how long a place stays held after the run's outcome was decided and before the node has said
	// that the execution ended. Zero = DefaultConfirmLimit.
	ConfirmLimit time.Duration
	// OnUnconfirmed is called, from a goroutine of its own and without a lock held, when a place of that connection
	// was held longer than ConfirmLimit; once a connection. It is expected to fence it. Nil = nobody is told.
	OnUnconfirmed func(node string, generation uint64)
	// Failures is how many in a row take an adapter out for a while. Zero = 5.
	Failures int
}

// Scheduler admits runs to places. The zero value is not usable, use [New]. All methods may be called concurrently;
// none blocks but Acquire.
type Scheduler struct {
	confirmLimit  time.Duration
	onUnconfirmed func(node string, generation uint64)
	failures      int

	mu          sync.Mutex
	draining    bool
	arrivals    uint64
	nodes       map[string]*nodeEntry
	entries     []*nodeEntry      // those of nodes in the order in which they came: what is tied is decided by it
	conns       map[connKey]*conn // current ones, and superseded ones that still have holders
	sets        map[string]*candidateSet
	sweepAt     int             // number of sets at which the idle ones are looked for
	waiting     []*candidateSet // the sets in which somebody waits
	accounts    map[string]*account
	contending  []*account    // those who wait
	hold        time.Duration // what an execution is expected to take
	floor       time.Duration // see floorLocked
	floorServed bool
	floorAt     time.Time
	queued      map[string]int // how many wait, by Request.Queue; no zeros
	unconfirmed confirmList
	ignored     Ignored
}

// New returns a scheduler that knows no node.
func New(cfg Config) *Scheduler {
	s := &Scheduler{
		confirmLimit:  cfg.ConfirmLimit,
		onUnconfirmed: cfg.OnUnconfirmed,
		failures:      cmp.Or(cfg.Failures, breakerFailures),
		nodes:         make(map[string]*nodeEntry),
		conns:         make(map[connKey]*conn),
		sets:          make(map[string]*candidateSet),
		queued:        make(map[string]int),
		accounts:      make(map[string]*account),
		hold:          holdFirst,
		sweepAt:       minSweep,
	}
	if s.confirmLimit <= 0 {
		s.confirmLimit = DefaultConfirmLimit
	}
	return s
}

// Publish replaces what is known of a node's current connection. The same again changes nothing; a generation lower
// than one seen, or fenced, is ignored. Places that are new or free are offered to those who wait; an adapter that is
// gone loses its places as they are freed, and a capacity below the number of holders ends nobody.
func (s *Scheduler) Publish(n Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.admitLocked(connKey{n.ID, n.Generation})
	if c == nil || c.published && c.node.equal(&n) {
		return
	}
	c.update(n)
	s.relinkLocked(c)
	s.refuseHopelessLocked()
	s.offerLocked(c.places, time.Now())
}

// maxAdopted is how many executions of earlier connections one connection may hold places for. A node reports what it
// executes, which no configuration makes that many; one that invents runs would have the scheduler keep them all.
const maxAdopted = 16 << 10

// Adopt makes holders of executions that a node's new connection reported as running. Runs that hold a place of this
// connection already are left alone, so the same report may come again. Adopted holders may exceed a capacity.
func (s *Scheduler) Adopt(node string, generation uint64, runs []Adopted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.admitLocked(connKey{node, generation})
	if c == nil {
		return
	}
	held := c.adopted()
	for i, run := range runs {
		key := holderKey{run.RunID, run.Attempt}
		if c.holder(key) != nil {
			continue
		}
		if held == maxAdopted {
			s.ignored.Adopt += uint64(len(runs) - i)
			break
		}
		held++
		p := c.placeOf(run.Adapter)
		p.holders[key] = &Grant{Place: Place{node, run.Adapter}, Generation: generation, s: s, p: p, key: key,
			state: heldAdopted}
	}
	s.refuseHopelessLocked() // when this is the first word of a new connection
}

// Fence frees every place that is held at that generation of the node, and nothing else. Its adapters are no
// candidates any more; later words about this generation are ignored.
func (s *Scheduler) Fence(node string, generation uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entryLocked(node)
	e.floor = max(e.floor, generation+1)
	if e.current != nil && e.current.key.generation < e.floor {
		s.retireLocked(e)
		s.refuseHopelessLocked()
	}
	c := s.conns[connKey{node, generation}]
	if c == nil {
		return
	}
	now := time.Now()
	for _, p := range c.places {
		for _, g := range p.holders {
			s.dropHolderLocked(g, now)
		}
	}
	delete(s.conns, c.key)
}

// Ended says that the node's execution is over (RunEnded): the place is free. False = no such holder; nothing changed.
func (s *Scheduler) Ended(node string, generation uint64, runID string, attempt uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var g *Grant
	if c := s.conns[connKey{node, generation}]; c != nil {
		g = c.holder(holderKey{runID, attempt})
	}
	if g == nil || g.state == heldUnsent {
		s.ignored.Ended++
		return false
	}
	now := time.Now()
	if g.set != nil {
		g.set.endings.add(now)
		s.learnLocked(now.Sub(g.since))
	}
	g.p.desaturate()
	g.ended = true
	s.freeLocked(g, now)
	return true
}

// Drain refuses everybody who waits or comes later with edge_draining. Places that are held stay held.
func (s *Scheduler) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	now := time.Now()
	for len(s.waiting) > 0 {
		w := s.waiting[0].any()
		s.settleLocked(w, nil, w.set.refusal(execution.CodeEdgeDraining, w.set.queued, now), now)
		s.dropUnusedLocked(w.set)
	}
}

// entryLocked returns what is known of the node's connections; entries stay, there are as many as configured nodes.
func (s *Scheduler) entryLocked(node string) *nodeEntry {
	e := s.nodes[node]
	if e == nil {
		e = &nodeEntry{failures: s.failures}
		s.nodes[node] = e
		s.entries = append(s.entries, e)
	}
	return e
}

// admitLocked returns the connection that a word of this generation is about, and makes it the node's current one. Nil
// means that the word comes too late; it was counted.
func (s *Scheduler) admitLocked(key connKey) *conn {
	e := s.entryLocked(key.node)
	if key.generation < e.floor || e.current != nil && key.generation < e.current.key.generation {
		s.ignored.Stale++
		return nil
	}
	if e.current != nil && e.current.key == key {
		return e.current
	}
	if e.current != nil {
		s.retireLocked(e)
	}
	c := &conn{key: key, entry: e}
	e.current = c
	s.conns[key] = c
	return c
}

// retireLocked ends the candidacy of the node's current connection. Its holders stay until they are freed or fenced.
// The caller refuses the hopeless once it is known whether a successor brings candidates.
func (s *Scheduler) retireLocked(e *nodeEntry) {
	c := e.current
	e.current = nil
	c.retired = true
	for _, p := range c.places {
		p.desaturate()
	}
	s.relinkLocked(c)
	if c.empty() {
		delete(s.conns, c.key)
	}
}
