package node

import (
	"slices"

	"iop/packages/go/credentiallease"
	pb "iop/proto/iop"
)

// Lends reports whether leases were negotiated on this connection: its node has proved a recipient key.
func (c *Connection) Lends() bool { return slices.Contains(c.Features, pb.Feature_FEATURE_LEASE_V1) }

// Recipient returns to whom a lease for this connection is sealed, and the number of the projection that the node works
// by. False: none may be issued.
func (c *Connection) Recipient() (to credentiallease.Recipient, projection uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recipient, c.st.applied, c.Lends() && !c.over.Load()
}

// SetRecipient takes over a recipient key that the node has proved.
func (c *Connection) SetRecipient(to credentiallease.Recipient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recipient = to
}

// Revoke tells the node of a slot's state. It never blocks; a connection without leases isn't told.
func (c *Connection) Revoke(slot string, minRevision uint64, disabled bool, epoch uint64) {
	if c.Lends() {
		c.Link.SendRevoked(&pb.CredentialRevoked{Slot: slot, MinRevision: minRevision, Disabled: disabled, Epoch: epoch})
	}
}

// Lending returns every connection of the node to which leases may have been issued, those that finish what runs on
// them included.
func (r *Registry) Lending(nodeID string) []*Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[nodeID]
	if e == nil {
		return nil
	}
	all := slices.Clone(e.leaving)
	if e.current != nil {
		all = append(all, e.current)
	}
	return slices.DeleteFunc(all, func(c *Connection) bool { return !c.Lends() || c.over.Load() })
}
