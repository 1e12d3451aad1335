package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"iop/apps/node/internal/node"
	"iop/packages/go/identity"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// refusedError is a registration that the edge refused, or an answer that makes no sense.
type refusedError struct {
	reason     string // stable name
	text       string
	class      refusalClass
	retryAfter time.Duration
}

func (e *refusedError) Error() string {
	if e.text == "" {
		return "registration refused: " + e.reason
	}
	return "registration refused: " + e.reason + ": " + e.text
}

// refusalOf sorts a reason into its class. A reason that this version doesn't know is judged by what the edge says of
// it.
func refusalOf(r *pb.RegisterResponse) *refusedError {
	e := &refusedError{
		reason: reasonName(r.GetReason()), text: printable(r.GetReasonText()), class: retryable,
		retryAfter: time.Duration(min(max(r.GetRetryAfterMs(), 0), maxRetryAfter.Milliseconds())) * time.Millisecond,
	}
	switch r.GetReason() {
	case pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN, pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH,
		pb.RegisterReason_REGISTER_REASON_POP_FAILED, pb.RegisterReason_REGISTER_REASON_VERSION_UNSUPPORTED,
		pb.RegisterReason_REGISTER_REASON_PROTOCOL:
		e.class = permanent
	case pb.RegisterReason_REGISTER_REASON_NODE_DISABLED:
		e.class = configuration
	case pb.RegisterReason_REGISTER_REASON_DUPLICATE_CONNECTION, pb.RegisterReason_REGISTER_REASON_PAYLOAD_FAILED,
		pb.RegisterReason_REGISTER_REASON_EDGE_DRAINING, pb.RegisterReason_REGISTER_REASON_HANDSHAKE_TIMEOUT:
	default:
		if !r.GetRetryable() {
			e.class = permanent
		}
	}
	return e
}

// identityRefused is a peer that isn't who it should be, or that doesn't believe this node: new files may cure it, and
// are tried at once; else only a person can.
func identityRefused(text string) *refusedError {
	return &refusedError{reason: reasonName(pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH), class: permanent, text: text}
}

// secure does the TLS handshake on a bare connection, within the limit; without an identity it is the connection itself.
func (l *Link) secure(ctx context.Context, bare net.Conn) (net.Conn, *identity.Peer, error) {
	if l.cfg.Identity == nil {
		return bare, nil, nil
	}
	_ = bare.SetDeadline(time.Now().Add(l.cfg.Timers.Handshake))
	conn, peer, err := l.cfg.Identity.Client(ctx, bare, l.cfg.EdgeID)
	refused := new(identity.Error)
	switch {
	case errors.As(err, &refused):
		return nil, nil, identityRefused("the edge isn't who it should be: " + printable(refused.Error()))
	case identity.Refused(err):
		return nil, nil, identityRefused("the edge ended the TLS handshake: " + err.Error())
	case identity.NotTLS(err):
		return nil, nil, fmt.Errorf("TLS handshake (is this the node port of an Edge in mode managed?): %w", err)
	case err != nil:
		return nil, nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return conn, peer, nil
}

// handshake registers on the bare connection, within the limit. ctx ends it at once.
func (l *Link) handshake(ctx context.Context, conn net.Conn, key *offer, handover bool) (*pb.RegisterResponse, error) {
	_ = conn.SetDeadline(time.Now().Add(l.cfg.Timers.Handshake))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	req := l.registerRequest(handover)
	if key.key != nil {
		req.RecipientPublicKey = key.key.Public()
		req.Features = append(req.Features, pb.Feature_FEATURE_LEASE_V1)
	}
	if err := transport.WriteMessage(conn, req); err != nil {
		return nil, fmt.Errorf("send registration: %w", err)
	}
	resp, err := readAnswer(conn)
	for err == nil && resp.GetChallenge() != nil {
		var proof *pb.RegisterProof
		if proof, err = key.prove(resp.GetChallenge()); err != nil {
			return nil, err
		}
		if err = transport.WriteMessage(conn, proof); err != nil {
			return nil, fmt.Errorf("send the proof of the recipient key: %w", err)
		}
		resp, err = readAnswer(conn)
	}
	if err != nil {
		var frame *transport.FrameError
		if identity.Refused(err) {
			return nil, identityRefused("the edge doesn't accept this node's certificate: " + err.Error())
		}
		if errors.As(err, &frame) {
			return nil, fmt.Errorf("read the answer to the registration (is this the node port of an Edge?): %w", err)
		}
		return nil, fmt.Errorf("read the answer to the registration: %w", err)
	}
	if !resp.GetAccepted() {
		return nil, refusalOf(resp)
	}
	if err := checkAccepted(resp); err != nil {
		return nil, err
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	return resp, conn.SetDeadline(time.Time{})
}

// readAnswer reads one message of the edge.
func readAnswer(conn net.Conn) (*pb.RegisterResponse, error) {
	resp := new(pb.RegisterResponse)
	return resp, transport.ReadMessage(conn, transport.MaxRegisterResponse, resp)
}

// checkAccepted refuses an acceptance that this version can't work with.
func checkAccepted(r *pb.RegisterResponse) error {
	switch {
	case r.GetProtocol() < transport.ProtocolMin || r.GetProtocol() > transport.ProtocolMax:
		return &refusedError{reason: reasonName(pb.RegisterReason_REGISTER_REASON_VERSION_UNSUPPORTED), class: permanent,
			text: fmt.Sprintf("the edge chose protocol %d, this node speaks %d to %d", r.GetProtocol(), transport.ProtocolMin, transport.ProtocolMax)}
	case r.GetConnectionGeneration() == 0, r.GetConfig().GetProjection() == 0:
		return &refusedError{reason: reasonName(pb.RegisterReason_REGISTER_REASON_PROTOCOL), class: permanent,
			text: "the edge accepted without a connection generation or a configuration"}
	}
	return nil
}

func (l *Link) registerRequest(handover bool) *pb.RegisterRequest {
	return &pb.RegisterRequest{
		ProtocolMin:      transport.ProtocolMin,
		ProtocolMax:      transport.ProtocolMax,
		Token:            l.cfg.Token.Reveal(),
		InstanceId:       l.cfg.InstanceID[:],
		Features:         node.Features(),
		SoftwareVersion:  l.cfg.Version,
		LastGeneration:   l.lastGeneration,
		LastEdgeInstance: l.lastEdgeInstance,
		OsArch:           runtime.GOOS + "/" + runtime.GOARCH,
		Handover:         handover,
	}
}
