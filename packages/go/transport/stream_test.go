package transport

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

// answer writes a whole tunnel answer: accepted, the body, end, and then waits for the edge's close.
func answer(body []byte) func(s *Stream) {
	return func(s *Stream) {
		if _, err := s.ReadOpen(patience.Limit); err != nil {
			return
		}
		if s.Write(accepted(1)) != nil || sendBody(s, 2, body) != nil {
			return
		}
		lingerUntilEOF(s)
	}
}

// sendBody sends body in frames and the end together with the last of them.
func sendBody(s *Stream, seq uint64, body []byte) error {
	for p := body; ; seq++ {
		n := min(len(p), MaxBody)
		if err := s.AppendBody(seq, p[:n]); err != nil {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			s.Append(end(seq+1, len(body)))
		}
		if err := s.Flush(); err != nil || len(p) == 0 {
			return err
		}
	}
}

// readAnswer reads an answer up to its end; before each frame it calls pace.
func readAnswer(s *Stream, pace func()) ([]byte, error) {
	var body []byte
	for seq := uint64(1); ; seq++ {
		pace()
		f, err := s.ReadTunnel()
		switch {
		case err != nil:
			return body, err
		case f.Seq != seq:
			return body, errors.New("wrong number")
		case f.Msg.GetEnd() != nil:
			return body, nil
		}
		body = append(body, f.Body...)
	}
}

func noPace() {}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// TestStreamKinds sends each kind of message that work streams carry and reads it back.
func TestStreamKinds(t *testing.T) {
	got := make(chan error, 1)
	p := startTCP(t, func(s *Stream) {
		got <- func() error {
			open, err := s.ReadOpen(patience.Limit)
			if err != nil || open.GetTunnel().GetRunId() != "r" {
				return errors.Join(err, errors.New("open"))
			}
			for _, want := range []string{"one", ""} {
				in, err := s.ReadInput()
				if err != nil || in.End != nil || string(in.Body) != want {
					return errors.Join(err, errors.New("input"))
				}
			}
			in, err := s.ReadInput()
			if err != nil || in.End.GetTotalBytes() != 3 {
				return errors.Join(err, errors.New("end of input"))
			}
			s.Append(&pb.RunEvent{Seq: 1, Event: &pb.RunEvent_Delta{Delta: "hi"}})
			return s.Write(&pb.NodeCommandResponse{Seq: 1, Response: &pb.NodeCommandResponse_Capabilities{}})
		}()
		lingerUntilEOF(s)
	})
	s := p.open(t, t.Context())
	if err := errors.Join(s.AppendBody(1, []byte("one")), s.AppendBody(2, nil),
		s.Write(&pb.WorkInput{Seq: 3, Input: &pb.WorkInput_End{End: &pb.InputEnd{TotalBytes: 3}}})); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "the node's side", got); err != nil {
		t.Fatal(err)
	}
	if e, err := s.ReadEvent(); err != nil || e.GetDelta() != "hi" {
		t.Errorf("event %v, %v", e, err)
	}
	if !s.Buffered() {
		t.Error("the second message came with the first and isn't seen")
	}
	if c, err := s.ReadCommand(); err != nil || c.GetCapabilities() == nil {
		t.Errorf("response %v, %v", c, err)
	}
	if s.Buffered() || s.Link() != p.edge {
		t.Error("something is buffered, or another link's")
	}
	s.Close()
}

func TestStreamRefusesToSend(t *testing.T) {
	p := startTCP(t, nil)
	s := p.open(t, t.Context())
	wantFault(t, s.AppendBody(1, make([]byte, MaxBody+1)), FrameTooLarge)
	wantFault(t, s.Append(&pb.RunEvent{Event: &pb.RunEvent_Delta{Delta: string(make([]byte, MaxRunEvent))}}), FrameTooLarge)
	wantFault(t, s.Append(&pb.Ready{Projection: 1}), FrameUnknown)
	if err := s.Flush(); err != nil {
		t.Errorf("nothing was pending: %v", err)
	}
	s.Close()
	if err := s.Write(&pb.WorkInput{Seq: 1, Input: &pb.WorkInput_End{}}); err != ErrCancelled {
		t.Errorf("write after close: %v", err)
	}
}

// TestHalfClose: the edge's close is an EOF at the node and doesn't stop the node's answer; the node's close is an EOF
// at the edge.
func TestHalfClose(t *testing.T) {
	sawEOF := make(chan error, 1)
	p := startTCP(t, func(s *Stream) {
		s.ReadOpen(patience.Limit)
		_, err := s.ReadInput()
		sawEOF <- err
		sendBody(s, 1, []byte("late"))
	})
	s := p.open(t, t.Context())
	s.Close()
	s.Close()
	if err := within(t, "EOF at the node", sawEOF); err != io.EOF {
		t.Errorf("the node read %v", err)
	}
	if body, err := readAnswer(s, noPace); err != nil || string(body) != "late" {
		t.Errorf("%q, %v", body, err)
	}
	if _, err := s.ReadTunnel(); err != io.EOF {
		t.Errorf("after the node's close: %v", err)
	}
	if s.in.buf != nil {
		t.Error("the reader keeps its buffer")
	}
	eventually(t, "both sides forget the stream", func() bool {
		return p.edge.Status().OpenStreams == 0 && p.node.Status().OpenStreams == 0
	})
}

// TestEOFInsideAFrame: a frame that was begun and given up was never a message.
func TestEOFInsideAFrame(t *testing.T) {
	p := startTCP(t, func(s *Stream) {
		s.ReadOpen(patience.Limit)
		s.mux.Write([]byte{0, 0, 0, 9, 1, 2})
	})
	s := p.open(t, t.Context())
	if _, err := s.ReadTunnel(); err != io.EOF {
		t.Errorf("got %v", err)
	}
	s.Close()
}

// TestEOFIsNotTheLinksEnd: a dead link reads as a clean EOF in the multiplexer. Here it is ErrLinkDown, with the
// connection cut at any moment, and also when the peer's EOF had come before and wasn't read.
func TestEOFIsNotTheLinksEnd(t *testing.T) {
	for range 50 {
		a, b := tcpPair(t)
		started := make(chan struct{})
		p := startPair(t, a, b, testConfig(), func(s *Stream) {
			s.ReadOpen(patience.Limit)
			s.Write(accepted(1))
			close(started)
			lingerUntilEOF(s)
		})
		s := p.open(t, t.Context())
		<-started
		go b.Close()
		if _, err := s.ReadTunnel(); err == nil {
			_, err = s.ReadTunnel()
			if err != ErrLinkDown {
				t.Fatalf("got %v", err)
			}
		} else if err != ErrLinkDown {
			t.Fatalf("got %v", err)
		}
		if !p.edge.isDown() {
			t.Fatal("the stream ended before its link")
		}
	}
}

// TestReceivedBytesOutliveTheLink: what came whole before the link ended can still be read (TU-13).
func TestReceivedBytesOutliveTheLink(t *testing.T) {
	body := randomBytes(300 << 10)
	p := startTCP(t, answer(body))
	s := p.open(t, t.Context())
	eventually(t, "the answer is here", func() bool { return p.edge.Status().BytesIn > int64(len(body)) })
	eventually(t, "all of it", func() bool { return p.node.conn.waiting() == 0 })
	p.node.Close(ReasonClosed)
	<-p.edge.Down()
	within(t, "the edge's end", p.edgeDone)
	got, err := readAnswer(s, noPace)
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("%d of %d bytes, %v", len(got), len(body), err)
	}
	if _, err := s.ReadTunnel(); err != ErrLinkDown {
		t.Errorf("after the rest: %v", err)
	}
}

// TestReadTakesBytesBeforeTheirError: the multiplexer returns what it read together with the error of a window update
// that waited too long.
func TestReadTakesBytesBeforeTheirError(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := memPair(0)
		cfg := plainConfig()
		cfg.ConnectionWriteTimeout = 20 * time.Millisecond
		server, _ := yamux.Server(a, plainConfig())
		client, _ := yamux.Client(b, cfg)
		defer server.Close()
		defer client.Close()
		reading, err := client.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		writing, err := server.AcceptStream()
		if err != nil {
			t.Fatal(err)
		}
		b.out.set(func(p *memPipe) { p.stop = true }) // the reader's window updates get nowhere
		lengths := slices.Repeat([]int{10000}, 60)
		go writing.Write(rawFrames(lengths...))
		s := newStream(NewEdgeLink(a, testConfig(), nil), reading)
		for i := range lengths {
			if b, err := s.next(MaxInput); err != nil || len(b) != 10000 || b[0] != byte(i+1) {
				t.Fatalf("frame %d: %d bytes, %v", i, len(b), err)
			}
		}
	})
}

// TestReadOpenLimit: a stream without an open doesn't hold its handler; a later read has no limit of its own.
func TestReadOpenLimit(t *testing.T) {
	result := make(chan error, 2)
	p := startTCP(t, func(s *Stream) {
		_, err := s.ReadOpen(10 * time.Millisecond)
		result <- err
		_, err = s.ReadOpen(patience.Limit)
		result <- err
	})
	s, err := p.edge.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.mux.Write([]byte{0, 0})
	if err := within(t, "the limit", result); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	s.mux.Write(mustFrame(t, tunnelOpen("x"))[2:])
	if err := within(t, "the open", result); err != nil {
		t.Errorf("what had come of the frame was forgotten: %v", err)
	}
	s.Close()
}

// TestCancelWakesReader, also one that has data to read.
func TestCancelWakesReader(t *testing.T) {
	p := startTCP(t, func(s *Stream) {
		s.ReadOpen(patience.Limit)
		s.Append(accepted(1))
		s.Append(end(2, 0))
		s.Flush()
		lingerUntilEOF(s)
	})
	for range 200 {
		s := p.open(t, t.Context())
		woken := make(chan error, 1)
		go func() {
			for {
				if _, err := s.ReadTunnel(); err != nil {
					woken <- err
					return
				}
			}
		}()
		go s.Cancel()
		if err := within(t, "the reader wakes", woken); err != ErrCancelled {
			t.Fatalf("got %v", err)
		}
		s.Cancel()
		s.Close()
	}
}

// TestCancelWakesWriter, wherever it waits: at the gate, for the window, or between the two. The wake-up is never
// lost to a deadline that the writer sets at the same moment.
func TestCancelWakesWriter(t *testing.T) {
	hold := make(chan struct{})
	p := startTCP(t, func(*Stream) { <-hold }) // nobody reads
	t.Cleanup(func() { close(hold) })
	for i := range 100 {
		s := p.open(t, t.Context())
		woken := make(chan error, 1)
		full := make(chan struct{})
		go func() {
			buf := make([]byte, MaxBody)
			for n := uint64(1); ; n++ {
				if n == 60 { // just under the window: from here on it is a race
					close(full)
				}
				s.AppendBody(n, buf)
				if err := s.Flush(); err != nil {
					woken <- err
					return
				}
			}
		}()
		<-full
		if i%2 == 0 {
			for range rand.IntN(1000) {
				_ = s.cancelled()
			}
		} else {
			eventually(t, "the window is full", func() bool { return p.edge.conn.waiting() == 0 })
		}
		s.Cancel()
		if err := within(t, "the writer wakes", woken); err != ErrCancelled {
			t.Fatalf("got %v", err)
		}
		s.Close()
	}
}

// TestSetDeadlineAfterCancel is the race of TestCancelWakesWriter, step by step.
func TestSetDeadlineAfterCancel(t *testing.T) {
	p := startTCP(t, nil)
	s := p.open(t, t.Context())
	s.Cancel()
	s.setDeadline(reading, time.Time{})
	s.setDeadline(writing, time.Time{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.mux.Read(make([]byte, 1)) // blocks for ever if the deadline was extended
	}()
	within(t, "the read", done)
	s.Close()
}

// TestStreamReset: a peer that doesn't close is reset, and nothing of the stream stays.
func TestStreamReset(t *testing.T) {
	cfg := testConfig()
	cfg.StreamReset = 20 * time.Millisecond
	a, b := tcpPair(t)
	ended := make(chan error, 1)
	p := startPair(t, a, b, cfg, func(s *Stream) {
		buf := make([]byte, MaxBody)
		for n := uint64(1); ; n++ { // doesn't look at the edge's EOF
			s.AppendBody(n, buf)
			if err := s.Flush(); err != nil {
				ended <- err
				return
			}
		}
	})
	s := p.open(t, t.Context())
	s.Close()
	if err := within(t, "the reset", ended); err != io.EOF {
		t.Errorf("the writer got %v", err)
	}
	eventually(t, "the streams are gone", func() bool { return p.node.Status().OpenStreams == 0 })
}

// TestBodyFrameAllocs: none of ours on the path of a body frame, at either side; the multiplexer makes one a side.
func TestBodyFrameAllocs(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector empties pools")
	}
	s := &Stream{link: &Link{}, done: make(chan struct{})}
	var wire bytes.Buffer
	s.in = frameReader{src: &wire, pool: &s.link.buffers}
	body := make([]byte, 4000)
	patience.Allocations(t, 0.1, 200, func() { // a collection may empty the pool
		if err := s.AppendBody(7, body); err != nil {
			t.Fatal(err)
		}
		wire.Reset()
		wire.Write(s.out.b)
		s.link.buffers.put(s.out)
		s.out = nil
		f, err := s.ReadTunnel()
		if err != nil || len(f.Body) != len(body) {
			t.Fatal(err)
		}
	})
}
