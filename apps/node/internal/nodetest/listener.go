package nodetest

import (
	"net"
	"testing"

	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// Listener is an Edge's listener for nodes: it accepts every registration.
type Listener struct {
	Features []pb.Feature        // what the Edge offers
	Adapters []*pb.AdapterConfig // of every projection

	t          testing.TB
	ln         net.Listener
	generation uint64
}

// Listen returns an Edge on loopback that knows background runs and projects the embedded provider as "a". It ends with
// the test.
func Listen(t testing.TB) *Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Listener{t: t, ln: ln, Features: []pb.Feature{pb.Feature_FEATURE_BACKGROUND, pb.Feature_FEATURE_OLLAMA_COMMAND}, Adapters: []*pb.AdapterConfig{
		{Name: "a", Kind: "loopback", MaxConcurrency: 4, AdapterRevision: 1, Options: []*pb.KeyValue{{Key: "defaults", Value: "delay=0s"}}},
	}}
	t.Cleanup(l.Close)
	return l
}

// Addr is the address to dial.
func (l *Listener) Addr() string { return l.ln.Addr().String() }

// Close ends listening; connections stay.
func (l *Listener) Close() { _ = l.ln.Close() }

// Accept registers the next connection, waits for its Ready and confirms it.
func (l *Listener) Accept() (*EdgeSide, *pb.RegisterRequest, *pb.Ready) {
	l.t.Helper()
	conn, err := l.ln.Accept()
	if err != nil {
		l.t.Fatal(err)
	}
	req := new(pb.RegisterRequest)
	if err := transport.ReadMessage(conn, transport.MaxRegisterRequest, req); err != nil {
		l.t.Fatal(err)
	}
	l.generation++
	if err := transport.WriteMessage(conn, &pb.RegisterResponse{
		Accepted: true, Protocol: 1, NodeId: "n", EdgeId: "e", ConnectionGeneration: l.generation, Features: l.Features,
		Config: &pb.NodeConfigPayload{Projection: 1, Adapters: l.Adapters},
	}); err != nil {
		l.t.Fatal(err)
	}
	side := NewEdgeSide(l.t, conn, l.generation, transport.Config{})
	ready := side.Ready()
	side.Link.SendReadyAck(ready.GetProjection(), true)
	return side, req, ready
}
