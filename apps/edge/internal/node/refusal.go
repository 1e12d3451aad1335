package node

import (
	"time"

	"iop/packages/go/config"
	"iop/packages/go/identity"
	pb "iop/proto/iop"
)

// Refusal is why a registration isn't accepted. Text is for people and holds nothing that the peer sent.
type Refusal struct {
	Reason     pb.RegisterReason
	Text       string
	RetryAfter time.Duration
	Cause      error // what went wrong at the edge; for the log, never sent
}

// Error implements error.
func (f *Refusal) Error() string { return f.Code() + ": " + f.Text }

// Unwrap returns the cause.
func (f *Refusal) Unwrap() error { return f.Cause }

// Code returns the reason's stable name, as logs, events and metrics show it.
func (f *Refusal) Code() string { return ReasonName(f.Reason) }

// Retryable reports whether the node may come again soon.
func (f *Refusal) Retryable() bool {
	switch f.Reason {
	case pb.RegisterReason_REGISTER_REASON_DUPLICATE_CONNECTION,
		pb.RegisterReason_REGISTER_REASON_PAYLOAD_FAILED,
		pb.RegisterReason_REGISTER_REASON_EDGE_DRAINING,
		pb.RegisterReason_REGISTER_REASON_HANDSHAKE_TIMEOUT:
		return true
	}
	return false
}

var reasonNames = [...]string{
	pb.RegisterReason_REGISTER_REASON_UNSPECIFIED:          "unspecified",
	pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN:        "unknown_token",
	pb.RegisterReason_REGISTER_REASON_NODE_DISABLED:        "node_disabled",
	pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH:    "identity_mismatch",
	pb.RegisterReason_REGISTER_REASON_POP_FAILED:           "pop_failed",
	pb.RegisterReason_REGISTER_REASON_DUPLICATE_CONNECTION: "duplicate_connection",
	pb.RegisterReason_REGISTER_REASON_VERSION_UNSUPPORTED:  "version_unsupported",
	pb.RegisterReason_REGISTER_REASON_PAYLOAD_FAILED:       "payload_failed",
	pb.RegisterReason_REGISTER_REASON_EDGE_DRAINING:        "edge_draining",
	pb.RegisterReason_REGISTER_REASON_HANDSHAKE_TIMEOUT:    "handshake_timeout",
	pb.RegisterReason_REGISTER_REASON_PROTOCOL:             "protocol",
}

// ReasonName returns the stable name of a register reason.
func ReasonName(r pb.RegisterReason) string {
	if r > 0 && int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return reasonNames[0]
}

// Verify finds the record that a token with this hash belongs to, and checks that peer is whom it names, in mode
// managed. The record is also returned with a refusal, unless the token is unknown. Whichever record it is, and whether
// there is one, the time it takes to find it is the same.
func (r *Registry) Verify(token [32]byte, peer *identity.Peer) (*config.NodeRecord, *Refusal) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.verifyLocked(token, peer, now)
}

func (r *Registry) verifyLocked(token [32]byte, peer *identity.Peer, now time.Time) (*config.NodeRecord, *Refusal) {
	state := r.cfg.State()
	rec, expired := state.NodeByTokenHash(token, now)
	switch {
	case rec == nil:
		return nil, &Refusal{Reason: pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN,
			Text: "this edge doesn't know the token; make one with iop-edge token new and put its hash in nodes"}
	case expired:
		return rec, &Refusal{Reason: pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN,
			Text: "the token has expired; make a new one with iop-edge token new"}
	case mismatch(state, rec, peer, now) != "":
		return rec, &Refusal{Reason: pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH, Text: mismatch(state, rec, peer, now)}
	case !rec.Enabled:
		return rec, &Refusal{Reason: pb.RegisterReason_REGISTER_REASON_NODE_DISABLED,
			Text: "the node is disabled in the edge's configuration"}
	case r.clonedLocked(rec.ID, token):
		return rec, errCloned
	case r.draining != nil:
		return rec, &Refusal{Reason: pb.RegisterReason_REGISTER_REASON_EDGE_DRAINING,
			Text: "the edge is shutting down", RetryAfter: drainRetry(r.draining)}
	}
	return rec, nil
}

// mismatch says why peer isn't the node of the record, "" if it is. In mode dev nobody is asked for a certificate.
func mismatch(state *config.State, rec *config.NodeRecord, peer *identity.Peer, now time.Time) string {
	if !state.Edge.Managed() {
		return ""
	}
	return rec.Accepts(peer, now)
}

func drainRetry(n *pb.DrainNotice) time.Duration {
	return time.Duration(n.GetReconnectAfterMs()) * time.Millisecond
}
