package node

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// flushDelay is how long what is usually followed by more (accepted, a head, a start, token counts, the last piece of a
// body of known length) waits for it, so that they go out together. Pieces of an answer whose length isn't known never
// wait.
const flushDelay = 500 * time.Microsecond

// errReplyClosed is what an adapter gets that emits after its execution is over.
var errReplyClosed = errors.New("the execution is over")

// reply writes the answer of one execution, whatever its kind, on its work stream. The adapter's goroutine emits, the
// delayed flush and the terminal come from others; mu makes them one writer.
type reply struct {
	// set once
	stream   *transport.Stream
	late     func() // counts what is emitted after the end
	outlives bool   // a background run goes on when nobody listens any more

	mu     sync.Mutex // held while the stream is written
	seq    *execution.Sequence
	timer  *time.Timer // the delayed flush, made when first needed
	dirty  bool        // the delayed flush has something to do
	closed bool

	gate     sync.Mutex // held for moments only, so that nobody waits for the edge's reader to learn what was seen
	ending   bool       // the terminal is due
	detached bool       // nobody listens: what is emitted is numbered and forgotten
	seen     answer
}

// answer is what was seen of the provider's answer.
type answer struct {
	answered   bool   // a tunnel: the head was passed on; a run: the adapter says that the answer is whole
	status     int    // of a tunnel
	bytes      int64  // of the body, or of texts and arguments
	frames     int64  // of every kind
	completion string // a run's finish reason
	model      string // that a run's provider says it runs
	usage      execution.Usage
	first      time.Time // of the head, or of the first event
	err        error     // the first thing that went wrong; nothing is emitted after it
}

// frame is one message with its place in the grammar; its number is set when it is written.
type frame struct {
	step execution.Step
	msg  proto.Message
}

// number sets a message's sequence number.
func (f frame) number(n uint64) {
	switch m := f.msg.(type) {
	case *pb.ProviderTunnelFrame:
		m.Seq = n
	case *pb.RunEvent:
		m.Seq = n
	}
}

func newReply(kind execution.Kind, stream *transport.Stream, outlives bool, late func()) *reply {
	return &reply{stream: stream, late: late, outlives: outlives, seq: execution.NewSequence(kind)}
}

// answer returns what was seen so far. It never waits for a write.
func (r *reply) answer() answer {
	r.gate.Lock()
	defer r.gate.Unlock()
	return r.seen
}

// note changes what was seen.
func (r *reply) note(change func(*answer)) {
	r.gate.Lock()
	defer r.gate.Unlock()
	change(&r.seen)
}

// begin says that the execution starts.
func (r *reply) begin(f frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.appendLocked(f)
}

// openLocked refuses what comes after the end or after a fault.
func (r *reply) openLocked() error {
	if r.closed {
		r.late()
		return errReplyClosed
	}
	return r.answer().err
}

// appendLocked appends one message that goes out soon.
func (r *reply) appendLocked(f frame) error {
	if err := r.numberedLocked(f); err != nil {
		return r.fail(err)
	}
	r.flushSoonLocked()
	return nil
}

// sendLocked appends one message and sends it now.
func (r *reply) sendLocked(f frame) error {
	if err := r.numberedLocked(f); err != nil {
		return r.fail(err)
	}
	return r.flushLocked()
}

// numberedLocked appends one message.
func (r *reply) numberedLocked(f frame) error {
	n := r.seq.Next()
	if err := r.seq.Accept(f.step, n); err != nil {
		return err
	}
	f.number(n)
	r.note(func(a *answer) { a.frames++ })
	if r.isDetached() {
		return nil
	}
	return r.stream.Append(f.msg)
}

// bodyLocked appends a piece of a tunnel's body and returns how much of it there was so far.
func (r *reply) bodyLocked(p []byte) (total int64, err error) {
	n := r.seq.Next()
	if err := r.seq.Accept(execution.StepBody, n); err != nil {
		return 0, r.fail(err)
	}
	if err := r.stream.AppendBody(n, p); err != nil {
		return 0, r.fail(err)
	}
	r.gate.Lock()
	defer r.gate.Unlock()
	r.seen.frames++
	r.seen.bytes += int64(len(p))
	return r.seen.bytes, nil
}

// interrupt wakes an emitting adapter out of a write that waits for the edge's reader. What it wrote in part stays, so
// that the terminal can follow. It does nothing once the terminal is due.
func (r *reply) interrupt() {
	r.gate.Lock()
	defer r.gate.Unlock()
	if !r.ending {
		r.stream.Interrupt()
	}
}

// detach says that nobody listens any more although the execution goes on.
func (r *reply) detach() {
	r.gate.Lock()
	defer r.gate.Unlock()
	r.detached = true
}

func (r *reply) isDetached() bool {
	r.gate.Lock()
	defer r.gate.Unlock()
	return r.detached
}

// end writes the terminal that it is given. Only the first call does, and nothing is emitted after it. It may wait for
// the edge's reader until the stream is cancelled.
func (r *reply) end(terminal []frame) error {
	r.gate.Lock()
	r.ending = true
	r.stream.Resume()
	r.gate.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errReplyClosed
	}
	r.closed = true
	for _, f := range terminal {
		if err := r.numberedLocked(f); err != nil {
			return err
		}
	}
	r.stopTimerLocked()
	return r.pushLocked()
}

// fail keeps the first thing that went wrong and returns it.
func (r *reply) fail(err error) error {
	r.gate.Lock()
	defer r.gate.Unlock()
	if r.seen.err == nil {
		r.seen.err = err
	}
	return r.seen.err
}

func (r *reply) flushLocked() error {
	r.stopTimerLocked()
	if err := r.pushLocked(); err != nil {
		return r.fail(err)
	}
	return nil
}

// pushLocked writes what is pending. An execution that outlives its listeners goes on without them.
func (r *reply) pushLocked() error {
	if r.isDetached() {
		return nil
	}
	err := r.stream.Flush()
	switch {
	case err == nil, r.isDetached():
		return nil
	case r.outlives && isGone(err):
		r.detach()
		return nil
	}
	return err
}

// isGone reports whether a write failed because nobody is there to read.
func isGone(err error) bool {
	return errors.Is(err, transport.ErrLinkDown) || errors.Is(err, transport.ErrCancelled) || errors.Is(err, io.EOF)
}

func (r *reply) flushSoonLocked() {
	switch {
	case r.dirty:
	case r.timer == nil:
		r.timer = time.AfterFunc(flushDelay, r.flushDelayed)
	default:
		r.timer.Reset(flushDelay)
	}
	r.dirty = true
}

func (r *reply) stopTimerLocked() {
	if r.dirty {
		r.timer.Stop()
		r.dirty = false
	}
}

// flushDelayed runs in the timer's goroutine. It may find that somebody else flushed in between.
func (r *reply) flushDelayed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.dirty || r.closed || r.answer().err != nil {
		return
	}
	r.dirty = false
	// An interrupted write loses nothing: what is pending goes out before the terminal.
	if err := r.pushLocked(); err != nil && !errors.Is(err, transport.ErrInterrupted) {
		r.fail(err)
	}
}

// wantedLocked returns why nothing more may be emitted, nil while somebody wants it. A cancel counts at once, also for
// an adapter that looks at nothing else.
func (r *reply) wantedLocked(ctx context.Context) error {
	if err := r.openLocked(); err != nil {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		return r.fail(cause)
	}
	return nil
}
