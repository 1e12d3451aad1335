package nodetest

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "iop/proto/iop"
)

// The multiplexer's frame types and flags, as far as a peer needs them that speaks it by hand.
const (
	MuxData   = 0
	MuxWindow = 1
	FlagSYN   = 1
	FlagFIN   = 4
	FlagRST   = 8

	// ControlStream is the id of the stream that the node opens; an edge's streams have even ids.
	ControlStream = 1
	muxHeader     = 12
)

// RawEdge is the edge's end of a registered connection that speaks the multiplexer byte by byte, so that it can break
// every rule of the link.
type RawEdge struct {
	Ended chan struct{} // closed when the node has closed the connection

	conn  net.Conn
	write sync.Mutex

	mu     sync.Mutex
	heard  map[uint32][]byte // what came on each stream
	pieces map[uint32]int    // data frames of the multiplexer that carried it
	closed map[uint32]bool   // the node's FIN or reset came
}

// NewRawEdge starts reading. The connection is closed when the test is over.
func NewRawEdge(t testing.TB, conn net.Conn) *RawEdge {
	r := &RawEdge{Ended: make(chan struct{}), conn: conn, heard: map[uint32][]byte{}, pieces: map[uint32]int{}, closed: map[uint32]bool{}}
	go r.read()
	t.Cleanup(func() {
		_ = conn.Close()
		<-r.Ended
	})
	return r
}

// AwaitReady waits until the node has said Ready.
func (r *RawEdge) AwaitReady(t testing.TB) {
	t.Helper()
	Eventually(t, "Ready", func() bool {
		return slices.ContainsFunc(r.Control(), func(m *pb.NodeControl) bool { return m.GetReady() != nil })
	})
}

// Frame writes one frame of the multiplexer. For MuxData length is the body's.
func (r *RawEdge) Frame(kind uint8, flags uint16, stream, length uint32, body []byte) error {
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
	_, err := r.conn.Write(append(b, body...))
	return err
}

// OpenStream opens a work stream.
func (r *RawEdge) OpenStream(id uint32) error { return r.Frame(MuxWindow, FlagSYN, id, 0, nil) }

// Send writes m as a frame of the protocol.
func (r *RawEdge) Send(stream uint32, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return r.SendBytes(stream, uint32(len(b)), b)
}

// SendBytes writes a frame of the protocol whose prefix says length, whatever body is.
func (r *RawEdge) SendBytes(stream, length uint32, body []byte) error {
	return r.Frame(MuxData, 0, stream, 0, append(binary.BigEndian.AppendUint32(nil, length), body...))
}

// Closed reports whether the node closed or reset the stream.
func (r *RawEdge) Closed(stream uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed[stream]
}

// Frames returns the protocol's frames that came on a stream.
func (r *RawEdge) Frames(stream uint32) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out [][]byte
	for b := r.heard[stream]; len(b) >= 4; {
		n := int(binary.BigEndian.Uint32(b))
		if len(b) < 4+n {
			break
		}
		out = append(out, b[4:4+n])
		b = b[4+n:]
	}
	return out
}

// Pieces returns in how many writes of the node what came on a stream was sent.
func (r *RawEdge) Pieces(stream uint32) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pieces[stream]
}

// Control returns the node's control messages so far.
func (r *RawEdge) Control() []*pb.NodeControl {
	var out []*pb.NodeControl
	for _, b := range r.Frames(ControlStream) {
		m := new(pb.NodeControl)
		if proto.Unmarshal(b, m) == nil {
			out = append(out, m)
		}
	}
	return out
}

func (r *RawEdge) read() {
	defer close(r.Ended)
	var h [muxHeader]byte
	for {
		if _, err := io.ReadFull(r.conn, h[:]); err != nil {
			return
		}
		stream, flags := binary.BigEndian.Uint32(h[4:]), binary.BigEndian.Uint16(h[2:])
		var body []byte
		if h[1] == MuxData {
			body = make([]byte, binary.BigEndian.Uint32(h[8:]))
			if _, err := io.ReadFull(r.conn, body); err != nil {
				return
			}
		}
		r.mu.Lock()
		if len(body) > 0 {
			r.heard[stream] = append(r.heard[stream], body...)
			r.pieces[stream]++
		}
		r.closed[stream] = r.closed[stream] || flags&(FlagFIN|FlagRST) != 0
		r.mu.Unlock()
	}
}
