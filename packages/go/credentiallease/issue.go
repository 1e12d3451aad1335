package credentiallease

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"time"
)

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
// from one millisecond to MaxTTL. Its errors are Refusals: identity_required for a recipient that wasn't proven to this
// edge, unknown_key for a signing key that was dropped, bad_secret for a secret that is gone, and otherwise what the
// node would say.
func (i *Issuer) Issue(to Recipient, g Grant, secret Secret, nowMS int64, ttl time.Duration) (Issued, error) {
	private, ok := i.key.box.get()
	switch {
	case !ok:
		return Issued{}, refuse(UnknownKey, FieldNone)
	case to.key == nil || to.edgeID != i.edge || i.edge == "":
		return Issued{}, refuse(IdentityRequired, FieldNone)
	case ttl > MaxTTL:
		return Issued{}, refuse(TTLTooLong, FieldNone)
	}
	c := i.claims(to, g, nowMS, ttl)
	if err := c.complete(); err != nil {
		return Issued{}, err
	}
	if err := g.allowed(); err != nil {
		return Issued{}, err
	}
	e := &envelope{version: Version, kid: i.key.id, claims: c.encode()}
	if len(e.claims) > maxClaims {
		return Issued{}, refuse(Malformed, FieldClaims)
	}
	var err error
	if e.enc, e.sealed, err = seal(to.key, e.claims, secret); err != nil {
		return Issued{}, err
	}
	e.sig = ed25519.Sign(private, e.signed())
	return Issued{
		Wire:     e.encode(),
		LeaseID:  hex.EncodeToString(c.LeaseID[:]),
		IssuedAt: c.IssuedAt, ExpiresAt: c.ExpiresAt,
	}, nil
}

func (i *Issuer) claims(to Recipient, g Grant, nowMS int64, ttl time.Duration) *Claims {
	c := &Claims{
		Binding: g.Binding,
		Issuer:  i.edge, KeyID: i.key.id,
		NodeID: to.nodeID, RecipientKeyID: to.id, Generation: to.generation,
		Projection: g.Projection, SlotRevision: g.SlotRevision, ProfileRevision: g.ProfileRevision, RouteRevision: g.RouteRevision,
		IssuedAt: nowMS, NotBefore: nowMS, ExpiresAt: nowMS + ttl.Milliseconds(),
	}
	// crypto/rand never fails: it ends the program instead.
	_, _ = rand.Read(c.LeaseID[:])
	return c
}
