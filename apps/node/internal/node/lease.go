package node

import (
	"iop/packages/go/credentiallease"
	pb "iop/proto/iop"
)

// leases is what a session judges leases by.
type leases struct {
	guard *credentiallease.Guard
	now   func() credentiallease.Time
}

// UseLeases says that leases were negotiated on this connection: guard judges them, by what now knows of the Edge's time.
// It is called before the first Apply. The session closes the guard at its end; recipient keys are its caller's business.
// Without it every lease is refused, and so is work on a route that needs one. now may be called concurrently.
func (s *Session) UseLeases(guard *credentiallease.Guard, now func() credentiallease.Time) {
	s.leases = &leases{guard, now}
}

// Revoked takes in a change of a slot's state and returns the acknowledgement: no byte of a secret that doesn't count any
// more leaves after this, except in the runs that it lists. It is nil without negotiated leases. It only changes memory.
func (s *Session) Revoked(m *pb.CredentialRevoked) *pb.RevokeAck {
	if s.leases == nil {
		s.Late("credential_revoked")
		return nil
	}
	committed := s.leases.guard.Revoke(credentiallease.Revocation{
		Slot: m.GetSlot(), MinRevision: m.GetMinRevision(), Disabled: m.GetDisabled(),
	})
	s.log.Info().Str("slot", loggable(m.GetSlot())).Uint64("min_revision", m.GetMinRevision()).Bool("disabled", m.GetDisabled()).
		Uint64("epoch", m.GetEpoch()).Int("committed", len(committed)).Msg("slot changed")
	return &pb.RevokeAck{Epoch: m.GetEpoch(), CommittedRunIds: committed}
}

// slots is what a projection says of routes that need a key, and of how keys are shown.
type slots struct {
	routes   map[string]*pb.RouteRef // only those that have a slot
	profiles map[string]*pb.ProfileRef
}

func newSlots(p *pb.NodeConfigPayload) slots {
	v := slots{map[string]*pb.RouteRef{}, map[string]*pb.ProfileRef{}}
	for _, r := range p.GetRoutes() {
		if r.GetSlot() != "" {
			v.routes[r.GetName()] = r
		}
	}
	for _, r := range p.GetProfiles() {
		v.profiles[r.GetId()] = r
	}
	return v
}
