package node

import (
	"fmt"
	"time"

	"iop/packages/go/config"
)

// maxLeaving is how many connections of a node may finish what runs on them beside the current one. Each renewal of a
// certificate makes one, and it lasts no longer than that certificate.
const maxLeaving = 4

// unidentified says why the node of this connection isn't who it was when it registered, "" if it is.
func (c *Connection) unidentified(state *config.State, now time.Time) string {
	if !state.Edge.Managed() {
		return ""
	}
	rec := state.Node(c.NodeID)
	if rec == nil {
		return "the node was taken out of the edge's configuration"
	}
	return rec.Accepts(c.Peer, now)
}

// Expiring keeps new work from a node whose certificate ends soon.
func (c *Connection) Expiring() { c.update(func(s *status) { s.expiring = true }) }

// HandedOver is closed once another connection of the node has taken over in order: this one ends when what runs on it
// has.
func (c *Connection) HandedOver() <-chan struct{} { return c.handed }

func (c *Connection) isSucceeded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.st.succeeded
}

// succeed keeps new work from old, whose place c has taken.
func (r *Registry) succeed(old, c *Connection) {
	text := fmt.Sprintf("connection %d has taken over", c.Generation)
	r.remember(old, "handed over: "+text) // what it offered is on offer until c is ready
	old.update(func(s *status) { s.succeeded = true })
	close(old.handed) // once: only the current connection is ever succeeded
	if excess := r.excess(old.NodeID); excess != nil {
		r.Fence(excess, FenceSuperseded, text)
	}
}

// excess returns the oldest leaving connection if there are too many.
func (r *Registry) excess(nodeID string) *Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entryLocked(nodeID); len(e.leaving) > maxLeaving {
		return e.leaving[0]
	}
	return nil
}

// leaver returns the connection of that generation if it still finishes what runs on it.
func (r *Registry) leaver(nodeID string, generation uint64) *Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[nodeID]; e != nil {
		for _, c := range e.leaving {
			if c.Generation == generation && !c.over.Load() {
				return c
			}
		}
	}
	return nil
}

// all returns every connection, those that leave included.
func (r *Registry) all() []*Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*Connection
	for _, e := range r.entries {
		if e.current != nil {
			all = append(all, e.current)
		}
		all = append(all, e.leaving...)
	}
	return all
}
