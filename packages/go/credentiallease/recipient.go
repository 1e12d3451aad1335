package credentiallease

import (
	"crypto/hpke"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
)

const (
	// ExporterLabel is the label with which both ends export keying material from the TLS session that carries a
	// registration: ExportKeyingMaterial(ExporterLabel, []byte(nodeID), ExporterSize).
	ExporterLabel = "EXPORTER-iop-register-v1"
	// ExporterSize is how many bytes of it a Transcript has.
	ExporterSize = 32
	// ProofSize is the length of a proof in bytes.
	ProofSize = 32
	// PublicKeySize is the length of a recipient's public key (ML-KEM-768 and X25519) in bytes.
	PublicKeySize = 1216

	proofLabel = "iop.recipient-pop.v1"
)

// ErrPublicKey is returned for bytes that aren't a recipient's public key.
var ErrPublicKey = errors.New("credentiallease: not a recipient's public key")

// ErrProof is returned for a proof or challenge that doesn't fit: another key, another transcript, used before, absent.
// At registration it is pop_failed.
var ErrProof = errors.New("credentiallease: the recipient key isn't proven")

// RecipientKey is the private key to which leases for one connection of a node are sealed. It lives in memory only.
// Safe for concurrent use.
type RecipientKey struct {
	hidden
	box    *box[hpke.PrivateKey]
	public []byte
	id     string
}

// NewRecipientKey makes a key for one connection, or for the 12 hours after which a connection takes a new one.
func NewRecipientKey() (*RecipientKey, error) {
	var private hpke.PrivateKey
	var err error
	Shield(func() { private, err = hpke.MLKEM768X25519().GenerateKey() })
	if err != nil {
		return nil, err
	}
	return recipientKey(private), nil
}

func recipientKey(private hpke.PrivateKey) *RecipientKey {
	public := private.PublicKey().Bytes()
	return &RecipientKey{box: boxed(private), public: public, id: recipientKeyID(public)}
}

// Public returns the public key as it travels in RegisterRequest and RecipientKey.
func (k *RecipientKey) Public() []byte { return append([]byte(nil), k.public...) }

// ID names the key in leases: the first 16 bytes of SHA-256 of the public key, in hex.
func (k *RecipientKey) ID() string { return k.id }

// Prove answers the challenge enc of the edge. The transcript is what this node itself sees of the connection.
func (k *RecipientKey) Prove(enc []byte, t Transcript) ([]byte, error) {
	private, ok := k.box.get()
	if !ok || !t.valid() {
		return nil, ErrProof
	}
	var proof []byte
	err := ErrProof
	Shield(func() {
		r, e := hpke.NewRecipient(enc, private, hpke.HKDFSHA256(), hpke.ExportOnly(), t.info(k.public))
		if e != nil {
			return
		}
		proof, err = r.Export(proofLabel, ProofSize)
	})
	return proof, err
}

// Drop forgets the key: from now on it opens and proves nothing. What was opening with it already may finish.
func (k *RecipientKey) Drop() {
	k.box.drop(func(private hpke.PrivateKey) {
		// Go 1.26 returns the seed itself, from which the key could be made again; a copy wouldn't hurt.
		if seed, err := private.Bytes(); err == nil {
			clear(seed)
		}
	})
}

// Transcript is the connection for which a recipient key is proven. Both sides fill it from what they know themselves.
type Transcript struct {
	NodeID     string
	EdgeID     string
	Generation uint64 // of the connection, reserved or current; never 0
	// Exporter is the TLS session's keying material for ExporterLabel. A proof can't be passed on to another session.
	Exporter [ExporterSize]byte
}

func (t Transcript) valid() bool {
	return t.NodeID != "" && t.EdgeID != "" && t.Generation != 0 && t.Exporter != [ExporterSize]byte{}
}

func (t Transcript) info(public []byte) []byte {
	sum := sha256.Sum256(public)
	return pae([]byte(proofLabel), []byte(t.NodeID), []byte(t.EdgeID),
		binary.BigEndian.AppendUint64(nil, t.Generation), t.Exporter[:], sum[:])
}

// Challenge is the edge's question whether a node has the private key. It is good for one answer. Not safe for
// concurrent use.
type Challenge struct {
	hidden
	enc       []byte
	want      *box[[]byte]
	recipient Recipient
}

// NewChallenge makes a challenge for the public key that a node announced. It returns ErrPublicKey for what isn't one,
// and ErrProof for a transcript with something missing: without TLS there is nothing to bind to.
func NewChallenge(public []byte, t Transcript) (*Challenge, error) {
	if len(public) != PublicKeySize {
		return nil, ErrPublicKey
	}
	if !t.valid() {
		return nil, ErrProof
	}
	key, err := hpke.MLKEM768X25519().NewPublicKey(public)
	if err != nil {
		return nil, ErrPublicKey
	}
	c := &Challenge{recipient: Recipient{
		key: key, id: recipientKeyID(public), nodeID: t.NodeID, edgeID: t.EdgeID, generation: t.Generation,
	}}
	var want []byte
	Shield(func() {
		var s *hpke.Sender
		if c.enc, s, err = hpke.NewSender(key, hpke.HKDFSHA256(), hpke.ExportOnly(), t.info(public)); err == nil {
			want, err = s.Export(proofLabel, ProofSize)
		}
	})
	if err != nil {
		return nil, ErrPublicKey
	}
	c.want = boxed(want)
	return c, nil
}

// Enc is what travels in RegisterChallenge and RecipientChallenge.
func (c *Challenge) Enc() []byte { return append([]byte(nil), c.enc...) }

// Confirm checks the node's answer, in constant time, and returns the recipient to which leases may be issued. A second
// answer is refused, whatever it is.
func (c *Challenge) Confirm(proof []byte) (Recipient, error) {
	want, ok := c.want.get()
	c.want.drop(func([]byte) {})
	defer clear(want)
	if !ok || len(proof) != ProofSize || subtle.ConstantTimeCompare(proof, want) != 1 {
		return Recipient{}, ErrProof
	}
	return c.recipient, nil
}

// Recipient is a node's recipient key, proven for one connection. Only [Challenge.Confirm] makes one, so that there is
// no lease for a key or an identity that wasn't proven. The zero value is no recipient.
type Recipient struct {
	key            hpke.PublicKey
	id             string
	nodeID, edgeID string
	generation     uint64
}

// KeyID names the key in leases; "" for the zero value.
func (r Recipient) KeyID() string { return r.id }

// NodeID is the node that proved the key.
func (r Recipient) NodeID() string { return r.nodeID }

// Generation is the connection for which it was proven.
func (r Recipient) Generation() uint64 { return r.generation }

func recipientKeyID(public []byte) string {
	sum := sha256.Sum256(public)
	return hex.EncodeToString(sum[:16])
}
