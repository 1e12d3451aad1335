package node

import (
	"slices"
	"time"

	"iop/packages/go/config"
	pb "iop/proto/iop"
)

// Reconfigured brings every connection in line with the configuration in force, which has just changed: one whose node
// or token isn't accepted any more ends, and one whose projection is another gets it, made by payload. Runs keep what
// they began with. A connection that is committed at the same moment was checked against the new configuration.
func (r *Registry) Reconfigured(payload func(*config.Projection) *pb.NodeConfigPayload) {
	state := r.cfg.State()
	for _, c := range r.all() {
		rec, projection := state.Node(c.NodeID), state.Projection(c.NodeID)
		now := time.Now()
		owner, expired := state.NodeByTokenHash(c.Token, now)
		switch {
		case rec == nil || !rec.Enabled:
			r.Fence(c, FenceNodeDisabled, "the node was taken out of the edge's configuration")
		case owner == nil || owner.ID != c.NodeID || expired:
			r.Fence(c, FenceNodeDisabled, "the token that the node registered with isn't accepted any more")
		case c.unidentified(state, now) != "":
			r.Fence(c, FenceIdentityExpired, c.unidentified(state, now))
		case c.isSucceeded():
			// its successor is told
		default:
			c.refresh(rec, projection, payload)
		}
	}
}

// refresh sends a projection that the node hasn't been told yet. From now on what an adapter is due to be counts: one
// that changed gets no work until the node says that it runs it so, one that stayed is left alone.
func (c *Connection) refresh(rec *config.NodeRecord, p *config.Projection, payload func(*config.Projection) *pb.NodeConfigPayload) {
	c.order.Lock()
	defer c.order.Unlock()
	c.mu.Lock()
	due := c.st.due()
	c.labels = rec.Labels
	c.mu.Unlock()
	if p.Number != due.Number {
		// Sent first: the answer can't come before the projection is known here, since Ready waits for the order.
		c.Link.SendRefresh(payload(p))
	}
	c.updateOrdered(func(s *status) { s.tell(p) })
}

// due is the projection that the node was told last.
func (s *status) due() *config.Projection { return s.sent[len(s.sent)-1] }

// tell notes that the node was told p. What it said of its adapters before is laid beside it.
func (s *status) tell(p *config.Projection) {
	if p.Number != s.due().Number {
		s.sent = append(s.sent, p)
	}
	s.adapters = combine(p, s.reported, "not reported yet")
}

// apply notes that the node works by a projection: those before it are history.
func (s *status) apply(number uint64) {
	s.applied = number
	s.sent = slices.DeleteFunc(s.sent, func(p *config.Projection) bool { return p.Number < number })
}
