package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventually polls until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	patience.Until(t, what, ok)
}

// within fails the test when ch isn't closed, or has no value, in time.
func within[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	return patience.Receive(t, what, ch)
}

// tcpPair returns both ends of a loopback connection.
func tcpPair(t testing.TB) (edge, node net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	node, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	edge, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { edge.Close(); node.Close() })
	return edge, node
}

// memConn is one end of an in-memory connection with a bounded buffer each way. Close unblocks everything at both
// ends. It has no deadlines and no raw handle, so there are no inline flushes on it.
type memConn struct {
	in, out *memPipe
}

type memPipe struct {
	mu      sync.Mutex
	change  sync.Cond
	buf     []byte
	limit   int    // 0 = unbounded
	taken   []byte // all that was ever taken
	mute    bool   // lose what is written, and the news of a close, as a dead network does
	stop    bool   // take nothing
	wClosed bool   // the writing end is closed
	rClosed bool   // the reading end is closed
}

func newMemPipe(limit int) *memPipe {
	p := &memPipe{limit: limit}
	p.change.L = &p.mu
	return p
}

func memPair(limit int) (a, b *memConn) {
	x, y := newMemPipe(limit), newMemPipe(limit)
	return &memConn{in: x, out: y}, &memConn{in: y, out: x}
}

func (p *memPipe) set(change func(*memPipe)) {
	p.mu.Lock()
	change(p)
	p.mu.Unlock()
	p.change.Broadcast()
}

func (p *memPipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := 0
	for {
		switch {
		case p.wClosed || p.rClosed && !p.mute:
			return total, io.ErrClosedPipe
		case p.mute:
			return total + len(b), nil
		case !p.stop:
			n := len(b)
			if p.limit > 0 {
				n = min(n, p.limit-len(p.buf))
			}
			p.buf = append(p.buf, b[:n]...)
			p.taken = append(p.taken, b[:n]...)
			total, b = total+n, b[n:]
			if n > 0 {
				p.change.Broadcast()
			}
			if len(b) == 0 {
				return total, nil
			}
		}
		p.change.Wait()
	}
}

func (p *memPipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf) == 0 || p.rClosed {
		switch {
		case p.rClosed:
			return 0, net.ErrClosed
		case p.wClosed && !p.mute:
			return 0, io.EOF
		}
		p.change.Wait()
	}
	n := copy(b, p.buf)
	p.buf = append(p.buf[:0], p.buf[n:]...)
	p.change.Broadcast()
	return n, nil
}

func (c *memConn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *memConn) Write(b []byte) (int, error) { return c.out.write(b) }

func (c *memConn) Close() error {
	c.in.set(func(p *memPipe) { p.rClosed = true })
	c.out.set(func(p *memPipe) { p.wClosed = true })
	return nil
}

func (c *memConn) LocalAddr() net.Addr              { return memAddr{} }
func (c *memConn) RemoteAddr() net.Addr             { return memAddr{} }
func (c *memConn) SetDeadline(time.Time) error      { return nil }
func (c *memConn) SetReadDeadline(time.Time) error  { return nil }
func (c *memConn) SetWriteDeadline(time.Time) error { return nil }

type memAddr struct{}

func (memAddr) Network() string { return "mem" }
func (memAddr) String() string  { return "mem" }

// handler is both sides' handler: functions, nil where a test doesn't care, and all control messages in a channel.
type handler struct {
	work     func(s *Stream)
	fromNode chan *pb.NodeControl
	fromEdge chan *pb.EdgeControl
}

func newHandler(work func(s *Stream)) *handler {
	return &handler{work: work, fromNode: make(chan *pb.NodeControl, 4096), fromEdge: make(chan *pb.EdgeControl, 4096)}
}

type edgeSide struct{ h *handler }

func (e edgeSide) Control(m *pb.NodeControl) { e.h.fromNode <- m }

type nodeSide struct{ h *handler }

func (n nodeSide) Control(m *pb.EdgeControl) { n.h.fromEdge <- m }
func (n nodeSide) Work(s *Stream) {
	if n.h.work == nil {
		lingerUntilEOF(s)
		return
	}
	n.h.work(s)
}

// lingerUntilEOF reads and discards input until the edge closes, as a node does.
func lingerUntilEOF(s *Stream) {
	for {
		if _, err := s.ReadInput(); err != nil {
			var fe *FrameError
			if !errors.As(err, &fe) {
				return
			}
		}
	}
}

// linkPair is both sides of a running link.
type linkPair struct {
	edge, node         *Link
	h                  *handler
	edgeDone, nodeDone chan error
}

// testConfig gives the control stream as long as it takes: it is opened by a machine that may stand still.
func testConfig() Config { return Config{ControlOpen: 2 * patience.Limit, Log: zerolog.Nop()} }

// awaitReady waits for a link's control stream, and says why there will be none.
func awaitReady(t testing.TB, l *Link) {
	t.Helper()
	select {
	case <-l.Ready():
	case <-l.Down():
		t.Fatalf("the link ended: %v", l.Err())
	}
}

// startPair runs both sides over a and b, and ends them with the test.
func startPair(t testing.TB, a, b net.Conn, cfg Config, work func(s *Stream)) *linkPair {
	t.Helper()
	return startSides(t, a, b, cfg, cfg, work)
}

// startSides is startPair with a Config for each side.
func startSides(t testing.TB, a, b net.Conn, edge, node Config, work func(s *Stream)) *linkPair {
	t.Helper()
	h := newHandler(work)
	p := &linkPair{
		edge: NewEdgeLink(a, edge, edgeSide{h}), node: NewNodeLink(b, node, nodeSide{h}), h: h,
		edgeDone: make(chan error, 1), nodeDone: make(chan error, 1),
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.edgeDone <- p.edge.Run(ctx) })
	running.Go(func() { p.nodeDone <- p.node.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	awaitReady(t, p.edge)
	awaitReady(t, p.node)
	return p
}

// startTCP runs both sides over a loopback connection. They and their streams part for as long as it takes: on a busy
// machine the seconds that they have in life are over before both have had their turn.
func startTCP(t testing.TB, work func(s *Stream)) *linkPair {
	a, b := tcpPair(t)
	cfg := testConfig()
	cfg.Part, cfg.StreamReset = 2*patience.Limit, 2*patience.Limit
	return startPair(t, a, b, cfg, work)
}

// open opens a work stream and sends a tunnel's open on it.
func (p *linkPair) open(t testing.TB, ctx context.Context) *Stream {
	t.Helper()
	s, err := p.edge.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Write(tunnelOpen("r")); err != nil {
		t.Fatal(err)
	}
	return s
}

func tunnelOpen(runID string) *pb.WorkOpen {
	return &pb.WorkOpen{ConnectionGeneration: 1, Attempt: 1,
		Work: &pb.WorkOpen_Tunnel{Tunnel: &pb.ProviderTunnelRequest{RunId: runID, Method: "POST", Path: "/v1/x"}}}
}

func accepted(seq uint64) *pb.ProviderTunnelFrame {
	return &pb.ProviderTunnelFrame{Seq: seq, Frame: &pb.ProviderTunnelFrame_Accepted{Accepted: &pb.Accepted{}}}
}

func end(seq uint64, n int) *pb.ProviderTunnelFrame {
	return &pb.ProviderTunnelFrame{Seq: seq, Frame: &pb.ProviderTunnelFrame_End{End: &pb.TunnelEnd{Bytes: int64(n)}}}
}

// inBubble runs f on fake time, in a process of its own.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	patience.Alone(t, func(t *testing.T) { patience.Bubble(t, f) })
}
