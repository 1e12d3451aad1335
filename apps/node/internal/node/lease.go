package node

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	"iop/apps/node/internal/page"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
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
// more leaves after this, except in the runs that it lists. It is nil without negotiated leases, and when they are too many to name. It only changes memory.
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
	ack := revokeAck(m.GetEpoch(), committed)
	if ack == nil {
		s.log.Warn().Str("slot", loggable(m.GetSlot())).Int("committed", len(committed)).Msg("too many runs have sent the key to name them all")
	}
	return ack
}

// maxAck is how long an acknowledgement may be: an edge takes 64 KiB, and ends the link of a node that sends more.
const maxAck = 60 << 10

// revokeAck is the acknowledgement, or nil when it would be too long. An edge that hears nothing takes every run of the
// connection that was lent the key for one that has sent it, which is more than the truth and never less.
func revokeAck(epoch uint64, committed []string) *pb.RevokeAck {
	ack := &pb.RevokeAck{Epoch: epoch, CommittedRunIds: committed}
	if proto.Size(ack) > maxAck {
		return nil
	}
	return ack
}

// Settled says that the Edge has confirmed that this node works by a projection: it issues leases by that one now.
func (s *Session) Settled(projection uint64) {
	if s.leases != nil {
		s.leases.guard.Settle(projection)
	}
}

// keyed is what a projection says of routes that need a key, and of how keys are shown. It is never changed.
type keyed struct {
	routes   map[string]*pb.RouteRef // only those that have a slot
	profiles map[string]*pb.ProfileRef
}

func keyedOf(p *pb.NodeConfigPayload) keyed {
	k := keyed{map[string]*pb.RouteRef{}, map[string]*pb.ProfileRef{}}
	for _, r := range p.GetRoutes() {
		if r.GetSlot() != "" {
			k.routes[r.GetName()] = r
		}
	}
	for _, r := range p.GetProfiles() {
		k.profiles[r.GetId()] = r
	}
	return k
}

// guarded is what a projection says to the guard.
func guarded(p *pb.NodeConfigPayload) credentiallease.Projection {
	out := credentiallease.Projection{
		Number:    p.GetProjection(),
		MaxTTL:    milliseconds(max(p.GetClock().GetMaxTtlMs(), 0)),
		Tolerance: milliseconds(max(p.GetClock().GetNotBeforeToleranceMs(), 0)),
	}
	for _, k := range p.GetLeaseKeys() {
		out.Keys = append(out.Keys, credentiallease.VerifyKey{
			ID: k.GetKid(), Public: k.GetPub(), NotBefore: k.GetNotBeforeMs(), NotAfter: k.GetNotAfterMs(),
		})
	}
	for _, s := range p.GetSlots() {
		out.Slots = append(out.Slots, credentiallease.SlotState{ID: s.GetId(), MinRevision: s.GetMinRevision(), Disabled: s.GetDisabled()})
	}
	for _, r := range p.GetRoutes() {
		out.Routes = append(out.Routes, credentiallease.Revision{Name: r.GetName(), Number: r.GetRevision()})
	}
	for _, r := range p.GetProfiles() {
		out.Profiles = append(out.Profiles, credentiallease.Revision{Name: r.GetId(), Number: r.GetRevision()})
	}
	return out
}

// judgeBy makes a projection the one that leases are judged by, in one step, so that whoever sees what it says of a route
// asks a guard that has it, too. That is a moment before its adapters are the ones in use: what was sent under the one
// before is refused as stale from here on. It reports false when the projection is refused for its keys or its number.
func (s *Session) judgeBy(p *pb.NodeConfigPayload) bool {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	if s.leases != nil {
		if err := s.leases.guard.Project(guarded(p)); err != nil {
			s.refuseLocked(p, execution.Failf(execution.CodeBadRequest, execution.OriginEdge, "%s", err.Error()))
			return false
		}
	}
	s.keyed = keyedOf(p)
	return true
}

// keyOrder is what an open says of the key that its execution is to have.
type keyOrder struct {
	lease         []byte
	slot, profile string
	method, path  string // of a tunnel; a run's are its driver's
}

func tunnelKey(req *pb.ProviderTunnelRequest) keyOrder {
	return keyOrder{req.GetLease(), req.GetSlot(), req.GetProfile(), req.GetMethod(), req.GetPath()}
}

func runKey(req *pb.RunRequest) keyOrder {
	return keyOrder{lease: req.GetLease(), slot: req.GetSlot(), profile: req.GetProfile()}
}

// judge decides before an execution's admission whether it may have the key that its open brings a lease for. Work that
// needs no key and brings no lease has none, and everything else is refused: a route that needs a key is never asked
// without one, nor with anything that the caller sent. (E18)
func (s *Session) judge(o *order, k keyOrder) (*key, *execution.Failure) {
	s.x.mu.Lock()
	route := s.keyed.routes[o.route]
	profile := s.keyed.profiles[route.GetProfile()]
	s.x.mu.Unlock()
	switch {
	case len(k.lease) == 0 && route == nil && k.slot == "" && k.profile == "":
		return nil, nil
	case len(k.lease) == 0, s.leases == nil:
		return nil, refusedKey(credentiallease.Refusal{Reason: credentiallease.IdentityRequired})
	}
	own, f := s.binding(o, k, route, profile)
	if f != nil {
		return nil, f
	}
	held, err := s.leases.guard.Verify(k.lease, own, s.leases.now())
	if err != nil {
		return nil, refusedKey(asRefusal(err))
	}
	it := &key{held: held, binding: own, now: s.leases.now, pages: &s.x.pages}
	if why := contradicts(k, route, profile, &own); why != nil {
		held.Burn(*why)
		it.end()
		return nil, refusedKey(*why)
	}
	return it, nil
}

// binding is what this node is about to do, by its own knowledge: what the open asks for, at the adapter that it has
// under that name, by the profile that it was told of.
func (s *Session) binding(o *order, k keyOrder, route *pb.RouteRef, profile *pb.ProfileRef) (credentiallease.Binding, *execution.Failure) {
	own := credentiallease.Binding{
		Principal: o.principal, Route: o.route, Slot: route.GetSlot(), Profile: route.GetProfile(), Adapter: o.adapter,
		Target: o.target, RunID: o.runID, Attempt: o.attempt, Header: profile.GetHeaderName(), Scheme: profile.GetScheme(),
		Method: k.method,
	}
	a := s.x.cfg.Router.Find(s.x.cfg.Edge, o.adapter)
	if a == nil {
		return own, execution.Failf(execution.CodeUnknownAdapter, execution.OriginNode, "this node has no adapter of that name")
	}
	spec, path := a.Spec(), k.path
	if o.kind == execution.KindRun {
		own.Method, path = http.MethodPost, httprules.RunPath(spec.Kind)
	} else if err := httprules.CheckTarget(path, ""); err != nil {
		return own, execution.Failf(execution.CodeBadRequest, execution.OriginCaller, "%s", err.Error())
	}
	var err error
	if own.Origin, own.Path, err = httprules.Destination(httprules.KindBase(spec.Kind, spec.BaseURL), path); err != nil {
		return own, refusedKey(credentiallease.Refusal{Reason: credentiallease.OriginRefused, Field: credentiallease.FieldOrigin})
	}
	return own, nil
}

// contradicts says how a lease that was verified isn't what this node was told of its route, nil if it is.
func contradicts(k keyOrder, route *pb.RouteRef, profile *pb.ProfileRef, own *credentiallease.Binding) *credentiallease.Refusal {
	refuse := func(r credentiallease.Reason, f credentiallease.Field) *credentiallease.Refusal {
		return &credentiallease.Refusal{Reason: r, Field: f}
	}
	switch {
	case k.slot != route.GetSlot():
		return refuse(credentiallease.BindingMismatch, credentiallease.FieldSlot)
	case k.profile != route.GetProfile():
		return refuse(credentiallease.BindingMismatch, credentiallease.FieldProfile)
	case !strings.EqualFold(profile.GetOrigin(), own.Origin):
		return refuse(credentiallease.OriginRefused, credentiallease.FieldOrigin)
	case !slices.Contains(profile.GetPaths(), own.Method+" "+own.Path):
		return refuse(credentiallease.OriginRefused, credentiallease.FieldPath)
	}
	return nil
}

// key is a verified lease on its way into one request: the driver's [execution.Credential]. nil is no key.
type key struct {
	held    *credentiallease.Held
	binding credentiallease.Binding
	now     func() credentiallease.Time
	pages   *page.Pool
	opened  bool // the secret may have been sent; owned by the driver's goroutine
}

// credential is the key as a driver gets it.
func (k *key) credential() execution.Credential {
	if k == nil {
		return nil
	}
	return k
}

// admit says that the execution was admitted.
func (k *key) admit() error {
	if k == nil {
		return nil
	}
	if err := k.held.Admit(); err != nil {
		return refusedKey(asRefusal(err))
	}
	return nil
}

// Field implements [execution.Credential].
func (k *key) Field() (name, prefix string) {
	if k.binding.Scheme != "" {
		prefix = k.binding.Scheme + " "
	}
	return k.binding.Header, prefix
}

// refuse is the failure of a step that the lease doesn't allow.
func (k *key) refuse(why credentiallease.Refusal) *execution.Failure {
	f := refusedKey(why)
	f.NothingSent = !k.opened
	return f
}

// Bind implements [execution.Credential]: what the driver is about to do must be what the lease was verified for.
func (k *key) Bind(origin, method, path string) error {
	why := credentiallease.Refusal{Reason: credentiallease.BindingMismatch}
	switch {
	case strings.HasPrefix(origin, "http://"):
		why = credentiallease.Refusal{Reason: credentiallease.PlaintextOriginRefused, Field: credentiallease.FieldOrigin}
	case origin != k.binding.Origin:
		why.Field = credentiallease.FieldOrigin
	case method != k.binding.Method:
		why.Field = credentiallease.FieldMethod
	case path != k.binding.Path:
		why.Field = credentiallease.FieldPath
	default:
		if err := k.held.Arm(); err != nil {
			return k.refuse(asRefusal(err))
		}
		return nil
	}
	k.held.Burn(why)
	return k.refuse(why)
}

// Send implements [execution.Credential]. The secret is in the clear in one page, for the time of the write.
func (k *key) Send(write func(secret []byte) error) error {
	p := k.pages.Take()
	defer p.Free()
	var err error
	credentiallease.Shield(func() {
		err = k.held.Redeem(p.Bytes(), k.now, func(secret []byte) error {
			k.opened = true
			return write(secret)
		})
	})
	if why, ok := errors.AsType[credentiallease.Refusal](err); ok {
		return k.refuse(why)
	}
	return err
}

// end says that the request is over, and returns what became of the lease.
func (k *key) end() credentiallease.Outcome {
	if k == nil {
		return credentiallease.Outcome{}
	}
	return k.held.End()
}

// report puts what became of the lease into the execution's end.
func (k *key) report(end *pb.RunEnd) {
	if k == nil {
		return
	}
	out := k.end()
	end.LeaseId = k.held.LeaseID()
	end.LeaseState = pb.LeaseState(out.State)
	end.LeaseReason = pb.LeaseReason(out.Refusal.Reason)
	end.LeaseField = uint32(out.Refusal.Field)
}

// asRefusal is what the guard said; everything that it says is a refusal.
func asRefusal(err error) credentiallease.Refusal {
	why, _ := errors.AsType[credentiallease.Refusal](err)
	return why
}

// refusedKey is the failure of an execution that can't have its key. Its text is for the caller, who isn't told why;
// the reason is for the Edge.
func refusedKey(why credentiallease.Refusal) *execution.Failure {
	return &execution.Failure{
		Code: execution.CodeCredentialRefused, Origin: execution.OriginNode, Text: "the provider's key can't be used for this request",
		NothingSent: true, Lease: execution.LeaseRefusal{Reason: uint8(why.Reason), Field: uint8(why.Field)},
	}
}

// leaseRefused adds to a log line why a lease was refused, if that is what f is about.
func leaseRefused(line *zerolog.Event, f *execution.Failure) *zerolog.Event {
	if f == nil || f.Lease.Reason == 0 {
		return line
	}
	why := credentiallease.Refusal{Reason: credentiallease.Reason(f.Lease.Reason), Field: credentiallease.Field(f.Lease.Field)}
	return line.Stringer("lease_reason", why)
}
