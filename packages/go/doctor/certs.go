package doctor

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/identity"
	"iop/packages/go/program"
)

// caSoon is the rest of a CA's life at which its end is warned of: replacing a CA takes two steps at every program.
const caSoon = 30 * 24 * time.Hour

// Identity looks at the files of a program's identity: that each is there and can be read, that they belong together,
// whose they are, and how long they last. It returns what was found of them, nil when they can't be used. pin is the
// CA's fingerprint that a node's token names, "" = none.
func Identity(cfg identity.Config, pin string, now time.Time) (*identity.Source, []Finding) {
	s, err := identity.Open(cfg)
	var bad *identity.FileError
	switch {
	case errors.As(err, &bad):
		return nil, []Finding{Failed("tls."+bad.Key, fileRemedy(bad), "%s (this machine's clock says %s)", bad, now.UTC().Format(time.RFC3339))}
	case err != nil:
		return nil, []Finding{Failed("tls", "look at the files named under tls", "can't be used: %v", err)}
	}
	m := s.Current()
	found := []Finding{expiry("tls.cert", fmt.Sprintf("%s is %s, and its key fits", cfg.Files.Cert, m.ID()), m.Leaf().NotBefore, m.NotAfter(), now,
		"renew it: iop-edge ca issue, or whatever made it; the new files are taken without a restart")}
	for _, ca := range m.CAs() {
		found = append(found, caExpiry(cfg.Files.CA, ca, now))
	}
	if pin != "" && !config.Pinned(m, pin) {
		found = append(found, Failed("tls.ca", "check with iop-edge ca inspect whether it is the Edge's CA; if it was rotated, make a new token",
			"%s doesn't hold the CA that the token's join string names (SHA-256 %s…)", cfg.Files.CA, pin[:16]))
	}
	return s, found
}

// fileRemedy says what to do about a file that can't be used.
func fileRemedy(bad *identity.FileError) string {
	if f, err := os.Open(bad.Path); err == nil {
		f.Close()
	} else if errors.Is(err, fs.ErrPermission) {
		return "let the program's user read it, and the directories above it (chown); the key stays closed to all others"
	}
	switch bad.Key {
	case "key":
		return "put certificate and key in place together, both of one iop-edge ca issue, the key with mode 600"
	case "ca":
		return "put the CA's certificate there (ca.pem of iop-edge ca init), whole and in PEM"
	}
	return "issue it anew (iop-edge ca issue), with its key; if it is valid by its dates, set this machine's clock (NTP)"
}

// Certificate looks at how long a certificate that isn't an identity lasts: that of an HTTP listener.
func Certificate(check, path string, now time.Time) Finding {
	certs, err := identity.ReadCertificates(path)
	if err != nil {
		return Failed(check, "put the certificate there, whole and in PEM", "%v", err)
	}
	leaf := certs[0]
	what := fmt.Sprintf("%s (%s)", path, leaf.Subject)
	if now.Before(leaf.NotBefore) {
		return Failed(check, "set this machine's clock (NTP), or wait", "%s isn't valid before %s", what, leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return expiry(check, what, leaf.NotBefore, leaf.NotAfter, now, "renew it, and restart the Edge")
}

func caExpiry(path string, ca *x509.Certificate, now time.Time) Finding {
	const check = "tls.ca"
	what := fmt.Sprintf("%s holds the CA %s", path, ca.Subject)
	remedy := "rotate it: iop-edge ca rotate, then give the new bundle to every program"
	switch left := ca.NotAfter.Sub(now); {
	case left <= 0:
		return Warn(check, "take it out of the bundle", "%s, which expired at %s", what, ca.NotAfter.UTC().Format(time.RFC3339))
	case left < caSoon && left < ca.NotAfter.Sub(ca.NotBefore)/2:
		return Warn(check, remedy, "%s, which ends in %s: no link is possible then", what, days(left))
	default:
		return Well(check, "%s, for another %s", what, days(left))
	}
}

// expiry judges a certificate by what is left of its life.
func expiry(check, what string, from, to, now time.Time, remedy string) Finding {
	left := to.Sub(now)
	switch {
	case left <= 0:
		return Failed(check, remedy, "%s; it expired at %s", what, to.UTC().Format(time.RFC3339))
	case program.ExpiresSoon(from, to, now):
		return Warn(check, remedy, "%s; it ends in %s, and links end with it", what, days(left))
	}
	return Well(check, "%s; it lasts another %s", what, days(left))
}

// days says how long something is, in what people plan by.
func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
