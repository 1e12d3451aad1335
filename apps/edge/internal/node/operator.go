package node

import "iop/apps/edge/internal/events"

// SetDrained keeps new work from a node, or doesn't any more: what runs there goes on. It holds for the connections that
// the node makes later, too, until it is taken back or this process of the edge ends. False: no node of that id is
// configured or connected.
func (r *Registry) SetDrained(nodeID string, on bool) bool {
	c, changed, known := r.noteDrained(nodeID, on)
	if !known {
		return false
	}
	if changed {
		e := events.Event{Kind: events.KindUndrained, NodeID: nodeID, Text: "an operator lets new work to the node again"}
		if on {
			e.Kind, e.Text = events.KindDrained, "an operator keeps new work from the node"
		}
		e.Code = e.Kind.String()
		r.cfg.Events.Publish(e)
		r.cfg.Log.Info().Str("node_id", nodeID).Stringer("event", e.Kind).Str("text", e.Text).Msg("node " + e.Kind.String())
	}
	if c != nil {
		c.followOperator()
	}
	return true
}

// noteDrained remembers an operator's wish. It returns the connection that is to follow it, if there is one.
func (r *Registry) noteDrained(nodeID string, on bool) (c *Connection, changed, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[nodeID]
	if r.cfg.State().Node(nodeID) == nil && (e == nil || e.current == nil && !e.drained) {
		return nil, false, false
	}
	e = r.entryLocked(nodeID)
	changed, e.drained = e.drained != on, on
	return e.current, changed, true
}

func (r *Registry) drained(nodeID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[nodeID]
	return e != nil && e.drained
}

// followOperator brings the connection in line with what an operator wished last. Of two at once the second to come here
// sees the wish of both.
func (c *Connection) followOperator() {
	c.order.Lock()
	defer c.order.Unlock()
	on := c.registry.drained(c.NodeID)
	var applied uint64
	state := c.updateOrdered(func(s *status) { s.drained, applied = on, s.applied })
	if state == StateReady && applied != 0 {
		c.Link.SendReadyAck(applied, true) // it was told that it gets no work
	}
}

// keepFromWork is for a connection that isn't in the registry yet.
func (c *Connection) keepFromWork(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.st.drained = on
}
