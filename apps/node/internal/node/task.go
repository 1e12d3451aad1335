package node

import (
	"container/list"
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/router"
	"iop/apps/node/internal/store"
	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
	"iop/packages/go/tracing"
	"iop/packages/go/transport"
)

// errEnded is the cause of a task's context after its end; nobody listens to it any more.
var errEnded = errors.New("the execution is over")

// order is what an open says of its execution, whatever its kind.
type order struct {
	kind       execution.Kind
	runID      string
	attempt    uint32
	adapter    string
	revision   uint64 // of the adapter
	target     string
	sessionID  string
	route      string
	principal  string
	background bool
	timeLimit  time.Duration // of the whole, 0 = none
	length     int64         // of the input, -1 = unknown
	trace      tracing.Context
}

// work is what tunnels and runs do differently. All of it happens in the adapter's goroutine, but for the terminal,
// which may come from another one.
type work interface {
	// accepted is the message that says that the execution starts.
	accepted() frame
	// prepare takes from the input what the adapter needs before it is called.
	prepare(in *feed) error
	// call lets the driver do it. What the driver says goes to the reply.
	call(ctx context.Context, p execution.Provider) error
	// operation is what OpenTelemetry calls what the provider is asked for, "" = nothing of its list.
	operation() string
	// terminal is how the reply ends.
	terminal(o outcome, seen answer) []frame
}

// task is one execution of either kind. Two goroutines belong to it: the work stream's own, which reads until the
// stream's end, and run, in which the adapter works. Whoever ends it first (the adapter's return, or the limit after a
// cancel) decides its outcome, frees its place and writes its terminal, in this order.
type task struct {
	// set once
	order
	session *Session
	stream  *transport.Stream
	work    work
	place   *router.Place
	key     *key // nil = none; set before start
	body    *feed
	reply   *reply
	entry   *store.Entry
	started time.Time
	ctx     context.Context
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when the terminal was written, or can't be
	spans   spans

	ended atomic.Bool // set under alarms.mu
	alarms

	// guarded by Executor.mu
	left bool          // the stream is over: there is nothing to linger for
	elem *list.Element // in Executor.lingering
	told bool          // the terminal is on its way
}

// alarms are what ends a task, or its lingering, by itself.
type alarms struct {
	mu        sync.Mutex
	unhook    func() bool // keeps stopping from being called
	deadline  *time.Timer
	abandonAt *time.Timer // runs from the cancel
	lingerFor *time.Timer // runs from the end
	unread    bool        // the reader is gone
}

func newTask(s *Session, stream *transport.Stream, o order) *task {
	t := &task{order: o, session: s, stream: stream, body: newFeed(o.length), started: time.Now(), done: make(chan struct{})}
	t.reply = newReply(o.kind, stream, o.background, func() { s.x.cfg.Observer.Late("emit") })
	within := s.ctx
	if o.background {
		within = context.Background() // it outlives the connection; its reader says when the connection's end is its own
	}
	t.ctx, t.cancel = context.WithCancelCause(within)
	return t
}

func (t *task) executor() *Executor { return t.session.x }

// start arms what may end the task early, and records that it began. It is called once the task can be found by its
// run_id.
func (t *task) start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unhook = context.AfterFunc(t.ctx, t.stopping)
	if t.timeLimit > 0 {
		t.deadline = time.AfterFunc(t.timeLimit, func() { t.cancel(execution.CauseDeadline) })
	}
}

// stopping runs once, in a goroutine of its own, when the context was cancelled before the end: it wakes the adapter
// out of its reads and writes, and gives it a limited time to return.
func (t *task) stopping() {
	t.body.fail(context.Cause(t.ctx))
	t.reply.interrupt()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended.Load() {
		t.abandonAt = time.AfterFunc(t.executor().cfg.Timers.AdapterStop, t.abandon)
	}
}

// run is the adapter's goroutine.
func (t *task) run() {
	if t.finish(t.execute()) {
		return
	}
	t.logged(zerolog.WarnLevel).Msg("abandoned adapter returned")
	t.place.Release()
	t.executor().sendStatus()
}

func (t *task) execute() (o outcome) {
	called := false
	defer func() { t.endCall(o) }()
	defer func() {
		if p := recover(); p != nil {
			o = t.panicked(p, called)
		}
	}()
	err := t.reply.begin(t.work.accepted())
	if err == nil {
		err = t.key.admit()
	}
	if err == nil {
		err = t.work.prepare(t.body)
	}
	if cause := context.Cause(t.ctx); cause != nil {
		return outcomeOfCause(cause).nothingSent()
	}
	if err != nil {
		return outcomeOf(t.ctx, err, t.reply.answer()).nothingSent()
	}
	t.entry.Update(store.Progress{Started: time.Now(), BytesIn: t.body.received()})
	t.at(faultpoint.NodeCall)
	called = true
	err = t.work.call(tracing.With(t.ctx, t.beginCall()), t.place.Adapter().Provider())
	t.at(faultpoint.NodeReturned)
	return outcomeOf(t.ctx, err, t.reply.answer())
}

// at is a fault point.
func (t *task) at(p faultpoint.Point) { t.executor().cfg.Faults.At(p, t.runID) }

// panicked turns a panic into an outcome. Its value may hold anything, secrets too, so only its type is logged.
func (t *task) panicked(p any, called bool) outcome {
	t.logged(zerolog.ErrorLevel).Type("panic", p).Bytes("stack", debug.Stack()).Msg("panic in an execution")
	if called {
		return failed(execution.Failf(execution.CodeAdapterPanic, execution.OriginNode, "the adapter crashed"))
	}
	return failed(execution.Failf(execution.CodeInternal, execution.OriginNode, "the node crashed in this request"))
}

// abandon ends the task of an adapter that ignored its cancel. Its place stays lost until the adapter returns.
func (t *task) abandon() {
	o := outcomeOfCause(context.Cause(t.ctx))
	o.status = execution.StatusAbandoned
	t.finish(o)
}

// finish ends the task, once: the provider connection is closed by now (or given up), so the place is freed, RunEnded
// is queued, the row's end is queued, and then the terminal goes out, as soon as the edge's reader takes it. None of
// this waits for a disk. It reports whether this call ended the task.
func (t *task) finish(o outcome) bool {
	if !t.end() {
		return false
	}
	seen, now := t.reply.answer(), time.Now()
	t.body.Close()
	abandoned := o.status == execution.StatusAbandoned
	if abandoned {
		t.place.Abandon()
	} else {
		t.place.Release()
	}
	row := endToRow(o, seen, t.body.received(), now)
	if t.background {
		// First: a connection that becomes the serving one now must find it among the unreported ends, and so must the
		// acknowledgement.
		t.entry.End(row)
	}
	t.at(faultpoint.NodeSettle)
	t.executor().settle(t, endToWire(t, o, seen, now))
	t.entry.End(row) // once only
	if abandoned {
		t.executor().drifted(t)
	}
	t.record(o, seen, now)
	t.endSpan(o)
	t.linger()
	t.at(faultpoint.NodeTerminal)
	if err := t.reply.end(t.work.terminal(o, seen)); err != nil {
		t.logged(zerolog.DebugLevel).Err(err).Msg("nobody took the terminal")
	}
	t.executor().said(t)
	close(t.done)
	return true
}

// end marks the task as over and disarms what could end it; it reports whether this call did.
func (t *task) end() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended.CompareAndSwap(false, true) {
		return false
	}
	t.unhook()
	t.cancel(errEnded)
	if t.deadline != nil {
		t.deadline.Stop()
	}
	if t.abandonAt != nil {
		t.abandonAt.Stop()
	}
	return true
}

// linger starts the time that the edge has to take the rest of the answer.
func (t *task) linger() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.unread {
		t.lingerFor = time.AfterFunc(t.executor().cfg.Timers.Linger, t.stream.Cancel)
	}
}

// read owns all reads of the stream until it ends: the input, then the wait for the edge's close.
func (t *task) read() {
	defer t.leave()
	sound := true
	for {
		in, err := t.stream.ReadInput()
		var frame *transport.FrameError
		switch {
		case err == nil && sound && !t.ended.Load():
			if f := t.body.take(in); f != nil {
				sound = false
				t.cancel(f)
			}
		case err == nil: // discarded
		case errors.As(err, &frame):
			t.cancel(execution.Failf(execution.CodeProtocol, execution.OriginEdge, "input can't be read: %s", frame.Text))
			t.awaitTerminal()
			return
		case errors.Is(err, transport.ErrLinkDown):
			t.lost()
			return
		default: // the edge's close, or the end of lingering
			t.closed()
			return
		}
	}
}

// lost says that the link is gone: a foreground execution ends with it, and so does one whose input isn't here yet.
func (t *task) lost() {
	if t.background && t.body.complete() {
		t.reply.detach()
		return
	}
	t.cancel(execution.CauseLinkLost)
}

// closed says that the edge closed the stream while the link is up, which is a cancel. The streams of an edge that is
// about to go are closed a moment before its link, so for a background run this looks at the link first.
func (t *task) closed() {
	if !t.background || !t.body.complete() || t.ended.Load() {
		t.cancel(execution.CauseClientGone)
		return
	}
	t.reply.detach()
	t.stream.Cancel()
	parting := time.NewTimer(t.executor().cfg.Timers.Parting)
	defer parting.Stop()
	select {
	case <-t.stream.Link().Down():
	case <-t.done:
	case <-parting.C:
		t.cancel(execution.CauseClientGone)
	}
}

// awaitTerminal keeps a stream that can't be read any more open until the edge was told why.
func (t *task) awaitTerminal() {
	select {
	case <-t.done:
	case <-t.stream.Link().Down():
	}
}

// leave is the reader's end: nothing is sent on this stream any more.
func (t *task) leave() {
	t.stream.Cancel()
	t.executor().left(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unread = true
	if t.lingerFor != nil {
		t.lingerFor.Stop()
	}
}

// logged begins a log line that names the execution in the words of the wire.
func (t *task) logged(level zerolog.Level) *zerolog.Event {
	return t.session.log.WithLevel(level).Str("run_id", t.runID).Uint32("attempt", t.attempt).
		Stringer("kind", t.kind).Str("adapter", t.adapter).Str("target", loggable(t.target)).
		Str("principal", loggable(t.principal)).Str("route", loggable(t.route)).
		Str("session_id", loggable(t.sessionID))
}

// record writes the one log line of the execution and tells the observer.
func (t *task) record(o outcome, seen answer, now time.Time) {
	event := t.logged(zerolog.InfoLevel)
	if seen.status != 0 {
		event = event.Int("status", seen.status)
	}
	if !seen.first.IsZero() {
		event = event.Dur("first_byte_ms", seen.first.Sub(t.started))
	}
	if n := seen.usage.Input; n != nil {
		event = event.Int64("input_tokens", *n)
	}
	if n := seen.usage.Output; n != nil {
		event = event.Int64("output_tokens", *n)
	}
	if t.background {
		event = event.Bool("background", true)
	}
	if o.failure != nil {
		event = leaseRefused(event, o.failure).Stringer("origin", o.failure.Origin).Str("reason", o.failure.Text)
	}
	event.Stringer("outcome", o.status).Stringer("code", o.code()).Dur("duration_ms", now.Sub(t.started)).
		Int64("bytes_in", t.body.received()).Int64("bytes_out", seen.bytes).Msg("execution ended")
	t.executor().cfg.Observer.Ended(Ended{
		Adapter: t.adapter, Status: o.status, Code: o.code(), Duration: now.Sub(t.started),
		BytesIn: t.body.received(), BytesOut: seen.bytes,
	})
}
