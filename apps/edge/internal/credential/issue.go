package credential

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// nobody is the principal of leases where callers have no names.
const nobody = "anonymous"

// issueTries is how often a lease is made anew because the slot's key was rotated, or the configuration changed, meanwhile.
const issueTries = 3

// Issue decides whether a node is lent the slot's key for a request, makes the lease, and notes it. A refusal is
// credential_unavailable: nothing was sent, and nobody tries another key. No lease is issued for a slot after a change of
// it came into force; whoever decides about time, place and caller has done so before.
func (s *Store) Issue(o Order) (*Lease, *execution.Failure) {
	why := credentiallease.Refusal{Reason: credentiallease.StaleRevision, Field: credentiallease.FieldRoute}
	for range issueTries {
		state := s.cfg.State()
		l, err := s.try(state, &o)
		if err == nil {
			if l == nil {
				continue
			}
			s.issued(l.entry)
			return l, nil
		}
		if !errors.As(err, &why) {
			why = credentiallease.Refusal{Reason: credentiallease.Malformed}
		}
		break
	}
	s.refusedHere(&o, why)
	return nil, refusal(why)
}

// try makes a lease. Without an error, no lease means that it would be of a state that is over.
func (s *Store) try(state *config.State, o *Order) (*Lease, error) {
	b, err := s.borrow(o.Route.Slot)
	if err != nil {
		return nil, err
	}
	defer s.back(b)
	grant, err := grantOf(state, o)
	if err != nil {
		return nil, err
	}
	if state.Profile(grant.Profile).Origin != b.origin {
		return nil, nil // another configuration is being taken in: the key may be the one of before
	}
	grant.SlotRevision = b.revision
	now := s.cfg.Now()
	made, err := b.signer.issuer.Issue(o.Recipient, grant, b.key.secret, now.UnixMilli(), lifetime(state))
	if err != nil {
		return nil, err
	}
	if s.cfg.State() != state {
		return nil, nil
	}
	e := &entry{
		id: made.LeaseID, run: o.RunID, slot: o.Route.Slot, to: peer{o.NodeID, o.Generation}, revision: b.revision, attempt: o.Attempt,
		ends: time.Now().Add(lifetime(state) + lateBy), state: leaseIssued, open: true,
	}
	if ok, err := s.enter(e); !ok || err != nil {
		return nil, err
	}
	return &Lease{
		store: s, entry: e, wire: made.Wire, route: o.Route.Model, profile: grant.Profile,
		routeRevision: grant.RouteRevision, profileRevision: grant.ProfileRevision, scanner: Scanner{key: b.key.hold()},
	}, nil
}

func lifetime(state *config.State) time.Duration {
	if ttl := state.Edge.Lease.TTL; ttl > 0 {
		return min(ttl, credentiallease.MaxTTL)
	}
	return credentiallease.DefaultTTL
}

// loan is what a lease is made of, out of the lock's reach.
type loan struct {
	key      *key
	signer   *signer
	revision uint64
	origin   string // that the key is for
}

// borrow takes hold of a slot's key and the signing key.
func (s *Store) borrow(id string) (loan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.lendableLocked(id); err != nil {
		return loan{}, err
	}
	if s.ring.current == nil {
		return loan{}, credentiallease.Refusal{Reason: credentiallease.UnknownKey}
	}
	s.ring.current.users++
	return loan{key: s.slots[id].key.hold(), signer: s.ring.current, revision: s.records[id].Revision, origin: s.slots[id].origin}, nil
}

// lendableLocked reports why a slot's key isn't lent, as a Refusal.
func (s *Store) lendableLocked(id string) error {
	sl := s.slots[id]
	if sl == nil {
		return credentiallease.Refusal{Reason: credentiallease.Disabled, Field: credentiallease.FieldSlot}
	}
	switch state, _ := sl.stateOf(s.records[id]); state {
	case StateActive:
		return nil
	case StateRevoked:
		return credentiallease.Refusal{Reason: credentiallease.Revoked, Field: credentiallease.FieldSlot}
	}
	return credentiallease.Refusal{Reason: credentiallease.Disabled, Field: credentiallease.FieldSlot}
}

func (s *Store) back(b loan) {
	b.key.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	b.signer.users--
	b.signer.dropLocked()
}

// enter puts a lease into the ledger, if its slot is as it was when the lease was begun; false when there is another key by
// now. It is the moment at which the lease counts as issued.
func (s *Store) enter(e *entry) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.lendableLocked(e.slot); err != nil {
		return false, err
	}
	if s.records[e.slot].Revision != e.revision {
		return false, nil
	}
	s.ledger.add(e)
	return true, nil
}

// grantOf checks the request against the configuration, in the order of the contract, and says what the lease is for. Its
// errors are Refusals.
func grantOf(state *config.State, o *Order) (g credentiallease.Grant, err error) {
	refuse := func(reason credentiallease.Reason, field credentiallease.Field) error {
		return credentiallease.Refusal{Reason: reason, Field: field}
	}
	slot := state.Slot(o.Route.Slot)
	if slot == nil {
		return g, refuse(credentiallease.Disabled, credentiallease.FieldSlot)
	}
	route, profile := state.Route(o.Route.Model), state.Profile(slot.Profile)
	switch {
	case route == nil || route.Model != o.Route.Model || route.Slot != o.Route.Slot:
		return g, refuse(credentiallease.StaleRevision, credentiallease.FieldRoute)
	case profile == nil:
		return g, refuse(credentiallease.StaleRevision, credentiallease.FieldProfile)
	case !slices.Contains(slot.Nodes, o.NodeID):
		return g, refuse(credentiallease.WrongRecipient, credentiallease.FieldNodeID)
	case !o.Proven:
		return g, refuse(credentiallease.IdentityRequired, credentiallease.FieldNone)
	case o.Recipient.NodeID() != o.NodeID:
		return g, refuse(credentiallease.WrongRecipient, credentiallease.FieldRecipientKey)
	case o.Recipient.Generation() != o.Generation:
		return g, refuse(credentiallease.StaleGeneration, credentiallease.FieldConnection)
	}
	method, origin, full, err := destination(o)
	switch {
	case err != nil:
		return g, err
	case strings.HasPrefix(origin, "http:"):
		return g, refuse(credentiallease.PlaintextOriginRefused, credentiallease.FieldOrigin)
	case origin != profile.Origin:
		return g, refuse(credentiallease.OriginRefused, credentiallease.FieldOrigin)
	case !slices.Contains(profile.Paths, method+" "+full):
		return g, refuse(credentiallease.BindingMismatch, credentiallease.FieldPath)
	case !projected(state, o):
		return g, refuse(credentiallease.StaleGeneration, credentiallease.FieldProjection)
	}
	return credentiallease.Grant{
		Binding: credentiallease.Binding{
			Principal: principal(o.Principal), Route: route.Model, Slot: slot.ID, Profile: profile.ID, Adapter: o.Adapter.Name,
			Target: o.Target, RunID: o.RunID, Attempt: o.Attempt,
			Header: profile.Header, Scheme: profile.Scheme, Origin: origin, Method: method, Path: full,
		},
		Projection:      o.Projection,
		ProfileRevision: state.ProfileRevision(profile.ID), RouteRevision: state.RouteRevision(route.Model),
	}, nil
}

func principal(id string) string {
	if id == "" {
		return nobody
	}
	return id
}

// destination is where the request will go, by the rule that the node goes by, too.
func destination(o *Order) (method, origin, full string, err error) {
	method, path := o.Method, o.Path
	if path == "" {
		method, path = http.MethodPost, httprules.RunPath(o.Adapter.Kind)
	}
	if path == "" {
		return "", "", "", credentiallease.Refusal{Reason: credentiallease.BindingMismatch, Field: credentiallease.FieldPath}
	}
	origin, full, err = httprules.Destination(httprules.KindBase(o.Adapter.Kind, o.Adapter.BaseURL), path)
	if err != nil {
		return "", "", "", credentiallease.Refusal{Reason: credentiallease.BindingMismatch, Field: credentiallease.FieldPath}
	}
	return method, origin, full, nil
}

// projected reports whether the node is told of this very adapter.
func projected(state *config.State, o *Order) bool {
	p := state.Projection(o.NodeID)
	return p != nil && slices.ContainsFunc(p.Adapters, func(a config.ProjectedAdapter) bool {
		return a.Name == o.Adapter.Name && a.Kind == o.Adapter.Kind && a.BaseURL == o.Adapter.BaseURL
	})
}
