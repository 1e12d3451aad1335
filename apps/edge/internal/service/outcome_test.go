package service

import (
	"context"
	"errors"
	"testing"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// short is a limit that a test lets pass.
const short = 50 * time.Millisecond

// cell is one cell of the table "Outcome" of the wire contract: what happens, in which state, and what the caller gets.
type cell struct {
	name   string
	limits Config
	work   func(w *work)                  // the node; nil = reads the open and says nothing
	tunnel func(t *Tunnel)                // changes the request
	sink   func(r *rig, c *recorder)      // changes the caller
	during func(r *rig, p *pending)       // what happens meanwhile
	code   execution.Code                 // CodeOK = success
	head   bool                           // the response had begun
	body   string                         // what the caller has of it
	cancel pb.CancelCause                 // what the node is told, 0 = nothing
	after  func(t *testing.T, o *Outcome) // further checks
}

// The states of a run, as a test can see them from outside.
func untilSent(r *rig, _ *pending) {
	n := r.node("a", 1)
	n.await("open", func() bool { return len(n.opens) > 0 })
}

func untilAccepted(r *rig, _ *pending) {
	n := r.node("a", 1)
	r.poll("accepted", func() bool { return n.dispatched.Load() > 0 })
}

func untilStreaming(r *rig, p *pending) {
	r.poll("a piece of the response", func() bool { return p.text() != "" })
}

func leaves(until func(*rig, *pending)) func(*rig, *pending) {
	return func(r *rig, p *pending) { until(r, p); p.leave() }
}

func cancelledBy(until func(*rig, *pending), cause execution.CancelCause) func(*rig, *pending) {
	return func(r *rig, p *pending) {
		until(r, p)
		if got := r.svc.Cancel("run-1", cause); got != Cancelling {
			r.Errorf("cancel: %v", got)
		}
	}
}

func linkLost(until func(*rig, *pending)) func(*rig, *pending) {
	return func(r *rig, p *pending) { until(r, p); r.node("a", 1).edge.Close(transport.ReasonLost) }
}

func drainGraceOver(until func(*rig, *pending)) func(*rig, *pending) {
	return func(r *rig, p *pending) {
		until(r, p)
		r.svc.Drain()
		r.svc.CancelAll(execution.CauseEdgeDraining)
	}
}

// The node's parts in most cells.
func accepts(w *work) { w.accept() }

func streams(w *work) {
	w.accept()
	w.head(200)
	w.body("one")
}

func after(first func(*work), then ...func(w *work)) func(*work) {
	return func(w *work) {
		first(w)
		for _, f := range then {
			f(w)
		}
	}
}

func hangsUp(w *work) { w.hangup = true }

// hangs reads the open and says nothing.
func hangs(*work) {}

// reportsEnd sends RunEnded and nothing else.
func reportsEnd(w *work) { w.finish(pb.RunStatus_RUN_STATUS_COMPLETE) }

// skips leaves a gap in the numbers.
func skips(w *work) { w.seq++ }

var (
	dispatchSoon = Config{DispatchLimit: short}
	terminalSoon = Config{TerminalWait: short}
)

// cells of the columns sent, accepted and streaming; waiting and granted have tests of their own.
var cells = []cell{
	// sent: the node has the open, or may have it.
	{name: "sent/link lost", during: linkLost(untilSent), code: execution.CodeNodeLost},
	{name: "sent/rejected final", work: func(w *work) { w.reject(execution.CodeBodyTooLarge, true) }, code: execution.CodeBodyTooLarge},
	{name: "sent/rejected with the edge's word", work: func(w *work) { w.reject(execution.CodeUnknownAdapter, true) }, code: execution.CodeProtocol},
	{name: "sent/rejected busy, but started", work: func(w *work) { w.reject(execution.CodeAdapterBusy, false) }, code: execution.CodeAdapterBusy},
	{name: "sent/dispatch limit", limits: dispatchSoon, code: execution.CodeDispatchTimeout, cancel: pb.CancelCause_CANCEL_CAUSE_DEADLINE},
	{name: "sent/head", work: func(w *work) { w.head(200) }, code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "sent/body", work: func(w *work) { w.body("x") }, code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "sent/end", work: func(w *work) { w.end(0) }, code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "sent/error", work: func(w *work) { w.fail(execution.CodeUpstreamConnect, true) }, code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "sent/stream ends", work: hangsUp, code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "sent/gap", work: after(skips, accepts), code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "sent/caller gone", during: leaves(untilSent), code: execution.CodeClientGone, cancel: pb.CancelCause_CANCEL_CAUSE_CLIENT_GONE},
	{name: "sent/cancelled", during: cancelledBy(untilSent, execution.CauseAPI), code: execution.CodeCancelled, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "sent/deadline", tunnel: func(t *Tunnel) { t.Deadline = short }, code: execution.CodeDeadline, cancel: pb.CancelCause_CANCEL_CAUSE_DEADLINE},
	{name: "sent/drain grace over", during: drainGraceOver(untilSent), code: execution.CodeEdgeDraining, cancel: pb.CancelCause_CANCEL_CAUSE_EDGE_DRAINING},
	{name: "sent/RunEnded without a terminal", limits: terminalSoon, work: reportsEnd, code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "sent/panic", sink: func(_ *rig, c *recorder) { c.onPlaced = func() { panic("a bug") } }, code: execution.CodeInternal, cancel: pb.CancelCause_CANCEL_CAUSE_API},

	// accepted: the node has it, nothing of the response is here.
	{name: "accepted/link lost", work: accepts, during: linkLost(untilAccepted), code: execution.CodeNodeLost},
	{name: "accepted/accepted again", work: after(accepts, accepts), code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "accepted/rejected", work: after(accepts, func(w *work) { w.reject(execution.CodeAdapterBusy, true); w.ended = false }), code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "accepted/body", work: after(accepts, func(w *work) { w.body("x") }), code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "accepted/end without head", work: after(accepts, func(w *work) { w.end(0) }), code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "accepted/no final status", work: after(accepts, func(w *work) { w.head(103) }), code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "accepted/empty response", work: after(accepts, func(w *work) { w.head(204); w.end(0) }), head: true},
	{name: "accepted/error", work: after(accepts, func(w *work) { w.fail(execution.CodeFirstByteTimeout, false) }), code: execution.CodeFirstByteTimeout},
	{name: "accepted/connect error with bytes sent", work: after(accepts, func(w *work) { w.fail(execution.CodeUpstreamConnect, false) }), code: execution.CodeUpstreamConnect},
	{name: "accepted/stream ends", work: after(accepts, hangsUp), code: execution.CodeUpstreamTruncated, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "accepted/gap", work: after(accepts, skips, func(w *work) { w.head(200) }), code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "accepted/caller gone", work: accepts, during: leaves(untilAccepted), code: execution.CodeClientGone, cancel: pb.CancelCause_CANCEL_CAUSE_CLIENT_GONE},
	{name: "accepted/cancelled", work: accepts, during: cancelledBy(untilAccepted, execution.CauseAPI), code: execution.CodeCancelled, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "accepted/deadline", work: accepts, tunnel: func(t *Tunnel) { t.Deadline = 4 * short }, code: execution.CodeDeadline, cancel: pb.CancelCause_CANCEL_CAUSE_DEADLINE},
	{name: "accepted/drain grace over", work: accepts, during: drainGraceOver(untilAccepted), code: execution.CodeEdgeDraining, cancel: pb.CancelCause_CANCEL_CAUSE_EDGE_DRAINING},
	{name: "accepted/RunEnded without a terminal", limits: terminalSoon, work: after(accepts, reportsEnd), code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "accepted/the dispatch limit is over", limits: dispatchSoon, work: after(accepts, func(w *work) { pause(w, 2*short); w.head(200); w.end(0) }), head: true},
	{name: "accepted/panic", work: func(w *work) { w.accept(); w.head(200) }, sink: func(_ *rig, c *recorder) { c.onHead = func() error { panic("a bug") } },
		head: true, code: execution.CodeInternal, cancel: pb.CancelCause_CANCEL_CAUSE_API},

	// streaming: the caller has the head.
	{name: "streaming/link lost", work: streams, during: linkLost(untilStreaming), head: true, body: "one", code: execution.CodeNodeLost},
	{name: "streaming/accepted", work: after(streams, accepts), head: true, body: "one", code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "streaming/head again", work: after(streams, func(w *work) { w.head(200) }), head: true, body: "one", code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "streaming/end", work: after(streams, func(w *work) { w.body("two"); w.end(6) }), head: true, body: "onetwo"},
	{name: "streaming/end that counts otherwise", work: after(streams, func(w *work) { w.end(4) }), head: true, body: "one", code: execution.CodeProtocol},
	{name: "streaming/usage", work: after(streams, func(w *work) { w.usage(11, 7); w.end(3) }), head: true, body: "one",
		after: func(t *testing.T, o *Outcome) {
			if o.Usage.Input == nil || *o.Usage.Input != 11 || *o.Usage.Output != 7 || o.Usage.Cached != nil {
				t.Errorf("usage %+v, want 11/7 and the rest unknown", o.Usage)
			}
		}},
	{name: "streaming/body after usage", work: after(streams, func(w *work) { w.usage(1, 1); w.body("x") }), head: true, body: "one", code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "streaming/error", work: after(streams, func(w *work) { w.fail(execution.CodeUpstreamTruncated, false) }), head: true, body: "one", code: execution.CodeUpstreamTruncated}, // ST-13
	{name: "streaming/connect error", work: after(streams, func(w *work) { w.fail(execution.CodeUpstreamConnect, true) }), head: true, body: "one", code: execution.CodeUpstreamConnect},
	{name: "streaming/idle timeout", work: after(streams, func(w *work) { w.fail(execution.CodeIdleTimeout, false) }), head: true, body: "one", code: execution.CodeIdleTimeout}, // CP-14
	{name: "streaming/stream ends", work: after(streams, hangsUp), head: true, body: "one", code: execution.CodeUpstreamTruncated, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "streaming/gap", work: after(streams, skips, func(w *work) { w.body("two") }), head: true, body: "one", code: execution.CodeProtocol, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "streaming/caller gone", work: streams, during: leaves(untilStreaming), head: true, body: "one", code: execution.CodeClientGone, cancel: pb.CancelCause_CANCEL_CAUSE_CLIENT_GONE},
	{name: "streaming/caller gone, seen by a write", work: streams, sink: failsBody(execution.CodeClientGone), head: true, body: "one", code: execution.CodeClientGone, cancel: pb.CancelCause_CANCEL_CAUSE_CLIENT_GONE},
	{name: "streaming/write idle", work: streams, sink: failsBody(execution.CodeClientSlow), head: true, body: "one", code: execution.CodeClientSlow, cancel: pb.CancelCause_CANCEL_CAUSE_CLIENT_SLOW},
	{name: "streaming/last write fails", work: after(streams, func(w *work) { w.end(3) }), sink: func(_ *rig, c *recorder) {
		c.onEnd = func() error { return execution.Failf(execution.CodeClientGone, execution.OriginCaller, "gone") }
	}, head: true, body: "one", code: execution.CodeClientGone},
	{name: "streaming/a sink's own error", work: streams, sink: func(_ *rig, c *recorder) {
		c.onBody = func([]byte) error { return errors.New("what it says stays inside") }
	}, head: true, body: "one", code: execution.CodeInternal, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "streaming/cancelled", work: streams, during: cancelledBy(untilStreaming, execution.CauseAPI), head: true, body: "one", code: execution.CodeCancelled, cancel: pb.CancelCause_CANCEL_CAUSE_API},
	{name: "streaming/deadline", work: streams, tunnel: func(t *Tunnel) { t.Deadline = 4 * short }, head: true, body: "one", code: execution.CodeDeadline, cancel: pb.CancelCause_CANCEL_CAUSE_DEADLINE},
	{name: "streaming/drain, in time", work: after(streams, func(w *work) { pause(w, 2*short); w.end(3) }), during: func(r *rig, p *pending) { untilStreaming(r, p); r.svc.Drain() }, head: true, body: "one"},
	{name: "streaming/drain grace over", work: streams, during: drainGraceOver(untilStreaming), head: true, body: "one", code: execution.CodeEdgeDraining, cancel: pb.CancelCause_CANCEL_CAUSE_EDGE_DRAINING},
	{name: "streaming/RunEnded long before the terminal", limits: terminalSoon, work: after(streams, reportsEnd, func(w *work) { pause(w, 3*short); w.end(3) }), head: true, body: "one"},
	{name: "streaming/panic", work: streams, sink: func(_ *rig, c *recorder) { c.onBody = func([]byte) error { panic("a bug") } },
		head: true, body: "one", code: execution.CodeInternal, cancel: pb.CancelCause_CANCEL_CAUSE_API},
}

func failsBody(code execution.Code) func(*rig, *recorder) {
	return func(_ *rig, c *recorder) {
		c.onBody = func([]byte) error { return execution.Failf(code, execution.OriginCaller, "no more") }
	}
}

// pause lets d pass, or less when the link ends.
func pause(w *work, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.node.far.Down():
	}
}

// Every cell gives exactly one outcome, tells the node what it must know, and gives its place back: the faults 3, 14,
// 15, 19, 28 and the cases ST-13, CA-01, CA-02, CP-01, CP-14, TU-17 at the edge's half.
func TestOutcomeTable(t *testing.T) {
	patience.Alone(t, func(t *testing.T) {
		for _, c := range cells {
			t.Run(c.name, func(t *testing.T) { patience.Bubble(t, c.check) })
		}
	})
}

func (c *cell) check(t *testing.T) {
	work := c.work
	if work == nil {
		work = hangs
	}
	r := newRig(t, setup{service: c.limits, work: work})
	n, sink, tunnel := r.node("a", 1), &recorder{}, r.tunnel("run-1", `{"model":"m"}`)
	if c.tunnel != nil {
		c.tunnel(tunnel)
	}
	if c.sink != nil {
		c.sink(r, sink)
	}
	p := r.submit(tunnel, sink)
	var since time.Time
	if c.during != nil {
		c.during(r, p)
		since = time.Now()
	}
	o := r.outcome(p)
	if took := time.Since(since); c.code != execution.CodeOK && !since.IsZero() && took > 0 {
		t.Errorf("the outcome took %v", took)
	}
	if code(o) != c.code || o.HeadSent != c.head || sink.text() != c.body || o.BytesOut > int64(len(c.body)) {
		t.Errorf("outcome %v (%v), head %v, body %q; want %v, head %v, body %q",
			code(o), o.Failure, o.HeadSent, sink.text(), c.code, c.head, c.body)
	}
	if ended := sink.ends > 0; ended != (c.code == execution.CodeOK) && c.name != "streaming/last write fails" {
		t.Errorf("the response was finished %d times", sink.ends)
	}
	if c.cancel != 0 {
		if cause := n.awaitCancel("run-1"); cause != c.cancel {
			t.Errorf("the node was told %v, want %v", cause, c.cancel)
		}
	} else if n.cancelCount() != 0 {
		t.Error("the node was sent a cancel")
	}
	if c.after != nil {
		c.after(t, o)
	}
	if o.Attempts != 1 || n.openCount() > 1 {
		t.Errorf("%d attempts, %d opens", o.Attempts, n.openCount())
	}
	r.idle()
	r.once("run-1")
}

// once checks that the run has one end: it isn't live, it was reported once, and it can't be cancelled any more.
func (r *rig) once(runID string) {
	r.Helper()
	if got := r.svc.Cancel(runID, execution.CauseAPI); got != AlreadyEnded {
		r.Errorf("cancel of an ended run: %v", got)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, o := range r.ended {
		if o.RunID == runID {
			n++
		}
	}
	if n != 1 {
		r.Errorf("%s ended %d times", runID, n)
	}
}

func (n *fakeNode) cancelCount() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.cancels)
}

// Everything that may be the cause of a caller's context has a failure (style.md habit 8).
func TestVerdicts(t *testing.T) {
	for cause := execution.CauseClientGone; cause <= execution.CauseCredentialRevoked; cause++ {
		f, told := verdict(cause)
		if f.Code != cause.Code() || f.Text == "" || f.Origin == 0 || told != cause {
			t.Errorf("%v: %+v, node told %v", cause, f, told)
		}
	}
	for cause, want := range map[error]execution.Code{
		context.Canceled:                                   execution.CodeClientGone,
		context.DeadlineExceeded:                           execution.CodeDeadline,
		errors.New("whatever"):                             execution.CodeClientGone,
		&execution.Failure{Code: execution.CodeClientSlow}: execution.CodeClientSlow,
	} {
		if f, told := verdict(cause); f.Code != want || told == 0 {
			t.Errorf("%v: %v, want %v", cause, f, want)
		}
	}
	if f, _ := verdict(errDone); f != nil {
		t.Errorf("success is %v", f)
	}
}
