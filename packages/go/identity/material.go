package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

const (
	// maxFile bounds each file: a bundle of hundreds of CAs, and nothing that exhausts memory.
	maxFile = 1 << 20
	// maxChain bounds what a peer may show of its chain.
	maxChain = 8
)

// Files are where an identity is kept, all PEM.
type Files struct {
	Cert string // the program's certificate, followed by what leads from it to the CA, if anything does
	Key  string // its private key
	CA   string // the CAs that are trusted; more than one while they are rotated
}

// FileError is what is wrong with one of the files. Text begins where a sentence about the file goes on.
type FileError struct {
	Key  string // which one, as the configuration names it: cert, key or ca
	Path string
	Text string
}

// Error implements error.
func (e *FileError) Error() string { return e.Path + " " + e.Text }

// Material is a consistent set of what the files held at one moment: the key is the certificate's, and the certificate
// is good by the CAs. It is never changed.
type Material struct {
	cert    tls.Certificate
	id      ID
	roots   *x509.CertPool
	cas     []*x509.Certificate
	expires time.Time
}

// ID is the program's own SPIFFE ID.
func (m *Material) ID() ID { return m.id }

// Leaf is the program's own certificate.
func (m *Material) Leaf() *x509.Certificate { return m.cert.Leaf }

// NotAfter is when the program's own chain stops being valid.
func (m *Material) NotAfter() time.Time { return m.expires }

// CAs are the certificates that are trusted.
func (m *Material) CAs() []*x509.Certificate { return m.cas }

// SameLeaf reports whether both have the same certificate of the program.
func (m *Material) SameLeaf(o *Material) bool { return m.cert.Leaf.Equal(o.cert.Leaf) }

func (m *Material) equal(o *Material) bool {
	return slices.EqualFunc(m.cert.Certificate, o.cert.Certificate, bytes.Equal) &&
		slices.EqualFunc(m.cas, o.cas, (*x509.Certificate).Equal)
}

// Load reads the files and checks that they belong together and are valid at now. An error is a [*FileError].
func Load(f Files, now time.Time) (*Material, error) {
	m := &Material{roots: x509.NewCertPool()}
	var err error
	if m.cas, err = readCAs(f.CA, now); err != nil {
		return nil, err
	}
	for _, ca := range m.cas {
		m.roots.AddCert(ca)
	}
	if err := m.readPair(f); err != nil {
		return nil, err
	}
	bad := func(format string, args ...any) error {
		return &FileError{Key: "cert", Path: f.Cert, Text: fmt.Sprintf(format, args...)}
	}
	leaf := m.cert.Leaf
	switch {
	case now.After(leaf.NotAfter):
		return nil, bad("expired at %s; renew it", leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return nil, bad("isn't valid before %s; is the clock right?", leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	chain, err := parseAll(m.cert.Certificate)
	if err != nil {
		return nil, bad("holds a certificate that can't be read: %v", err)
	}
	// What both peers will ask of it: better known at the start than by every handshake.
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		peer, err := m.verify(chain, usage, now)
		if err != nil {
			return nil, bad("can't be an identity by %s: %v", f.CA, err)
		}
		m.id, m.expires = peer.ID, peer.NotAfter
	}
	return m, nil
}

// readPair reads certificate and key.
func (m *Material) readPair(f Files) error {
	certPEM, err := readPEM("cert", f.Cert)
	if err != nil {
		return err
	}
	if info, err := os.Stat(f.Key); err == nil && info.Mode().Perm()&0o007 != 0 {
		return &FileError{Key: "key", Path: f.Key,
			Text: fmt.Sprintf("is open to every user of this machine (mode %04o); chmod 600 it", info.Mode().Perm())}
	}
	keyPEM, err := readPEM("key", f.Key)
	if err != nil {
		return err
	}
	if _, err := certificates(certPEM); err != nil {
		return &FileError{Key: "cert", Path: f.Cert, Text: err.Error()}
	}
	if m.cert, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		// The certificate can be read, so it is the key, or the two aren't a pair. The error quotes nothing of it.
		return &FileError{Key: "key", Path: f.Key, Text: fmt.Sprintf("isn't the private key of %s: %v", f.Cert, err)}
	}
	return nil
}

// readCAs reads a bundle, in which at least one CA must be valid now.
func readCAs(path string, now time.Time) ([]*x509.Certificate, error) {
	text, err := readPEM("ca", path)
	if err != nil {
		return nil, err
	}
	bad := func(text string) error { return &FileError{Key: "ca", Path: path, Text: text} }
	cas, err := certificates(text)
	if err != nil {
		return nil, bad(err.Error())
	}
	valid := false
	for _, ca := range cas {
		if !ca.IsCA || !ca.BasicConstraintsValid {
			return nil, bad(fmt.Sprintf("holds the certificate %q, which isn't a CA's", ca.Subject))
		}
		valid = valid || !now.Before(ca.NotBefore) && !now.After(ca.NotAfter)
	}
	if !valid {
		return nil, bad("holds no CA that is valid now; it expired at " + cas[len(cas)-1].NotAfter.UTC().Format(time.RFC3339))
	}
	return cas, nil
}

// ReadCertificates reads a file of certificates, whatever they are. An error is a [*FileError].
func ReadCertificates(path string) ([]*x509.Certificate, error) {
	text, err := readPEM("cert", path)
	if err != nil {
		return nil, err
	}
	certs, err := certificates(text)
	if err != nil {
		return nil, &FileError{Key: "cert", Path: path, Text: err.Error()}
	}
	return certs, nil
}

// certificates parses PEM that must hold certificates and nothing else.
func certificates(text []byte) (certs []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a PEM block %q where only CERTIFICATE belongs", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("holds a certificate that can't be read: %w", err)
		}
		certs = append(certs, cert)
	}
	switch {
	case len(certs) == 0:
		return nil, errors.New("holds no certificate in PEM (-----BEGIN CERTIFICATE-----)")
	case len(bytes.TrimSpace(text)) > 0:
		return nil, errors.New("ends with what isn't PEM: is it cut off?")
	}
	return certs, nil
}

func parseAll(ders [][]byte) ([]*x509.Certificate, error) {
	certs := make([]*x509.Certificate, len(ders))
	for i, der := range ders {
		var err error
		if certs[i], err = x509.ParseCertificate(der); err != nil {
			return nil, err
		}
	}
	return certs, nil
}

// readPEM reads one of the files. A device or pipe is refused before it is opened, since reading it may never end.
func readPEM(key, path string) ([]byte, error) {
	bad := func(format string, args ...any) error {
		return &FileError{Key: key, Path: path, Text: fmt.Sprintf(format, args...)}
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, bad("doesn't exist")
	case err != nil:
		return nil, bad("can't be read: %v", plain(err))
	case !info.Mode().IsRegular():
		return nil, bad("isn't a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, bad("can't be read: %v", plain(err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, bad("can't be read: %v", plain(err))
	case len(text) > maxFile:
		return nil, bad("is longer than %d bytes", maxFile)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, bad("is empty")
	}
	return text, nil
}

// plain is an error without the path that the caller names itself.
func plain(err error) error {
	if pe := new(fs.PathError); errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
