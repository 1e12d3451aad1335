package credentiallease

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// vectorSeeds adds the leases of the vectors to a corpus.
func vectorSeeds(f *testing.F, add func(lease []byte)) {
	text, err := os.ReadFile(vectorFile)
	check(f, err)
	var doc vectorDocument
	check(f, json.Unmarshal(text, &doc))
	for _, v := range doc.Vectors {
		add(v.Lease)
	}
}

// What is decoded as a lease is encoded to the same bytes: there is one form of each.
func FuzzEnvelope(f *testing.F) {
	message := schema(f).Messages().Get(0)
	vectorSeeds(f, func(lease []byte) { f.Add(lease) })
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEnvelope(b)
		if err != nil {
			if _, ok := err.(Refusal); !ok {
				t.Fatalf("error %v isn't a refusal", err)
			}
			return
		}
		if !bytes.Equal(e.encode(), b) || !bytes.Equal(throughProtobuf(t, message, b), b) {
			t.Fatal("a lease has two forms")
		}
	})
}

// The same for claims.
func FuzzClaims(f *testing.F) {
	message := schema(f).Messages().Get(1)
	vectorSeeds(f, func(lease []byte) {
		if e, err := decodeEnvelope(lease); err == nil {
			f.Add(e.claims)
		}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeClaims(b)
		if err != nil {
			if r, ok := err.(Refusal); !ok || r.Reason != Malformed {
				t.Fatalf("error %v", err)
			}
			return
		}
		if !bytes.Equal(c.encode(), b) || !bytes.Equal(throughProtobuf(t, message, b), b) {
			t.Fatal("claims have two forms")
		}
	})
}

// What is taken out of a plaintext is exactly what was put in, and fit for a header.
func FuzzPlaintext(f *testing.F) {
	f.Add(pad([]byte(goodValue)))
	f.Add(pad([]byte("sk-x12345\r\nX-Evil: 1")))
	f.Add([]byte{0xff, 0xff, 0})
	f.Fuzz(func(t *testing.T, plain []byte) {
		secret, ok := unpad(plain)
		if !ok {
			return
		}
		if !bytes.Equal(pad(secret), plain) {
			t.Fatal("a secret has two plaintexts")
		}
		if bytes.ContainsAny(secret, "\r\n\x00 ") || len(secret) < MinSecret || len(secret) > MaxSecret {
			t.Fatalf("secret of %d bytes", len(secret))
		}
	})
}

// No bytes that anybody can make are a lease; only signed ones are.
func FuzzVerify(f *testing.F) {
	w := newWorld(f)
	vectorSeeds(f, func(lease []byte) { f.Add(lease) })
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := w.guard.Verify(b, testBinding(), w.now); err == nil {
			t.Fatal("accepted without the key")
		}
	})
}

// A peer's public key or challenge never panics, and never proves anything by chance.
func FuzzRecipient(f *testing.F) {
	k, err := NewRecipientKey()
	check(f, err)
	f.Add(k.Public(), make([]byte, encSize), make([]byte, ProofSize))
	f.Fuzz(func(t *testing.T, public, enc, proof []byte) {
		if c, err := NewChallenge(public, testTranscript()); err == nil {
			if _, err := c.Confirm(proof); err == nil {
				t.Fatal("proven by chance")
			}
		}
		if p, err := k.Prove(enc, testTranscript()); err == nil && len(p) != ProofSize {
			t.Fatalf("proof of %d bytes", len(p))
		}
	})
}
