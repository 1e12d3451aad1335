package credentiallease

import "time"

// Defaults of a Guard.
const (
	DefaultTolerance = 5 * time.Second // by which a lease may be early
	DefaultMaxReplay = 65536
)

// Config is what a Guard is made for.
type Config struct {
	NodeID     string
	EdgeID     string        // whose leases these are: the edge's name from registration
	Generation uint64        // of the connection
	MaxTTL     time.Duration // 0 or more than MaxTTL = MaxTTL
	Tolerance  time.Duration // of not-before only; 0 = DefaultTolerance
	MaxReplay  int           // lease ids remembered at most; 0 = DefaultMaxReplay
}

// Projection is what a node was told of the edge's configuration, as far as leases go.
type Projection struct {
	Number   uint64
	Keys     []VerifyKey
	Slots    []SlotState
	Routes   []Revision
	Profiles []Revision
}

// SlotState says which leases of a slot count.
type SlotState struct {
	ID          string
	MinRevision uint64 // leases of an older revision of the secret are revoked
	Disabled    bool
}

// Revision is a named route or profile as the node knows it.
type Revision struct {
	Name   string
	Number uint64
}

// Revocation is CredentialRevoked.
type Revocation struct {
	Slot        string
	MinRevision uint64
	Disabled    bool
}

// Guard decides at a node which leases of one connection may be used. It owns what can change under a lease: the edge's
// keys, slots, revisions, the node's recipient keys, and which lease ids were seen. Safe for concurrent use; no
// cryptography is done under its lock.
type Guard struct{}

// NewGuard returns the guard of a new connection, which refuses everything until Project and UseRecipient were called.
func NewGuard(cfg Config) (*Guard, error) { panic("declared") }

// Project takes over a configuration. Its number must not be lower than the last one's. A slot's MinRevision never goes
// down, and a slot that Revoke disabled is enabled only by a projection with a higher number than the one then in force.
func (g *Guard) Project(p Projection) error { panic("declared") }

// UseRecipient takes over a recipient key that was proven to the edge. Earlier ones open what was issued for them until
// MaxTTL and five seconds have passed, and are dropped then.
func (g *Guard) UseRecipient(k *RecipientKey, now Time) { panic("declared") }

// Verify checks a lease against everything except its ciphertext and takes its id: a second Verify of the same lease is
// refused. b is what the node itself is about to do. It must be called before the request is admitted. Its errors are
// Refusals. The caller must End what it returns.
func (g *Guard) Verify(wire []byte, b Binding, now Time) (*Held, error) { panic("declared") }

// Revoke takes back leases of a slot, and returns the ids of the runs that are still on and have sent such a secret, in
// no order. After it has returned no byte of the secret leaves except in those runs.
func (g *Guard) Revoke(r Revocation) (committed []string) { panic("declared") }

// Close ends the connection: every lease that isn't committed is refused from now on, and the recipient keys are gone.
func (g *Guard) Close() { panic("declared") }
