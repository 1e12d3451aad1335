package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/packages/go/config"
	"iop/packages/go/faultpoint"
	"iop/packages/go/identity"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

const (
	// duplicateRetry is what a node waits whose predecessor still lives.
	duplicateRetry = 3 * time.Second
	// refuseWrite bounds the writing of a refusal, which may begin when the handshake's own time is up.
	refuseWrite = time.Second
	// instanceLen is the length of an instance_id.
	instanceLen = 16
)

// errGone says that the candidate is to be closed without an answer: it left, or it spoke out of turn.
var errGone = errors.New("the candidate is gone")

// handshake is one registration on a bare connection.
type handshake struct {
	s        *Server
	bare     net.Conn // as it was accepted
	conn     net.Conn // what the protocol is spoken on: TLS over bare, or bare itself
	deadline time.Time
	peer     *identity.Peer // who proved to be there by certificate; nil in mode dev

	req  *pb.RegisterRequest
	hash [32]byte           // of the token
	rec  *config.NodeRecord // nil until the token was found
}

// register runs the whole registration. It returns a committed connection whose RegisterResponse was written, or nil
// after it has closed conn.
func (s *Server) register(ctx context.Context, conn net.Conn) *node.Connection {
	h := &handshake{s: s, bare: conn, conn: conn, deadline: time.Now().Add(s.cfg.Timers.Handshake)}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	c, err := h.run(ctx)
	if err == nil {
		return c
	}
	if ctx.Err() == nil {
		h.refuse(err)
	}
	_ = conn.Close()
	return nil
}

func (h *handshake) run(ctx context.Context) (*node.Connection, error) {
	if err := h.secure(); err != nil {
		return nil, err
	}
	if err := h.read(); err != nil {
		return nil, err
	}
	if err := h.slot(ctx); err != nil {
		return nil, err
	}
	defer func() { <-h.s.handshakes }()
	if h.req.GetDryRun() {
		return nil, h.rehearse()
	}
	c, resp, err := h.admit(ctx)
	if err != nil {
		return nil, err
	}
	// The connection is in the registry: from here on every end of it is a fence.
	h.s.cfg.Faults.At(faultpoint.EdgeAccept, h.rec.ID)
	if err := h.accept(resp); err != nil {
		h.s.cfg.Registry.Fence(c, node.FenceLost, "the registration couldn't be answered")
		return nil, errGone
	}
	return c, nil
}

// read takes the request off the bare connection. A peer that speaks anything else is closed without an answer.
func (h *handshake) read() error {
	if err := h.conn.SetReadDeadline(h.deadline); err != nil {
		return errGone
	}
	wait := patience
	if h.peer != nil {
		wait = roundTrip
	}
	leave := h.s.crowd.enter(h.bare, wait)
	defer leave()
	req := &pb.RegisterRequest{}
	err := link.ReadMessage(h.conn, link.MaxRegisterRequest, req)
	var fault *link.FrameError
	switch {
	case err == nil:
	case errors.As(err, &fault):
		return &silent{node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_PROTOCOL, Text: fault.Error()}}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &silent{node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_HANDSHAKE_TIMEOUT,
			Text: "no registration within the limit"}}
	default:
		return errGone
	}
	h.req, h.hash = req, config.HashSecret(req.GetToken())
	req.Token = "" // nothing behind this line can show it
	return nil
}

// silent is a refusal that the peer isn't told.
type silent struct{ node.Refusal }

// slot waits for the right to work on the registration.
func (h *handshake) slot(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, h.deadline)
	defer cancel()
	select {
	case h.s.handshakes <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_HANDSHAKE_TIMEOUT,
			Text: "the edge was too busy to register the node in time"}
	}
}

// admit verifies the request and commits the connection. A round that lost a race is run once more.
func (h *handshake) admit(ctx context.Context) (*node.Connection, *pb.RegisterResponse, error) {
	c, resp, err := h.round(ctx)
	if errors.Is(err, node.ErrRaced) {
		c, resp, err = h.round(ctx)
	}
	if errors.Is(err, node.ErrRaced) {
		err = duplicate("another connection of this node was faster")
	}
	return c, resp, err
}

func (h *handshake) round(ctx context.Context) (*node.Connection, *pb.RegisterResponse, error) {
	version, err := h.verify()
	if err != nil {
		return nil, nil, err
	}
	p := h.s.cfg.Registry.State().Projection(h.rec.ID)
	if p == nil {
		return nil, nil, node.ErrRaced // the record went while we looked
	}
	// The predecessor first, then the number: so the number is above the predecessor's.
	old := h.s.cfg.Registry.Current(h.rec.ID)
	c, resp, err := h.prepare(version, p)
	if err != nil {
		return nil, nil, err
	}
	var expected uint64
	if old != nil {
		expected = old.Generation
		c.Handover = h.req.GetHandover() && h.peer != nil && h.returns(old)
		settle, err := h.contend(ctx, old)
		if err != nil {
			return nil, nil, err
		}
		defer settle()
	}
	h.s.cfg.Faults.At(faultpoint.EdgeCommit, h.rec.ID)
	return c, resp, h.s.cfg.Registry.Commit(c, expected)
}

// verify checks everything about the request that can be refused, and returns the protocol version that both speak.
// Who shows no valid token learns nothing else.
func (h *handshake) verify() (int32, error) {
	rec, refusal := h.s.cfg.Registry.Verify(h.hash, h.peer)
	h.rec = rec
	if refusal != nil {
		return 0, refusal
	}
	if claim := h.req.GetNodeIdClaim(); claim != "" && claim != rec.ID {
		return 0, &node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH,
			Text: "the token belongs to another node id than the one that was claimed"}
	}
	lo, hi := h.req.GetProtocolMin(), h.req.GetProtocolMax()
	version := min(hi, link.ProtocolMax)
	if version < max(lo, link.ProtocolMin) {
		return 0, &node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_VERSION_UNSUPPORTED,
			Text: fmt.Sprintf("no common protocol version: the node speaks %d to %d, the edge %d to %d; upgrade the older one",
				lo, hi, link.ProtocolMin, link.ProtocolMax)}
	}
	if len(h.req.GetInstanceId()) != instanceLen && !h.req.GetDryRun() {
		return 0, &node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_PROTOCOL,
			Text: fmt.Sprintf("instance_id has %d bytes, %d are due", len(h.req.GetInstanceId()), instanceLen)}
	}
	return version, nil
}

// prepare makes the connection and its answer; neither is in force before the commit.
func (h *handshake) prepare(version int32, p *config.Projection) (*node.Connection, *pb.RegisterResponse, error) {
	payload, err := h.s.cfg.Payload(p)
	if err != nil {
		return nil, nil, payloadFailed("the node's configuration can't be built", err)
	}
	generation, err := h.s.cfg.Registry.Reserve()
	if err != nil {
		return nil, nil, payloadFailed("no connection generation can be reserved", err)
	}
	id := node.Identity{
		NodeID: h.rec.ID, Generation: generation, InstanceID: [16]byte(h.req.GetInstanceId()), Token: h.hash,
		Version: printable(h.req.GetSoftwareVersion()), Remote: h.conn.RemoteAddr().String(), Since: time.Now(),
		Features: features(h.req.GetFeatures()), Peer: h.peer,
	}
	recipient, lends, err := h.prove(generation)
	if err != nil {
		return nil, nil, err
	}
	if lends {
		id.Features = append(id.Features, pb.Feature_FEATURE_LEASE_V1)
	}
	c := h.s.cfg.Registry.NewConnection(id, h.rec, p, h.bare)
	c.SetRecipient(recipient)
	tuning := h.s.cfg.Timers.link(*c.Log())
	tuning.Faults, tuning.Now = h.s.cfg.Faults, h.s.cfg.Now
	c.Link = link.NewEdgeLink(h.conn, tuning, newControl(h.s, c))
	return c, h.response(version, generation, payload, id.Features), nil
}

func payloadFailed(what string, err error) error {
	return &node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_PAYLOAD_FAILED, Cause: err,
		Text: what + "; the edge's log says why", RetryAfter: duplicateRetry}
}

// rehearse answers a request that only asks whether the node would be let in. All that may refuse it has been looked at;
// no generation is taken, the node's connection isn't contended with, and nothing is registered. The connection is closed
// then: what it returns is always an error.
func (h *handshake) rehearse() error {
	version, err := h.verify()
	if err != nil {
		return err
	}
	p := h.s.cfg.Registry.State().Projection(h.rec.ID)
	if p == nil {
		return errGone // the record went while we looked
	}
	payload, err := h.s.cfg.Payload(p)
	if err != nil {
		return payloadFailed("the node's configuration can't be built", err)
	}
	var current uint64 // the answer's generation is that of the node's live connection, if it has one
	if live := h.s.cfg.Registry.Current(h.rec.ID); live != nil {
		current = live.Generation
	}
	h.s.cfg.Log.Info().Str("node_id", h.rec.ID).Stringer("remote", h.conn.RemoteAddr()).Msg("a dry run of a registration: the node would be let in")
	if err := h.accept(h.response(version, current, payload, features(h.req.GetFeatures()))); err != nil {
		return err
	}
	return errGone
}

// features returns what this version offers of what the node offers.
func features(offered []pb.Feature) []pb.Feature {
	var both []pb.Feature
	for _, f := range []pb.Feature{pb.Feature_FEATURE_BACKGROUND, pb.Feature_FEATURE_OLLAMA_COMMAND, pb.Feature_FEATURE_TRACE} {
		if slices.Contains(offered, f) {
			both = append(both, f)
		}
	}
	return both
}

func (h *handshake) response(version int32, generation uint64, payload *pb.NodeConfigPayload, common []pb.Feature) *pb.RegisterResponse {
	t := &h.s.cfg.Timers
	return &pb.RegisterResponse{
		Accepted: true, Protocol: version, NodeId: h.rec.ID, ConnectionGeneration: generation,
		EdgeId: h.s.cfg.Registry.EdgeID(), EdgeInstance: h.s.instance, Config: payload, Features: common,
		Limits: &pb.Limits{HeartbeatMs: t.Heartbeat.Milliseconds(), DeadMs: t.Dead.Milliseconds(),
			MaxFrame: 16 << 10, MaxOpen: link.MaxOpen},
		EdgeTimeMs: h.s.cfg.Now().UnixMilli(),
	}
}

// accept writes the answer and gives the connection back without deadlines.
func (h *handshake) accept(resp *pb.RegisterResponse) error {
	if err := h.conn.SetWriteDeadline(h.deadline); err != nil {
		return err
	}
	if err := link.WriteMessage(h.conn, resp); err != nil {
		return err
	}
	return h.conn.SetDeadline(time.Time{})
}

// refuse tells the peer, the bus, the log and the counters.
func (h *handshake) refuse(err error) {
	var quiet *silent
	var refusal *node.Refusal
	switch {
	case errors.As(err, &quiet):
		refusal = &quiet.Refusal
	case errors.As(err, &refusal):
		h.answer(refusal)
	default:
		return // it left by itself
	}
	h.s.stats.refused[refusal.Reason].Add(1)
	id := ""
	if h.rec != nil {
		id = h.rec.ID
	} else if !h.s.strangers.Allow() {
		return // anybody can knock; who does so without end isn't news each time
	}
	h.s.cfg.Events.Publish(events.Event{Kind: events.KindRefused, NodeID: id, Code: refusal.Code(), Text: refusal.Text})
	h.s.cfg.Log.Warn().Str("node_id", id).Str("code", refusal.Code()).AnErr("error", refusal.Cause).
		Stringer("remote", h.conn.RemoteAddr()).Msg("node refused: " + refusal.Text)
}

func (h *handshake) answer(f *node.Refusal) {
	if h.conn.SetWriteDeadline(time.Now().Add(refuseWrite)) != nil {
		return
	}
	// A peer that doesn't take its refusal is closed all the same.
	_ = link.WriteMessage(h.conn, &pb.RegisterResponse{
		Reason: f.Reason, ReasonText: f.Text, Retryable: f.Retryable(), RetryAfterMs: f.RetryAfter.Milliseconds(),
	})
}

// printable keeps what a node says of its version short and on one line.
func printable(s string) string {
	const most = 64
	out := make([]rune, 0, most)
	for _, r := range s {
		if len(out) == most {
			break
		}
		if r < ' ' || r == 0x7f {
			r = '?'
		}
		out = append(out, r)
	}
	return string(out)
}
