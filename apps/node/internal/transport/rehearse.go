package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"iop/packages/go/identity"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// Rehearsal is what an Edge says to a node that only asks whether it would be let in.
type Rehearsal struct {
	NodeID, EdgeID string
	// Live is the generation of the node's connection that the Edge has now, 0 = none.
	Live uint64
	// Offset is by how much the Edge's clock is ahead of this machine's, give or take Unsure.
	Offset, Unsure time.Duration
	// Config is what the node would be told to serve; nil from an Edge that doesn't know the question, and so told
	// nothing but that it had nothing to refuse the node for.
	Config *pb.NodeConfigPayload
}

// RehearsalFault is where a rehearsal came to its end.
type RehearsalFault uint8

// The faults.
const (
	FaultNotAnEdge RehearsalFault = 1 // what answers doesn't speak the protocol
	FaultClosed    RehearsalFault = 2 // it closed the connection without an answer
	FaultSilent    RehearsalFault = 3 // it said nothing in time
	FaultEdge      RehearsalFault = 4 // the Edge isn't who it should be
	FaultNode      RehearsalFault = 5 // the Edge doesn't accept this node's certificate
	FaultRefused   RehearsalFault = 6 // the registration would be refused, for Reason
)

// RehearsalError is why a node wouldn't be let in.
type RehearsalError struct {
	Fault  RehearsalFault
	Reason pb.RegisterReason // of FaultRefused
	TLS    bool              // it was in the TLS handshake
	Text   string            // for people
}

// Error implements error.
func (e *RehearsalError) Error() string { return e.Text }

// Rehearse asks the Edge on a fresh connection whether it would let this node in, without registering: a registration
// with the token of a node that runs would contend with that node's connection, and take its place if it were slow to
// answer. The question has no instance id; an Edge of an earlier version, which knows no such question, refuses it for
// that, as the very last thing that it looks at. cfg needs what names the node and the Edge. conn stays the caller's to
// close. An error is a [*RehearsalError].
func Rehearse(ctx context.Context, cfg Config, conn net.Conn) (*Rehearsal, error) {
	l := New(cfg)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if l.cfg.Identity != nil {
		secured, _, err := l.cfg.Identity.Client(ctx, conn, l.cfg.EdgeID)
		if err != nil {
			return nil, tlsFault(err)
		}
		conn = secured
	}
	req := l.registerRequest(false)
	req.InstanceId, req.DryRun, req.RecipientPublicKey, req.LastGeneration = nil, true, nil, 0
	sent := time.Now()
	if err := transport.WriteMessage(conn, req); err != nil {
		return nil, answerFault(err)
	}
	resp := new(pb.RegisterResponse)
	if err := transport.ReadMessage(conn, transport.MaxRegisterResponse, resp); err != nil {
		return nil, answerFault(err)
	}
	return rehearsed(resp, sent, time.Now())
}

// rehearsed reads the Edge's answer.
func rehearsed(resp *pb.RegisterResponse, sent, received time.Time) (*Rehearsal, error) {
	r := &Rehearsal{NodeID: printable(resp.GetNodeId()), EdgeID: printable(resp.GetEdgeId()), Live: resp.GetConnectionGeneration(), Config: resp.GetConfig()}
	switch {
	case resp.GetAccepted():
	case resp.GetReason() == pb.RegisterReason_REGISTER_REASON_PROTOCOL:
		return &Rehearsal{}, nil // an Edge of an earlier version
	default:
		refused := refusalOf(resp)
		return nil, &RehearsalError{Fault: FaultRefused, Reason: resp.GetReason(), Text: refused.reason + ": " + refused.text}
	}
	if ms := resp.GetEdgeTimeMs(); ms > 0 {
		r.Unsure = received.Sub(sent)/2 + time.Millisecond
		r.Offset = time.UnixMilli(ms).Sub(sent.Add(received.Sub(sent) / 2)).Round(time.Millisecond)
	}
	return r, nil
}

func tlsFault(err error) *RehearsalError {
	refused := new(identity.Error)
	switch {
	case errors.As(err, &refused):
		return &RehearsalError{Fault: FaultEdge, TLS: true, Text: printable(refused.Error())}
	case identity.Refused(err):
		return &RehearsalError{Fault: FaultNode, TLS: true, Text: printable(err.Error())}
	case identity.NotTLS(err):
		return &RehearsalError{Fault: FaultNotAnEdge, TLS: true, Text: "what answers doesn't speak TLS"}
	}
	return silence(err, true)
}

func answerFault(err error) *RehearsalError {
	switch {
	case identity.Refused(err): // TLS 1.3 tells it with the first read
		return &RehearsalError{Fault: FaultNode, Text: printable(err.Error())}
	case errors.As(err, new(*transport.FrameError)):
		return &RehearsalError{Fault: FaultNotAnEdge, Text: "what answers doesn't speak the protocol of the link"}
	}
	return silence(err, false)
}

// silence says how there was no answer.
func silence(err error, inTLS bool) *RehearsalError {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return &RehearsalError{Fault: FaultClosed, TLS: inTLS, Text: "the connection was closed without an answer"}
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return &RehearsalError{Fault: FaultSilent, TLS: inTLS, Text: "there was no answer in time"}
	}
	return &RehearsalError{Fault: FaultClosed, TLS: inTLS, Text: printable(err.Error())}
}
