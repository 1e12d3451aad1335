package identity_test

import (
	"crypto/x509"
	"testing"
	"time"

	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
)

func TestEndsSoon(t *testing.T) {
	now, day := time.Unix(1_800_000_000, 0), 24*time.Hour
	for _, c := range []struct {
		name        string
		whole, left time.Duration
		want        bool
	}{
		{"a year, just made", 365 * day, 365 * day, false},
		{"a year, 31 days left", 365 * day, 31 * day, false},
		{"a year, 29 days left", 365 * day, 29 * day, true},
		{"a year, over", 365 * day, -day, true},
		{"a month, just made by hand", 29 * day, 29 * day, true},
		{"an hour, just made by a machine", time.Hour, time.Hour, false},
		{"an hour, half of it left", time.Hour, 30 * time.Minute, false},
		{"an hour, and nobody has renewed it", time.Hour, 10 * time.Minute, true},
		{"an hour, over", time.Hour, -time.Minute, true},
	} {
		v := identity.Validity{Begins: now.Add(c.left - c.whole), Ends: now.Add(c.left)}
		if got := v.EndsSoon(now); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

func TestValidityOfMaterial(t *testing.T) {
	until := func(d time.Duration) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotAfter = time.Now().Add(d) }
	}
	leaving, coming := identitytest.NewCA(t, "leaving", until(time.Hour)), identitytest.NewCA(t, "coming", until(48*time.Hour))
	leaf := coming.Edge(t, until(2*time.Hour))
	source, _ := identitytest.Open(t, leaf, leaving, coming)
	if own := source.Current().Own(); !own.Ends.Equal(leaf.Cert.NotAfter) || !own.Begins.Equal(leaf.Cert.NotBefore) {
		t.Errorf("own: %v", own)
	}
	if trust := source.Current().Trust(); !trust.Ends.Equal(coming.Cert.NotAfter) || !trust.Begins.Equal(coming.Cert.NotBefore) {
		t.Errorf("trust: %v, want that of the CA that stays", trust)
	}
}
