// Package router owns the node's adapter table and the places of each adapter: which providers each Edge's projection
// names, which of them may be asked now, and how many executions each has. Lookup, revision check and the taking of a
// place are one critical section.
//
// It builds no provider, asks none anything, reads no wire message and writes no log; the executor does.
package router

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"iop/packages/go/execution"
)

// Spec is an adapter as an Edge's projection describes it.
type Spec struct {
	Name       string
	Kind       string
	BaseURL    string
	Revision   uint64 // the projection's number for this content; a request must name it
	Capacity   int    // executions at once
	AllowPaths []string
	Targets    []string
	Options    map[string]string
}

// Same reports whether both specs describe the same adapter. Revisions don't count: an Edge that restarted may number
// the same content anew.
func (s *Spec) Same(o *Spec) bool {
	return s.Name == o.Name && s.Kind == o.Kind && s.BaseURL == o.BaseURL && s.Capacity == o.Capacity &&
		slices.Equal(s.AllowPaths, o.AllowPaths) && slices.Equal(s.Targets, o.Targets) && maps.Equal(s.Options, o.Options)
}

// Adapter is one entry of the table.
type Adapter struct {
	// set once
	spec     Spec
	provider execution.Provider // nil: it couldn't be built

	// guarded by Router.mu
	revision uint64
	caps     execution.Capabilities
	places   int  // held and abandoned ones that were taken here
	borrowed int  // uses of the driver that take no place
	listed   bool // in a table
	closed   bool
}

// NewAdapter returns an adapter that is in no table yet. provider nil stands for one that couldn't be built. caps is
// what is known before the first Observe; why it can't be asked yet, or never.
func NewAdapter(spec Spec, provider execution.Provider, caps execution.Capabilities) *Adapter {
	return &Adapter{spec: spec, provider: provider, revision: spec.Revision, caps: caps}
}

// Spec returns what the adapter was built from. Its Revision is the one at that time.
func (a *Adapter) Spec() *Spec { return &a.spec }

// Provider returns the driver, nil if it couldn't be built.
func (a *Adapter) Provider() execution.Provider { return a.provider }

// Entry is one adapter of a new table: a new one, or one of the old table under its new revision.
type Entry struct {
	Adapter  *Adapter
	Revision uint64
}

// State is what one adapter shows of itself.
type State struct {
	Name     string
	Kind     string
	Revision uint64
	Capacity int // what is left of the configured one after abandoned executions
	InFlight int // executions for this Edge
	Caps     execution.Capabilities
}

// poolKey names a provider across Edges: the same adapter in two projections is one provider, and the smaller capacity
// of both protects it.
type poolKey struct{ name, kind, baseURL string }

type pool struct {
	held      map[*Place]struct{}
	abandoned int
}

// Router is the table of all Edges. Its methods may be called concurrently.
type Router struct {
	late atomic.Int64

	mu     sync.Mutex
	tables map[string][]*Adapter // by Edge, in the projection's order
	tell   map[string]func()     // by Edge
	pools  map[poolKey]*pool     // only those that hold something
}

// New returns an empty table.
func New() *Router {
	return &Router{tables: map[string][]*Adapter{}, pools: map[poolKey]*pool{}, tell: map[string]func(){}}
}

// Watch has an Edge's side told when what another Edge's side did may have changed the capacity of a provider that both
// name. changed is called without a lock; it must not block.
func (r *Router) Watch(edge string, changed func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tell[edge] = changed
}

// tellOthers calls those who watch for other Edges.
func (r *Router) tellOthers(edge string) {
	var tell []func()
	r.mu.Lock()
	for e, changed := range r.tell {
		if e != edge {
			tell = append(tell, changed)
		}
	}
	r.mu.Unlock()
	for _, changed := range tell {
		changed()
	}
}

// Find returns the Edge's adapter of that name, or nil.
func (r *Router) Find(edge, name string) *Adapter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.findLocked(edge, name)
}

func (r *Router) findLocked(edge, name string) *Adapter {
	for _, a := range r.tables[edge] {
		if a.spec.Name == name {
			return a
		}
	}
	return nil
}

// Borrow returns the driver of the Edge's adapter of that name for a use that takes no place, and keeps it open until
// back is called, once. What the adapter is at, and whether its provider can be reached, doesn't matter.
func (r *Router) Borrow(edge, name string) (p execution.Provider, back func(), f *execution.Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.findLocked(edge, name)
	switch {
	case a == nil:
		return nil, nil, unknownAdapter()
	case a.provider == nil:
		return nil, nil, unavailable(a)
	}
	a.borrowed++
	return a.provider, func() { r.giveBack(a) }, nil
}

func (r *Router) giveBack(a *Adapter) {
	r.mu.Lock()
	a.borrowed--
	idle := a.doneLocked()
	r.mu.Unlock()
	if idle != nil {
		idle.Close()
	}
}

// Adapters returns the Edge's adapters.
func (r *Router) Adapters(edge string) []*Adapter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.tables[edge])
}

// Swap replaces the Edge's table. Executions on adapters that are no longer listed run to their end; such an adapter's
// driver is closed when the last of them has ended.
func (r *Router) Swap(edge string, next []Entry) {
	r.mu.Lock()
	old := r.tables[edge]
	table := make([]*Adapter, 0, len(next))
	for _, a := range old {
		a.listed = false
	}
	for _, e := range next {
		e.Adapter.listed, e.Adapter.revision = true, e.Revision
		table = append(table, e.Adapter)
	}
	r.tables[edge] = table
	var idle []execution.Provider
	for _, a := range old {
		if p := a.doneLocked(); p != nil {
			idle = append(idle, p)
		}
	}
	r.mu.Unlock()
	for _, p := range idle {
		p.Close()
	}
	r.tellOthers(edge)
}

// doneLocked returns the driver if it must be closed now: once, when nothing lists or uses it any more.
func (a *Adapter) doneLocked() execution.Provider {
	if a.listed || a.closed || a.places > 0 || a.borrowed > 0 || a.provider == nil {
		return nil
	}
	a.closed = true
	return a.provider
}

// Observe takes what a provider said of itself and reports whether that changed anything. A probe that merely ran out
// of time (unanswered) tells nothing about a provider that is at work: such an adapter keeps its state.
func (r *Router) Observe(a *Adapter, caps execution.Capabilities, unanswered bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if unanswered && a.caps.Available && a.places > 0 {
		return false
	}
	if a.caps.Available == caps.Available && a.caps.Reason == caps.Reason && a.caps.Version == caps.Version &&
		slices.Equal(a.caps.Models, caps.Models) {
		return false
	}
	a.caps = caps
	return true
}

// Snapshot returns the state of the Edge's adapters, in the projection's order.
func (r *Router) Snapshot(edge string) []State {
	r.mu.Lock()
	defer r.mu.Unlock()
	states := make([]State, 0, len(r.tables[edge]))
	for _, a := range r.tables[edge] {
		s := State{Name: a.spec.Name, Kind: a.spec.Kind, Revision: a.revision, Capacity: r.capacityLocked(a), Caps: a.caps}
		if p := r.pools[a.pool()]; p != nil {
			s.Capacity = max(0, s.Capacity-p.abandoned)
			for h := range p.held {
				if h.edge == edge {
					s.InFlight++
				}
			}
		}
		states = append(states, s)
	}
	return states
}

// capacityLocked returns the least that any Edge whose projection names a's provider says that it can take.
func (r *Router) capacityLocked(a *Adapter) int {
	least, key := a.spec.Capacity, a.pool()
	for _, table := range r.tables {
		for _, o := range table {
			if o.spec.Capacity < least && o.pool() == key {
				least = o.spec.Capacity
			}
		}
	}
	return least
}

func (a *Adapter) pool() poolKey { return poolKey{a.spec.Name, a.spec.Kind, a.spec.BaseURL} }

// LateReleases counts the places that were given back a second time; each of them was a no-op.
func (r *Router) LateReleases() int64 { return r.late.Load() }
