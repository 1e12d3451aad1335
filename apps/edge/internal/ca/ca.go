// Package ca is a small certificate authority for a first setup of mode managed: a directory of files, and commands that
// make, use and replace them. It is a tool, not a service: no running Edge needs its key, and files from SPIRE, step-ca
// or cert-manager do as well.
//
// It owns what its certificates look like and the order in which files are written. What makes a certificate an identity
// is packages/go/identity's to say, and everything that is issued is checked by it.
package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"iop/packages/go/identity"
	"iop/packages/go/program"
)

// The files of a CA's directory. A CA's certificate and key are one file, so that they are replaced as one.
const (
	activeFile   = "ca.pem"       // what signs
	nextFile     = "next.pem"     // what will sign, while a rotation is under way
	previousFile = "previous.pem" // the certificate of what signed before
	bundleFile   = "bundle.pem"   // what edges and nodes are to trust
)

// backdated is how far back certificates begin: clocks differ.
const backdated = 5 * time.Minute

// Authority is a CA that can sign.
type Authority struct {
	Cert *x509.Certificate
	key  crypto.Signer
}

// Init makes a CA in dir, for one trust domain, valid for ttl. A CA that is there isn't touched.
func Init(dir, trustDomain string, ttl time.Duration) (*Authority, error) {
	switch _, err := os.Lstat(filepath.Join(dir, activeFile)); {
	case err == nil:
		return nil, fmt.Errorf("%s holds a CA already; choose another directory", dir)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case !identity.ValidTrustDomain(trustDomain):
		return nil, fmt.Errorf("%q can't be a trust domain: lower-case letters, digits, . _ -", trustDomain)
	}
	a, err := newAuthority(trustDomain, ttl)
	if err != nil {
		return nil, err
	}
	// A domain that certificates can't be constrained to shows with the first certificate: better now.
	if _, err := a.sign(identity.EdgeID(trustDomain), newKey().Public(), time.Hour); err != nil {
		return nil, fmt.Errorf("trust domain %q: %w", trustDomain, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := writeBundle(dir, a.Cert); err != nil {
		return nil, err
	}
	return a, a.store(filepath.Join(dir, activeFile))
}

// Open reads the CA in dir that signs.
func Open(dir string) (*Authority, error) {
	a, err := readAuthority(filepath.Join(dir, activeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s holds no CA; make one with iop-edge ca init", dir)
	}
	return a, err
}

// TrustDomain is the domain that the CA's certificates are constrained to.
func (a *Authority) TrustDomain() string {
	if len(a.Cert.PermittedURIDomains) != 1 {
		return ""
	}
	return a.Cert.PermittedURIDomains[0]
}

func newAuthority(trustDomain string, ttl time.Duration) (*Authority, error) {
	key := newKey()
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{Organization: []string{"IOP"}, CommonName: "IOP CA of " + trustDomain + " " + now.UTC().Format("2006-01-02")},
		NotBefore:    now.Add(-backdated), NotAfter: now.Add(ttl),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedURIDomains: []string{trustDomain}, PermittedDNSDomainsCritical: true, // of all constraints, for all their "DNS"
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the CA's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the CA's certificate: %w", err)
	}
	return &Authority{Cert: cert, key: key}, nil
}

// sign makes a certificate of an identity, and checks it as a peer would. It ends no later than the CA.
func (a *Authority) sign(id identity.ID, public crypto.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	now := time.Now()
	end := now.Add(ttl)
	if end.After(a.Cert.NotAfter) {
		end = a.Cert.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{Organization: []string{"IOP"}},
		NotBefore: now.Add(-min(backdated, ttl)), NotAfter: end, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	uri, err := parseURI(id)
	if err != nil {
		return nil, err
	}
	template.URIs = append(template.URIs, uri)
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate: %w", err)
	}
	return cert, identity.Check(cert, a.Cert)
}

// store writes the CA's certificate and key.
func (a *Authority) store(path string) error {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return fmt.Errorf("encode the CA's key: %w", err)
	}
	return program.WriteFile(path, encode("CERTIFICATE", a.Cert.Raw)+encode("PRIVATE KEY", der), 0o600)
}

func readAuthority(path string) (*Authority, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s holds the CA's key and is open to others (mode %04o); chmod 600 it", path, info.Mode().Perm())
	}
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, fmt.Errorf("%s isn't a CA's certificate and key: %w", path, err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("%s isn't a CA's certificate and key", path)
	}
	return &Authority{Cert: pair.Leaf, key: key}, nil
}

// writeBundle writes what is to be trusted; the order says nothing, and each is there once.
func writeBundle(dir string, certs ...*x509.Certificate) error {
	var text strings.Builder
	var seen []*x509.Certificate
	for _, c := range certs {
		if !slices.ContainsFunc(seen, c.Equal) {
			seen = append(seen, c)
			text.WriteString(encode("CERTIFICATE", c.Raw))
		}
	}
	return program.WriteFile(filepath.Join(dir, bundleFile), text.String(), 0o644)
}

// Bundle returns what edges and nodes are to trust now, as their files hold it.
func Bundle(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, bundleFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s holds no CA; make one with iop-edge ca init", dir)
	}
	return string(text), err
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// newKey draws a key; crypto/rand never fails, it ends the program instead.
func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

// newSerial draws a positive serial number of at most 127 bits.
func newSerial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // never fails
	}
	return n.Add(n, big.NewInt(1))
}
