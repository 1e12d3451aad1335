package transport

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"iop/packages/go/credentiallease"
	"iop/packages/go/identity"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

const (
	// expireEvery is how often keys and lease ids are looked at whose time is over.
	expireEvery = time.Minute
	// maxChallenges is how often an edge may ask within one registration: once, and once more when it lost a race.
	maxChallenges = 2
)

// lending is a connection's part in leases: its recipient keys, what it knows of the edge's clock, and the guard that
// decides about leases. The keys live in memory only and go with the connection.
type lending struct {
	guard      *credentiallease.Guard
	transcript credentiallease.Transcript
	read       func() transport.ClockReading
	rekey      time.Duration // life of a recipient key
	ask        time.Duration // between two questions for the edge's time, while it isn't known
	synced     chan struct{} // closed when the edge's time is known for the first time
	first      sync.Once     // of synced

	mu    sync.Mutex
	clock credentiallease.Clock
	next  *credentiallease.RecipientKey // announced, not proved yet
}

// transcriptOf is what a proof is bound to: both names, the connection's number, and its TLS session.
func transcriptOf(peer *identity.Peer, nodeID, edgeID string, generation uint64) (credentiallease.Transcript, error) {
	t := credentiallease.Transcript{NodeID: nodeID, EdgeID: edgeID, Generation: generation}
	exporter, err := peer.Export(credentiallease.ExporterLabel, []byte(nodeID), credentiallease.ExporterSize)
	if err != nil {
		return t, err
	}
	copy(t.Exporter[:], exporter)
	return t, nil
}

// prove answers the edge's question whether this node has the private key to the recipient key that it came with.
func (k *offer) prove(c *pb.RegisterChallenge) (*pb.RegisterProof, error) {
	if k.key == nil {
		return nil, errors.New("the edge asks for a proof of a recipient key that this node didn't send")
	}
	if k.asked++; k.asked > maxChallenges {
		return nil, errors.New("the edge asks for proofs without end")
	}
	t, err := transcriptOf(k.peer, c.GetNodeId(), c.GetEdgeId(), c.GetGeneration())
	if err != nil {
		return nil, fmt.Errorf("prove the recipient key: %w", err)
	}
	proof, err := k.key.Prove(c.GetEnc(), t)
	if err != nil {
		return nil, fmt.Errorf("prove the recipient key: %w", err)
	}
	return &pb.RegisterProof{Proof: proof}, nil
}

// offer is the recipient key that a registration comes with; without an identity there is none.
type offer struct {
	peer  *identity.Peer
	key   *credentiallease.RecipientKey
	asked int
}

func newOffer(peer *identity.Peer) (*offer, error) {
	if peer == nil {
		return &offer{}, nil
	}
	key, err := credentiallease.NewRecipientKey()
	return &offer{peer: peer, key: key}, err
}

// drop forgets the key: the connection won't come to be, or leases aren't for it.
func (k *offer) drop() {
	if k.key != nil {
		k.key.Drop()
		k.key = nil
	}
}

// lend returns the connection's part in leases; nil = they weren't negotiated.
func (l *Link) lend(reg *registration) (*lending, error) {
	r := reg.resp
	if reg.offer.key == nil || !slices.Contains(r.GetFeatures(), pb.Feature_FEATURE_LEASE_V1) {
		reg.offer.drop()
		return nil, nil
	}
	t, err := transcriptOf(reg.peer, r.GetNodeId(), r.GetEdgeId(), r.GetConnectionGeneration())
	if err != nil {
		return nil, err
	}
	guard, err := credentiallease.NewGuard(credentiallease.Config{NodeID: t.NodeID, EdgeID: t.EdgeID, Generation: t.Generation})
	if err != nil {
		return nil, err
	}
	guard.UseRecipient(reg.offer.key, credentiallease.Time{})
	return &lending{guard: guard, transcript: t, read: l.cfg.Clocks, rekey: l.cfg.Timers.Rekey, ask: l.cfg.Timers.Ask, synced: make(chan struct{})}, nil
}

// exchanged takes in a heartbeat that the edge has answered.
func (n *lending) exchanged(e transport.Exchange) {
	n.mu.Lock()
	used := n.clock.Sample(e.EdgeMS, credentiallease.Reading(e.Sent), credentiallease.Reading(e.Received))
	n.mu.Unlock()
	if used {
		n.first.Do(func() { close(n.synced) })
	}
}

// now is what is known of the edge's clock.
func (n *lending) now() credentiallease.Time {
	at := credentiallease.Reading(n.read())
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.clock.Now(at)
}

// tend announces a new recipient key when one has been in use for long, and drops what time has ended. It ends with the link.
func (n *lending) tend(mux *transport.Link) {
	rekey, expire, ask := time.NewTicker(n.rekey), time.NewTicker(expireEvery), time.NewTicker(n.ask)
	defer rekey.Stop()
	defer expire.Stop()
	defer ask.Stop()
	for {
		select {
		case <-mux.Down():
			n.announce(nil)
			return
		case <-expire.C:
			n.guard.Expire(n.now())
		case <-ask.C: // a clock that was set would cost all leases until the next heartbeat
			if !n.now().Synced {
				mux.Beat()
			}
		case <-rekey.C:
			key, err := credentiallease.NewRecipientKey()
			if err != nil {
				continue // the old one stays, and the next tick tries again
			}
			n.announce(key)
			mux.SendRecipientKey(key.Public())
		}
	}
}

// announce replaces the key that waits to be proved; nil = none does.
func (n *lending) announce(key *credentiallease.RecipientKey) {
	n.mu.Lock()
	old := n.next
	n.next = key
	n.mu.Unlock()
	if old != nil {
		old.Drop()
	}
}

// answer proves the announced key, which opens leases from then on. False: nothing was announced, or the question makes
// no sense.
func (n *lending) answer(mux *transport.Link, c *pb.RecipientChallenge) bool {
	n.mu.Lock()
	key := n.next
	n.next = nil
	n.mu.Unlock()
	if key == nil {
		return false
	}
	proof, err := key.Prove(c.GetEnc(), n.transcript)
	if err != nil {
		key.Drop()
		return false
	}
	n.guard.UseRecipient(key, n.now()) // before the edge can have sealed anything to it
	mux.SendRecipientProof(proof)
	return true
}
