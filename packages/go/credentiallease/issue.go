package credentiallease

import "time"

// How long a lease lives. It guards the start of sending, not the length of the answer.
const (
	DefaultTTL = 60 * time.Second
	MaxTTL     = 120 * time.Second // enforced by the node, whatever was signed or configured
)

// Grant is the edge's decision that a lease may be issued, made after the place was granted.
type Grant struct {
	Binding
	Projection      uint64 // the number of the configuration that the node has
	SlotRevision    uint64
	ProfileRevision uint64
	RouteRevision   uint64
}

// Issued is a lease, and what the edge's ledger keeps of it.
type Issued struct {
	Wire                []byte // CredentialLease, encoded
	LeaseID             string // 32 hex digits
	IssuedAt, ExpiresAt int64  // Unix milliseconds
}

// Issuer makes leases with one signing key. Safe for concurrent use; it holds no lock while it computes.
type Issuer struct {
	edge string
	key  *SigningKey
}

// NewIssuer returns an issuer. edgeID is the edge's name, which its nodes know from registration.
func NewIssuer(edgeID string, key *SigningKey) *Issuer { return &Issuer{edge: edgeID, key: key} }

// Issue seals secret to the recipient and signs it for the grant. nowMS is the edge's clock in Unix milliseconds, ttl
// at most MaxTTL. Its errors are Refusals: identity_required for a recipient that wasn't proven to this edge, and
// otherwise what the node would say.
func (i *Issuer) Issue(to Recipient, g Grant, secret Secret, nowMS int64, ttl time.Duration) (Issued, error) {
	panic("declared")
}
