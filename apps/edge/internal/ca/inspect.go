package ca

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"iop/packages/go/identity"
)

// Inspect says what is in a file of certificates: as many as there are, each with what configurations and records need.
func Inspect(path string, now time.Time) (string, error) {
	certs, err := identity.ReadCertificates(path)
	if err != nil {
		return "", err
	}
	var s strings.Builder
	for i, c := range certs {
		if i > 0 {
			s.WriteByte('\n')
		}
		describe(&s, c, now)
	}
	return s.String(), nil
}

// Fingerprint is the SHA-256 of a certificate.
func Fingerprint(c *x509.Certificate) [sha256.Size]byte { return sha256.Sum256(c.Raw) }

func describe(s *strings.Builder, c *x509.Certificate, now time.Time) {
	sum := Fingerprint(c)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(s, "%-12s "+format+"\n", append([]any{name}, args...)...)
	}
	if c.IsCA {
		line("CA", "%s", c.Subject)
		if len(c.PermittedURIDomains) > 0 {
			line("trust domain", "%s", strings.Join(c.PermittedURIDomains, ", "))
		}
	} else if id, err := identity.Of(c); err != nil {
		line("certificate", "no identity: %v", err)
	} else {
		line("spiffe_id", "%s", id)
	}
	line("serial", "%s", identity.Serial(c))
	line("not_before", "%s", c.NotBefore.UTC().Format(time.RFC3339))
	line("not_after", "%s (%s)", c.NotAfter.UTC().Format(time.RFC3339), left(c, now))
	line("sha256", "%s", hex.EncodeToString(sum[:]))
}

func left(c *x509.Certificate, now time.Time) string {
	switch d := c.NotAfter.Sub(now); {
	case now.Before(c.NotBefore):
		return "not valid yet"
	case d < 0:
		return "expired"
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days left", int(d.Hours()/24))
	default:
		return d.Round(time.Second).String() + " left"
	}
}
