package harness

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// TokenOf is the token of a node that Record describes, or of "box".
func TokenOf(id string) string {
	if id == "box" {
		return token
	}
	return "e2e-node-token-of-" + id + "-0123456789abcdef"
}

// Record is one entry of nodes: with these adapters.
func Record(id, adapters string) string {
	return fmt.Sprintf("{id: %s, token_hashes: [{sha256: %x}], adapters: %s}", id, config.HashSecret(TokenOf(id)), adapters)
}

// Hello is the request that a node of this version registers with. The same instance name is the same process.
func Hello(id, instance string) *pb.RegisterRequest {
	sum := sha256.Sum256([]byte(instance))
	return &pb.RegisterRequest{ProtocolMin: transport.ProtocolMin, ProtocolMax: transport.ProtocolMax,
		Token: TokenOf(id), InstanceId: sum[:16], SoftwareVersion: "fake"}
}

// Register dials and registers, and returns the answer with the connection that it came on. A refused connection is
// closed.
func Register(addr string, hello *pb.RegisterRequest) (*pb.RegisterResponse, net.Conn, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	resp := &pb.RegisterResponse{}
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if err = transport.WriteMessage(conn, hello); err == nil {
		err = transport.ReadMessage(conn, transport.MaxRegisterResponse, resp)
	}
	_ = conn.SetDeadline(time.Time{})
	if err != nil || !resp.GetAccepted() {
		conn.Close()
	}
	return resp, conn, err
}

// FakeNodeOptions say how a fake node behaves.
type FakeNodeOptions struct {
	ID       string // default "box"
	Instance string // default: the id
	Hello    *pb.RegisterRequest
	// Work handles the open of each tunnel in a goroutine of its own. Default: Answer with "ok".
	Work func(n *FakeNode, s *transport.Stream, open *pb.WorkOpen)
	// Deaf makes the node ignore the edge's commands, too.
	Deaf bool
	// Control sees every control message of the edge. It must not block.
	Control func(n *FakeNode, m *pb.EdgeControl)
}

// FakeNode is a node that keeps the protocol, since it speaks through the real link, and says what the test tells it
// to.
type FakeNode struct {
	Link     *transport.Link
	Response *pb.RegisterResponse

	o      FakeNodeOptions
	deaf   atomic.Bool
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	acks int // dispatchable ReadyAcks
}

// DialFake registers a fake node at an edge and runs its link until the test is over.
func DialFake(t testing.TB, addr string, o FakeNodeOptions) *FakeNode {
	t.Helper()
	if o.ID == "" {
		o.ID = "box"
	}
	if o.Instance == "" {
		o.Instance = o.ID
	}
	if o.Hello == nil {
		o.Hello = Hello(o.ID, o.Instance)
	}
	resp, conn, err := Register(addr, o.Hello)
	if err != nil {
		t.Fatal(err)
	}
	if !resp.GetAccepted() {
		t.Fatalf("the edge refused: %v: %s", resp.GetReason(), resp.GetReasonText())
	}
	n := &FakeNode{Response: resp, o: o, done: make(chan struct{})}
	n.deaf.Store(o.Deaf)
	limits := resp.GetLimits()
	n.Link = transport.NewNodeLink(conn, transport.Config{Heartbeat: time.Duration(limits.GetHeartbeatMs()) * time.Millisecond,
		Dead: time.Duration(limits.GetDeadMs()) * time.Millisecond}, (*fakeHandler)(n))
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	go func() {
		defer close(n.done)
		_ = n.Link.Run(ctx)
	}()
	t.Cleanup(n.Close)
	return n
}

// Close cuts the connection and waits for the node's goroutines.
func (n *FakeNode) Close() {
	n.cancel()
	<-n.done
}

// Undeafen makes a deaf node answer commands.
func (n *FakeNode) Undeafen() { n.deaf.Store(false) }

// Generation is the one that the edge gave.
func (n *FakeNode) Generation() uint64 { return n.Response.GetConnectionGeneration() }

// State is a Ready that reports every adapter of the projection with all its places.
func (n *FakeNode) State() *pb.Ready { return FakeReady(n.Response) }

// FakeReady is a Ready that reports every adapter of a registration's projection with all its places.
func FakeReady(r *pb.RegisterResponse) *pb.Ready {
	ready := &pb.Ready{Projection: r.GetConfig().GetProjection()}
	for _, a := range r.GetConfig().GetAdapters() {
		ready.Adapters = append(ready.Adapters, &pb.AdapterState{Name: a.GetName(), Revision: a.GetAdapterRevision(),
			Available: true, Capacity: a.GetMaxConcurrency(), Version: "fake"})
	}
	return ready
}

// Ready says m, or that everything is well, and waits for the edge's acknowledgement.
func (n *FakeNode) Ready(t testing.TB, m *pb.Ready) {
	t.Helper()
	if m == nil {
		m = n.State()
	}
	before := n.acked()
	n.Link.SendReady(func() *pb.Ready { return m })
	Until(t, patience.Limit, "the edge acknowledges Ready", func() bool { return n.acked() > before })
}

func (n *FakeNode) acked() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.acks
}

// Accept says that a tunnel was taken.
func (n *FakeNode) Accept(s *transport.Stream) error {
	return s.Write(&pb.ProviderTunnelFrame{Seq: 1, Frame: &pb.ProviderTunnelFrame_Accepted{Accepted: &pb.Accepted{}}})
}

// Reject says that a tunnel never started.
func (n *FakeNode) Reject(s *transport.Stream, code pb.FailureCode) error {
	return s.Write(&pb.ProviderTunnelFrame{Seq: 1, Frame: &pb.ProviderTunnelFrame_Rejected{Rejected: &pb.Rejected{
		NeverStarted: true, Failure: &pb.Failure{Code: code, Origin: pb.Origin_ORIGIN_NODE, Text: "fake"}}}})
}

// Answer carries a tunnel out: 200, the body, the end, and RunEnded before it as a real node does.
func (n *FakeNode) Answer(s *transport.Stream, open *pb.WorkOpen, body string) error {
	if err := n.Accept(s); err != nil {
		return err
	}
	n.Ended(open)
	for _, m := range []*pb.ProviderTunnelFrame{
		{Seq: 2, Frame: &pb.ProviderTunnelFrame_Head{Head: &pb.TunnelHead{Status: http.StatusOK}}},
		{Seq: 3, Frame: &pb.ProviderTunnelFrame_Body{Body: []byte(body)}},
		{Seq: 4, Frame: &pb.ProviderTunnelFrame_End{End: &pb.TunnelEnd{Bytes: int64(len(body))}}},
	} {
		if err := s.Append(m); err != nil {
			return err
		}
	}
	return s.Flush()
}

// Ended says that an execution is over.
func (n *FakeNode) Ended(open *pb.WorkOpen) {
	n.Link.SendRunEnded(&pb.RunEnd{RunId: open.GetTunnel().GetRunId(), Attempt: open.GetAttempt(),
		Status: pb.RunStatus_RUN_STATUS_COMPLETE})
}

// Discard reads a stream until the edge has closed it.
func Discard(s *transport.Stream) {
	for {
		if _, err := s.ReadInput(); err != nil {
			return
		}
	}
}

type fakeHandler FakeNode

// Control implements the link's NodeHandler.
func (h *fakeHandler) Control(m *pb.EdgeControl) {
	if m.GetReadyAck().GetDispatchable() {
		h.mu.Lock()
		h.acks++
		h.mu.Unlock()
	}
	if h.o.Control != nil {
		h.o.Control((*FakeNode)(h), m)
	}
}

// Work implements the link's NodeHandler.
func (h *fakeHandler) Work(s *transport.Stream) {
	defer s.Close()
	n := (*FakeNode)(h)
	open, err := s.ReadOpen(time.Minute)
	switch {
	case err != nil:
	case open.GetCommand() != nil:
		if !h.deaf.Load() {
			_ = s.Write(&pb.NodeCommandResponse{Seq: 1, Response: &pb.NodeCommandResponse_Accepted{Accepted: &pb.Accepted{}}})
			_ = s.Write(&pb.NodeCommandResponse{Seq: 2, Response: &pb.NodeCommandResponse_TransportStatus{
				TransportStatus: &pb.TransportStatus{ConnectionGeneration: n.Generation()}}})
		}
		Discard(s)
	case h.o.Work != nil:
		h.o.Work(n, s, open)
	default:
		_ = n.Answer(s, open, "ok")
		Discard(s)
	}
}
