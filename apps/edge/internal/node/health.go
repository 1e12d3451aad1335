package node

import (
	"iop/packages/go/identity"
	pb "iop/proto/iop"
)

// Health is what is known of a connected node beside its work.
type Health struct {
	NodeID string
	// StoreDegraded says that the node can't write its record, ClockUnsynced that its clock isn't in step with the
	// edge's; both by its own word.
	StoreDegraded, ClockUnsynced bool
	// Certificate is how long what it registered with is good; zero = it showed none.
	Certificate identity.Validity
	// Configured are the places that the configuration gives its adapters, by name.
	Configured map[string]int
}

// Health returns what is known of the connected nodes.
func (r *Registry) Health() []Health {
	state := r.State()
	var all []Health
	for _, c := range r.Connections() {
		h := Health{NodeID: c.NodeID, Configured: map[string]int{}}
		c.mu.Lock()
		h.StoreDegraded = c.st.store == pb.StoreState_STORE_STATE_DEGRADED
		h.ClockUnsynced = c.st.clock == pb.ClockState_CLOCK_STATE_UNSYNCED
		c.mu.Unlock()
		if c.Peer != nil {
			h.Certificate = identity.Validity{Begins: c.Peer.NotBefore, Ends: c.Peer.NotAfter}
		}
		if p := state.Projection(c.NodeID); p != nil {
			for i := range p.Adapters {
				h.Configured[p.Adapters[i].Name] = p.Adapters[i].MaxConcurrency
			}
		}
		all = append(all, h)
	}
	return all
}
