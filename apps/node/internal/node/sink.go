package node

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// flushDelay is how long accepted, a head, or the last piece of a body of known length waits for what usually comes
// right behind it, so that they go out together. Pieces of a body whose length isn't known never wait.
const flushDelay = 500 * time.Microsecond

// errSinkClosed is what an adapter gets that emits after its execution is over.
var errSinkClosed = errors.New("the execution is over")

// tunnelSink writes the answer of one tunnel. The adapter's goroutine emits, the delayed flush and the terminal come
// from others; mu makes them one writer.
type tunnelSink struct {
	stream *transport.Stream
	late   func() // counts what is emitted after the end

	mu       sync.Mutex // held while the stream is written
	seq      *execution.Sequence
	timer    *time.Timer // the delayed flush, made when first needed
	dirty    bool        // the delayed flush has something to do
	closed   bool
	expected int64 // the body's length if the head says it, else -1

	gate   sync.Mutex // held for moments only, so that nobody waits for the edge's reader to learn what was seen
	ending bool       // the terminal is due
	seen   answer
}

// answer is what the sink saw of the provider's answer.
type answer struct {
	head   bool // the head was passed on
	status int
	bytes  int64 // of the body
	frames int64 // of every kind
	usage  execution.Usage
	first  time.Time // of the head
	err    error     // the first thing that went wrong; nothing is emitted after it
}

func newTunnelSink(stream *transport.Stream, late func()) *tunnelSink {
	return &tunnelSink{stream: stream, late: late, seq: execution.NewSequence(execution.KindTunnel), expected: -1}
}

// answer returns what was seen so far. It never waits for a write.
func (s *tunnelSink) answer() answer {
	s.gate.Lock()
	defer s.gate.Unlock()
	return s.seen
}

// note changes what was seen.
func (s *tunnelSink) note(change func(*answer)) {
	s.gate.Lock()
	defer s.gate.Unlock()
	change(&s.seen)
}

// accepted says that the execution starts.
func (s *tunnelSink) accepted(sessionID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.appendLocked(execution.StepAccepted, &pb.ProviderTunnelFrame{
		Frame: &pb.ProviderTunnelFrame_Accepted{Accepted: &pb.Accepted{SessionId: sessionID}}})
}

// Head implements execution.TunnelSink.
func (s *tunnelSink) Head(status int, header http.Header) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.openLocked(); err != nil {
		return err
	}
	if status < 200 || status > 999 {
		return s.fail(execution.Failf(execution.CodeUpstreamError, execution.OriginProvider,
			"the provider answered with status %d, which can't be passed on", status))
	}
	frame := &pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Head{Head: headToWire(status, header)}}
	if proto.Size(frame) > transport.MaxTunnelFrame-16 { // 16: the number that is still to be set
		return s.fail(execution.Failf(execution.CodeUpstreamError, execution.OriginProvider,
			"the provider's response header is over %d bytes", transport.MaxTunnelFrame))
	}
	if err := s.appendLocked(execution.StepHead, frame); err != nil {
		return err
	}
	s.note(func(a *answer) { a.head, a.status, a.first = true, status, time.Now() })
	if n, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
		s.expected = n
	}
	return nil
}

// Body implements execution.TunnelSink.
func (s *tunnelSink) Body(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.openLocked(); err != nil {
		return err
	}
	for len(p) > 0 {
		piece := p[:min(len(p), transport.MaxBody)]
		p = p[len(piece):]
		n := s.seq.Next()
		if err := s.seq.Accept(execution.StepBody, n); err != nil {
			return s.fail(err)
		}
		if err := s.stream.AppendBody(n, piece); err != nil {
			return s.fail(err)
		}
		if s.passed(len(piece)) == s.expected {
			s.flushSoonLocked()
			continue
		}
		if err := s.flushLocked(); err != nil {
			return err
		}
	}
	return nil
}

// passed counts a piece of the body and returns how much there was so far.
func (s *tunnelSink) passed(n int) int64 {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.seen.bytes += int64(n)
	s.seen.frames++
	return s.seen.bytes
}

// Usage implements execution.TunnelSink. The counts are sent with the terminal, since no body may follow them.
func (s *tunnelSink) Usage(u execution.Usage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.openLocked(); err != nil {
		return err
	}
	s.note(func(a *answer) { a.usage = u })
	return nil
}

// interrupt wakes an emitting adapter out of a write that waits for the edge's reader. What it wrote in part stays, so
// that the terminal can follow. It does nothing once the terminal is due.
func (s *tunnelSink) interrupt() {
	s.gate.Lock()
	defer s.gate.Unlock()
	if !s.ending {
		s.stream.Interrupt()
	}
}

// end writes the terminal: usage if it is known, then end, or error when f isn't nil. Only the first call does, and
// nothing is emitted after it. It may wait for the edge's reader until the stream is cancelled.
func (s *tunnelSink) end(f *execution.Failure) error {
	s.gate.Lock()
	s.ending = true
	s.stream.Resume()
	s.gate.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errSinkClosed
	}
	s.closed = true
	seen := s.answer()
	if seen.head && seen.usage.Known() {
		if err := s.numberedLocked(execution.StepUsage, &pb.ProviderTunnelFrame{
			Frame: &pb.ProviderTunnelFrame_Usage{Usage: usageToWire(seen.usage)}}); err != nil {
			return err
		}
	}
	step, frame := execution.StepEnd, &pb.ProviderTunnelFrame{
		Frame: &pb.ProviderTunnelFrame_End{End: &pb.TunnelEnd{Bytes: seen.bytes}}}
	if f != nil {
		step, frame = execution.StepError, &pb.ProviderTunnelFrame{
			Frame: &pb.ProviderTunnelFrame_Error{Error: failureToWire(f)}}
	}
	if err := s.numberedLocked(step, frame); err != nil {
		return err
	}
	s.stopTimerLocked()
	return s.stream.Flush()
}

// numberedLocked appends one message that isn't a body.
func (s *tunnelSink) numberedLocked(step execution.Step, frame *pb.ProviderTunnelFrame) error {
	frame.Seq = s.seq.Next()
	if err := s.seq.Accept(step, frame.Seq); err != nil {
		return err
	}
	s.note(func(a *answer) { a.frames++ })
	return s.stream.Append(frame)
}

// openLocked refuses what comes after the end or after a fault.
func (s *tunnelSink) openLocked() error {
	if s.closed {
		s.late()
		return errSinkClosed
	}
	return s.answer().err
}

// appendLocked appends one message that isn't a body; it goes out soon.
func (s *tunnelSink) appendLocked(step execution.Step, frame *pb.ProviderTunnelFrame) error {
	if err := s.numberedLocked(step, frame); err != nil {
		return s.fail(err)
	}
	s.flushSoonLocked()
	return nil
}

// fail keeps the first thing that went wrong and returns it.
func (s *tunnelSink) fail(err error) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.seen.err == nil {
		s.seen.err = err
	}
	return s.seen.err
}

func (s *tunnelSink) flushLocked() error {
	s.stopTimerLocked()
	if err := s.stream.Flush(); err != nil {
		return s.fail(err)
	}
	return nil
}

func (s *tunnelSink) flushSoonLocked() {
	switch {
	case s.dirty:
	case s.timer == nil:
		s.timer = time.AfterFunc(flushDelay, s.flushDelayed)
	default:
		s.timer.Reset(flushDelay)
	}
	s.dirty = true
}

func (s *tunnelSink) stopTimerLocked() {
	if s.dirty {
		s.timer.Stop()
		s.dirty = false
	}
}

// flushDelayed runs in the timer's goroutine. It may find that somebody else flushed in between.
func (s *tunnelSink) flushDelayed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dirty && !s.closed && s.answer().err == nil {
		s.dirty = false
		// An interrupted write loses nothing: what is pending goes out before the terminal.
		if err := s.stream.Flush(); err != nil && !errors.Is(err, transport.ErrInterrupted) {
			s.fail(err)
		}
	}
}
