package router

import "iop/packages/go/execution"

// Place is the right to one execution on one adapter. It is given back by Release; twice is a counted no-op.
type Place struct {
	router  *Router
	edge    string
	adapter *Adapter

	// guarded by Router.mu
	state placeState
}

type placeState uint8

const (
	placeHeld placeState = iota
	placeAbandoned
	placeFree
)

// Take checks that the Edge's adapter of that name has that revision, can be asked and has a place free, and takes the
// place. A refusal means that nothing was started.
func (r *Router) Take(edge, name string, revision uint64) (*Place, *execution.Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.findLocked(edge, name)
	switch {
	case a == nil:
		return nil, unknownAdapter()
	case a.revision != revision:
		return nil, execution.Failf(execution.CodeStaleProjection, execution.OriginNode,
			"the adapter is at revision %d, the request names %d", a.revision, revision)
	case a.provider == nil || !a.caps.Available:
		return nil, unavailable(a)
	}
	p := r.pools[a.pool()]
	if p == nil {
		p = &pool{held: map[*Place]struct{}{}}
	}
	if capacity := r.capacityLocked(a); len(p.held)+p.abandoned >= capacity {
		return nil, execution.Failf(execution.CodeAdapterBusy, execution.OriginNode, "all %d places are taken", capacity)
	}
	r.pools[a.pool()] = p
	place := &Place{router: r, edge: edge, adapter: a}
	p.held[place] = struct{}{}
	a.places++
	return place, nil
}

// Adapter returns the adapter whose place this is; it stays what it is when a refresh replaces it in the table.
func (p *Place) Adapter() *Adapter { return p.adapter }

// Release gives the place back, also one that was abandoned, and reports whether there was one to give.
func (p *Place) Release() bool {
	r := p.router
	r.mu.Lock()
	if p.state == placeFree {
		r.mu.Unlock()
		r.late.Add(1)
		return false
	}
	key := p.adapter.pool()
	pool := r.pools[key]
	abandoned := p.state == placeAbandoned
	if abandoned {
		pool.abandoned--
	}
	delete(pool.held, p)
	if len(pool.held) == 0 && pool.abandoned == 0 {
		delete(r.pools, key)
	}
	p.state = placeFree
	p.adapter.places--
	idle := p.adapter.doneLocked()
	r.mu.Unlock()
	if idle != nil {
		idle.Close()
	}
	if abandoned {
		r.tellOthers(p.edge)
	}
	return true
}

// Abandon says that the execution is over for everyone but its adapter, which didn't stop: the place isn't held any
// more, and the adapter's capacity is lower by one until Release.
func (p *Place) Abandon() bool {
	r := p.router
	if !r.abandon(p) {
		return false
	}
	r.tellOthers(p.edge)
	return true
}

func (r *Router) abandon(p *Place) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.state != placeHeld {
		r.late.Add(1)
		return false
	}
	pool := r.pools[p.adapter.pool()]
	delete(pool.held, p)
	pool.abandoned++
	p.state = placeAbandoned
	return true
}

func unknownAdapter() *execution.Failure {
	return execution.Failf(execution.CodeUnknownAdapter, execution.OriginNode, "this node has no adapter of that name")
}

func unavailable(a *Adapter) *execution.Failure {
	return execution.Failf(execution.CodeAdapterUnavailable, execution.OriginNode, "the provider is unavailable: %s", a.caps.Reason)
}
