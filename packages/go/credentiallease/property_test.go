package credentiallease

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// E1: a lease with any bit altered is refused, before anything is decrypted, and the good one still works.
func TestAnyBitAltered(t *testing.T) {
	w := newWorld(t)
	wire := w.issue(t)
	rapid.Check(t, func(t *rapid.T) {
		bad := bytes.Clone(wire)
		for _, bit := range rapid.SliceOfNDistinct(rapid.IntRange(0, 8*len(bad)-1), 1, 8, rapid.ID).Draw(t, "bits") {
			bad[bit/8] ^= 1 << (bit % 8)
		}
		_, err := w.guard.Verify(bad, testBinding(), w.now)
		if err == nil {
			t.Fatal("an altered lease is accepted")
		}
		switch r := err.(Refusal).Reason; r {
		case Malformed, UnsupportedVersion, UnknownKey, BadSignature:
		default:
			t.Fatalf("an altered lease got as far as %v", r)
		}
	})
	_, err := w.whole(wire, testBinding())
	check(t, err)
}

// Every single bit, once: the lease's id isn't taken by any of them.
func TestEveryBitAltered(t *testing.T) {
	if testing.Short() {
		t.Skip("14,000 signatures")
	}
	w := newWorld(t)
	wire := w.issue(t)
	for bit := range 8 * len(wire) {
		wire[bit/8] ^= 1 << (bit % 8)
		if _, err := w.guard.Verify(wire, testBinding(), w.now); err == nil {
			t.Fatalf("bit %d may be altered", bit)
		}
		wire[bit/8] ^= 1 << (bit % 8)
	}
	_, err := w.whole(wire, testBinding())
	check(t, err)
}

// Bytes put in, taken out or moved.
func TestAnyBytesMoved(t *testing.T) {
	w := newWorld(t)
	wire := w.issue(t)
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.IntRange(0, len(wire)).Draw(t, "from")
		to := rapid.IntRange(from, len(wire)).Draw(t, "to")
		put := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "put")
		bad := append(append(bytes.Clone(wire[:from]), put...), wire[to:]...)
		if bytes.Equal(bad, wire) {
			return
		}
		if _, err := w.guard.Verify(bad, testBinding(), w.now); err == nil {
			t.Fatal("an altered lease is accepted")
		}
	})
}

// E6, E8: any field altered and signed again by a signer whom the node trusts, over a ciphertext that it can't read:
// refused at once, or when it is opened, and never sent.
func TestAnyFieldAlteredAndSignedAgain(t *testing.T) {
	w := newWorld(t)
	good, err := decodeEnvelope(w.issue(t))
	check(t, err)
	rapid.Check(t, func(t *rapid.T) {
		c, err := decodeClaims(good.claims)
		if err != nil {
			t.Fatal(err)
		}
		e := *good
		table := c.table()
		switch v := table[rapid.IntRange(0, len(table)-1).Draw(t, "field")].at.(type) {
		case *string:
			*v = rapid.OneOf(rapid.Just(""), rapid.Just(*v+"x"), rapid.StringN(0, 20, 40)).Draw(t, "text")
		case *uint64:
			*v = rapid.OneOf(rapid.Just(*v+1), rapid.Just(*v-1), rapid.Uint64()).Draw(t, "number")
		case *uint32:
			*v = rapid.Uint32().Draw(t, "short")
		case *int64:
			*v += rapid.Int64Range(-200_000, 200_000).Draw(t, "milliseconds")
		case *[leaseIDSize]byte:
			v[rapid.IntRange(0, 15).Draw(t, "at")] ^= 1
		}
		e.claims = c.encode()
		if bytes.Equal(e.claims, good.claims) {
			return
		}
		sign(&e, w.signer)
		got, err := w.whole(e.encode(), testBinding())
		if err == nil || got != "" {
			t.Fatal("rewritten claims are accepted")
		}
	})
}

// What is issued is what is opened, for every secret.
func TestRoundTrip(t *testing.T) {
	w := newWorld(t)
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SliceOfN(rapid.ByteRange(0x21, 0x7e), MinSecret, rapid.SampledFrom([]int{40, 300, MaxSecret}).Draw(t, "most")).Draw(t, "secret")
		var err error
		if w.secret, err = NewSecret(bytes.Clone(value)); err != nil {
			t.Fatal(err)
		}
		got, err := w.whole(issueFor(w), testBinding())
		if err != nil || got != string(value) {
			t.Fatalf("%q, %v", got, err)
		}
	})
}

// A ciphertext tells the length of a secret to the next 128 bytes only.
func TestLengthIsHidden(t *testing.T) {
	for _, c := range []struct{ secret, plain int }{{MinSecret, 128}, {126, 128}, {127, 256}, {254, 256}, {MaxSecret, 4224}} {
		if got := len(pad(bytes.Repeat([]byte{'s'}, c.secret))); got != c.plain {
			t.Errorf("a secret of %d bytes becomes %d", c.secret, got)
		}
	}
}
