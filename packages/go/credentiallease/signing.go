package credentiallease

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

const keyIDSize = 22

// SeedSize is the length of a signing key's seed in bytes: what is stored of it.
const SeedSize = ed25519.SeedSize

// SigningKey is an edge's private key for signing leases. Every edge has its own. Safe for concurrent use.
type SigningKey struct {
	hidden
	box    *box[ed25519.PrivateKey]
	public [ed25519.PublicKeySize]byte
	id     string
}

// GenerateSigningKey makes a signing key.
func GenerateSigningKey() *SigningKey {
	var key *SigningKey
	Shield(func() {
		// crypto/rand never fails: it ends the program instead.
		_, private, _ := ed25519.GenerateKey(rand.Reader)
		key = signingKey(private)
	})
	return key
}

// NewSigningKey returns the key of a stored seed and clears seed.
func NewSigningKey(seed []byte) (*SigningKey, error) {
	defer clear(seed)
	if len(seed) != SeedSize {
		return nil, fmt.Errorf("credentiallease: a signing key's seed has %d bytes, not %d", SeedSize, len(seed))
	}
	var key *SigningKey
	Shield(func() { key = signingKey(ed25519.NewKeyFromSeed(seed)) })
	return key, nil
}

func signingKey(private ed25519.PrivateKey) *SigningKey {
	k := &SigningKey{box: boxed(private)}
	copy(k.public[:], private.Public().(ed25519.PublicKey))
	k.id = KeyID(k.public[:])
	return k
}

// ID is the key id that leases name.
func (k *SigningKey) ID() string { return k.id }

// Public returns the public key, which nodes are told.
func (k *SigningKey) Public() []byte { return append([]byte(nil), k.public[:]...) }

// UseSeed calls f with a copy of the seed, for storing it, clears the copy afterwards, and reports whether there was
// one.
func (k *SigningKey) UseSeed(f func(seed []byte)) bool {
	private, ok := k.box.get()
	if !ok {
		return false
	}
	seed := private.Seed()
	defer clear(seed)
	f(seed)
	return true
}

// Drop forgets the key and clears it. Nothing may be issuing with it any more.
func (k *SigningKey) Drop() { k.box.drop(func(private ed25519.PrivateKey) { clear(private) }) }

// KeyID names a signing key: the first 22 characters of SHA-256 of the public key in base64url.
func KeyID(public []byte) string {
	sum := sha256.Sum256(public)
	return base64.RawURLEncoding.EncodeToString(sum[:])[:keyIDSize]
}

// VerifyKey is one edge signing key as a node is told of it, over the connection that registration authenticated.
type VerifyKey struct {
	ID     string
	Public []byte
	// From when until when (exclusive) leases signed with it are accepted, in milliseconds of the edge's clock. 0 = no
	// limit.
	NotBefore, NotAfter int64
}

// keyring is the set of keys that a node trusts for one connection. It isn't changed after it was made.
type keyring map[string]VerifyKey

var errVerifyKey = errors.New("credentiallease: a lease key's id isn't the hash of its public key")

// newKeyring recomputes every id: a kid that an edge made up must not stand for another's key.
func newKeyring(keys []VerifyKey) (keyring, error) {
	ring := make(keyring, len(keys))
	for _, k := range keys {
		if len(k.Public) != ed25519.PublicKeySize || KeyID(k.Public) != k.ID {
			return nil, errVerifyKey
		}
		k.Public = append([]byte(nil), k.Public...)
		ring[k.ID] = k
	}
	return ring, nil
}

// find returns the key of a kid when it is in force. Without a synchronized clock its window isn't looked at: such a
// lease is refused later on in any case.
func (r keyring) find(kid string, now Time) (VerifyKey, bool) {
	k, ok := r[kid]
	if !ok {
		return VerifyKey{}, false
	}
	if now.Synced && (k.NotBefore != 0 && now.Latest < k.NotBefore || k.NotAfter != 0 && now.Latest >= k.NotAfter) {
		return VerifyKey{}, false
	}
	return k, true
}
