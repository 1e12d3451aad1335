package harness

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// FakeEdge is an edge that the test plays: it listens, and answers registrations as the test wants.
type FakeEdge struct {
	t        testing.TB
	listener net.Listener
}

// NewFakeEdge listens on a free port until the test is over.
func NewFakeEdge(t testing.TB) *FakeEdge {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &FakeEdge{t: t, listener: l}
}

// Addr is where nodes dial.
func (e *FakeEdge) Addr() string { return e.listener.Addr().String() }

// Accept takes the next connection and its registration.
func (e *FakeEdge) Accept(limit time.Duration) (net.Conn, *pb.RegisterRequest) {
	e.t.Helper()
	_ = e.listener.(*net.TCPListener).SetDeadline(time.Now().Add(limit))
	conn, err := e.listener.Accept()
	if err != nil {
		e.t.Fatalf("no node dials: %v", err)
	}
	e.t.Cleanup(func() { conn.Close() })
	hello := &pb.RegisterRequest{}
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	if err := transport.ReadMessage(conn, transport.MaxRegisterRequest, hello); err != nil {
		e.t.Fatalf("read the registration: %v", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	return conn, hello
}

// Accepted is an acceptance with a loopback adapter of that many places.
func Accepted(generation uint64, places int32) *pb.RegisterResponse {
	return &pb.RegisterResponse{Accepted: true, Protocol: transport.ProtocolMax, NodeId: "box", ConnectionGeneration: generation,
		EdgeId: "fake", EdgeInstance: []byte("fake edge 000001"),
		Config: &pb.NodeConfigPayload{Projection: 1, Adapters: []*pb.AdapterConfig{{Name: "loopback", Kind: "loopback",
			MaxConcurrency: places, AdapterRevision: 1}}},
		Limits: &pb.Limits{HeartbeatMs: 30_000, DeadMs: 45_000, MaxFrame: 16 << 10, MaxOpen: transport.MaxOpen}}
}

// Answer answers a registration.
func (e *FakeEdge) Answer(conn net.Conn, resp *pb.RegisterResponse) {
	e.t.Helper()
	if err := transport.WriteMessage(conn, resp); err != nil {
		e.t.Fatal(err)
	}
}

// Register takes the next connection and accepts it.
func (e *FakeEdge) Register(limit time.Duration, resp *pb.RegisterResponse) net.Conn {
	e.t.Helper()
	conn, _ := e.Accept(limit)
	e.Answer(conn, resp)
	return conn
}

// EdgeSide is the edge's end of a registered connection. It speaks through the real link.
type EdgeSide struct {
	Link       *transport.Link
	Generation uint64

	t    testing.TB
	done chan struct{}

	mu    sync.Mutex
	heard []*pb.NodeControl
}

// Serve runs the edge's end of a registered connection; it ends with the test.
func (e *FakeEdge) Serve(conn net.Conn, generation uint64) *EdgeSide {
	s := &EdgeSide{Generation: generation, t: e.t, done: make(chan struct{})}
	s.Link = transport.NewEdgeLink(conn, transport.Config{Log: zerolog.Nop()}, s)
	go func() {
		defer close(s.done)
		_ = s.Link.Run(context.Background())
	}()
	e.t.Cleanup(func() {
		s.Link.Close(transport.ReasonClosed)
		<-s.done
	})
	return s
}

// Control implements transport.EdgeHandler.
func (s *EdgeSide) Control(m *pb.NodeControl) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = append(s.heard, m)
}

// Heard returns what the node said so far.
func (s *EdgeSide) Heard() []*pb.NodeControl {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*pb.NodeControl(nil), s.heard...)
}

// Ends returns how the execution ended, as often as the node said so.
func (s *EdgeSide) Ends(runID string) []*pb.RunEnd {
	var ends []*pb.RunEnd
	for _, m := range s.Heard() {
		for _, e := range m.GetRunEnded().GetEnds() {
			if e.GetRunId() == runID {
				ends = append(ends, e)
			}
		}
	}
	return ends
}

// AwaitReady waits for the node's Ready and acknowledges it.
func (s *EdgeSide) AwaitReady(limit time.Duration) {
	s.t.Helper()
	Until(s.t, limit, "the node says Ready", func() bool {
		for _, m := range s.Heard() {
			if r := m.GetReady(); r != nil {
				s.Link.SendReadyAck(r.GetProjection(), true)
				return true
			}
		}
		return false
	})
}

// TunnelOpen is the open of a chat request without a body.
func TunnelOpen(generation uint64, runID string) *pb.WorkOpen {
	return &pb.WorkOpen{ConnectionGeneration: generation, Attempt: 1, Work: &pb.WorkOpen_Tunnel{
		Tunnel: &pb.ProviderTunnelRequest{RunId: runID, Adapter: "loopback", AdapterRevision: 1, Method: http.MethodPost,
			Path: "/v1/chat/completions", Target: "loopback", ContentLength: -1}}}
}

// InputFrames are a request body and its end, as they stand on a work stream.
func InputFrames(t testing.TB, body string) []byte {
	t.Helper()
	b := Framed(t, &pb.WorkInput{Seq: 1, Input: &pb.WorkInput_Body{Body: []byte(body)}})
	return append(b, Framed(t, &pb.WorkInput{Seq: 2, Input: &pb.WorkInput_End{End: &pb.InputEnd{TotalBytes: int64(len(body))}}})...)
}
