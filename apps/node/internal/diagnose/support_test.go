package diagnose_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"testing"
	"time"

	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
	"iop/packages/go/patience"
)

type identityCert = x509.Certificate

func overwrite(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// secured makes connections TLS as an Edge's that shows leaf and trusts the CAs. An Edge can't start with a certificate
// that isn't by its own CA, but another program can sit in its place.
func secured(t *testing.T, leaf identitytest.Leaf, trusted []*identitytest.CA) func(net.Conn) net.Conn {
	t.Helper()
	cert, err := tls.X509KeyPair(leaf.CertPEM, leaf.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	for _, ca := range trusted {
		roots.AddCert(ca.Cert)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, NextProtos: []string{identity.ALPN},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots}
	return func(c net.Conn) net.Conn {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Limit)
		defer cancel()
		_ = c.SetDeadline(time.Now().Add(patience.Limit))
		s := tls.Server(c, cfg)
		if s.HandshakeContext(ctx) != nil {
			return nil
		}
		return s
	}
}
