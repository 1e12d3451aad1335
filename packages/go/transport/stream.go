package transport

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

// Stream is one work stream. One goroutine reads it and one writes it; Cancel and Close may be called from anywhere.
//
// Errors of reads and writes: [io.EOF] when the peer closed or reset the stream on a live link (for the node that is a
// cancel; for the edge a failure, unless the terminal came before), [ErrLinkDown] when the link is over, [ErrCancelled]
// after Cancel or Close, and a *[FrameError] when the peer (or the caller) broke the framing. What was received whole
// before the link ended can still be read.
//
// A write that fails with [ErrLinkDown] may have reached the peer, all of it: the multiplexer gives up on a write whose
// frame it has sent when the link ends before the writer is told. Any other error is exact: what the write didn't take
// was not sent.
type Stream struct {
	link *Link
	mux  *yamux.Stream
	done chan struct{} // closed by Cancel

	in   frameReader // owned by the reading goroutine
	read int         // bytes read since the multiplexer last gave window back; same owner
	out  *buffer     // pending frames, nil when none; owned by the writing goroutine
	flow flow        // account at the gate, which guards it

	closed  atomic.Bool
	lingers atomic.Bool // reads go on although cancelled: see Linger

	mu          sync.Mutex
	woken       bool // Cancel was called or the link is down: no deadline is ever extended again
	interrupted bool
	halt        chan struct{} // closed by Interrupt and Cancel; what a waiting write listens to
}

// The two directions of a stream.
type direction uint8

const (
	reading direction = iota
	writing
)

// past is a deadline that is over, whenever it is set.
func past() time.Time { return time.Unix(1, 0) }

func newStream(l *Link, m *yamux.Stream) *Stream {
	s := &Stream{link: l, mux: m, done: make(chan struct{}), halt: make(chan struct{})}
	s.in = frameReader{src: (*streamSource)(s), pool: &l.buffers}
	// A write never waits for window while it holds bytes of the gate: see send.
	s.setDeadline(writing, past())
	return s
}

// Link returns the link that the stream belongs to.
func (s *Stream) Link() *Link { return s.link }

// setDeadline is the one way to change a deadline. Cancel wakes a blocked call with a deadline in the past; a call that
// set its own just after would lose that wake-up, so after it nothing is set any more.
func (s *Stream) setDeadline(d direction, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.woken || d == writing && s.interrupted {
		return
	}
	if d == reading {
		_ = s.mux.SetReadDeadline(t)
	} else {
		_ = s.mux.SetWriteDeadline(t)
	}
}

// wakeAll ends every blocked call, for good.
func (s *Stream) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeLocked()
}

func (s *Stream) wakeLocked() {
	s.woken = true
	_ = s.mux.SetDeadline(past())
}

// Cancel wakes blocked reads and writes for good: they return [ErrCancelled]. It sends nothing; Close does.
func (s *Stream) Cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.cancelled() {
		close(s.done)
		s.haltLocked()
		s.wakeLocked()
	}
}

func (s *Stream) cancelled() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Close ends this side's writing and hands the stream to the link's reaper: the peer sees EOF now, and if it doesn't
// close its own side within Config.StreamReset the stream is reset, which throws away what wasn't read. So the edge
// closes first, after the terminal or to cancel, and the node only after it saw the edge's EOF. Reads go on until then.
// Close returns at once and may be called again.
func (s *Stream) Close() {
	if s.closed.CompareAndSwap(false, true) {
		s.link.reap(s)
	}
}

// failure translates an error of the multiplexer. While the link is up, a reset is the same as an end: the peer gave
// the stream up.
func (s *Stream) failure(err error) error {
	switch {
	case s.deaf():
		return ErrCancelled
	case err == yamux.ErrConnectionWriteTimeout:
		// The send loop didn't take a frame for the whole dead limit: nothing on this link moves.
		s.link.end(&LinkError{Reason: ReasonDead, Text: "the multiplexer's send queue stood still", Err: err})
		return ErrLinkDown
	case s.link.isDown() || err == yamux.ErrSessionShutdown:
		return ErrLinkDown
	case err == io.EOF || err == yamux.ErrConnectionReset:
		return io.EOF
	case err == yamux.ErrStreamClosed:
		return ErrCancelled
	case err == yamux.ErrTimeout:
		return os.ErrDeadlineExceeded
	}
	return err
}

// streamSource is the stream as the frame reader sees it.
type streamSource Stream

// windowStep is how much the multiplexer wants read before it gives window back.
const windowStep = streamWindow / 2

// Read looks at the cancel before each read, since a deadline in the past doesn't stop a read that has data.
//
// No read crosses a border of windowStep. The multiplexer gives window back after a read that brings it to a step or
// over; having gone a little over the first step of a window, it would be a little short of the second when everything
// is read, and the sender would get half a window a round trip (10 instead of 20 MB/s at 50 ms; seen).
func (r *streamSource) Read(p []byte) (int, error) {
	s := (*Stream)(r)
	if s.deaf() {
		return 0, ErrCancelled
	}
	// The multiplexer may return bytes and an error (of a window update) together: the bytes stand.
	n, err := s.mux.Read(p[:min(len(p), windowStep-s.read)])
	s.read = (s.read + n) % windowStep
	if n > 0 || err == nil {
		return n, nil
	}
	return 0, s.failure(err)
}

// next returns the next frame's message, valid until the next read.
func (s *Stream) next(max int) ([]byte, error) {
	if s.deaf() {
		return nil, ErrCancelled // what is in the reader stays there, for Linger
	}
	b, err := s.in.next(max)
	if err != nil {
		if err != ErrCancelled {
			s.in.release()
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF // a frame that the peer began and gave up was never a message
		}
	}
	return b, err
}
