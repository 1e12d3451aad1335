package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := ReasonLost; r <= ReasonIdentityExpired; r++ {
		if name := r.String(); name == "unknown" || seen[name] {
			t.Errorf("reason %d is called %q", r, name)
		} else {
			seen[name] = true
		}
	}
	if Reason(200).String() != "unknown" {
		t.Error("a reason without a name has one")
	}
	e := &LinkError{Reason: ReasonLost, Text: "x", Err: io.ErrClosedPipe}
	if e.Error() != "link lost: x" || !errors.Is(e, ErrLinkDown) || !errors.Is(e, io.ErrClosedPipe) {
		t.Errorf("%v", e)
	}
}

// TestCloseEndsBothSides: Close doesn't wait, Run returns the first reason, the peer sees the link lost, and every call
// that waited returns.
func TestCloseEndsBothSides(t *testing.T) {
	p := startTCP(t, nil)
	s := p.open(t, t.Context())
	read := make(chan error, 1)
	go func() { _, err := s.ReadTunnel(); read <- err }()
	if p.edge.Err() != nil {
		t.Error("an error before the end")
	}
	p.edge.Close(ReasonSuperseded)
	p.edge.Close(ReasonClosed)
	if err := within(t, "the reader", read); err != ErrLinkDown {
		t.Errorf("the reader got %v", err)
	}
	var e *LinkError
	if err := within(t, "the edge's Run", p.edgeDone); !errors.As(err, &e) || e.Reason != ReasonSuperseded {
		t.Errorf("the edge: %v", err)
	}
	if err := within(t, "the node's Run", p.nodeDone); !errors.As(err, &e) || e.Reason != ReasonLost {
		t.Errorf("the node: %v", err)
	}
	if _, err := p.edge.Open(t.Context()); !errors.Is(err, ErrLinkDown) {
		t.Errorf("open after the end: %v", err)
	}
	if err := s.Write(&pb.WorkInput{Seq: 1, Input: &pb.WorkInput_End{}}); err != ErrLinkDown {
		t.Errorf("write after the end: %v", err)
	}
	s.Close()
	s.Cancel()
	p.edge.SendCancel("x", execution.CauseAPI)
	p.edge.SendGoodbye(&pb.Goodbye{})
}

// TestContextEndsRun, also one that is over before Run begins, and a Close before it.
func TestContextEndsRun(t *testing.T) {
	for _, before := range []bool{true, false} {
		a, _ := tcpPair(t)
		l := NewEdgeLink(a, testConfig(), edgeSide{newHandler(nil)})
		ctx, cancel := context.WithCancel(t.Context())
		if before {
			cancel()
		}
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		cancel()
		var e *LinkError
		if err := within(t, "Run", done); !errors.As(err, &e) || e.Reason != ReasonClosed {
			t.Errorf("got %v", err)
		}
	}
	a, _ := tcpPair(t)
	l := NewNodeLink(a, testConfig(), nodeSide{newHandler(nil)})
	l.Close(ReasonNodeDisabled)
	done := make(chan error, 1)
	go func() { done <- l.Run(t.Context()) }()
	within(t, "Run", done)
	if e, _ := reasonOf(t, l); e.Reason != ReasonNodeDisabled {
		t.Errorf("got %v", e)
	}
}

// TestRunWaitsForWork: Run returns after the handlers.
func TestRunWaitsForWork(t *testing.T) {
	hold, started := make(chan struct{}), make(chan struct{})
	p := startTCP(t, func(*Stream) { close(started); <-hold })
	p.open(t, t.Context())
	<-started
	p.node.Close(ReasonClosed)
	within(t, "the edge's Run", p.edgeDone)
	select {
	case <-p.nodeDone:
		t.Error("Run returned before its handler")
	default:
	}
	close(hold)
	within(t, "the node's Run", p.nodeDone)
}

// TestGoodbye: it is passed on, names the reason at the peer, and ends both sides.
func TestGoodbye(t *testing.T) {
	p := startTCP(t, nil)
	p.node.SendReady(func() *pb.Ready { return &pb.Ready{Projection: 1} })
	p.node.SendRunEnded(&pb.RunEnd{RunId: "r"})
	p.node.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_NODE_DRAINING, Text: "bye"})
	p.node.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_KILLED})
	for _, want := range []string{"ready", "run_ended", "goodbye"} {
		if got := kinds([]*pb.NodeControl{within(t, want, p.h.fromNode)}); got[0] != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
	if e, _ := reasonOf(t, p.edge); e.Reason != ReasonLeft || e.Goodbye.GetText() != "bye" {
		t.Errorf("the edge: %v", e)
	}
	if e, _ := reasonOf(t, p.node); e.Reason != ReasonClosed {
		t.Errorf("the node: %v", e)
	}
	within(t, "the edge's Run", p.edgeDone)
	within(t, "the node's Run", p.nodeDone)
}

// TestGoodbyeBeforeClose: who says Goodbye and fences at once is still heard.
func TestGoodbyeBeforeClose(t *testing.T) {
	for range 20 {
		p := startTCP(t, nil)
		p.edge.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_NODE_DISABLED})
		p.edge.Close(ReasonNodeDisabled)
		if e, _ := reasonOf(t, p.node); e.Reason != ReasonLeft || e.Goodbye.GetCode() != pb.GoodbyeCode_GOODBYE_CODE_NODE_DISABLED {
			t.Fatalf("the node: %v", e)
		}
	}
}

// TestGoodbyeOvertakesNothing: it goes behind the work that waits, although control goes first otherwise.
func TestGoodbyeOvertakesNothing(t *testing.T) {
	a, b := memPair(0)
	cfg := testConfig()
	cfg.Part = 2 * patience.Limit
	p := startPair(t, a, b, cfg, nil)
	s := p.open(t, t.Context())
	eventually(t, "the first heartbeats are over", func() bool {
		return p.edge.Status().RTT > 0 && p.node.Status().RTT > 0 && p.edge.conn.waiting() == 0
	})
	a.out.set(func(p *memPipe) { p.stop = true })
	for seq := uint64(1); seq <= 20; seq++ {
		s.AppendBody(seq, make([]byte, 100))
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	p.edge.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_KILLED})
	eventually(t, "the Goodbye is on its way", func() bool {
		p.edge.box.mu.Lock()
		defer p.edge.box.mu.Unlock()
		return p.edge.box.goodbye == nil
	})
	a.out.set(func(p *memPipe) { p.stop = false })
	<-p.nodeDone
	<-p.edgeDone
	a.out.mu.Lock()
	defer a.out.mu.Unlock()
	last := a.out.taken
	for rest := last; len(rest) > 0; {
		last = rest
		n := headerLen
		if rest[1] == frameData {
			n += int(binary.BigEndian.Uint32(rest[8:]))
		}
		rest = rest[n:]
	}
	if !isControl(last) || last[1] != frameData {
		t.Errorf("the last frame is % x", last[:headerLen])
	}
}

// TestGoodbyeToNobody: a peer that takes nothing holds this side for a second at most.
func TestGoodbyeToNobody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, edge, _ := startMem(t, testConfig(), nil)
		time.Sleep(time.Second)
		edge.out.set(func(p *memPipe) { p.stop = true })
		began := time.Now()
		p.edge.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_KILLED})
		<-p.edgeDone
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TU-13: an answer that ends just before its node leaves arrives whole, each time.
func TestAnswerThenGoodbye(t *testing.T) {
	body := randomBytes(300 << 10)
	for range 50 {
		ended := make(chan struct{})
		p := startTCP(t, func(s *Stream) {
			s.ReadOpen(patience.Limit)
			s.Write(accepted(1))
			sendBody(s, 2, body)
			close(ended)
			lingerUntilEOF(s)
		})
		s := p.open(t, t.Context())
		go func() {
			<-ended
			p.node.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_NODE_DRAINING})
		}()
		got, err := readAnswer(s, noPace)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%d of %d bytes, %v", len(got), len(body), err)
		}
		s.Close()
		<-p.edgeDone
		<-p.nodeDone
	}
}

// A second stream of the node ends the link (fault 49).
func TestSecondStreamEndsTheLink(t *testing.T) {
	l, done, session, _ := rawNode(t)
	awaitReady(t, l)
	_, _ = session.OpenStream() // may fail: the link's end can be faster
	within(t, "the link's end", done)
	if e, _ := reasonOf(t, l); e.Reason != ReasonProtocol {
		t.Errorf("got %v", e)
	}
}

// TestControlStreamMustOpen: a node that doesn't open it within 5 s breaks the protocol.
func TestControlStreamMustOpen(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		edge, _ := memPair(0)
		cfg := testConfig()
		cfg.ControlOpen = 0 // the default
		l := NewEdgeLink(edge, cfg, edgeSide{newHandler(nil)})
		done := make(chan error, 1)
		go func() { done <- l.Run(t.Context()) }()
		if e, after := reasonOf(t, l); e.Reason != ReasonProtocol || after != 5*time.Second {
			t.Errorf("%v after %v", e, after)
		}
		<-done
	})
}

// Garbage instead of the multiplexer ends the link at its first frame.
func TestGarbage(t *testing.T) {
	a, b := tcpPair(t)
	l := NewEdgeLink(a, testConfig(), edgeSide{newHandler(nil)})
	done := make(chan error, 1)
	go func() { done <- l.Run(t.Context()) }()
	mustWrite(t, b, []byte("GET / HTTP/1.1\r\n\r\n"))
	within(t, "the link's end", done)
	if e, _ := reasonOf(t, l); e.Reason != ReasonProtocol {
		t.Errorf("got %v", e)
	}
}

// rawEdge is an edge link whose peer opens the control stream and accepts no work stream.
func unaccepting(t *testing.T) (l *Link, session *yamux.Session) {
	l, done, session, _ := rawNode(t)
	awaitReady(t, l)
	t.Cleanup(func() { l.Close(ReasonClosed); <-done })
	return l, session
}

// TU-05: with a peer that doesn't accept, opens end with their context, also beyond the backlog, where the multiplexer
// waits for ever; afterwards the next caller is served.
func TestOpenIsBounded(t *testing.T) {
	l, session := unaccepting(t)
	open := func(limit time.Duration) (*Stream, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return l.Open(ctx)
	}
	var streams []*Stream
	for i := range acceptBacklog {
		s, err := open(patience.Limit)
		if err != nil {
			t.Fatalf("open %d, within the backlog: %v", i, err)
		}
		s.Write(tunnelOpen("r"))
		streams = append(streams, s)
	}
	for range 20 {
		if _, err := open(5 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("an open beyond the backlog: %v", err)
		}
	}
	for _, s := range streams {
		s.Cancel()
		s.Close()
	}
	accepted := make(chan *yamux.Stream, 2*acceptBacklog)
	go func() {
		for {
			st, err := session.AcceptStream()
			if err != nil {
				return
			}
			accepted <- st
			st.Close()
		}
	}()
	s, err := open(patience.Limit)
	if err != nil {
		t.Fatalf("the next open: %v", err)
	}
	if err := s.Write(tunnelOpen("next")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	eventually(t, "nothing is open", func() bool { return l.Status().OpenStreams == 0 })
	eventually(t, "the peer has its control stream only", func() bool { return session.NumStreams() == 1 })
}

// TestOpenGivesNoStreamAway: callers that come and go don't get each other's streams, and those that nobody got are
// closed at both ends.
func TestOpenGivesNoStreamAway(t *testing.T) {
	p := startTCP(t, nil)
	var mu sync.Mutex
	seen := map[uint32]bool{}
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			for range 200 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%2 == 0 {
					go cancel()
				}
				s, err := p.edge.Open(ctx)
				cancel()
				if err != nil {
					continue
				}
				mu.Lock()
				if id := s.mux.StreamID(); seen[id] {
					t.Errorf("stream %d was given twice", id)
				} else {
					seen[id] = true
				}
				mu.Unlock()
				s.Close()
			}
		})
	}
	running.Wait()
	for _, l := range []*Link{p.edge, p.node} {
		eventually(t, "nothing is open", func() bool { return l.Status().OpenStreams == 0 })
	}
}

// A stream that was opened for a caller who left isn't kept for the next one: the node, which got nothing on it within
// its limit, has closed it by then, and the next caller's run would end as if the node had broken the protocol.
func TestOpenAfterOneThatWasGivenUp(t *testing.T) {
	opens := make(chan error, 2)
	var first atomic.Bool
	p := startTCP(t, func(s *Stream) {
		limit := patience.Limit
		if first.CompareAndSwap(false, true) {
			limit = 50 * time.Millisecond
		}
		_, err := s.ReadOpen(limit)
		opens <- err
		if err == nil {
			_ = s.Write(accepted(1))
			lingerUntilEOF(s)
		}
	})
	left, leave := context.WithCancel(t.Context())
	leave()
	late := ask{left, make(chan *yamux.Stream)}
	p.edge.asks <- late          // as Open does when its caller leaves just then
	p.edge.SendReadyAck(1, true) // carries the open of the stream to the node, as any message does
	if err := within(t, "the node sees the stream's end", opens); err == nil {
		t.Error("the node got an open that nobody sent")
	}
	s := p.open(t, t.Context())
	defer s.Close()
	if f, err := s.ReadTunnel(); err != nil || f.Msg.GetAccepted() == nil {
		t.Errorf("the next caller got %v, %v", f.Msg, err)
	}
}

// e2e TestPairsLoseTheirCallersAtAnyMoment, found by chance: a caller whose context ended after it had asked, and who came to wait only
// when the next one had asked, too, took the next one's stream; that one waited for its dispatch limit.
func TestOpenOfALateCallerTakesNothing(t *testing.T) {
	p := startTCP(t, func(s *Stream) { lingerUntilEOF(s) })
	for range 200 {
		left, leave := context.WithCancel(t.Context())
		leave()
		late := ask{left, make(chan *yamux.Stream)}
		p.edge.asks <- late
		next := make(chan error, 1)
		go func() {
			s, err := p.edge.Open(t.Context())
			if err == nil {
				s.Close()
			}
			next <- err
		}()
		select { // the late one looks whether there is something for it: its own, if anything
		case m := <-late.opened:
			p.edge.adopt(m).Close()
		default:
		}
		select {
		case err := <-next:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience.Limit):
			t.Fatal("the next caller waits for nothing")
		}
	}
}

// TestOpenThatIsNeverUsed: a stream that is closed before its first message tells the peer of both.
func TestOpenThatIsNeverUsed(t *testing.T) {
	got := make(chan error, 1)
	p := startTCP(t, func(s *Stream) {
		_, err := s.ReadOpen(patience.Limit)
		got <- err
	})
	s, err := p.edge.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := within(t, "the node's read", got); err != io.EOF {
		t.Errorf("got %v", err)
	}
}

// TU-11: 200 links whose peer has fallen silent close quickly, and nothing of them stays (goleak).
func TestManyLinksClose(t *testing.T) { manyLinksClose(t, 200, tcpPair) }

func manyLinksClose(t *testing.T, n int, pair func(testing.TB) (net.Conn, net.Conn)) {
	links := make([]*Link, n)
	var running sync.WaitGroup
	for i := range links {
		a, b := pair(t)
		session, err := yamux.Client(silent{b}, plainConfig())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { session.Close() })
		l := NewEdgeLink(a, testConfig(), edgeSide{newHandler(nil)})
		links[i] = l
		running.Go(func() { l.Run(t.Context()) })
		if _, err := session.OpenStream(); err != nil {
			t.Fatal(err)
		}
		awaitReady(t, l)
		s, err := l.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { // a reader that waits
			if _, err := s.ReadTunnel(); err != ErrLinkDown {
				t.Errorf("the reader got %v", err)
			}
			s.Close()
		})
	}
	began := time.Now()
	for _, l := range links {
		l.Close(ReasonClosed)
	}
	running.Wait()
	if took := time.Since(began); took > patience.Limit { // one after the other they take minutes
		t.Errorf("it took %v", took)
	}
}

// silent is a connection whose peer's bytes never come.
type silent struct{ net.Conn }

func (s silent) Read(p []byte) (int, error) {
	for {
		if n, err := s.Conn.Read(p); err != nil {
			return n, err
		}
	}
}

func TestStatus(t *testing.T) {
	p := startTCP(t, nil)
	s := p.open(t, t.Context())
	eventually(t, "the round trip is known", func() bool { return p.edge.Status().RTT > 0 })
	st := p.edge.Status()
	if st.OpenStreams != 1 || st.BytesIn == 0 || st.BytesOut == 0 || time.Since(st.LastRead) > time.Minute || st.Since.IsZero() {
		t.Errorf("%+v", st)
	}
	s.Close()
}
