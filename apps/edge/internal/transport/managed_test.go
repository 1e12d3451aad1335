package transport_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/transport"
	"iop/packages/go/config"
	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
	"iop/packages/go/patience"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

// managedSite is an edge in mode managed with two nodes in its records.
type managedSite struct {
	*edgetest.Edge
	t     *testing.T
	ca    *identitytest.CA
	files identity.Files // the edge's
	id    *identity.Source
	seen  *log
}

func newManaged(t *testing.T, timers transport.Timers) *managedSite {
	t.Helper()
	ca := identitytest.NewCA(t, "ca")
	id, files := identitytest.Open(t, ca.Edge(t), ca)
	e := edgetest.Start(t, edgetest.Options{Nodes: managedNodes(), Identity: id, Timers: timers})
	return &managedSite{Edge: e, t: t, ca: ca, files: files, id: id, seen: follow(e)}
}

func managedNodes() []config.NodeRecord {
	recs := nodes("a", "b")
	for i := range recs {
		recs[i].SPIFFEID = string(identity.NodeID(identitytest.TrustDomain, recs[i].ID))
	}
	return recs
}

// dial opens TLS to the edge as a node with this certificate. Whether the edge accepts it shows with the first read.
func (s *managedSite) dial(leaf identitytest.Leaf) *tls.Conn {
	s.t.Helper()
	c, err := s.tryDial(leaf)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// tryDial is dial where the edge may run out of patience.
func (s *managedSite) tryDial(leaf identitytest.Leaf) (*tls.Conn, error) {
	s.t.Helper()
	bare, err := net.Dial("tcp", s.Addr())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { bare.Close() })
	return s.dialOver(bare, leaf)
}

func (s *managedSite) dialOver(bare net.Conn, leaf identitytest.Leaf) (*tls.Conn, error) {
	s.t.Helper()
	pair, err := tls.X509KeyPair(leaf.CertPEM, leaf.KeyPEM)
	if err != nil {
		s.t.Fatal(err)
	}
	c := tls.Client(bare, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{identity.ALPN},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }})
	return c, c.HandshakeContext(s.t.Context())
}

// connect registers as a node and reports it ready.
func (s *managedSite) connect(leaf identitytest.Leaf, hello *pb.RegisterRequest) *edgetest.Node {
	s.t.Helper()
	n := edgetest.Connect(s.t, s.dial(leaf), edgetest.NodeOptions{Hello: hello})
	n.Ready()
	s.seen.want(s.t, events.KindReady, "ready")
	return n
}

// The node's certificate, its token and its record are one; what the session derives is there for later proofs.
func TestManagedRegistration(t *testing.T) {
	s := newManaged(t, transport.Timers{})
	n := s.connect(s.ca.Node(t, "a"), edgetest.Hello("a"))
	c := s.Registry.Lookup("a", n.Generation())
	if c == nil || c.Peer == nil || c.Peer.ID != "spiffe://iop.test/iop/node/a" {
		t.Fatalf("%+v", c)
	}
	if b, err := c.Peer.Export("EXPORTER-iop-register-v1", []byte("a"), 32); err != nil || len(b) != 32 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	st, err := c.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	st.Cancel()
}

// E27, TL-06, fault 44: certificate, token and record must agree; the node that it isn't is unaffected.
func TestManagedIdentityMismatch(t *testing.T) {
	s := newManaged(t, transport.Timers{})
	a := s.connect(s.ca.Node(t, "a"), edgetest.Hello("a"))
	revoked := s.ca.Node(t, "b")
	recs := managedNodes()
	recs[1].RevokedSerials = []string{identity.Serial(revoked.Cert)}
	s.Configure(recs)
	for name, c := range map[string]struct {
		leaf  identitytest.Leaf
		hello *pb.RegisterRequest
		text  string
	}{
		"token of b, certificate of a":   {s.ca.Node(t, "a"), edgetest.Hello("b"), "another identity"},
		"token of a, certificate of b":   {s.ca.Node(t, "b"), edgetest.Hello("a"), "another identity"},
		"an id that is in no record":     {s.ca.Node(t, "c"), edgetest.Hello("b"), "another identity"},
		"the edge's own certificate":     {s.ca.Edge(t), edgetest.Hello("b"), "another identity"},
		"a serial number that's revoked": {revoked, edgetest.Hello("b"), "revoked"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.dial(c.leaf)
			resp, err := edgetest.Register(conn, c.hello)
			if err != nil {
				t.Fatal(err)
			}
			if resp.GetAccepted() || resp.GetReason() != identityMismatch || !strings.Contains(resp.GetReasonText(), c.text) {
				t.Errorf("%v", resp)
			}
			if strings.Contains(resp.GetReasonText(), "spiffe://") {
				t.Errorf("the answer names an identity: %v", resp)
			}
			s.seen.want(t, events.KindRefused, "identity_mismatch")
		})
	}
	t.Run("a right certificate and an unknown token", func(t *testing.T) {
		hello := edgetest.Hello("b")
		hello.Token = "nobody knows this token"
		if resp, err := edgetest.Register(s.dial(s.ca.Node(t, "b")), hello); err != nil || resp.GetReason() != unknownToken {
			t.Errorf("%v, %v", resp, err)
		}
	})
	if cur := s.Registry.Current("a"); cur == nil || cur.Generation != a.Generation() || s.Registry.Current("b") != nil {
		t.Error("somebody was let in or put out")
	}
}

// E23: who has no acceptable certificate never gets to register, is told by TLS, and leaves nothing behind.
func TestManagedHandshakeRefused(t *testing.T) {
	s := newManaged(t, transport.Timers{})
	foreign := identitytest.NewCA(t, "foreign")
	conn := s.dial(foreign.Node(t, "a"))
	_ = link.WriteMessage(conn, edgetest.Hello("a")) // as a node does that believes its handshake
	if _, err := conn.Read(make([]byte, 1)); !identity.Refused(err) {
		t.Errorf("%v, want TLS's refusal", err)
	}
	conn.NetConn().Close()
	s.seen.want(t, events.KindRefused, "identity_mismatch")
	if n := s.seen.count(events.KindRegistered, ""); n != 0 {
		t.Errorf("%d registered", n)
	}
	eventually(t, "nothing is left", func() bool { return s.Server.Stats().Unregistered == 0 })
	if st := s.Server.Stats(); st.Refused["identity_mismatch"] != 1 {
		t.Errorf("%+v", st)
	}
}

// E26: a node that speaks plaintext is closed at its first byte; none of its frames is looked at.
func TestManagedRefusesPlaintext(t *testing.T) {
	s := newManaged(t, transport.Timers{})
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := link.WriteMessage(conn, edgetest.Hello("a")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience.Limit))
	answer, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) || strings.Contains(string(answer), "spiffe") {
		t.Errorf("not closed, or told something: %q, %v", answer, err)
	}
	if ev := s.seen.want(t, events.KindRefused, "protocol"); ev.NodeID != "" {
		t.Errorf("the token was looked at: %+v", ev)
	}
	if len(s.Registry.Connections()) != 0 {
		t.Error("registered")
	}
}

// E30 under TLS: who says nothing, and who stops after its first words, is closed by the handshake limit.
func TestManagedSilence(t *testing.T) {
	patience.Widen(t, 2*time.Second, func(limit time.Duration) bool {
		s := newManaged(t, transport.Timers{Handshake: limit})
		silent, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		if _, err := s.tryDial(s.ca.Node(t, "a")); err != nil { // never registers
			return false
		}
		for range 2 {
			s.seen.want(t, events.KindRefused, "handshake_timeout")
		}
		eventually(t, "both are gone", func() bool { return s.Server.Stats().Unregistered == 0 })
		return true
	})
}

// E25, TL-03: a live connection ends with its certificate; before that it gets no more work.
func TestCertificateExpiresOnALiveConnection(t *testing.T) {
	patience.Widen(t, 5*time.Second, func(life time.Duration) bool {
		s := newManaged(t, transport.Timers{})
		end := time.Now().Add(life).Truncate(time.Second)
		conn, err := s.tryDial(s.ca.Node(t, "a", func(c *x509.Certificate) { c.NotBefore, c.NotAfter = end.Add(-2*life), end }))
		if err != nil {
			return false
		}
		resp, err := edgetest.Register(conn, edgetest.Hello("a"))
		if err != nil || !resp.GetAccepted() {
			return false // it has expired already
		}
		n := edgetest.Run(t, conn, resp, edgetest.NodeOptions{})
		n.Ready()
		s.seen.want(t, events.KindFenced, "identity_expired")
		if time.Now().Before(end) {
			t.Error("before its end")
		}
		if s.seen.count(events.KindReady, "ready") == 0 || s.seen.count(events.KindDraining, "draining") == 0 {
			return false // the notice was over before the node was in, or the end came with it
		}
		s.wantGoodbye(n, pb.GoodbyeCode_GOODBYE_CODE_IDENTITY_EXPIRED)
		return true
	})
}

func (s *managedSite) wantGoodbye(n *edgetest.Node, code pb.GoodbyeCode) {
	s.t.Helper()
	limit := time.After(patience.Limit)
	for {
		select {
		case m := <-n.Heard:
			if g := m.GetGoodbye(); g != nil {
				if g.GetCode() != code {
					s.t.Errorf("goodbye %v, want %v", g, code)
				}
				return
			}
		case <-limit:
			s.t.Fatalf("no goodbye %v", code)
		}
	}
}

// E24, TL-01: a CA that isn't trusted any more takes the connections with it that it vouched for, and no others.
func TestTrustIsTakenBack(t *testing.T) {
	s := newManaged(t, transport.Timers{})
	next := identitytest.NewCA(t, "next")
	put := func(leaf identitytest.Leaf, cas ...*identitytest.CA) {
		t.Helper()
		for path, data := range map[string][]byte{s.files.Key: leaf.KeyPEM, s.files.Cert: leaf.CertPEM, s.files.CA: identitytest.Bundle(cas...)} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if changed, err := s.id.Reload(); !changed || err != nil {
			t.Fatal(changed, err)
		}
	}
	a := s.connect(s.ca.Node(t, "a"), edgetest.Hello("a"))
	put(s.ca.Edge(t), s.ca, next)
	b := s.connect(next.Node(t, "b"), edgetest.Hello("b"))
	put(next.Edge(t), next)
	if ev := s.seen.want(t, events.KindFenced, "identity_expired"); ev.NodeID != "a" {
		t.Errorf("%+v", ev)
	}
	s.wantGoodbye(a, pb.GoodbyeCode_GOODBYE_CODE_IDENTITY_EXPIRED)
	if cur := s.Registry.Current("b"); cur == nil || cur.Generation != b.Generation() {
		t.Error("b lost its connection")
	}
	conn := s.dial(s.ca.Node(t, "a"))
	if _, err := conn.Read(make([]byte, 1)); !identity.Refused(err) {
		t.Errorf("the old CA is still good: %v", err)
	}
}

// §2.A: identity expired or revoked while connected. Whatever of a record stops being so ends the connection, at the
// reload and before any work that comes first.
func TestRecordStopsAcceptingTheIdentity(t *testing.T) {
	for name, change := range map[string]func(r *config.NodeRecord, leaf identitytest.Leaf){
		"another identity": func(r *config.NodeRecord, _ identitytest.Leaf) { r.SPIFFEID += "-2" },
		"revoked serial": func(r *config.NodeRecord, leaf identitytest.Leaf) {
			r.RevokedSerials = []string{identity.Serial(leaf.Cert)}
		},
	} {
		for _, by := range []string{"reload", "dispatch"} {
			t.Run(name+" by "+by, func(t *testing.T) {
				s := newManaged(t, transport.Timers{})
				leaf := s.ca.Node(t, "a")
				n := s.connect(leaf, edgetest.Hello("a"))
				c := s.Registry.Current("a")
				recs := managedNodes()
				change(&recs[0], leaf)
				s.Configure(recs)
				if by == "reload" {
					s.Registry.Reconfigured(transport.Must(transport.Payload))
				} else if _, err := c.Open(t.Context()); !errors.Is(err, link.ErrLinkDown) {
					t.Errorf("a stream to it: %v", err)
				}
				s.seen.want(t, events.KindFenced, string(node.FenceIdentityExpired))
				s.wantGoodbye(n, pb.GoodbyeCode_GOODBYE_CODE_IDENTITY_EXPIRED)
			})
		}
	}
}
