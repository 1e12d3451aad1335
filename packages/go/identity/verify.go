package identity

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Peer is who the other side of a connection has proved to be.
type Peer struct {
	// ID is the one SPIFFE ID of its certificate.
	ID ID
	// Serial is the certificate's serial number, as [Serial] writes it.
	Serial string
	// NotBefore and NotAfter are when its certificate begins, and its chain ceases, to be valid.
	NotBefore, NotAfter time.Time
	// Shown is what this side showed of itself on the connection.
	Shown *Material

	chain   []*x509.Certificate
	usage   x509.ExtKeyUsage
	session tls.ConnectionState
}

// Export derives n bytes from the TLS session that only its two ends can know, the same at both: what is signed or
// proved over them can't be used on another connection. The proof of a node's recipient key is bound by it
// (label "EXPORTER-iop-register-v1", context the node's id, 32 bytes).
func (p *Peer) Export(label string, context []byte, n int) ([]byte, error) {
	return p.session.ExportKeyingMaterial(label, context, n)
}

// Error is why a peer's certificate isn't accepted.
type Error struct {
	Text string
	Err  error // what the library found, nil = nothing
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Text + ": " + e.Err.Error()
	}
	return e.Text
}

// Unwrap returns what the library found.
func (e *Error) Unwrap() error { return e.Err }

// Serial writes a certificate's serial number as it stands in revoked_serials: hex, lower case, no leading zeros.
func Serial(c *x509.Certificate) string { return c.SerialNumber.Text(16) }

// verify checks a chain that a peer has shown, the leaf first: that a trusted CA vouches for it at this moment, for
// this usage, and that the leaf is an identity.
func (m *Material) verify(chain []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time) (*Peer, error) {
	switch {
	case len(chain) == 0:
		return nil, &Error{Text: "the peer showed no certificate"}
	case len(chain) > maxChain:
		return nil, &Error{Text: "the peer's chain of certificates is too long"}
	}
	leaf := chain[0]
	id, err := leafID(leaf)
	if err != nil {
		return nil, &Error{Text: "the certificate isn't an identity", Err: err}
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	// Name constraints of the CAs are checked by Verify, and so are their usages.
	chains, err := leaf.Verify(x509.VerifyOptions{Roots: m.roots, Intermediates: between, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return nil, &Error{Text: fmt.Sprintf("no trusted CA vouches for the certificate of %s", id), Err: err}
	}
	p := &Peer{ID: id, Serial: Serial(leaf), NotBefore: leaf.NotBefore, chain: chain, usage: usage}
	for _, c := range chains { // the chain that holds longest
		if end := earliest(c); end.After(p.NotAfter) {
			p.NotAfter = end
		}
	}
	return p, nil
}

func earliest(chain []*x509.Certificate) time.Time {
	end := chain[0].NotAfter
	for _, c := range chain[1:] {
		if c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}

// Of returns the SPIFFE ID of a certificate that keeps the rules for an identity's, whoever signed it.
func Of(c *x509.Certificate) (ID, error) { return leafID(c) }

// Check says whether both sides of a link would accept a certificate by this CA alone.
func Check(c, ca *x509.Certificate) error {
	m := &Material{roots: x509.NewCertPool()}
	m.roots.AddCert(ca)
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := m.verify([]*x509.Certificate{c}, usage, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// Still checks a peer again, by what is trusted now.
func (m *Material) Still(p *Peer, now time.Time) error {
	_, err := m.verify(p.chain, p.usage, now)
	return err
}

// leafID returns the SPIFFE ID of a leaf certificate that keeps the rules for one.
func leafID(c *x509.Certificate) (ID, error) {
	switch {
	case c.IsCA:
		return "", errors.New("it is a CA's certificate")
	case c.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return "", errors.New("its key may sign certificates or revocations")
	case c.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return "", errors.New("its key may not sign (no digitalSignature)")
	case len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) > 0 && !(slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth) &&
		slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)):
		return "", errors.New("it isn't for both clients and servers (serverAuth and clientAuth)")
	}
	uris, err := uriNames(c)
	if err != nil {
		return "", err
	}
	if len(uris) != 1 {
		return "", fmt.Errorf("it has %d URI names, where exactly one is due", len(uris))
	}
	id, err := ParseID(uris[0])
	if err != nil {
		return "", fmt.Errorf("its URI name %w", err)
	}
	return id, nil
}

// uriNames returns the URI names of a certificate as they stand in it: parsed ones have lost what a parser forgives.
func uriNames(c *x509.Certificate) (uris []string, err error) {
	const uriTag = 6
	for _, ext := range c.Extensions {
		if !ext.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 17}) {
			continue
		}
		var names []asn1.RawValue
		if rest, err := asn1.Unmarshal(ext.Value, &names); err != nil || len(rest) > 0 {
			return nil, errors.New("its names can't be read")
		}
		for _, n := range names {
			if n.Class == asn1.ClassContextSpecific && n.Tag == uriTag {
				uris = append(uris, string(n.Bytes))
			}
		}
	}
	return uris, nil
}
