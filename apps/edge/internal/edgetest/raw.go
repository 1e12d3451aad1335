package edgetest

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "iop/proto/iop"
)

// The multiplexer's frame types and flags, as far as a peer needs them that speaks it by hand.
const (
	MuxData   = 0
	MuxWindow = 1
	MuxPing   = 2
	MuxGoAway = 3

	FlagSYN = 1
	FlagACK = 2
	FlagFIN = 4
	FlagRST = 8

	// ControlStream is the id of the first stream that a node opens.
	ControlStream = 1
	muxHeader     = 12
)

// Raw is a registered peer that speaks the multiplexer byte by byte, so that it can break every rule of the link.
type Raw struct {
	Conn     net.Conn
	Response *pb.RegisterResponse
	Ended    chan struct{} // closed when the edge has closed the connection

	write   sync.Mutex
	control []byte // of the edge's control messages, what isn't a whole one yet

	mu    sync.Mutex
	heard []*pb.EdgeControl
}

// ConnectRaw registers on c and starts reading. The connection is closed when the test is over.
func ConnectRaw(t testing.TB, c net.Conn, hello *pb.RegisterRequest) *Raw {
	t.Helper()
	resp, err := Register(c, hello)
	if err != nil {
		t.Fatal(err)
	}
	if !resp.GetAccepted() {
		t.Fatalf("the edge refused: %v: %s", resp.GetReason(), resp.GetReasonText())
	}
	r := &Raw{Conn: c, Response: resp, Ended: make(chan struct{})}
	go r.read()
	t.Cleanup(func() {
		_ = c.Close()
		<-r.Ended
	})
	return r
}

// Frame writes one frame of the multiplexer. For MuxData length is ignored and taken from body.
func (r *Raw) Frame(kind uint8, flags uint16, stream, length uint32, body []byte) error {
	if kind == MuxData {
		length = uint32(len(body))
	}
	b := make([]byte, muxHeader, muxHeader+len(body))
	b[1] = kind
	binary.BigEndian.PutUint16(b[2:], flags)
	binary.BigEndian.PutUint32(b[4:], stream)
	binary.BigEndian.PutUint32(b[8:], length)
	r.write.Lock()
	defer r.write.Unlock()
	_, err := r.Conn.Write(append(b, body...))
	return err
}

// OpenStream opens a stream; a node may open ControlStream only.
func (r *Raw) OpenStream(id uint32) error { return r.Frame(MuxWindow, FlagSYN, id, 0, nil) }

// Send writes m on the control stream.
func (r *Raw) Send(m *pb.NodeControl) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return r.SendBytes(uint32(len(b)), b)
}

// SendBytes writes a control frame whose prefix says length, whatever body is.
func (r *Raw) SendBytes(length uint32, body []byte) error {
	b := binary.BigEndian.AppendUint32(nil, length)
	return r.Frame(MuxData, 0, ControlStream, 0, append(b, body...))
}

// Heard returns the edge's control messages so far.
func (r *Raw) Heard() []*pb.EdgeControl {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*pb.EdgeControl(nil), r.heard...)
}

// read takes everything that the edge sends and keeps its control messages.
func (r *Raw) read() {
	defer close(r.Ended)
	var h [muxHeader]byte
	for {
		if _, err := io.ReadFull(r.Conn, h[:]); err != nil {
			return
		}
		if h[1] != MuxData {
			continue
		}
		body := make([]byte, binary.BigEndian.Uint32(h[8:]))
		if _, err := io.ReadFull(r.Conn, body); err != nil {
			return
		}
		if binary.BigEndian.Uint32(h[4:]) == ControlStream {
			r.take(body)
		}
	}
}

func (r *Raw) take(p []byte) {
	r.control = append(r.control, p...)
	for len(r.control) >= 4 {
		n := int(binary.BigEndian.Uint32(r.control))
		if len(r.control) < 4+n {
			return
		}
		m := &pb.EdgeControl{}
		if proto.Unmarshal(r.control[4:4+n], m) == nil {
			r.mu.Lock()
			r.heard = append(r.heard, m)
			r.mu.Unlock()
		}
		r.control = r.control[4+n:]
	}
}
