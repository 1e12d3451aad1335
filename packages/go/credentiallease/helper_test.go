package credentiallease

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hpke"
	"errors"
	"testing"
	"time"
)

const (
	edgeTime  = int64(1_800_000_000_000) // the edge's clock in tests, Unix milliseconds
	goodValue = "sk-canary-0123456789abcdef"
)

func at(ms int64) Time { return Time{Earliest: ms, Latest: ms, Synced: true} }

// world is an edge and a node with one proven connection.
type world struct {
	signer    *SigningKey
	recipient *RecipientKey
	proven    Recipient
	secret    Secret
	grant     Grant
	guard     *Guard
	now       Time
}

func testTranscript() Transcript {
	t := Transcript{NodeID: "gpu-1", EdgeID: "edge-a", Generation: 7}
	copy(t.Exporter[:], bytes.Repeat([]byte{0xe7}, ExporterSize))
	return t
}

func testBinding() Binding {
	return Binding{
		Principal: "team-a", Route: "fast", Slot: "openai-main", Profile: "openai", Adapter: "hosted", Target: "gpt-5",
		RunID: "run-1", Attempt: 1, Header: "Authorization", Scheme: "Bearer", Origin: "https://api.openai.com:443",
		Method: "POST", Path: "/v1/chat/completions",
	}
}

func (w *world) projection(number uint64) Projection {
	return Projection{
		Number:   number,
		Keys:     []VerifyKey{{ID: w.signer.ID(), Public: w.signer.Public()}},
		Slots:    []SlotState{{ID: "openai-main", MinRevision: 100}, {ID: "closed", Disabled: true}},
		Routes:   []Revision{{"fast", 11}},
		Profiles: []Revision{{"openai", 12}},
	}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	k, err := NewRecipientKey()
	check(t, err)
	return worldOf(t, GenerateSigningKey(), k)
}

func worldOf(t testing.TB, signer *SigningKey, recipient *RecipientKey) *world {
	t.Helper()
	w := &world{signer: signer, recipient: recipient, now: at(edgeTime)}
	w.proven = prove(t, recipient, testTranscript())
	var err error
	w.secret, err = NewSecret([]byte(goodValue))
	check(t, err)
	w.grant = Grant{Binding: testBinding(), Projection: 3, SlotRevision: 101, ProfileRevision: 12, RouteRevision: 11}
	w.guard, err = NewGuard(Config{NodeID: "gpu-1", EdgeID: "edge-a", Generation: 7})
	check(t, err)
	check(t, w.guard.Project(w.projection(3)))
	w.guard.UseRecipient(recipient, w.now)
	return w
}

func prove(t testing.TB, k *RecipientKey, tr Transcript) Recipient {
	t.Helper()
	c, err := NewChallenge(k.Public(), tr)
	check(t, err)
	proof, err := k.Prove(c.Enc(), tr)
	check(t, err)
	r, err := c.Confirm(proof)
	check(t, err)
	return r
}

func (w *world) issue(t testing.TB) []byte {
	t.Helper()
	return w.issueAt(t, w.now.Latest)
}

func (w *world) issueAt(t testing.TB, nowMS int64) []byte {
	t.Helper()
	l, err := NewIssuer("edge-a", w.signer).Issue(w.proven, w.grant, w.secret, nowMS, DefaultTTL)
	check(t, err)
	return l.Wire
}

// draft is a lease in the making, by an edge that does what it likes.
type draft struct {
	claims    Claims
	signer    *SigningKey
	to        hpke.PublicKey
	plain     []byte
	raw       func(claims []byte) []byte // changes the encoded claims before they are sealed and signed
	resealed  func(*envelope)            // before signing
	corrupted func(*envelope)            // after signing
}

func (w *world) draft() *draft {
	c := NewIssuer("edge-a", w.signer).claims(w.proven, w.grant, edgeTime, DefaultTTL)
	return &draft{claims: *c, signer: w.signer, to: w.proven.key, plain: pad([]byte(goodValue))}
}

func (d *draft) wire(t testing.TB) []byte {
	t.Helper()
	e := &envelope{version: Version, kid: d.signer.id, claims: d.claims.encode()}
	if d.raw != nil {
		e.claims = d.raw(e.claims)
	}
	var err error
	e.enc, e.sealed, err = sealPlain(d.to, e.claims, d.plain)
	check(t, err)
	if d.resealed != nil {
		d.resealed(e)
	}
	sign(e, d.signer)
	if d.corrupted != nil {
		d.corrupted(e)
	}
	return e.encode()
}

func sign(e *envelope, k *SigningKey) {
	private, _ := k.box.get()
	e.sig = ed25519.Sign(private, e.signed())
}

// ready verifies, admits and arms.
func (w *world) ready(t testing.TB, wire []byte) *Held {
	t.Helper()
	h, err := w.guard.Verify(wire, testBinding(), w.now)
	check(t, err)
	check(t, h.Admit())
	check(t, h.Arm())
	return h
}

func (w *world) redeem(h *Held) (string, error) {
	var got string
	err := h.Redeem(make([]byte, MaxSecret), func() Time { return w.now }, func(secret []byte) error {
		got = string(secret)
		return nil
	})
	return got, err
}

// whole takes a lease all the way, and returns the secret that was sent.
func (w *world) whole(wire []byte, b Binding) (string, error) {
	h, err := w.guard.Verify(wire, b, w.now)
	if err != nil {
		return "", err
	}
	defer h.End()
	if err := errors.Join(h.Admit(), h.Arm()); err != nil {
		return "", err
	}
	return w.redeem(h)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantRefusal(t testing.TB, err error, reason Reason, field Field) {
	t.Helper()
	if want := (Refusal{reason, field}); err != error(want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

const second = int64(time.Second / time.Millisecond)
