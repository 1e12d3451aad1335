package edgetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"iop/packages/go/patience"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

// Token is the token of the record that Record makes.
func Token(id string) string { return "token-of-" + id + "-0123456789abcdef" }

func hexHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Instance makes an instance id from a short name.
func Instance(name string) []byte {
	sum := sha256.Sum256([]byte(name))
	return sum[:16]
}

// Hello returns the request that a node of this version registers with. The process instance is named like the node.
func Hello(id string) *pb.RegisterRequest {
	return &pb.RegisterRequest{
		ProtocolMin: link.ProtocolMin, ProtocolMax: link.ProtocolMax, Token: Token(id), InstanceId: Instance(id),
		SoftwareVersion: "fake",
	}
}

// Register sends req on a bare connection and returns the answer.
func Register(c net.Conn, req *pb.RegisterRequest) (*pb.RegisterResponse, error) {
	if err := link.WriteMessage(c, req); err != nil {
		return nil, fmt.Errorf("send the registration: %w", err)
	}
	resp := &pb.RegisterResponse{}
	if err := link.ReadMessage(c, link.MaxRegisterResponse, resp); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return resp, nil
}

// NodeOptions says how a fake node behaves.
type NodeOptions struct {
	Hello     *pb.RegisterRequest
	Heartbeat time.Duration // default: the link's
	Dead      time.Duration
	// Work handles each work stream; it closes s. Default: answers TRANSPORT_STATUS, rejects the rest as busy.
	Work func(n *Node, s *link.Stream)
	// Control sees every control message from the edge. It must not block.
	Control func(m *pb.EdgeControl)
}

// Node is a fake node that keeps the protocol: it speaks through the real link, and says what the test tells it to.
type Node struct {
	Link     *link.Link
	Response *pb.RegisterResponse
	// Heard gets every control message; what nobody takes is dropped beyond 64.
	Heard chan *pb.EdgeControl

	o      NodeOptions
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	number uint64 // of the last NodeStatus
}

// Connect registers on c and runs the link until the test is over. It fails the test when the edge refuses.
func Connect(t testing.TB, c net.Conn, o NodeOptions) *Node {
	t.Helper()
	resp, err := Register(c, o.Hello)
	if err != nil {
		t.Fatal(err)
	}
	if !resp.GetAccepted() {
		t.Fatalf("the edge refused: %v: %s", resp.GetReason(), resp.GetReasonText())
	}
	return Run(t, c, resp, o)
}

// Run runs the link of a registered connection until the test is over.
func Run(t testing.TB, c net.Conn, resp *pb.RegisterResponse, o NodeOptions) *Node {
	n := &Node{Response: resp, Heard: make(chan *pb.EdgeControl, 64), o: o, done: make(chan struct{})}
	n.Link = link.NewNodeLink(c, link.Config{Heartbeat: o.Heartbeat, Dead: o.Dead}, (*nodeHandler)(n))
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	go func() {
		defer close(n.done)
		_ = n.Link.Run(ctx)
	}()
	t.Cleanup(n.Close)
	return n
}

// Dial connects to an edge on loopback and registers as the node with this id.
func Dial(t testing.TB, e *Edge, id string, o NodeOptions) *Node {
	t.Helper()
	var c net.Conn
	if l, ok := e.Listener.(*Listener); ok {
		c = l.Dial()
	} else {
		var err error
		if c, err = net.Dial("tcp", e.Addr()); err != nil {
			t.Fatal(err)
		}
	}
	if o.Hello == nil {
		o.Hello = Hello(id)
	}
	return Connect(t, c, o)
}

// Close cuts the connection and waits for the node's goroutines.
func (n *Node) Close() {
	n.cancel()
	<-n.done
}

// Generation is the one that the edge gave.
func (n *Node) Generation() uint64 { return n.Response.GetConnectionGeneration() }

// Adapters reports every adapter of the projection as available with all its places and these models.
func (n *Node) Adapters(models ...string) []*pb.AdapterState {
	var out []*pb.AdapterState
	for _, a := range n.Response.GetConfig().GetAdapters() {
		st := &pb.AdapterState{Name: a.GetName(), Revision: a.GetAdapterRevision(), Available: true,
			Capacity: a.GetMaxConcurrency(), Version: "fake-1"}
		for _, m := range models {
			st.Models = append(st.Models, &pb.ModelState{Name: m})
		}
		out = append(out, st)
	}
	return out
}

// Ready says that everything is available; running are executions of an earlier connection.
func (n *Node) Ready(running ...*pb.RunningExecution) {
	m := &pb.Ready{Projection: n.Response.GetConfig().GetProjection(), Adapters: n.Adapters(), Running: running}
	n.SendReady(m)
}

// SendReady sends m as it is.
func (n *Node) SendReady(m *pb.Ready) { n.Link.SendReady(func() *pb.Ready { return m }) }

// SendStatus sends m; a number of 0 becomes the next one.
func (n *Node) SendStatus(m *pb.NodeStatus) {
	n.mu.Lock()
	n.number++
	if m.Number == 0 {
		m.Number = n.number
	}
	n.mu.Unlock()
	n.Link.SendStatus(func() *pb.NodeStatus { return m })
}

// Await returns the next control message for which pick returns something, within limit.
func Await[T any](t testing.TB, n *Node, limit time.Duration, pick func(*pb.EdgeControl) *T) *T {
	t.Helper()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		select {
		case m := <-n.Heard:
			if v := pick(m); v != nil {
				return v
			}
		case <-timeout.C:
			t.Fatalf("no %T from the edge within %v", *new(T), limit)
			return nil
		}
	}
}

// AwaitReady sends Ready and waits for its ReadyAck.
func (n *Node) AwaitReady(t testing.TB, running ...*pb.RunningExecution) {
	t.Helper()
	n.Ready(running...)
	Await(t, n, patience.Limit, (*pb.EdgeControl).GetReadyAck)
}

type nodeHandler Node

// Control implements the link's NodeHandler.
func (h *nodeHandler) Control(m *pb.EdgeControl) {
	if h.o.Control != nil {
		h.o.Control(m)
	}
	select {
	case h.Heard <- m:
	default:
	}
}

// Work implements the link's NodeHandler.
func (h *nodeHandler) Work(s *link.Stream) {
	if h.o.Work != nil {
		h.o.Work((*Node)(h), s)
		return
	}
	defer s.Close()
	_, _ = AnswerStatus(s)
}

// AnswerStatus reads an open. A TRANSPORT_STATUS command is answered; anything else is rejected as busy. It returns
// the open.
func AnswerStatus(s *link.Stream) (*pb.WorkOpen, error) {
	open, err := s.ReadOpen(patience.Limit)
	if err != nil {
		return nil, err
	}
	return open, Answer(s, open)
}

// Answer answers an open that was read, like AnswerStatus.
func Answer(s *link.Stream, open *pb.WorkOpen) error {
	busy := &pb.Rejected{NeverStarted: true, Failure: &pb.Failure{Code: pb.FailureCode_FAILURE_CODE_ADAPTER_BUSY,
		Origin: pb.Origin_ORIGIN_NODE, Text: "busy"}}
	switch open.GetWork().(type) {
	case *pb.WorkOpen_Command:
		if open.GetCommand().GetType() != pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS {
			return s.Write(&pb.NodeCommandResponse{Seq: 1, Response: &pb.NodeCommandResponse_Rejected{Rejected: busy}})
		}
		err := s.Write(&pb.NodeCommandResponse{Seq: 1, Response: &pb.NodeCommandResponse_Accepted{Accepted: &pb.Accepted{}}})
		if err != nil {
			return err
		}
		return s.Write(&pb.NodeCommandResponse{Seq: 2, Response: &pb.NodeCommandResponse_TransportStatus{
			TransportStatus: &pb.TransportStatus{ConnectionGeneration: open.GetConnectionGeneration()}}})
	case *pb.WorkOpen_Tunnel:
		return s.Write(&pb.ProviderTunnelFrame{Seq: 1, Frame: &pb.ProviderTunnelFrame_Rejected{Rejected: busy}})
	}
	return s.Write(&pb.RunEvent{Seq: 1, Event: &pb.RunEvent_Rejected{Rejected: busy}})
}
