package identity_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"net/url"
	"testing"
	"time"

	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
)

// pipe is a pair of connected sockets on loopback: unlike net.Pipe they buffer, as TLS's parting words need.
func pipe(t *testing.T) (client, server net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// side is what came of one side's handshake.
type side struct {
	conn *tls.Conn
	peer *identity.Peer
	err  error
}

func accept(t *testing.T, s *identity.Source, conn net.Conn) <-chan side {
	done := make(chan side, 1)
	go func() {
		c, p, err := s.Server(t.Context(), conn, nil)
		done <- side{c, p, err}
	}()
	return done
}

func dial(t *testing.T, s *identity.Source, conn net.Conn) side {
	c, p, err := s.Client(t.Context(), conn, identity.EdgeID(identitytest.TrustDomain))
	return side{c, p, err}
}

func TestHandshake(t *testing.T) {
	ca := identitytest.NewCA(t, "ca")
	edge, _ := identitytest.Open(t, ca.Edge(t), ca)
	leaf := ca.Node(t, "gpu-1")
	node, _ := identitytest.Open(t, leaf, ca)
	c, s := pipe(t)
	accepted := accept(t, edge, s)
	dialed := dial(t, node, c)
	served := <-accepted
	if dialed.err != nil || served.err != nil {
		t.Fatal(dialed.err, served.err)
	}
	if served.peer.ID != "spiffe://iop.test/iop/node/gpu-1" || dialed.peer.ID != "spiffe://iop.test/iop/edge" {
		t.Errorf("the edge saw %s, the node %s", served.peer.ID, dialed.peer.ID)
	}
	if served.peer.Serial != leaf.Cert.SerialNumber.Text(16) || !served.peer.NotAfter.Equal(leaf.Cert.NotAfter) {
		t.Errorf("%+v", served.peer)
	}
	cs := served.conn.ConnectionState()
	if cs.Version != tls.VersionTLS13 || cs.NegotiatedProtocol != "iop/1" || cs.DidResume {
		t.Errorf("%+v", cs)
	}
	// What a later proof is bound to is the same at both ends, and another on the next connection.
	a, err := served.peer.Export("EXPORTER-iop-register-v1", []byte("gpu-1"), 32)
	if err != nil {
		t.Fatal(err)
	}
	b, err := dialed.peer.Export("EXPORTER-iop-register-v1", []byte("gpu-1"), 32)
	if err != nil || string(a) != string(b) || len(a) != 32 {
		t.Errorf("exporters differ: %v", err)
	}
	c2, s2 := pipe(t)
	again := accept(t, edge, s2)
	dial(t, node, c2)
	if other, err := (<-again).peer.Export("EXPORTER-iop-register-v1", []byte("gpu-1"), 32); err != nil || string(other) == string(a) {
		t.Errorf("the exporter of two sessions is the same: %v", err)
	}
}

// E23, TL-06: every node that isn't who it should be gets no further than the handshake. An id that is in no record is
// the registry's to refuse.
func TestNodesThatAreRefused(t *testing.T) {
	ca := identitytest.NewCA(t, "ca")
	twin := identitytest.NewCA(t, "ca") // the same name and trust domain, another key
	foreign := identitytest.NewCA(t, "foreign", func(c *x509.Certificate) { c.PermittedURIDomains = []string{"other.test"} })
	// One that isn't constrained to a trust domain, as others' CAs may be.
	free := identitytest.NewCA(t, "free", func(c *x509.Certificate) { c.PermittedURIDomains = nil })
	edge, _ := identitytest.Open(t, ca.Edge(t), ca, free)
	const id = "spiffe://iop.test/iop/node/gpu-1"
	for name, leaf := range map[string]identitytest.Leaf{
		"other CA, same trust domain":  twin.Leaf(t, id),
		"foreign CA":                   foreign.Leaf(t, "spiffe://other.test/iop/node/gpu-1"),
		"foreign CA for our domain":    foreign.Leaf(t, id),
		"our CA for another domain":    ca.Leaf(t, "spiffe://other.test/iop/node/gpu-1"),
		"a trusted CA, another domain": free.Leaf(t, "spiffe://other.test/iop/node/gpu-1"),
		"expired":                      ca.Leaf(t, id, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }),
		"not yet valid":                ca.Leaf(t, id, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }),
		"no URI name":                  ca.Leaf(t, ""),
		"a name, but no URI (CN, DNS)": ca.Leaf(t, "", func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: id}; c.DNSNames = []string{"gpu-1"} }),
		"two URI names": ca.Leaf(t, id, func(c *x509.Certificate) {
			c.URIs = append(c.URIs, &url.URL{Scheme: "spiffe", Host: "iop.test", Path: "/iop/node/gpu-2"})
		}),
		"for servers only": ca.Leaf(t, id, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
		"for clients only": ca.Leaf(t, id, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }),
		"a CA as leaf":     ca.Leaf(t, id, func(c *x509.Certificate) { c.IsCA = true }),
		"may sign certificates": ca.Leaf(t, id, func(c *x509.Certificate) {
			c.KeyUsage |= x509.KeyUsageCRLSign
		}),
		"may not sign":          ca.Leaf(t, id, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }),
		".. in the path":        ca.Leaf(t, "spiffe://iop.test/iop/node/../edge"),
		"percent-encoding":      ca.Leaf(t, "spiffe://iop.test/iop/node/gpu%2d1"),
		"a port":                ca.Leaf(t, "spiffe://iop.test:443/iop/node/gpu-1"),
		"a user":                ca.Leaf(t, "spiffe://u@iop.test/iop/node/gpu-1"),
		"upper-case domain":     ca.Leaf(t, "spiffe://IOP.test/iop/node/gpu-1"),
		"https":                 ca.Leaf(t, "https://iop.test/iop/node/gpu-1"),
		"a query":               ca.Leaf(t, id+"?x"),
		"an empty segment":      ca.Leaf(t, "spiffe://iop.test/iop//gpu-1"),
		"the trust domain only": ca.Leaf(t, "spiffe://iop.test"),
		"a slash at the end":    ca.Leaf(t, id+"/"),
	} {
		t.Run(name, func(t *testing.T) {
			c, s := pipe(t)
			accepted := accept(t, edge, s)
			// A node's own program wouldn't start with most of these: this one sends what it has.
			pair, err := tls.X509KeyPair(leaf.CertPEM, leaf.KeyPEM)
			if err != nil {
				t.Fatal(err)
			}
			conn := tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{identity.ALPN},
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }})
			_ = conn.HandshakeContext(t.Context())
			served := <-accepted
			if served.peer != nil || !errors.As(served.err, new(*identity.Error)) {
				t.Fatalf("accepted, or not for its certificate: %v", served.err)
			}
			// The trap of TLS 1.3: the refusal comes with the first read.
			s.Close()
			if _, err := conn.Read(make([]byte, 1)); !identity.Refused(err) {
				t.Errorf("the client read %v, want the refusal", err)
			}
		})
	}
}

// E23, E26: what isn't the protocol at all.
func TestClientsThatAreRefused(t *testing.T) {
	ca := identitytest.NewCA(t, "ca")
	edge, _ := identitytest.Open(t, ca.Edge(t), ca)
	node := ca.Node(t, "gpu-1")
	pair, err := tls.X509KeyPair(node.CertPEM, node.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]*tls.Config{
		"no certificate": {NextProtos: []string{identity.ALPN}},
		"TLS 1.2":        {NextProtos: []string{identity.ALPN}, MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}},
		"h2":             {NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}},
		"no ALPN":        {Certificates: []tls.Certificate{pair}},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := pipe(t)
			accepted := accept(t, edge, s)
			cfg.InsecureSkipVerify = true
			_ = tls.Client(c, cfg).HandshakeContext(t.Context())
			c.Close()
			if served := <-accepted; served.peer != nil || served.err == nil || identity.NotTLS(served.err) {
				t.Errorf("%+v", served)
			}
		})
	}
	t.Run("plaintext", func(t *testing.T) {
		c, s := pipe(t)
		accepted := accept(t, edge, s)
		if _, err := io.WriteString(c, "\x00\x00\x00\x10 a frame of the protocol"); err != nil {
			t.Fatal(err)
		}
		if served := <-accepted; !identity.NotTLS(served.err) {
			t.Errorf("%v", served.err)
		}
	})
	t.Run("silence", func(t *testing.T) {
		_, s := pipe(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := edge.Server(ctx, s, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

// E23, TL-06: an edge that isn't the one which the node was told of.
func TestEdgesThatAreRefused(t *testing.T) {
	ca, other := identitytest.NewCA(t, "ca"), identitytest.NewCA(t, "other")
	node, _ := identitytest.Open(t, ca.Node(t, "gpu-1"), ca)
	for name, leaf := range map[string]identitytest.Leaf{
		"a node as edge":   ca.Node(t, "gpu-2"),
		"the node itself":  ca.Node(t, "gpu-1"),
		"another edge":     ca.Leaf(t, "spiffe://iop.test/iop/edge/b"),
		"another CA":       other.Edge(t),
		"for clients only": ca.Edge(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }),
		"expired":          ca.Edge(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }),
		"a web server":     ca.Leaf(t, "", func(c *x509.Certificate) { c.DNSNames = []string{"localhost"} }),
	} {
		t.Run(name, func(t *testing.T) {
			c, s := pipe(t)
			pair, err := tls.X509KeyPair(leaf.CertPEM, leaf.KeyPEM)
			if err != nil {
				t.Fatal(err)
			}
			server := tls.Server(s, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{identity.ALPN}, ClientAuth: tls.RequireAnyClientCert})
			ended := make(chan error, 1)
			go func() { ended <- server.HandshakeContext(t.Context()) }()
			if dialed := dial(t, node, c); !errors.As(dialed.err, new(*identity.Error)) {
				t.Errorf("%v", dialed.err)
			}
			c.Close()
			if err := <-ended; err == nil {
				t.Error("the server took it for a success")
			}
		})
	}
	t.Run("without ALPN", func(t *testing.T) {
		c, s := pipe(t)
		edge := ca.Edge(t)
		pair, err := tls.X509KeyPair(edge.CertPEM, edge.KeyPEM)
		if err != nil {
			t.Fatal(err)
		}
		go func() { // ends with the connection
			_ = tls.Server(s, &tls.Config{Certificates: []tls.Certificate{pair}}).HandshakeContext(context.Background())
		}()
		if dialed := dial(t, node, c); !errors.As(dialed.err, new(*identity.Error)) {
			t.Errorf("%v", dialed.err)
		}
	})
}

// E24: a session is never resumed, whatever the client keeps.
func TestNoSessionIsResumed(t *testing.T) {
	ca := identitytest.NewCA(t, "ca")
	edge, _ := identitytest.Open(t, ca.Edge(t), ca)
	leaf := ca.Node(t, "gpu-1")
	pair, err := tls.X509KeyPair(leaf.CertPEM, leaf.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	kept := &tickets{ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{identity.ALPN}, Certificates: []tls.Certificate{pair},
		ClientSessionCache: kept, ServerName: "edge"}
	for range 3 {
		c, s := pipe(t)
		accepted := accept(t, edge, s)
		conn := tls.Client(c, cfg)
		if err := conn.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		served := <-accepted
		if served.err != nil || served.conn.ConnectionState().DidResume {
			t.Fatalf("resumed, or %v", served.err)
		}
		// A ticket, if there is one, comes with the first data.
		if _, err := served.conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if kept.n != 0 {
		t.Errorf("%d tickets were given out", kept.n)
	}
}

// tickets counts what a client was given to resume with.
type tickets struct {
	tls.ClientSessionCache
	n int
}

func (k *tickets) Put(key string, s *tls.ClientSessionState) {
	if s != nil {
		k.n++
	}
	k.ClientSessionCache.Put(key, s)
}
