package nodetest

import (
	"bytes"
	"sync"
	"testing"

	"iop/packages/go/credentiallease"
	pb "iop/proto/iop"
)

// What a [Lender] lends for, unless a test changes it.
const (
	LeasePrincipal = "team-a"
	LeaseRoute     = "fast"
	LeaseSlot      = "openai-main"
	LeaseProfile   = "openai"
)

// EdgeTime is a Lender's clock at its start, in Unix milliseconds.
const EdgeTime = int64(1_800_000_000_000)

// Lender is the Edge's half of leases for one connection of the node "n" to the Edge "e", made of the real parts: a
// signing key, the node's proven recipient key, and the node's guard. Its clock stands still unless a test moves it.
type Lender struct {
	Signer *credentiallease.SigningKey
	Key    *credentiallease.RecipientKey // the node's
	To     credentiallease.Recipient
	Guard  *credentiallease.Guard // the node's
	Origin string                 // of the profile
	Paths  []string               // of the profile
	Header string
	Scheme string

	SlotRevision, RouteRevision, ProfileRevision uint64

	t   testing.TB
	mu  sync.Mutex
	now credentiallease.Time
}

// NewLender proves a recipient key for a connection of that generation. origin is where keys may go.
func NewLender(t testing.TB, generation uint64, origin string) *Lender {
	t.Helper()
	l := &Lender{
		Signer: credentiallease.GenerateSigningKey(), Origin: origin, Header: "Authorization", Scheme: "Bearer",
		Paths:        []string{"POST /v1/chat/completions"},
		SlotRevision: 100, RouteRevision: 11, ProfileRevision: 12,
		t: t, now: credentiallease.Time{Earliest: EdgeTime, Latest: EdgeTime, Synced: true},
	}
	var err error
	l.Key, err = credentiallease.NewRecipientKey()
	l.check(err)
	transcript := credentiallease.Transcript{NodeID: "n", EdgeID: "e", Generation: generation}
	copy(transcript.Exporter[:], bytes.Repeat([]byte{7}, credentiallease.ExporterSize))
	challenge, err := credentiallease.NewChallenge(l.Key.Public(), transcript)
	l.check(err)
	proof, err := l.Key.Prove(challenge.Enc(), transcript)
	l.check(err)
	l.To, err = challenge.Confirm(proof)
	l.check(err)
	l.Guard, err = credentiallease.NewGuard(credentiallease.Config{NodeID: "n", EdgeID: "e", Generation: generation})
	l.check(err)
	l.Guard.UseRecipient(l.Key, l.Now())
	return l
}

func (l *Lender) check(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// Now is what the node knows of the Edge's time.
func (l *Lender) Now() credentiallease.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// SetNow changes it.
func (l *Lender) SetNow(now credentiallease.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = now
}

// Extend adds the route, its slot and its profile to a projection, as an Edge does that may lend to this node.
func (l *Lender) Extend(p *pb.NodeConfigPayload) *pb.NodeConfigPayload {
	p.LeaseKeys = []*pb.LeaseKey{{Kid: l.Signer.ID(), Pub: l.Signer.Public()}}
	p.Slots = []*pb.SlotRef{{Id: LeaseSlot, MinRevision: l.SlotRevision}}
	p.Routes = []*pb.RouteRef{{Name: LeaseRoute, Revision: l.RouteRevision, Slot: LeaseSlot, Profile: LeaseProfile}}
	p.Profiles = []*pb.ProfileRef{{
		Id: LeaseProfile, Revision: l.ProfileRevision, Origin: l.Origin, Paths: l.Paths, HeaderName: l.Header, Scheme: l.Scheme,
	}}
	return p
}

// Grant is the decision to lend for an open: a tunnel's own method and path, or those of the openai driver's run.
func (l *Lender) Grant(open *pb.WorkOpen, path string) credentiallease.Grant {
	g := credentiallease.Grant{
		Binding: credentiallease.Binding{
			Principal: LeasePrincipal, Route: LeaseRoute, Slot: LeaseSlot, Profile: LeaseProfile, Attempt: open.GetAttempt(),
			Header: l.Header, Scheme: l.Scheme, Origin: l.Origin, Method: "POST", Path: path,
		},
		Projection: 1, SlotRevision: l.SlotRevision, ProfileRevision: l.ProfileRevision, RouteRevision: l.RouteRevision,
	}
	if tn := open.GetTunnel(); tn != nil {
		g.Adapter, g.Target, g.RunID, g.Method = tn.GetAdapter(), tn.GetTarget(), tn.GetRunId(), tn.GetMethod()
		return g
	}
	g.Adapter, g.Target, g.RunID = open.GetRun().GetAdapter(), open.GetRun().GetTarget(), open.GetRun().GetRunId()
	return g
}

// Issue makes a lease for a grant. secret is cleared.
func (l *Lender) Issue(g credentiallease.Grant, secret []byte) []byte {
	l.t.Helper()
	s, err := credentiallease.NewSecret(secret)
	l.check(err)
	defer s.Zero()
	lease, err := credentiallease.NewIssuer("e", l.Signer).Issue(l.To, g, s, EdgeTime, credentiallease.DefaultTTL)
	l.check(err)
	return lease.Wire
}

// Lend puts a lease into an open whose request goes to /v1/chat/completions, and what goes with it; change, if there is
// one, changes the grant first.
func (l *Lender) Lend(open *pb.WorkOpen, secret string, change ...func(*credentiallease.Grant)) *pb.WorkOpen {
	l.t.Helper()
	g := l.Grant(open, "/v1/chat/completions")
	for _, c := range change {
		c(&g)
	}
	return l.Put(open, l.Issue(g, []byte(secret)))
}

// Put puts a lease into an open, and what goes with it.
func (l *Lender) Put(open *pb.WorkOpen, lease []byte) *pb.WorkOpen {
	if tn := open.GetTunnel(); tn != nil {
		tn.Lease, tn.Slot, tn.Profile, tn.Route, tn.PrincipalRef = lease, LeaseSlot, LeaseProfile, LeaseRoute, LeasePrincipal
		return open
	}
	run := open.GetRun()
	run.Lease, run.Slot, run.Profile, run.Route, run.PrincipalRef = lease, LeaseSlot, LeaseProfile, LeaseRoute, LeasePrincipal
	return open
}
