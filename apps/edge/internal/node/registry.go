// Package node owns what the edge knows of its nodes: which connection of each is the current one, what state that
// connection is in, what the node last said of itself, and the connection generations.
//
// A connection comes in by [Registry.Commit] and goes out by [Registry.Fence], each exactly once; the scheduler and the
// event bus learn of every change from here. The package must not listen, shake hands or read from a connection
// (apps/edge/internal/transport does), choose where runs go (admission does), or drive them (service does). It holds
// the registry's lock for map operations only, never across I/O or a call.
package node

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	"iop/packages/go/faultpoint"
	pb "iop/proto/iop"
)

// Scheduler is what the registry tells of places. [admission.Scheduler] is one. None of its methods blocks, and none
// calls the registry before it has returned.
type Scheduler interface {
	Publish(n admission.Node)
	Adopt(node string, generation uint64, runs []admission.Adopted)
	Ended(node string, generation uint64, runID string, attempt uint32) bool
	Fence(node string, generation uint64)
}

// Publisher takes events; [events.Bus] is one. Publish never blocks.
type Publisher interface {
	Publish(e events.Event)
}

// Config is what a Registry needs.
type Config struct {
	// State returns the configuration in force. It is called with the registry's lock held: it must be a load of a
	// pointer.
	State func() *config.State
	// Scheduler is told what each node offers.
	Scheduler Scheduler
	// Events gets every change of a connection's life, with its reason.
	Events Publisher
	// Generations numbers the connections.
	Generations *Generations
	// ModelLinger is how long the models of a node that lost its link are still listed. Default 60 s.
	ModelLinger time.Duration
	// Misses is how many opens in a row may go unanswered before a node gets no more work. Default 3.
	Misses int
	// Log gets a line for each of those changes.
	Log zerolog.Logger
	// Faults is asked at the points of a connection; nil is nobody.
	Faults *faultpoint.Hooks
}

// ErrRaced says that a commit found another state than the one it was prepared for: begin the round again.
var ErrRaced = errors.New("the node's connection or configuration changed meanwhile")

// Registry holds at most one current connection for each node. Its methods may be called concurrently.
type Registry struct {
	cfg     Config
	ignored ignored // of all connections
	ended   fences

	mu       sync.Mutex
	entries  map[string]*entry
	draining *pb.DrainNotice // set once the edge drains
}

// entry is what the registry keeps of one node, also between its connections.
type entry struct {
	current    *Connection
	last       uint64        // the highest generation that was committed
	contending bool          // a candidate is probing the current connection
	leaving    []*Connection // that finish what runs there while current takes the new work, oldest first
	drained    bool          // an operator keeps new work from the node
	turns      turns         // whether one token is used from two machines
	gone       *departed     // nil = none yet
}

// departed is what the last connection of a node left behind, for people and for model lists.
type departed struct {
	view NodeView
	over time.Time       // when it ended
	why  string          // and why
	at   time.Time       // when the models below were last on offer
	list []AdapterModels // of the last connection that was ready
}

// New returns a registry that knows no connection.
func New(cfg Config) *Registry {
	if cfg.ModelLinger == 0 {
		cfg.ModelLinger = time.Minute
	}
	if cfg.Misses == 0 {
		cfg.Misses = 3
	}
	return &Registry{cfg: cfg, entries: make(map[string]*entry)}
}

// Reserve returns the next connection generation. It fences nothing yet.
func (r *Registry) Reserve() (uint64, error) { return r.cfg.Generations.Next() }

// EdgeID returns the id under which this edge introduces itself.
func (r *Registry) EdgeID() string { return r.cfg.Generations.EdgeID() }

// State returns the configuration in force.
func (r *Registry) State() *config.State { return r.cfg.State() }

// Lookup returns the connection of that node and generation, nil unless it is the current one or one that finishes what
// runs on it.
func (r *Registry) Lookup(nodeID string, generation uint64) *Connection {
	if c := r.Current(nodeID); c != nil && c.Generation == generation {
		return c
	}
	return r.leaver(nodeID, generation)
}

// Current returns the node's current connection, or nil. What it returns may be fenced a moment later.
func (r *Registry) Current(nodeID string) *Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[nodeID]
	if e == nil || e.current == nil || e.current.over.Load() {
		return nil
	}
	return e.current
}

// Connections returns every current connection.
func (r *Registry) Connections() []*Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*Connection, 0, len(r.entries))
	for _, e := range r.entries {
		if e.current != nil {
			all = append(all, e.current)
		}
	}
	return all
}

// Contend claims the right to probe the node's current connection; there is one at a time. The caller gives it back by
// calling settle.
func (r *Registry) Contend(nodeID string) (settle func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entryLocked(nodeID)
	if e.contending {
		return nil, false
	}
	e.contending = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		e.contending = false
	}, true
}

func (r *Registry) entryLocked(nodeID string) *entry {
	e := r.entries[nodeID]
	if e == nil {
		e = &entry{}
		r.entries[nodeID] = e
	}
	return e
}

// Commit makes c the current connection of its node, if what it was prepared for still holds: the record accepts the
// token, the projection is the one that c will be told, the edge doesn't drain, and the connection that c replaces has
// the expected generation or is gone. Otherwise the error is a *Refusal or ErrRaced, and nothing changed. What c
// replaces is fenced before Commit returns, or, at a handover, gets no new work from then on.
func (r *Registry) Commit(c *Connection, expected uint64) error {
	replaced, err := r.swap(c, expected)
	if err == error(errCloned) {
		r.disown(c.NodeID)
	}
	if err != nil {
		return err
	}
	switch {
	case replaced != nil && c.Handover && !replaced.Over():
		r.succeed(replaced, c)
	case replaced != nil:
		// A node that is back at once may be faster than the goroutine that notices its old connection's end: what
		// ended that is the reason then, as when a peer broke the rules.
		reason, text, over := replaced.Ended()
		if !over {
			reason, text = FenceSuperseded, fmt.Sprintf("by connection %d", c.Generation)
		}
		r.Fence(replaced, reason, text)
	}
	c.announceRegistered()
	return nil
}

// swap is the critical section of Commit.
func (r *Registry) swap(c *Connection, expected uint64) (replaced *Connection, err error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, refusal := r.verifyLocked(c.Token, c.Peer, now)
	if refusal != nil {
		return nil, refusal
	}
	p := r.cfg.State().Projection(c.NodeID)
	if rec.ID != c.NodeID || p == nil || p.Number != c.projection.Number {
		return nil, ErrRaced
	}
	e := r.entryLocked(c.NodeID)
	// One that is fenced, but not yet removed, is gone: Current doesn't show it either.
	live := e.current != nil && !e.current.over.Load()
	if live && e.current.Generation != expected || c.Generation <= e.last {
		return nil, ErrRaced
	}
	if e.turns.take(c.InstanceID, now) {
		e.turns = turns{cloned: &c.Token}
		return nil, errCloned
	}
	c.keepFromWork(e.drained)
	replaced, e.current, e.last = e.current, c, c.Generation
	if live && c.Handover {
		e.leaving = append(e.leaving, replaced)
	}
	return replaced, nil
}

// Drain refuses every registration from now on and tells every node to dial elsewhere. Connections stay; what runs on
// them goes on.
func (r *Registry) Drain(grace, reconnectAfter time.Duration) {
	notice := &pb.DrainNotice{GraceMs: grace.Milliseconds(), ReconnectAfterMs: reconnectAfter.Milliseconds()}
	r.mu.Lock()
	r.draining = notice
	r.mu.Unlock()
	for _, c := range r.Connections() {
		c.edgeDrains(notice)
	}
}

// Draining reports whether Drain was called.
func (r *Registry) Draining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.draining != nil
}
