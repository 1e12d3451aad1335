package ca

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"iop/packages/go/identity"
	"iop/packages/go/program"
)

// The files that Issue writes, as configurations name them.
const (
	CertFile = "cert.pem"
	KeyFile  = "key.pem"
	CAFile   = "ca.pem"
)

// Issue makes a key and its certificate for id, and writes both and the bundle into the directory out: the key with mode
// 0600. Files that are there are replaced one by one; who reads them ignores a pair that doesn't match.
func (a *Authority) Issue(dir, out string, id identity.ID, ttl time.Duration) (*x509.Certificate, error) {
	bundle, err := Bundle(dir)
	if err != nil {
		return nil, err
	}
	key := newKey()
	cert, err := a.sign(id, key.Public(), ttl)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	for _, f := range []struct {
		name, text string
		mode       os.FileMode
	}{{CAFile, bundle, 0o644}, {KeyFile, encode("PRIVATE KEY", der), 0o600}, {CertFile, encode("CERTIFICATE", cert.Raw), 0o644}} {
		if err := program.WriteFile(filepath.Join(out, f.name), f.text, f.mode); err != nil {
			return nil, err
		}
	}
	return cert, nil
}

// SignCSR makes a certificate for id over the public key of a request in PEM, whose private key never leaves its
// machine. Of the request only its key counts; one that asks for another identity is refused, since it is for another.
func (a *Authority) SignCSR(request []byte, id identity.ID, ttl time.Duration) (text string, cert *x509.Certificate, err error) {
	block, rest := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" {
		return "", nil, errors.New("isn't a certificate request in PEM (-----BEGIN CERTIFICATE REQUEST-----)")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return "", nil, errors.New("holds more than one certificate request")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return "", nil, fmt.Errorf("can't be read: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return "", nil, fmt.Errorf("isn't signed by its own key: %w", err)
	}
	for _, uri := range csr.URIs {
		if uri.String() != string(id) {
			return "", nil, fmt.Errorf("asks for another identity than %s", id)
		}
	}
	if err := strong(csr.PublicKey); err != nil {
		return "", nil, err
	}
	if cert, err = a.sign(id, csr.PublicKey, ttl); err != nil {
		return "", nil, err
	}
	return encode("CERTIFICATE", cert.Raw), cert, nil
}

// strong refuses keys that are too weak for an identity.
func strong(public crypto.PublicKey) error {
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		if k.Curve.Params().BitSize >= 256 {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if k.N.BitLen() >= 2048 {
			return nil
		}
	}
	return errors.New("has a key that is too weak or of a kind that isn't supported: use ECDSA P-256, Ed25519 or RSA with 2048 bits")
}

func parseURI(id identity.ID) (*url.URL, error) {
	if _, err := identity.ParseID(string(id)); err != nil {
		return nil, fmt.Errorf("%q %w", string(id), err)
	}
	return url.Parse(string(id))
}
