package transport

import (
	"errors"
	"os"
	"slices"
	"time"

	"iop/apps/edge/internal/node"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

// Leases is what lends keys to nodes, as far as a connection needs it. None of its methods blocks.
type Leases interface {
	// Keys returns the keys that leases are signed with, for the nodes to check them by.
	Keys() []credentiallease.VerifyKey
	// Slots returns what is in force for the slots of these ids.
	Slots(ids []string) []credentiallease.SlotState
	// Ended takes what a node says became of a lease.
	Ended(nodeID, leaseID string, committed bool, why execution.LeaseRefusal)
	// Acked takes a connection's word that it has taken in a revocation, and which runs had the key on the wire by then.
	Acked(nodeID string, generation, epoch uint64, committed []string)
	// Gone says that this connection of the node is over. At a handover a node has two.
	Gone(nodeID string, generation uint64)
}

// errUnproven is a recipient key that its node couldn't prove to have.
var errUnproven = &node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_POP_FAILED,
	Text: "the node couldn't prove that it has the private key to its recipient key"}

// maxProof is the longest RegisterProof in bytes.
const maxProof = 256

// prove has the node show that it has the private key of the recipient key that it came with, on this very TLS session
// and for this generation. False: leases aren't for this connection. Nothing is in force before the commit.
func (h *handshake) prove(generation uint64) (to credentiallease.Recipient, ok bool, err error) {
	public := h.req.GetRecipientPublicKey()
	if h.peer == nil || h.s.cfg.Leases == nil || len(public) == 0 ||
		!slices.Contains(h.req.GetFeatures(), pb.Feature_FEATURE_LEASE_V1) {
		return to, false, nil
	}
	edge := h.s.cfg.Registry.EdgeID()
	transcript, err := transcriptOf(h.peer.Export, h.rec.ID, edge, generation)
	if err != nil {
		return to, false, &node.Refusal{Reason: errUnproven.Reason, Text: errUnproven.Text, Cause: err}
	}
	challenge, err := credentiallease.NewChallenge(public, transcript)
	if err != nil {
		return to, false, &node.Refusal{Reason: errUnproven.Reason, Text: "recipient_public_key isn't one", Cause: err}
	}
	ask := &pb.RegisterResponse{Challenge: &pb.RegisterChallenge{Generation: generation, EdgeId: edge,
		EdgeInstance: h.s.instance, Enc: challenge.Enc(), NodeId: h.rec.ID}}
	if err := h.conn.SetWriteDeadline(h.deadline); err != nil {
		return to, false, errGone
	}
	if err := link.WriteMessage(h.conn, ask); err != nil {
		return to, false, errGone
	}
	answer := new(pb.RegisterProof)
	var fault *link.FrameError
	switch err := link.ReadMessage(h.conn, maxProof, answer); {
	case err == nil:
	case errors.As(err, &fault):
		return to, false, &silent{node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_PROTOCOL, Text: "in place of a proof: " + fault.Error()}}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return to, false, &node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_HANDSHAKE_TIMEOUT, Text: "no proof within the limit"}
	default:
		return to, false, errGone
	}
	if to, err = challenge.Confirm(answer.GetProof()); err != nil {
		return to, false, errUnproven
	}
	return to, true, nil
}

// transcriptOf is what a proof is bound to: both names, the connection's number, and its TLS session.
func transcriptOf(export func(label string, context []byte, n int) ([]byte, error), nodeID, edgeID string, generation uint64) (credentiallease.Transcript, error) {
	t := credentiallease.Transcript{NodeID: nodeID, EdgeID: edgeID, Generation: generation}
	exporter, err := export(credentiallease.ExporterLabel, []byte(nodeID), credentiallease.ExporterSize)
	if err == nil {
		copy(t.Exporter[:], exporter)
	}
	return t, err
}

// keyEvery and keyBurst bound the recipient keys of one connection: a node announces one in 12 hours, and each costs the
// edge a key encapsulation.
const (
	keyEvery = time.Minute
	keyBurst = 8
)

// recipient is a new key that a node announces on a connection that lives. To answer takes a computation, which isn't
// the control reader's to do; the node announces one at a time, twice a day.
func (h *control) recipient(m *pb.RecipientKey) {
	if !h.c.Lends() || !h.keys.Allow() || !h.asking.CompareAndSwap(false, true) {
		h.c.Unknown()
		return
	}
	go func() { // ends with the computation
		transcript, err := transcriptOf(h.c.Peer.Export, h.c.NodeID, h.s.cfg.Registry.EdgeID(), h.c.Generation)
		var challenge *credentiallease.Challenge
		if err == nil {
			challenge, err = credentiallease.NewChallenge(m.GetPublicKey(), transcript)
		}
		h.challenge.Store(challenge)
		h.asking.Store(false) // before it is sent: who has answered may announce the next key at once
		if err != nil {
			h.s.cfg.Registry.Fence(h.c, node.FenceProtocol, "the node announced something that isn't a recipient key")
			return
		}
		h.c.Link.SendRecipientChallenge(challenge.Enc())
	}()
}

// proof is the node's answer. Leases are sealed to the new key from now on.
func (h *control) proof(m *pb.RecipientProof) {
	challenge := h.challenge.Swap(nil)
	if challenge == nil {
		h.c.Unknown()
		return
	}
	to, err := challenge.Confirm(m.GetProof())
	if err != nil {
		h.s.cfg.Registry.Fence(h.c, node.FenceProtocol, errUnproven.Text)
		return
	}
	h.c.SetRecipient(to)
}

// leaseEnded passes on what became of the lease of an execution that ended.
func (h *control) leaseEnded(e *pb.RunEnd) {
	if e.GetLeaseId() == "" || h.s.cfg.Leases == nil || !h.c.Lends() {
		return
	}
	const highest = 255
	h.s.cfg.Leases.Ended(h.c.NodeID, e.GetLeaseId(), e.GetLeaseState() == pb.LeaseState_LEASE_STATE_COMMITTED,
		execution.LeaseRefusal{Reason: uint8(min(max(e.GetLeaseReason(), 0), highest)), Field: uint8(min(e.GetLeaseField(), highest))})
}

// revokeAck passes on that the node has taken in a revocation.
func (h *control) revokeAck(m *pb.RevokeAck) {
	if h.s.cfg.Leases == nil || !h.c.Lends() {
		h.c.Unknown()
		return
	}
	h.s.cfg.Leases.Acked(h.c.NodeID, h.c.Generation, m.GetEpoch(), m.GetCommittedRunIds())
}

// tellSlots tells a node that has just been let in what is in force for its slots: that may have changed since what it
// was told at registration was put together, and changes are told to nodes that are in.
func (s *Server) tellSlots(c *node.Connection) {
	p := s.cfg.Registry.State().Projection(c.NodeID)
	if s.cfg.Leases == nil || !c.Lends() || p == nil || len(p.Slots) == 0 {
		return
	}
	for _, slot := range s.cfg.Leases.Slots(p.Slots) {
		c.Revoke(slot.ID, slot.MinRevision, slot.Disabled, 0)
	}
}
