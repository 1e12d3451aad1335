package transport

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"iop/apps/node/internal/nodetest"
	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// secured is a rig whose link has an identity, and the edge's own.
type secured struct {
	*rig
	ca    *identitytest.CA
	node  *identity.Source
	files identity.Files // of the node
	edge  *identity.Source
}

func newSecured(t *testing.T, adapter *nodetest.Adapter, change ...func(*Config)) *secured {
	ca := identitytest.NewCA(t, "ca")
	s := &secured{ca: ca}
	s.node, s.files = identitytest.Open(t, ca.Node(t, "gpu-1"), ca)
	s.edge, _ = identitytest.Open(t, ca.Edge(t), ca)
	s.rig = newRig(t, adapter, append([]func(*Config){func(c *Config) {
		c.Identity, c.EdgeID = s.node, identity.EdgeID(identitytest.TrustDomain)
		c.Random = func() float64 { return 0 }
		c.Timers.BackoffPermanent = time.Hour
	}}, change...)...)
	return s
}

// register answers the next dial as the edge with this identity.
func (s *secured) register(as *identity.Source, generation uint64) (net.Conn, *identity.Peer, *pb.RegisterRequest) {
	s.t.Helper()
	conn, peer, req, err := s.tries(as, generation)
	if err != nil {
		s.t.Fatal(err)
	}
	return conn, peer, req
}

// tries is register for a dial that the node may give up.
func (s *secured) tries(as *identity.Source, generation uint64) (net.Conn, *identity.Peer, *pb.RegisterRequest, error) {
	s.t.Helper()
	conn, peer, err := as.Server(s.t.Context(), nodetest.Receive(s.t, "a dial", s.dials), nil)
	if err != nil {
		return nil, nil, nil, err
	}
	req := new(pb.RegisterRequest)
	if err := transport.ReadMessage(conn, transport.MaxRegisterRequest, req); err != nil {
		return nil, nil, nil, err
	}
	return conn, peer, req, transport.WriteMessage(conn, acceptance(generation, projection(1)))
}

// serves registers the next dial and confirms its Ready.
func (s *secured) serves(generation uint64) (*nodetest.EdgeSide, *identity.Peer, *pb.RegisterRequest) {
	s.t.Helper()
	conn, peer, req := s.register(s.edge, generation)
	edge := nodetest.NewEdgeSide(s.t, conn, generation, transport.Config{})
	edge.Link.SendReadyAck(edge.Ready().GetProjection(), true)
	nodetest.Receive(s.t, "OnReady", s.ready)
	return edge, peer, req
}

// lasts is serves for a connection that may end before it is ready: then it returns nil.
func (s *secured) lasts(generation uint64) *nodetest.EdgeSide {
	s.t.Helper()
	conn, _, _, err := s.tries(s.edge, generation)
	if err != nil {
		return nil
	}
	edge := nodetest.NewEdgeSide(s.t, conn, generation, transport.Config{})
	acked := false
	nodetest.Eventually(s.t, "OnReady, or the end", func() bool {
		if !acked && edge.Seen(func(m *pb.NodeControl) bool { return m.GetReady() != nil }) > 0 {
			acked = true
			edge.Link.SendReadyAck(1, true)
		}
		return len(s.ready) > 0 || edge.Link.Err() != nil
	})
	select {
	case <-s.ready:
		return edge
	default:
		return nil
	}
}

// renew replaces the node's files and has them read.
func (s *secured) renew(leaf identitytest.Leaf, cas ...*identitytest.CA) {
	s.t.Helper()
	for path, data := range map[string][]byte{s.files.Key: leaf.KeyPEM, s.files.Cert: leaf.CertPEM, s.files.CA: identitytest.Bundle(cas...)} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	if changed, err := s.node.Reload(); !changed || err != nil {
		s.t.Fatal(changed, err)
	}
}

// Design §4, fault 44: a renewed certificate is shown on a second connection, which takes over; what runs on the first
// goes on there, and its end is told on both.
func TestRenewalHandsOver(t *testing.T) {
	adapter := &nodetest.Adapter{}
	s := newSecured(t, adapter)
	old, before, req := s.serves(7)
	if req.GetHandover() || before.ID != "spiffe://iop.test/iop/node/gpu-1" {
		t.Errorf("first registration: %v of %s", req, before.ID)
	}
	first := old.Start("quick")
	if got := first.Collect(); got.Kinds != "ahbe" {
		t.Fatal(got)
	}
	old.RunEnd("quick")
	leaf := s.ca.Node(t, "gpu-1")
	s.renew(leaf, s.ca)
	fresh, after, req := s.serves(8)
	if !req.GetHandover() || req.GetLastGeneration() != 7 || after.Serial != identity.Serial(leaf.Cert) {
		t.Errorf("the handover is registered as %v, serial %s", req, after.Serial)
	}
	// Both work until the edge ends the old one; that isn't a loss.
	for run, edge := range map[string]*nodetest.EdgeSide{"on the old": old, "on the new": fresh} {
		id := strings.ReplaceAll(run, " ", "-")
		if got := edge.Start(id).Collect(); got.Kinds != "ahbe" {
			t.Errorf("%s: %q %v", run, got.Kinds, got.Err)
		}
		fresh.RunEnd(id)
	}
	old.RunEnd("on-the-old")
	old.Link.Close(transport.ReasonSuperseded)
	s.heard(fresh)
	if st := s.link.Status(); st.State != StateServing || st.Generation != 8 || st.Dials != 1 {
		t.Errorf("%+v", st)
	}
}

// A handover that fails leaves the connection as it is, and is tried again.
func TestRenewalIsRetried(t *testing.T) {
	s := newSecured(t, &nodetest.Adapter{})
	old, _, _ := s.serves(7)
	s.renew(s.ca.Node(t, "gpu-1"), s.ca)
	nodetest.Receive(t, "a dial", s.dials).Close()
	_, _, req := s.serves(8)
	if !req.GetHandover() {
		t.Errorf("%v", req)
	}
	select {
	case <-old.Link.Down():
		t.Error("the old connection ended")
	default:
	}
}

// TL-06, E23: an edge that isn't the one that is due is told nothing, and the node waits for somebody to look; new files
// are tried at once.
func TestWrongEdge(t *testing.T) {
	s := newSecured(t, &nodetest.Adapter{})
	impostor, _ := identitytest.Open(t, s.ca.Node(t, "gpu-2"), s.ca)
	if _, _, err := impostor.Server(t.Context(), nodetest.Receive(t, "a dial", s.dials), nil); !identity.Refused(err) {
		t.Errorf("%v, want the node's refusal", err)
	}
	nodetest.Eventually(t, "the node waits", func() bool {
		st := s.link.Status()
		return st.State == StateBackoff && strings.Contains(st.LastError, "identity_mismatch") && time.Until(st.NextDial) > time.Minute
	})
	s.renew(s.ca.Node(t, "gpu-1"), s.ca)
	s.serves(1)
}

// The trap of TLS 1.3: the edge's refusal of the node's certificate comes with the first read, after a handshake that
// seemed to have succeeded.
func TestCertificateRefusedByTheEdge(t *testing.T) {
	s := newSecured(t, &nodetest.Adapter{})
	other := identitytest.NewCA(t, "other")
	// An edge with a right certificate that trusts another CA only.
	conn := nodetest.Receive(t, "a dial", s.dials)
	pair := tlsPair(t, s.ca.Edge(t))
	pool := x509.NewCertPool()
	pool.AddCert(other.Cert)
	server := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{identity.ALPN},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool})
	if err := server.HandshakeContext(t.Context()); err == nil {
		t.Fatal("accepted")
	}
	nodetest.Eventually(t, "the node knows why", func() bool {
		st := s.link.Status()
		return st.State == StateBackoff && strings.Contains(st.LastError, "identity_mismatch") &&
			strings.Contains(st.LastError, "doesn't accept this node's certificate")
	})
	conn.Close()
}

func tlsPair(t *testing.T, leaf identitytest.Leaf) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(leaf.CertPEM, leaf.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// TL-01, TL-03 on this side: the link ends when the edge's certificate isn't trusted any more, and when it expires.
func TestEdgeIsNotTrustedAnyMore(t *testing.T) {
	t.Run("its CA was dropped", func(t *testing.T) {
		s := newSecured(t, &nodetest.Adapter{})
		next := identitytest.NewCA(t, "next")
		s.serves(7)
		s.renew(next.Node(t, "gpu-1"), next)
		s.edge, _ = identitytest.Open(t, next.Edge(t), next)
		if _, _, req := s.serves(8); req.GetHandover() {
			t.Error("handed over from an edge that isn't trusted")
		}
	})
	t.Run("it expired", func(t *testing.T) {
		patience.Widen(t, 3*time.Second, func(life time.Duration) (keptUp bool) {
			s := newSecured(t, &nodetest.Adapter{})
			good := s.edge
			s.edge, _ = identitytest.Open(t, s.ca.Edge(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(life) }), s.ca)
			old := s.lasts(7)
			s.edge = good // which the node finds by a handover before the end, or by a dial after it
			if old == nil || s.lasts(8) == nil {
				return false // the end came over one of them
			}
			nodetest.Receive(t, "the old connection's end", old.Link.Down())
			return true
		})
	})
}

// A node that is told to stop doesn't begin a handover, and leaves whole.
func TestDrainDuringHandover(t *testing.T) {
	s := newSecured(t, &nodetest.Adapter{})
	old, _, _ := s.serves(7)
	s.renew(s.ca.Node(t, "gpu-1"), s.ca)
	dialed := nodetest.Receive(t, "a dial", s.dials) // it hangs in its handshake
	defer dialed.Close()
	s.link.Drain()
	nodetest.Receive(t, "the link's end", old.Link.Down())
	s.exits()
}
