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
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// errEnded is the cause of a task's context after its end; nobody listens to it any more.
var errEnded = errors.New("the execution is over")

// task is one execution. Two goroutines belong to it: the work stream's own, which reads until the stream's end, and
// run, in which the adapter works. Whoever ends it first (the adapter's return, or the limit after a cancel) decides
// its outcome, frees its place and writes its terminal, in this order.
type task struct {
	// set once
	session *Session
	stream  *transport.Stream
	req     *pb.ProviderTunnelRequest
	attempt uint32
	place   *router.Place
	body    *feed
	sink    *tunnelSink
	started time.Time
	ctx     context.Context
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when the terminal was written, or can't be

	ended atomic.Bool // set under alarms.mu
	alarms

	// guarded by Executor.mu
	left bool          // the stream is over: there is nothing to linger for
	elem *list.Element // in Executor.lingering
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

func (t *task) id() string { return t.req.GetRunId() }

func (t *task) executor() *Executor { return t.session.x }

// start arms what may end the task early. It is called once the task can be found by its run_id.
func (t *task) start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unhook = context.AfterFunc(t.ctx, t.stopping)
	if ms := t.req.GetDeadlineMs(); ms > 0 {
		t.deadline = time.AfterFunc(milliseconds(ms), func() { t.cancel(execution.CauseDeadline) })
	}
}

// stopping runs once, in a goroutine of its own, when the context was cancelled before the end: it wakes the adapter
// out of its reads and writes, and gives it a limited time to return.
func (t *task) stopping() {
	t.body.fail(context.Cause(t.ctx))
	t.sink.interrupt()
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
	defer func() {
		if p := recover(); p != nil {
			o = t.panicked(p, called)
		}
	}()
	if err := t.sink.accepted(t.req.GetSessionId()); err != nil || t.ctx.Err() != nil {
		return outcomeOf(t.ctx, err, t.sink.answer()).nothingSent()
	}
	tunneler := t.place.Adapter().Provider().(execution.Tunneler) // checked at the open
	req := tunnelFromWire(t.req, t.body, t.executor().cfg.Timers.provider())
	called = true
	err := tunneler.Tunnel(t.ctx, req, t.sink)
	return outcomeOf(t.ctx, err, t.sink.answer())
}

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
// is queued, the end is recorded, and then the terminal goes out, as soon as the edge's reader takes it. It reports
// whether this call ended the task.
func (t *task) finish(o outcome) bool {
	if !t.end() {
		return false
	}
	seen, now := t.sink.answer(), time.Now()
	t.body.Close()
	abandoned := o.status == execution.StatusAbandoned
	if abandoned {
		t.place.Abandon()
	} else {
		t.place.Release()
	}
	if link := t.executor().settle(t); link != nil {
		link.SendRunEnded(endToWire(t, o, seen, now))
	}
	if abandoned {
		t.executor().drifted(t)
	}
	t.record(o, seen, now)
	t.linger()
	if err := t.sink.end(o.failure); err != nil {
		t.logged(zerolog.DebugLevel).Err(err).Msg("nobody took the terminal")
	}
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

// read owns all reads of the stream until it ends: the request body, then the wait for the edge's close.
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
			t.cancel(execution.CauseLinkLost)
			return
		default: // the edge's close, or the end of lingering
			t.cancel(execution.CauseClientGone)
			return
		}
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
	return t.session.log.WithLevel(level).Str("run_id", t.id()).Uint32("attempt", t.attempt).
		Str("adapter", t.req.GetAdapter()).Str("target", loggable(t.req.GetTarget())).
		Str("principal", loggable(t.req.GetPrincipalRef())).Str("route", loggable(t.req.GetRoute())).
		Str("session_id", loggable(t.req.GetSessionId()))
}

// record writes the one log line of the execution and tells the observer.
func (t *task) record(o outcome, seen answer, now time.Time) {
	event := t.logged(zerolog.InfoLevel)
	if seen.head {
		event = event.Int("status", seen.status).Dur("first_byte_ms", seen.first.Sub(t.started))
	}
	if n := seen.usage.Input; n != nil {
		event = event.Int64("input_tokens", *n)
	}
	if n := seen.usage.Output; n != nil {
		event = event.Int64("output_tokens", *n)
	}
	if o.failure != nil {
		event = event.Stringer("origin", o.failure.Origin).Str("reason", o.failure.Text)
	}
	event.Stringer("outcome", o.status).Stringer("code", o.code()).Dur("duration_ms", now.Sub(t.started)).
		Int64("bytes_in", t.body.received()).Int64("bytes_out", seen.bytes).Msg("execution ended")
	t.executor().cfg.Observer.Ended(Ended{
		Adapter: t.req.GetAdapter(), Status: o.status, Code: o.code(), Duration: now.Sub(t.started),
		BytesIn: t.body.received(), BytesOut: seen.bytes,
	})
}
