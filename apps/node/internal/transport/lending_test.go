package transport

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/router"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/identity"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// challenged answers the next dial, asks for a proof of the recipient key, and returns what checks it.
func (s *secured) challenged(generation uint64) (net.Conn, *identity.Peer, *credentiallease.Challenge) {
	s.t.Helper()
	conn, peer, err := s.edge.Server(s.t.Context(), nodetest.Receive(s.t, "a dial", s.dials), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req := new(pb.RegisterRequest)
	if err := transport.ReadMessage(conn, transport.MaxRegisterRequest, req); err != nil {
		s.t.Fatal(err)
	}
	if !slices.Contains(req.GetFeatures(), pb.Feature_FEATURE_LEASE_V1) {
		s.t.Fatalf("a node with an identity doesn't offer leases: %v", req)
	}
	return conn, peer, s.ask(conn, peer, req.GetRecipientPublicKey(), generation)
}

func (s *secured) challenge(peer *identity.Peer, public []byte, generation uint64) *credentiallease.Challenge {
	s.t.Helper()
	transcript, err := transcriptOf(peer, "gpu-1", "edge", generation)
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := credentiallease.NewChallenge(public, transcript)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// ask sends a challenge on the bare connection.
func (s *secured) ask(conn net.Conn, peer *identity.Peer, public []byte, generation uint64) *credentiallease.Challenge {
	s.t.Helper()
	c := s.challenge(peer, public, generation)
	m := &pb.RegisterResponse{Challenge: &pb.RegisterChallenge{Generation: generation, EdgeId: "edge", NodeId: "gpu-1", Enc: c.Enc()}}
	if err := transport.WriteMessage(conn, m); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// proof reads the answer.
func (s *secured) proof(conn net.Conn) []byte {
	s.t.Helper()
	p := new(pb.RegisterProof)
	if err := transport.ReadMessage(conn, 256, p); err != nil {
		s.t.Fatal(err)
	}
	return p.GetProof()
}

// lent registers the next dial with leases.
func (s *secured) lent(generation uint64) (*nodetest.EdgeSide, *identity.Peer) {
	s.t.Helper()
	conn, peer, c := s.challenged(generation)
	if _, err := c.Confirm(s.proof(conn)); err != nil {
		s.t.Fatal(err)
	}
	accept := acceptance(generation, projection(1))
	accept.Features = append(accept.Features, pb.Feature_FEATURE_LEASE_V1)
	if err := transport.WriteMessage(conn, accept); err != nil {
		s.t.Fatal(err)
	}
	return nodetest.NewEdgeSide(s.t, conn, generation, transport.Config{}), peer
}

// E28, the node's half: it proves its key for the connection that it has, once more after a race that the edge lost, and
// not for ever. Without leases in the answer there are none.
func TestChallenge(t *testing.T) {
	s := newSecured(t, &nodetest.Adapter{})
	conn, peer, c := s.challenged(7)
	to, err := c.Confirm(s.proof(conn))
	if err != nil || to.NodeID() != "gpu-1" || to.Generation() != 7 {
		t.Fatalf("%v, %v", to, err)
	}
	key, err := credentiallease.NewRecipientKey()
	if err != nil {
		t.Fatal(err)
	}
	again := s.ask(conn, peer, key.Public(), 8) // for a key that isn't the node's
	if _, err := again.Confirm(s.proof(conn)); err == nil {
		t.Error("the node proved a key that it doesn't have")
	}
	s.ask(conn, peer, key.Public(), 9)
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a third challenge is answered")
	}
	conn.Close()

	edge, _, _ := s.serves(10) // without a challenge, without leases
	edge.Link.SendRevoked(&pb.CredentialRevoked{Slot: "s", MinRevision: 1, Epoch: 1})
	nodetest.Eventually(t, "what wasn't negotiated is counted", func() bool { return s.late.of("control") > 0 })
}

// A revocation is taken in and confirmed; a new recipient key is announced in time and proved; a challenge that nobody
// asked for is ignored.
func TestLeaseControl(t *testing.T) {
	s := newSecured(t, &nodetest.Adapter{})
	edge, _ := s.lent(7)
	edge.Ready()
	edge.Link.SendRevoked(&pb.CredentialRevoked{Slot: "s", MinRevision: 3, Epoch: 5})
	edge.Await("RevokeAck", func(m *pb.NodeControl) bool {
		return m.GetRevokeAck().GetEpoch() == 5 && len(m.GetRevokeAck().GetCommittedRunIds()) == 0
	})
	// A key may be replaced by the next one before it was asked for, and then the challenge may stay unanswered: try
	// until one is proved.
	patience.Widen(t, 10*time.Millisecond, func(rekey time.Duration) (keptUp bool) {
		s := newSecured(t, &nodetest.Adapter{}, func(c *Config) { c.Timers.Rekey = rekey })
		edge, peer := s.lent(7)
		edge.Ready()
		prove := func(*pb.NodeControl) error { return errors.New("nothing was asked") }
		for range 100 {
			m := edge.Await("RecipientKey or RecipientProof", func(m *pb.NodeControl) bool {
				return m.GetRecipientKey() != nil || m.GetRecipientProof() != nil
			})
			if m.GetRecipientProof() != nil {
				if prove(m) == nil {
					return true
				}
				continue
			}
			c := s.challenge(peer, m.GetRecipientKey().GetPublicKey(), 7)
			prove = func(m *pb.NodeControl) error { _, err := c.Confirm(m.GetRecipientProof().GetProof()); return err }
			edge.Link.SendRecipientChallenge(c.Enc())
		}
		return false
	})
}

// CR-13, fault 43: the node says Ready when it knows the edge's time, whatever its own clock shows.
func TestReadyWaitsForTheEdgesTime(t *testing.T) {
	var reads atomic.Int64
	s := newSecured(t, &nodetest.Adapter{}, func(c *Config) {
		read := newClocks()
		c.Clocks = func() transport.ClockReading {
			reads.Add(1)
			at := read()
			at.Wall -= 600_000 // ten minutes slow
			return at
		}
	})
	edge, _ := s.lent(7)
	edge.Ready()
	if reads.Load() < 2 { // sent and received, at least
		t.Error("Ready was said before an exchange of heartbeats")
	}
	ctx, cancel := context.WithTimeout(t.Context(), nodetest.Limit)
	defer cancel()
	if err := edge.Link.Probe(ctx); err != nil {
		t.Error(err)
	}
}

// E11, fault 43, seed 480 of the simulation: a node whose wall clock was set asks for the edge's time, and doesn't wait for
// the next heartbeat.
func TestTimeIsAskedForAfterAJump(t *testing.T) {
	var jumping atomic.Bool
	var jumped atomic.Int64
	x := node.New(node.Config{
		Edge: "edge:1", Router: router.New(), Log: testLog(t), Timers: node.Timers{ProbeEvery: 5 * time.Millisecond},
		Build: func(router.Spec) (execution.Provider, error) { return &nodetest.Adapter{}, nil },
	})
	s := newSecured(t, &nodetest.Adapter{}, func(c *Config) {
		read := newClocks()
		c.Clocks = func() transport.ClockReading {
			at := read()
			if jumping.Load() {
				jumped.Add(time.Minute.Milliseconds())
			}
			at.Wall -= jumped.Load()
			return at
		}
		c.Executor, c.Mux.Heartbeat, c.Mux.Dead, c.Timers.Ask = x, time.Hour, 2*time.Hour, 10*time.Millisecond
	})
	t.Cleanup(func() {
		s.stop()
		x.Close(context.Background())
	})
	edge, _ := s.lent(7)
	edge.Ready()
	state := func(want pb.ClockState) {
		t.Helper()
		edge.Await(want.String(), func(m *pb.NodeControl) bool { return m.GetNodeStatus().GetClockState() == want })
	}
	jumping.Store(true)
	state(pb.ClockState_CLOCK_STATE_UNSYNCED)
	jumping.Store(false)
	state(pb.ClockState_CLOCK_STATE_SYNCED)
}
