package admission

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"iop/packages/go/execution"
)

// model says what the scheduler must do, in the words of the tables: flat lists, searched from end to end, nothing
// shared with the code under test but the exported types.
type model struct {
	arrivals uint64
	draining bool
	conns    []*modelConn
	over     map[string]uint64 // per node, generations below this are over
	holders  []*modelHolder
	waiters  []*modelWaiter
	ignored  Ignored
	reported []connID // confirm limit passed, in order
}

type connID struct {
	node       string
	generation uint64
}

type modelConn struct {
	connID
	node     Node                 // zero until published
	busy     map[string]time.Time // saturated adapters: when the next grant may be
	reported bool
}

type holderState string

const (
	mUnsent  holderState = "unsent"
	mSent    holderState = "sent"
	mDecided holderState = "decided"
	mAdopted holderState = "adopted"
	mFree    holderState = "free"
)

type modelHolder struct {
	conn      connID
	adapter   string
	runID     string
	attempt   uint32
	state     holderState
	confirmAt time.Time // when decided
	grant     *Grant    // nil when adopted
}

// modelRequest is a request as the test plays it, and what the model knows of its ticket.
type modelRequest struct {
	Request
	number uint64
	waited time.Duration
	holder *modelHolder // the last grant's
}

type modelWaiter struct {
	*modelRequest
	since    time.Time
	deadline time.Time
}

// matchSet is the Match of the machine's three sets.
func matchSet(set string) func(*Node, *Adapter) bool {
	return func(n *Node, a *Adapter) bool {
		switch set {
		case "node1":
			return n.ID == "n1"
		case "adapterA":
			return a.Name == "a"
		}
		return true
	}
}

func (m *model) conn(id connID) *modelConn {
	for _, c := range m.conns {
		if c.connID == id {
			return c
		}
	}
	return nil
}

// current is the connection whose adapters are candidates: the newest known that isn't over.
func (m *model) current(node string) *modelConn {
	var newest *modelConn
	for _, c := range m.conns {
		if c.connID.node == node && c.generation >= m.over[node] && (newest == nil || c.generation > newest.generation) {
			newest = c
		}
	}
	return newest
}

// admit returns the connection that words of this generation are about; nil = they come too late.
func (m *model) admit(id connID) *modelConn {
	cur := m.current(id.node)
	if id.generation < m.over[id.node] || cur != nil && id.generation < cur.generation {
		m.ignored.Stale++
		return nil
	}
	if cur == nil || cur.generation != id.generation {
		m.conns = append(m.conns, &modelConn{connID: id, busy: map[string]time.Time{}})
	}
	return m.conn(id)
}

func (c *modelConn) adapter(name string) *Adapter {
	for i := range c.node.Adapters {
		if c.node.Adapters[i].Name == name {
			return &c.node.Adapters[i]
		}
	}
	return nil
}

func (m *model) publish(n Node) {
	c := m.admit(connID{n.ID, n.Generation})
	if c == nil {
		return
	}
	old := c.node
	c.node = n
	for name := range c.busy {
		was := (&modelConn{node: old}).adapter(name)
		if is := c.adapter(name); is == nil || !reflect.DeepEqual(*was, *is) {
			delete(c.busy, name)
		}
	}
}

func (m *model) fence(id connID) {
	m.over[id.node] = max(m.over[id.node], id.generation+1)
	m.conns = slices.DeleteFunc(m.conns, func(c *modelConn) bool { return c.connID == id })
	for _, h := range slices.Clone(m.holders) {
		if h.conn == id {
			m.free(h)
		}
	}
}

func (m *model) free(h *modelHolder) {
	h.state = mFree
	m.holders = slices.DeleteFunc(m.holders, func(o *modelHolder) bool { return o == h })
}

func (m *model) inFlight(id connID, adapter string) int {
	n := 0
	for _, h := range m.holders {
		if h.conn == id && h.adapter == adapter {
			n++
		}
	}
	return n
}

func (m *model) holder(id connID, runID string) *modelHolder {
	for _, h := range m.holders {
		if h.conn == id && h.runID == runID {
			return h
		}
	}
	return nil
}

// option is a candidate of a request.
type option struct {
	conn      *modelConn
	adapter   *Adapter
	free      bool
	saturated bool
	loaded    bool
	load      float64
}

func (m *model) candidates(r *modelRequest, now time.Time) []option {
	var found []option
	for _, c := range m.conns {
		if m.current(c.connID.node) != c || !c.node.Dispatchable {
			continue
		}
		for i := range c.node.Adapters {
			a := &c.node.Adapters[i]
			if !a.Available || !matchSet(r.Set)(&c.node, a) ||
				slices.Contains(r.Exclude, Place{c.connID.node, a.Name}) {
				continue
			}
			in := m.inFlight(c.connID, a.Name)
			next, busy := c.busy[a.Name]
			found = append(found, option{
				conn: c, adapter: a,
				free:      in < a.Capacity && (!busy || !now.Before(next)),
				saturated: busy,
				loaded:    slices.Contains(a.Models, execution.Model{Name: r.Target, Loaded: true}),
				load:      float64(in) / float64(max(a.Capacity, 1)),
			})
		}
	}
	return found
}

// best returns those of the free candidates that may be chosen: all that tie.
func (m *model) best(r *modelRequest, now time.Time) []option {
	free := slices.DeleteFunc(m.candidates(r, now), func(o option) bool { return !o.free })
	rank := func(a, b option) int {
		return cmp.Or(boolRank(a.saturated)-boolRank(b.saturated), boolRank(b.loaded)-boolRank(a.loaded),
			cmp.Compare(a.load, b.load))
	}
	if len(free) == 0 {
		return nil
	}
	first := slices.MinFunc(free, rank)
	return slices.DeleteFunc(free, func(o option) bool { return rank(o, first) != 0 })
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// entry is what must become of a request that asks now: refused with the code, or CodeOK: granted or waiting.
func (m *model) entry(r *modelRequest, now time.Time) execution.Code {
	if m.draining {
		return execution.CodeEdgeDraining
	}
	first := r.number == 0
	if first {
		m.arrivals++
		r.number = m.arrivals
	}
	candidates := len(m.candidates(r, now))
	switch {
	case len(m.best(r, now)) > 0:
		return execution.CodeOK
	case candidates == 0 && (r.FailFast || r.Depth <= 0):
		return execution.CodeNoNode
	case r.Depth <= 0 || first && m.waiting(func(w *modelWaiter) bool { return w.queue() == r.queue() }) >= r.Depth:
		return execution.CodeQueueFull
	case r.waited >= r.Wait && candidates == 0:
		return execution.CodeNoNode
	case r.waited >= r.Wait:
		return execution.CodeQueueTimeout
	}
	return execution.CodeOK
}

// waiting counts those who wait and are meant.
func (m *model) waiting(meant func(*modelWaiter) bool) int {
	n := 0
	for _, w := range m.waiters {
		if meant(w) {
			n++
		}
	}
	return n
}

// hopeless takes out those who asked to be refused rather than wait without a candidate.
func (m *model) hopeless(now time.Time) []*modelWaiter {
	var out []*modelWaiter
	for _, w := range slices.Clone(m.waiters) {
		if w.FailFast && len(m.candidates(w.modelRequest, now)) == 0 {
			out = append(out, w)
			m.leave(w, now)
		}
	}
	return out
}

func (m *model) leave(w *modelWaiter, now time.Time) {
	w.waited += now.Sub(w.since)
	m.waiters = slices.DeleteFunc(m.waiters, func(o *modelWaiter) bool { return o == w })
}

// next is the first moment after now at which something happens by itself.
func (m *model) next(now time.Time) (time.Time, bool) {
	var at time.Time
	consider := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, w := range m.waiters {
		consider(w.deadline)
	}
	for _, h := range m.holders {
		if h.state == mDecided {
			consider(h.confirmAt)
		}
	}
	for _, c := range m.conns {
		for _, t := range c.busy {
			consider(t)
		}
	}
	return at, !at.IsZero()
}

// confirm notes the connections whose decided holders weren't confirmed in time.
func (m *model) confirm(now time.Time) {
	late := slices.DeleteFunc(slices.Clone(m.holders), func(h *modelHolder) bool {
		return h.state != mDecided || h.confirmAt.After(now)
	})
	for _, h := range late {
		if c := m.conn(h.conn); c != nil && !c.reported {
			c.reported = true
			m.reported = append(m.reported, c.connID)
		}
	}
}
