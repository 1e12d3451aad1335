package credentiallease

import (
	"bytes"
	"crypto/hpke"
	"crypto/sha256"
	"errors"
	"testing"
)

// E28: a proof by another key, for another transcript, replayed or empty is no proof.
func TestProofs(t *testing.T) {
	k, err := NewRecipientKey()
	check(t, err)
	other, err := NewRecipientKey()
	check(t, err)
	good := testTranscript()
	changed := map[string]func(*Transcript){
		"node":       func(t *Transcript) { t.NodeID = "gpu-2" },
		"edge":       func(t *Transcript) { t.EdgeID = "edge-b" },
		"generation": func(t *Transcript) { t.Generation++ },
		"exporter":   func(t *Transcript) { t.Exporter[31] ^= 1 },
	}
	for name, change := range changed {
		tr := good
		change(&tr)
		c := challenge(t, k, good)
		proof, err := k.Prove(c.Enc(), tr)
		check(t, err)
		if r, err := c.Confirm(proof); err != ErrProof || r.KeyID() != "" {
			t.Errorf("another %s is accepted: %v", name, err)
		}
	}
	c := challenge(t, k, good)
	if proof, err := other.Prove(c.Enc(), good); err == nil {
		if _, err := c.Confirm(proof); err != ErrProof {
			t.Error("another key proves it")
		}
	}
	for _, wrong := range [][]byte{nil, {}, make([]byte, ProofSize), make([]byte, ProofSize+1)} {
		if _, err := challenge(t, k, good).Confirm(wrong); err != ErrProof {
			t.Errorf("proof %x is accepted", wrong)
		}
	}
	c = challenge(t, k, good)
	proof, err := k.Prove(c.Enc(), good)
	check(t, err)
	r, err := c.Confirm(proof)
	check(t, err)
	if r.KeyID() != k.ID() || r.NodeID() != "gpu-1" || r.Generation() != 7 {
		t.Errorf("proven %q %q %d", r.KeyID(), r.NodeID(), r.Generation())
	}
	if _, err := c.Confirm(proof); err != ErrProof {
		t.Error("a challenge is answered twice")
	}
	if _, err := challenge(t, k, good).Confirm(proof); err != ErrProof {
		t.Error("a proof answers another challenge")
	}
}

// A wrong answer uses the challenge up: there is no guessing.
func TestChallengeIsGoodForOneAnswer(t *testing.T) {
	k, err := NewRecipientKey()
	check(t, err)
	c := challenge(t, k, testTranscript())
	proof, err := k.Prove(c.Enc(), testTranscript())
	check(t, err)
	if _, err := c.Confirm(bytes.Repeat([]byte{1}, ProofSize)); err != ErrProof {
		t.Fatal(err)
	}
	for _, second := range [][]byte{proof, make([]byte, ProofSize)} {
		if _, err := c.Confirm(second); err != ErrProof {
			t.Error("a challenge is good for a second answer")
		}
	}
}

// What has no TLS session, no names or no generation can't be proven by either side.
func TestTranscriptsAreWhole(t *testing.T) {
	k, err := NewRecipientKey()
	check(t, err)
	enc := challenge(t, k, testTranscript()).Enc()
	for i, change := range []func(*Transcript){
		func(t *Transcript) { t.NodeID = "" },
		func(t *Transcript) { t.EdgeID = "" },
		func(t *Transcript) { t.Generation = 0 },
		func(t *Transcript) { t.Exporter = [ExporterSize]byte{} },
	} {
		tr := testTranscript()
		change(&tr)
		if _, err := NewChallenge(k.Public(), tr); err != ErrProof {
			t.Errorf("%d: challenge: %v", i, err)
		}
		if _, err := k.Prove(enc, tr); err != ErrProof {
			t.Errorf("%d: proof: %v", i, err)
		}
	}
}

// What a proof is bound to, as bytes.
func TestTranscriptBytes(t *testing.T) {
	tr := testTranscript()
	sum := sha256.Sum256([]byte("public"))
	want := pae([]byte("iop.recipient-pop.v1"), []byte("gpu-1"), []byte("edge-a"), []byte{0, 0, 0, 0, 0, 0, 0, 7}, tr.Exporter[:], sum[:])
	if !bytes.Equal(tr.info([]byte("public")), want) {
		t.Errorf("%q", tr.info([]byte("public")))
	}
}

func TestPublicKeys(t *testing.T) {
	k, err := NewRecipientKey()
	check(t, err)
	good := k.Public()
	if len(good) != PublicKeySize || len(k.ID()) != 32 {
		t.Fatalf("key of %d bytes, id %q", len(good), k.ID())
	}
	for name, bad := range map[string][]byte{
		"none": nil, "short": good[1:], "long": append(good[:len(good):len(good)], 0),
		"not reduced": bytes.Repeat([]byte{0xff}, PublicKeySize),
		"low order":   append(good[:PublicKeySize-32:PublicKeySize-32], make([]byte, 32)...),
	} {
		if _, err := NewChallenge(bad, testTranscript()); !errors.Is(err, ErrPublicKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, enc := range [][]byte{nil, make([]byte, 10), make([]byte, encSize)} {
		if proof, err := k.Prove(enc, testTranscript()); err != ErrProof || proof != nil {
			t.Errorf("challenge of %d bytes: %v", len(enc), err)
		}
	}
}

// A dropped key proves and opens nothing, and its seed is cleared.
func TestDroppedRecipientKey(t *testing.T) {
	k, err := NewRecipientKey()
	check(t, err)
	private, _ := k.box.get()
	seed, err := private.Bytes()
	check(t, err)
	enc := challenge(t, k, testTranscript()).Enc()
	k.Drop()
	k.Drop()
	if _, err := k.Prove(enc, testTranscript()); err != ErrProof {
		t.Errorf("a dropped key proves: %v", err)
	}
	if !bytes.Equal(seed, make([]byte, len(seed))) {
		t.Error("the seed of a dropped key is still there")
	}
}

// The suite: ML-KEM-768 and X25519 (X-Wing, 0x647a), HKDF-SHA256 (1), AES-256-GCM (2).
func TestSuite(t *testing.T) {
	if kem, kdf, aead := hpke.MLKEM768X25519().ID(), hpke.HKDFSHA256().ID(), hpke.AES256GCM().ID(); kem != 0x647a || kdf != 1 || aead != 2 {
		t.Errorf("suite %x %x %x", kem, kdf, aead)
	}
}

func challenge(t testing.TB, k *RecipientKey, tr Transcript) *Challenge {
	t.Helper()
	c, err := NewChallenge(k.Public(), tr)
	check(t, err)
	return c
}
