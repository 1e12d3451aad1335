package admission

import "time"

// saturatedPause is the least time between two grants at a saturated place.
const saturatedPause = time.Second

type connKey struct {
	node       string
	generation uint64
}

// nodeEntry outlives a node's connections.
type nodeEntry struct {
	current *conn
	floor   uint64 // generations below it are over
	// breakers are by adapter. Adapters that aren't configured any more leave theirs behind: few, and small.
	breakers map[string]*breaker
	failures int // in a row, which trip them
}

// conn is one connection of a node as far as its places go. Everything here is guarded by Scheduler.mu.
type conn struct {
	key       connKey
	entry     *nodeEntry
	node      Node // valid when published
	published bool
	retired   bool // superseded or fenced
	reported  bool // OnUnconfirmed was called
	places    []*place
}

// place is one adapter of one connection. How many are in flight there is the size of holders.
type place struct {
	conn    *conn
	name    string
	adapter *Adapter // nil = not offered (any more)
	holders map[holderKey]*Grant
	sets    map[*candidateSet]struct{} // of which it is a candidate
	breaker *breaker                   // the adapter's, the same for all connections

	// saturation
	saturated bool
	nextGrant time.Time
	probe     *time.Timer
}

type holderKey struct {
	runID   string
	attempt uint32
}

// update takes a new snapshot in. Places keep their holders by adapter name; a mark of saturation stays where the node
// said nothing new.
func (c *conn) update(n Node) {
	c.node, c.published = n, true
	offered := make(map[string]*Adapter, len(n.Adapters))
	for i := range n.Adapters {
		offered[n.Adapters[i].Name] = &n.Adapters[i]
	}
	for _, p := range c.places {
		is := offered[p.name]
		if p.adapter == nil || is == nil || !p.adapter.equal(is) {
			p.desaturate()
		}
		if p.adapter != nil && is != nil && p.adapter.Revision != is.Revision {
			p.breaker.reset() // another configuration, another provider
		}
		p.adapter = is
	}
	for i := range n.Adapters {
		name := n.Adapters[i].Name
		c.placeOf(name).adapter = offered[name]
	}
}

// placeOf returns the place of that name, a new one when there is none.
func (c *conn) placeOf(name string) *place {
	if p := c.find(name); p != nil {
		return p
	}
	p := &place{conn: c, name: name, holders: make(map[holderKey]*Grant), sets: make(map[*candidateSet]struct{}),
		breaker: c.entry.breakerOf(name)}
	c.places = append(c.places, p)
	return p
}

func (c *conn) find(name string) *place {
	for _, p := range c.places {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (c *conn) holder(key holderKey) *Grant {
	for _, p := range c.places {
		if g := p.holders[key]; g != nil {
			return g
		}
	}
	return nil
}

func (c *conn) adopted() int {
	n := 0
	for _, p := range c.places {
		for _, g := range p.holders {
			if g.state == heldAdopted {
				n++
			}
		}
	}
	return n
}

func (c *conn) empty() bool {
	for _, p := range c.places {
		if len(p.holders) > 0 {
			return false
		}
	}
	return true
}

// lost says that nothing can be sent there any more.
func (p *place) lost() bool { return p.conn.retired || p.adapter == nil }

// candidate says that the place may be a member of candidate sets.
func (p *place) candidate() bool {
	return !p.lost() && p.conn.node.Dispatchable && p.adapter.Available
}

func (p *place) capacity() int {
	if p.lost() {
		return 0
	}
	return max(p.adapter.Capacity, 0)
}

// open says that the place, being a candidate, can take one more now.
func (p *place) open(now time.Time) bool {
	return len(p.holders) < p.capacity() && (!p.saturated || !now.Before(p.nextGrant)) && p.breaker.closed(now)
}

// Saturated says that the node refused an open as busy though a place seemed free: until an execution there ends or
// the node publishes something new of that adapter, the place gets at most one grant a second. Call it before
// Grant.Rejected, or use [Grant.RejectedBusy].
func (s *Scheduler) Saturated(at Place, generation uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var p *place
	if c := s.conns[connKey{at.Node, generation}]; c != nil {
		p = c.find(at.Adapter)
	}
	if p == nil || p.lost() {
		s.ignored.Stale++
		return
	}
	s.saturateLocked(p, time.Now())
}

// saturateLocked marks p, or takes the grant that the mark permits, and sees to it that somebody is offered the next.
func (s *Scheduler) saturateLocked(p *place, now time.Time) {
	p.saturated = true
	p.nextGrant = now.Add(saturatedPause)
	if p.probe != nil {
		p.probe.Reset(saturatedPause)
		return
	}
	p.probe = time.AfterFunc(saturatedPause, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.offerLocked([]*place{p}, time.Now())
	})
}

// desaturate takes the mark off; the caller offers the place.
func (p *place) desaturate() {
	p.saturated = false
	if p.probe != nil {
		p.probe.Stop()
	}
}

// freeLocked takes the holder out of its place and offers the place in the same breath.
func (s *Scheduler) freeLocked(g *Grant, now time.Time) {
	s.dropHolderLocked(g, now)
	c := g.p.conn
	switch {
	case c.retired:
		if c.empty() {
			delete(s.conns, c.key)
		}
	case g.p.adapter == nil:
		if len(g.p.holders) == 0 {
			c.forget(g.p)
		}
	default:
		s.offerLocked([]*place{g.p}, now)
	}
}

func (s *Scheduler) dropHolderLocked(g *Grant, now time.Time) {
	if g.state == heldDecided {
		s.unconfirmed.remove(g)
	}
	g.dropTrialLocked()
	g.state = heldFree
	delete(g.p.holders, g.key)
	g.account.giveBack(now)
}

func (c *conn) forget(gone *place) {
	for i, p := range c.places {
		if p == gone {
			c.places = append(c.places[:i:i], c.places[i+1:]...)
			return
		}
	}
}
