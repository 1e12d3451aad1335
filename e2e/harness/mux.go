package harness

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
)

// The multiplexer's frame types and flags, as far as a peer needs them that speaks it by hand.
const (
	MuxData   = 0
	MuxWindow = 1
	MuxPing   = 2

	FlagSYN = 1
	FlagACK = 2
	FlagFIN = 4
	FlagRST = 8

	// ControlStream is the id of the first stream that a node opens; an edge's streams have even ids.
	ControlStream = 1
	muxHeader     = 12
)

// MuxFrame is one frame of the multiplexer.
type MuxFrame struct {
	Kind   uint8
	Flags  uint16
	Stream uint32
	Length uint32 // of MuxData: of the body
	Body   []byte
}

// Bytes encodes a frame. The body of MuxData gives the length.
func (f MuxFrame) Bytes() []byte {
	if f.Kind == MuxData {
		f.Length = uint32(len(f.Body))
	}
	b := make([]byte, muxHeader, muxHeader+len(f.Body))
	b[1] = f.Kind
	binary.BigEndian.PutUint16(b[2:], f.Flags)
	binary.BigEndian.PutUint32(b[4:], f.Stream)
	binary.BigEndian.PutUint32(b[8:], f.Length)
	return append(b, f.Body...)
}

// readMuxFrame reads one frame.
func readMuxFrame(r io.Reader) (MuxFrame, error) {
	var h [muxHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return MuxFrame{}, err
	}
	f := MuxFrame{Kind: h[1], Flags: binary.BigEndian.Uint16(h[2:]), Stream: binary.BigEndian.Uint32(h[4:]),
		Length: binary.BigEndian.Uint32(h[8:])}
	if f.Kind == MuxData {
		f.Body = make([]byte, f.Length)
		_, err := io.ReadFull(r, f.Body)
		return f, err
	}
	return f, nil
}

// Framed is a message as it stands on a stream: its length, then its bytes.
func Framed(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return Prefixed(uint32(len(b)), b)
}

// Prefixed is a frame of the protocol whose prefix says length, whatever the body is.
func Prefixed(length uint32, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, length), body...)
}

// Mux is a registered peer that speaks the multiplexer byte by byte, so that it can break every rule of the link.
type Mux struct {
	Ended chan struct{} // closed when the other side has closed the connection

	t     testing.TB
	conn  net.Conn
	write sync.Mutex

	mu    sync.Mutex
	heard map[uint32][]byte // what came on each stream
	order []uint32          // streams in the order in which they first showed
	over  map[uint32]bool   // the other side's FIN or reset came
}

// NewMux starts reading on a registered connection. The connection is closed when the test is over.
func NewMux(t testing.TB, conn net.Conn) *Mux {
	m := &Mux{Ended: make(chan struct{}), t: t, conn: conn, heard: map[uint32][]byte{}, over: map[uint32]bool{}}
	go m.read()
	t.Cleanup(m.Close)
	return m
}

// Close ends the connection and the reader.
func (m *Mux) Close() {
	_ = m.conn.Close()
	<-m.Ended
}

// Write writes frames in one go.
func (m *Mux) Write(frames ...MuxFrame) error {
	var b []byte
	for _, f := range frames {
		b = append(b, f.Bytes()...)
	}
	m.write.Lock()
	defer m.write.Unlock()
	_, err := m.conn.Write(b)
	return err
}

// Open opens a stream.
func (m *Mux) Open(stream uint32) error {
	return m.Write(MuxFrame{Kind: MuxWindow, Flags: FlagSYN, Stream: stream})
}

// Send writes bytes on a stream.
func (m *Mux) Send(stream uint32, b []byte) error {
	return m.Write(MuxFrame{Kind: MuxData, Stream: stream, Body: b})
}

// Over reports whether the other side closed or reset a stream.
func (m *Mux) Over(stream uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over[stream]
}

// Streams are the streams on which the other side said something, in the order in which they came.
func (m *Mux) Streams() []uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]uint32(nil), m.order...)
}

// Messages returns the protocol's frames that came on a stream, without their prefixes.
func (m *Mux) Messages(stream uint32) [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out [][]byte
	for b := m.heard[stream]; len(b) >= 4; {
		n := int(binary.BigEndian.Uint32(b))
		if len(b) < 4+n {
			break
		}
		out, b = append(out, b[4:4+n]), b[4+n:]
	}
	return out
}

// AwaitEnd waits for the other side to close the connection and returns how long that took.
func (m *Mux) AwaitEnd(limit time.Duration) time.Duration {
	m.t.Helper()
	start := time.Now()
	select {
	case <-m.Ended:
	case <-time.After(limit):
		m.t.Fatalf("the connection is still open after %v", limit)
	}
	return time.Since(start)
}

func (m *Mux) read() {
	defer close(m.Ended)
	for {
		f, err := readMuxFrame(m.conn)
		if err != nil {
			return
		}
		m.mu.Lock()
		if _, known := m.heard[f.Stream]; !known && f.Kind != MuxPing {
			m.order = append(m.order, f.Stream)
			m.heard[f.Stream] = nil
		}
		m.heard[f.Stream] = append(m.heard[f.Stream], f.Body...)
		m.over[f.Stream] = m.over[f.Stream] || f.Flags&(FlagFIN|FlagRST) != 0
		m.mu.Unlock()
	}
}
