// Package identitytest makes CAs and certificates for tests, good ones and such as must be refused, and puts them where
// an identity is read from. It is for tests only.
package identitytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"iop/packages/go/identity"
)

// TrustDomain is that of the CAs that name no other.
const TrustDomain = "iop.test"

// CA signs certificates.
type CA struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Leaf is a certificate with its key.
type Leaf struct {
	Cert    *x509.Certificate
	CertPEM []byte
	KeyPEM  []byte
}

// NewCA makes a CA like those of iop-edge ca init, valid from an hour ago for a day; change alters its template.
func NewCA(t testing.TB, name string, change ...func(*x509.Certificate)) *CA {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		PermittedURIDomains: []string{TrustDomain}, PermittedDNSDomainsCritical: true,
	}
	for _, c := range change {
		c(template)
	}
	key := newKey(t)
	return &CA{Cert: sign(t, template, template, key, key), key: key}
}

// Leaf makes a certificate for the URI, valid from an hour ago for an hour; change alters its template.
func (ca *CA) Leaf(t testing.TB, uri string, change ...func(*x509.Certificate)) Leaf {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(), BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	if uri != "" {
		template.URIs = []*url.URL{URL(t, uri)}
	}
	for _, c := range change {
		c(template)
	}
	key := newKey(t)
	cert := sign(t, template, ca.Cert, key, ca.key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Leaf{Cert: cert, CertPEM: PEM("CERTIFICATE", cert.Raw), KeyPEM: PEM("PRIVATE KEY", der)}
}

// Node makes the certificate of a node, by the default of its record.
func (ca *CA) Node(t testing.TB, id string, change ...func(*x509.Certificate)) Leaf {
	return ca.Leaf(t, string(identity.NodeID(TrustDomain, id)), change...)
}

// Edge makes the certificate of an Edge.
func (ca *CA) Edge(t testing.TB, change ...func(*x509.Certificate)) Leaf {
	return ca.Leaf(t, string(identity.EdgeID(TrustDomain)), change...)
}

// URL parses a URI.
func URL(t testing.TB, uri string) *url.URL {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// PEM encodes one block.
func PEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Bundle is the CAs as a file holds them.
func Bundle(cas ...*CA) []byte {
	var out []byte
	for _, ca := range cas {
		out = append(out, PEM("CERTIFICATE", ca.Cert.Raw)...)
	}
	return out
}

// Write puts an identity into files in dir: cert.pem, key.pem and ca.pem.
func Write(t testing.TB, dir string, leaf Leaf, cas ...*CA) identity.Files {
	t.Helper()
	files := identity.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	for _, f := range []struct {
		name string
		data []byte
	}{{files.Key, leaf.KeyPEM}, {files.Cert, leaf.CertPEM}, {files.CA, Bundle(cas...)}} {
		if err := os.WriteFile(f.name, f.data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// Open puts an identity into files of its own and opens it.
func Open(t testing.TB, leaf Leaf, cas ...*CA) (*identity.Source, identity.Files) {
	t.Helper()
	files := Write(t, t.TempDir(), leaf, cas...)
	s, err := identity.Open(identity.Config{Files: files, TrustDomain: TrustDomain})
	if err != nil {
		t.Fatal(err)
	}
	return s, files
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // never fails
	}
	return n
}
