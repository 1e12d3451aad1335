package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/apps/node/internal/nodetest"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

const (
	leaseOrigin = "https://provider.example:443"
	leasePath   = "/v1/chat/completions"
	leaseSecret = "sk-canary-0123456789abcdef"
)

// shown is what the scripted driver of a leased rig was given.
type shown struct {
	mu   sync.Mutex
	keys []string // header field with the key in it
}

func (s *shown) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.keys...)
}

// use does with a credential what a driver does.
func (s *shown) use(c execution.Credential, origin, method, path string) error {
	if c == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.keys = append(s.keys, "no key")
		return nil
	}
	if err := c.Bind(origin, method, path); err != nil {
		return err
	}
	return s.send(c)
}

func (s *shown) send(c execution.Credential) error {
	return c.Send(func(key []byte) error {
		name, prefix := c.Field()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.keys = append(s.keys, name+": "+prefix+string(key))
		return nil
	})
}

// newLeasedRig is a rig with leases, whose driver is at https://provider.example and shows its key.
func newLeasedRig(t testing.TB, change ...func(*setup)) (*rig, *shown) {
	t.Helper()
	seen := &shown{}
	adapter := &nodetest.Adapter{
		OnTunnel: func(_ context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
			if err := seen.use(req.Credential, leaseOrigin, req.Method, req.Path); err != nil {
				return err
			}
			return nodetest.Answer(sink, "ok")
		},
		OnExecute: func(_ context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
			if err := seen.use(req.Credential, leaseOrigin, "POST", leasePath); err != nil {
				return execution.Completion{}, err
			}
			return nodetest.Say(emit, "ok")
		},
	}
	lend := func(s *setup) { s.lender = nodetest.NewLender(t, 7, leaseOrigin) }
	change = append(append([]func(*setup){lend}, change...), func(s *setup) {
		s.adapters = []*pb.AdapterConfig{{Name: "a", Kind: "openai", BaseUrl: "https://provider.example/v1", MaxConcurrency: int32(s.capacity), AdapterRevision: 1}}
	})
	return newRig(t, adapter, change...), seen
}

// lent is the open of a tunnel with a good lease.
func (r *rig) lent(runID string, change ...func(*credentiallease.Grant)) *pb.WorkOpen {
	return r.lender.Lend(r.TunnelOpen(runID), leaseSecret, change...)
}

// lentRun opens a run with a good lease and sends its content.
func (r *rig) lentRun(runID string, change ...func(*pb.RunRequest)) *nodetest.Run {
	return r.StartRun(runID, append(change, func(req *pb.RunRequest) {
		r.lender.Lend(&pb.WorkOpen{Attempt: 1, Work: &pb.WorkOpen_Run{Run: req}}, leaseSecret)
	})...)
}

// wantReason checks a failure of the code credential_refused.
func wantReason(t testing.TB, f *pb.Failure, reason credentiallease.Reason, field credentiallease.Field) {
	t.Helper()
	if f.GetCode() != pb.FailureCode(execution.CodeCredentialRefused) || f.GetLeaseReason() != pb.LeaseReason(reason) ||
		f.GetLeaseField() != uint32(field) || !f.GetNothingSent() || f.GetOrigin() != pb.Origin(execution.OriginNode) {
		t.Errorf("got %v, want credential_refused for %v, nothing sent", f, credentiallease.Refusal{Reason: reason, Field: field})
	}
	if strings.Contains(f.GetText(), reason.String()) {
		t.Errorf("the caller's text gives the reason away: %q", f.GetText())
	}
}

func wantLease(t testing.TB, end *pb.RunEnd, state credentiallease.State, reason credentiallease.Reason, field credentiallease.Field) {
	t.Helper()
	if len(end.GetLeaseId()) != 32 || end.GetLeaseState() != pb.LeaseState(state) || end.GetLeaseReason() != pb.LeaseReason(reason) || end.GetLeaseField() != uint32(field) {
		t.Errorf("the end says of its lease: %q %v %v %d", end.GetLeaseId(), end.GetLeaseState(), end.GetLeaseReason(), end.GetLeaseField())
	}
}

func TestLeasedWork(t *testing.T) {
	r, seen := newLeasedRig(t)
	if got := r.Open(r.lent("r1")).End().Collect(); got.Kinds != "ahbe" {
		t.Errorf("tunnel: %q %v %v", got.Kinds, got.Error, got.Rejected)
	}
	wantLease(t, r.RunEnd("r1"), credentiallease.Committed, 0, 0)
	if got := r.lentRun("r2").Collect(); got.Kinds != "asdc" {
		t.Errorf("run: %q %v %v", got.Kinds, got.Error, got.Rejected)
	}
	wantLease(t, r.RunEnd("r2"), credentiallease.Committed, 0, 0)
	if got := r.Start("r3").Collect(); got.Kinds != "ahbe" {
		t.Errorf("without a key: %q %v", got.Kinds, got.Error)
	}
	if end := r.RunEnd("r3"); end.GetLeaseId() != "" || end.GetLeaseState() != 0 {
		t.Errorf("an end without a lease tells of one: %v", end)
	}
	want := "Authorization: Bearer " + leaseSecret
	if got := seen.all(); len(got) != 3 || got[0] != want || got[1] != want || got[2] != "no key" {
		t.Errorf("the provider was shown %q", got)
	}
	r.atRest()
}

// E1 to E4, E8 to E11, E17: an open whose lease isn't good is rejected before anything is started, with one rejection,
// whose reason is the first that applies; no driver is called. (What each check sees is held in credentiallease.)
func TestALeaseIsRefusedBeforeAdmission(t *testing.T) {
	binding := func(field credentiallease.Field, change func(*credentiallease.Grant)) refused {
		return refused{credentiallease.BindingMismatch, field, func(r *rig) *pb.WorkOpen { return r.lent("r", change) }}
	}
	altered := func(i int, mask byte) func(r *rig) *pb.WorkOpen {
		return func(r *rig) *pb.WorkOpen {
			open := r.lent("r")
			lease := open.GetTunnel().Lease
			lease[(len(lease)+i)%len(lease)] ^= mask
			return open
		}
	}
	for name, c := range map[string]refused{
		"E1 signature":   {credentiallease.BadSignature, 0, altered(-1, 1)},
		"E1 ciphertext":  {credentiallease.BadSignature, 0, altered(-100, 1)},
		"E2 not a lease": {credentiallease.Malformed, 0, func(r *rig) *pb.WorkOpen { return r.lender.Put(r.TunnelOpen("r"), []byte{0xff}) }},
		"E3 version":     {credentiallease.UnsupportedVersion, 0, altered(1, 3)},
		"E4 unknown key": {credentiallease.UnknownKey, 0, func(r *rig) *pb.WorkOpen {
			r.lender.Signer = credentiallease.GenerateSigningKey()
			return r.lent("r")
		}},
		"E8 principal": binding(credentiallease.FieldPrincipal, func(g *credentiallease.Grant) { g.Principal = "team-b" }),
		"E8 adapter":   binding(credentiallease.FieldAdapter, func(g *credentiallease.Grant) { g.Adapter = "b" }),
		"E8 target":    binding(credentiallease.FieldTarget, func(g *credentiallease.Grant) { g.Target = "other" }),
		"E8 run":       binding(credentiallease.FieldRunID, func(g *credentiallease.Grant) { g.RunID = "other" }),
		"E8 attempt":   binding(credentiallease.FieldAttempt, func(g *credentiallease.Grant) { g.Attempt = 2 }),
		"E8 header":    binding(credentiallease.FieldHeader, func(g *credentiallease.Grant) { g.Header = "X-Api-Key" }),
		"E8 scheme":    binding(credentiallease.FieldScheme, func(g *credentiallease.Grant) { g.Scheme = "" }),
		"E8 origin":    binding(credentiallease.FieldOrigin, func(g *credentiallease.Grant) { g.Origin = "https://provider.example:444" }),
		"E8 method":    binding(credentiallease.FieldMethod, func(g *credentiallease.Grant) { g.Method = "GET" }),
		"E8 path":      binding(credentiallease.FieldPath, func(g *credentiallease.Grant) { g.Path = "/v1/completions" }),
		"E8 slot said": {credentiallease.BindingMismatch, credentiallease.FieldSlot, func(r *rig) *pb.WorkOpen {
			open := r.lent("r")
			open.GetTunnel().Slot = "other"
			return open
		}},
		"E8 no principal": {credentiallease.BindingMismatch, credentiallease.FieldPrincipal, func(r *rig) *pb.WorkOpen {
			open := r.lent("r")
			open.GetTunnel().PrincipalRef = ""
			return open
		}},
		"path outside of the profile": {credentiallease.OriginRefused, credentiallease.FieldPath, func(r *rig) *pb.WorkOpen {
			open := r.TunnelOpen("r")
			open.GetTunnel().Path = "/v1/files"
			return r.lender.Lend(open, leaseSecret, func(g *credentiallease.Grant) { g.Path = "/v1/files" })
		}},
		"E9 projection": {credentiallease.StaleGeneration, credentiallease.FieldProjection, func(r *rig) *pb.WorkOpen {
			return r.lent("r", func(g *credentiallease.Grant) { g.Projection = 2 })
		}},
		"E10 rotated": {credentiallease.Revoked, 0, func(r *rig) *pb.WorkOpen {
			return r.lent("r", func(g *credentiallease.Grant) { g.SlotRevision = 99 })
		}},
		"E10 disabled": {credentiallease.Disabled, 0, func(r *rig) *pb.WorkOpen {
			r.session.Revoked(&pb.CredentialRevoked{Slot: nodetest.LeaseSlot, MinRevision: 101, Disabled: true})
			return r.lent("r", func(g *credentiallease.Grant) { g.SlotRevision = 101 })
		}},
		"E10 route": {credentiallease.StaleRevision, credentiallease.FieldRoute, func(r *rig) *pb.WorkOpen {
			return r.lent("r", func(g *credentiallease.Grant) { g.RouteRevision++ })
		}},
		"E10 profile": {credentiallease.StaleRevision, credentiallease.FieldProfile, func(r *rig) *pb.WorkOpen {
			return r.lent("r", func(g *credentiallease.Grant) { g.ProfileRevision++ })
		}},
		"E11 expired": {credentiallease.Expired, 0, func(r *rig) *pb.WorkOpen {
			r.lender.SetNow(credentiallease.Time{Earliest: nodetest.EdgeTime, Latest: nodetest.EdgeTime + 60_000, Synced: true})
			return r.lent("r")
		}},
		"E11 clock": {credentiallease.ClockUnsynced, 0, func(r *rig) *pb.WorkOpen {
			r.lender.SetNow(credentiallease.Time{})
			return r.lent("r")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r, seen := newLeasedRig(t)
			got := r.Open(c.open(r)).End().Collect()
			if got.Kinds != "r" || !got.Rejected.GetNeverStarted() {
				t.Fatalf("got %q %v", got.Kinds, got.Error)
			}
			if c.field == 0 {
				c.field = credentiallease.Field(got.Rejected.GetFailure().GetLeaseField()) // the guard's business
			}
			wantReason(t, got.Rejected.GetFailure(), c.reason, c.field)
			if n := r.adapter.Calls.Load(); n != 0 || len(seen.all()) != 0 {
				t.Errorf("the driver was called %d times", n)
			}
			if n := r.RunEnds("r"); n != 0 {
				t.Errorf("%d ends of work that never started", n)
			}
			r.atRest()
		})
	}
}

// refused is one way in which a lease isn't good.
type refused struct {
	reason credentiallease.Reason
	field  credentiallease.Field
	open   func(*rig) *pb.WorkOpen
}

// E18: without a key nothing is sent to a route that needs one, and no key to one that doesn't.
func TestALeaseIsThereExactlyWhereItIsNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		lending bool
		open    func(*rig, *nodetest.Lender) *pb.WorkOpen
		reason  credentiallease.Reason
		field   credentiallease.Field
	}{
		"none on a route that needs one": {true, func(r *rig, _ *nodetest.Lender) *pb.WorkOpen {
			open := r.TunnelOpen("r")
			open.GetTunnel().Route = nodetest.LeaseRoute
			open.GetTunnel().Headers = []*pb.Header{{Name: "Authorization", Value: []byte("Bearer sk-of-the-caller")}}
			return open
		}, credentiallease.IdentityRequired, 0},
		"a slot without a lease": {true, func(r *rig, _ *nodetest.Lender) *pb.WorkOpen {
			open := r.TunnelOpen("r")
			open.GetTunnel().Slot = nodetest.LeaseSlot
			return open
		}, credentiallease.IdentityRequired, 0},
		"one on a route that needs none": {true, func(r *rig, l *nodetest.Lender) *pb.WorkOpen {
			open := l.Lend(r.TunnelOpen("r"), leaseSecret, func(g *credentiallease.Grant) { g.Route = "plain" })
			open.GetTunnel().Route = "plain"
			return open
		}, credentiallease.StaleRevision, credentiallease.FieldRoute},
		"not negotiated": {false, func(r *rig, l *nodetest.Lender) *pb.WorkOpen {
			return l.Lend(r.TunnelOpen("r"), leaseSecret)
		}, credentiallease.IdentityRequired, 0},
	} {
		t.Run(name, func(t *testing.T) {
			lender := nodetest.NewLender(t, 7, leaseOrigin)
			r, seen := newLeasedRig(t, func(s *setup) {
				s.lender = lender
				if !c.lending {
					s.lender = nil
				}
			})
			got := r.Open(c.open(r, lender)).End().Collect()
			if got.Kinds != "r" || !got.Rejected.GetNeverStarted() {
				t.Fatalf("got %q %v", got.Kinds, got.Error)
			}
			wantReason(t, got.Rejected.GetFailure(), c.reason, c.field)
			if r.adapter.Calls.Load() != 0 || len(seen.all()) != 0 {
				t.Error("the driver was called")
			}
		})
	}
}

// E18: a node that doesn't lend refuses to serve a route that needs a key without one, too.
func TestARouteThatNeedsAKeyWithoutNegotiation(t *testing.T) {
	lender := nodetest.NewLender(t, 7, leaseOrigin)
	r, _ := newLeasedRig(t, func(s *setup) { s.lender = nil })
	p := lender.Extend(&pb.NodeConfigPayload{Projection: 2, Adapters: []*pb.AdapterConfig{
		{Name: "a", Kind: "openai", BaseUrl: "https://provider.example/v1", MaxConcurrency: 4, AdapterRevision: 1}}})
	r.session.Apply(context.Background(), p)
	open := r.RunOpen("r", 0)
	open.GetRun().Route = nodetest.LeaseRoute
	got := r.OpenRun(open).End().Collect()
	if got.Kinds != "r" || r.adapter.Calls.Load() != 0 {
		t.Fatalf("got %q, %d calls", got.Kinds, r.adapter.Calls.Load())
	}
	wantReason(t, got.Rejected.GetFailure(), credentiallease.IdentityRequired, 0)
	if r.session.Revoked(&pb.CredentialRevoked{Slot: "s", MinRevision: 1}) != nil {
		t.Error("a revocation that wasn't negotiated is acknowledged")
	}
}

// E12: a lease is good for one open, whatever became of the first; and one that came while no place was free is used up.
func TestALeaseIsGoodOnce(t *testing.T) {
	r, seen := newLeasedRig(t, capacity(1))
	open := r.lent("r")
	if got := r.Open(open).End().Collect(); got.Kinds != "ahbe" {
		t.Fatalf("first: %q %v", got.Kinds, got.Rejected)
	}
	r.RunEnd("r")
	got := r.Open(open).End().Collect()
	wantReason(t, got.Rejected.GetFailure(), credentiallease.Replayed, 0)

	hold := make(chan struct{})
	r.adapter.OnExecute = func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		<-hold
		return nodetest.Say(emit)
	}
	busy := r.StartRun("busy")
	busy.Accepted()
	r.inside(1)
	open = r.lent("late")
	r.rejects(r.Open(open).End(), execution.CodeAdapterBusy)
	close(hold)
	busy.Collect()
	r.RunEnd("busy")
	got = r.Open(open).End().Collect()
	wantReason(t, got.Rejected.GetFailure(), credentiallease.Replayed, 0)
	if n := len(seen.all()); n != 1 {
		t.Errorf("the key was shown %d times", n)
	}
	r.atRest()
}

// Between the open and the write a lease is refused by one terminal that says that nothing was sent, and the key stays
// closed. E8, E10, E14, CR-10
func TestALeaseIsRefusedInTheDriver(t *testing.T) {
	for name, c := range map[string]struct {
		use    func(*rig, *shown, execution.Credential) error
		reason credentiallease.Reason
		field  credentiallease.Field
	}{
		"E8 elsewhere": {func(_ *rig, s *shown, c execution.Credential) error {
			return errors.Join(c.Bind("https://evil.example:443", "POST", leasePath), s.send(c))
		}, credentiallease.BindingMismatch, credentiallease.FieldOrigin},
		"E8 method": {func(_ *rig, s *shown, c execution.Credential) error { return c.Bind(leaseOrigin, "PUT", leasePath) },
			credentiallease.BindingMismatch, credentiallease.FieldMethod},
		"E8 path": {func(_ *rig, s *shown, c execution.Credential) error {
			return s.use(c, leaseOrigin, "POST", "/v1/files")
		},
			credentiallease.BindingMismatch, credentiallease.FieldPath},
		"plaintext": {func(_ *rig, s *shown, c execution.Credential) error {
			return s.use(c, strings.Replace(leaseOrigin, "https", "http", 1), "POST", leasePath)
		}, credentiallease.PlaintextOriginRefused, credentiallease.FieldOrigin},
		"E8 back again": {func(_ *rig, s *shown, c execution.Credential) error {
			_ = c.Bind("https://evil.example:443", "POST", leasePath)
			return s.use(c, leaseOrigin, "POST", leasePath)
		}, credentiallease.BindingMismatch, credentiallease.FieldOrigin},
		"E14 too early": {func(_ *rig, s *shown, c execution.Credential) error { return s.send(c) }, credentiallease.UnsealedTooEarly, 0},
		"E14 two connections": {func(_ *rig, s *shown, c execution.Credential) error {
			_ = c.Bind(leaseOrigin, "POST", leasePath)
			return s.use(c, leaseOrigin, "POST", leasePath)
		}, credentiallease.Replayed, 0},
		"E10 rotated": {func(r *rig, s *shown, c execution.Credential) error {
			_ = c.Bind(leaseOrigin, "POST", leasePath)
			if ack := r.session.Revoked(&pb.CredentialRevoked{Slot: nodetest.LeaseSlot, MinRevision: 101, Epoch: 5}); ack.GetEpoch() != 5 || len(ack.GetCommittedRunIds()) != 0 {
				return fmt.Errorf("acknowledged with %v", ack)
			}
			return s.send(c)
		}, credentiallease.Revoked, 0},
		"E11 late": {func(r *rig, s *shown, c execution.Credential) error {
			late := nodetest.EdgeTime + time.Minute.Milliseconds()
			r.lender.SetNow(credentiallease.Time{Earliest: late, Latest: late, Synced: true})
			return s.use(c, leaseOrigin, "POST", leasePath)
		}, credentiallease.Expired, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, seen := newLeasedRig(t)
			r.adapter.OnTunnel = func(_ context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
				if err := c.use(r, seen, req.Credential); err != nil {
					return err
				}
				return nodetest.Answer(sink, "ok")
			}
			got := r.Open(r.lent("r")).End().Collect()
			if got.Kinds != "ax" {
				t.Fatalf("got %q %v", got.Kinds, got.Rejected)
			}
			wantReason(t, got.Error, c.reason, c.field)
			wantLease(t, r.RunEnd("r"), credentiallease.Refused, c.reason, c.field)
			if len(seen.all()) != 0 {
				t.Error("the key was shown")
			}
			r.atRest()
		})
	}
}

// E14: what was sent isn't sent again, and the end says that it was sent.
func TestAKeyIsSentOnce(t *testing.T) {
	r, seen := newLeasedRig(t)
	r.adapter.OnTunnel = func(_ context.Context, req *execution.TunnelRequest, _ execution.TunnelSink) error {
		if err := seen.use(req.Credential, leaseOrigin, "POST", leasePath); err != nil {
			return err
		}
		return seen.send(req.Credential)
	}
	got := r.Open(r.lent("r")).End().Collect()
	if f := got.Error; f.GetLeaseReason() != pb.LeaseReason(credentiallease.Replayed) || f.GetNothingSent() {
		t.Errorf("got %v, want a refusal that doesn't say that nothing was sent", f)
	}
	wantLease(t, r.RunEnd("r"), credentiallease.Committed, 0, 0)
	if n := len(seen.all()); n != 1 {
		t.Errorf("the key was shown %d times", n)
	}
}

// E16: a secret that would end the header's line is never written.
func TestASecretThatIsNoHeaderValue(t *testing.T) {
	r, seen := newLeasedRig(t)
	value := []byte("sk-x--X-Evil: 1")
	secret, err := credentiallease.NewSecret([]byte("sk-x--X-Evil-1-"))
	if err != nil {
		t.Fatal(err)
	}
	secret.Use(func(inside []byte) { copy(inside, value); inside[4], inside[5] = '\r', '\n' }) // a broken edge
	open := r.TunnelOpen("r")
	lease, err := credentiallease.NewIssuer("e", r.lender.Signer).Issue(r.lender.To, r.lender.Grant(open, leasePath), secret, nodetest.EdgeTime, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	got := r.Open(r.lender.Put(open, lease.Wire)).End().Collect()
	wantReason(t, got.Error, credentiallease.BadSecret, 0)
	wantLease(t, r.RunEnd("r"), credentiallease.Refused, credentiallease.BadSecret, 0)
	if len(seen.all()) != 0 {
		t.Error("it was shown")
	}
}
