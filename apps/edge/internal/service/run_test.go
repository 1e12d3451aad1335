package service

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// runCell is one cell of the table "Outcome" of the wire contract, for runs.
type runCell struct {
	name   string
	limits Config
	work   func(w *work)
	spec   func(*RunSpec)
	sink   func(l *listener)
	during func(r *rig, h *hearing)
	code   execution.Code
	text   string // what the caller has of the answer
	cancel pb.CancelCause
	only   bool // foreground only: in the background this is no end
}

func heardSomething(r *rig, h *hearing) {
	r.poll("a piece of the answer", func() bool { return h.text() != "" })
}

// at turns what the tunnels' cells wait for into what these wait for.
func at(until func(*rig, *pending)) func(*rig, *hearing) {
	return func(r *rig, _ *hearing) { until(r, nil) }
}

func then(until func(*rig, *hearing), what func(r *rig, h *hearing)) func(*rig, *hearing) {
	return func(r *rig, h *hearing) { until(r, h); what(r, h) }
}

func callerGone(_ *rig, h *hearing) { h.leave() }

func byAPI(r *rig, _ *hearing) {
	if got := r.svc.Cancel("run-1", execution.CauseAPI); got != Cancelling {
		r.Errorf("cancel: %v", got)
	}
}

func cut(r *rig, _ *hearing) { r.node("a", 1).edge.Close(transport.ReasonLost) }

func graceOver(r *rig, _ *hearing) { r.svc.Drain(); r.svc.CancelAll(execution.CauseEdgeDraining) }

func says(w *work) { w.accept(); w.delta("one") }

const (
	toldAPI      = pb.CancelCause_CANCEL_CAUSE_API
	toldDeadline = pb.CancelCause_CANCEL_CAUSE_DEADLINE
	toldGone     = pb.CancelCause_CANCEL_CAUSE_CLIENT_GONE
	toldDraining = pb.CancelCause_CANCEL_CAUSE_EDGE_DRAINING
)

var runCells = []runCell{
	{name: "sent/link lost", during: then(at(untilSent), cut), code: execution.CodeNodeLost, only: true},
	{name: "sent/rejected", work: func(w *work) { w.reject(execution.CodeBodyTooLarge, true) }, code: execution.CodeBodyTooLarge},
	{name: "sent/dispatch limit", limits: dispatchSoon, code: execution.CodeDispatchTimeout, cancel: toldDeadline},
	{name: "sent/start", work: func(w *work) { w.start("m") }, code: execution.CodeProtocol, cancel: toldAPI},
	{name: "sent/delta", work: func(w *work) { w.delta("x") }, code: execution.CodeProtocol, cancel: toldAPI},
	{name: "sent/complete", work: func(w *work) { w.complete("stop") }, code: execution.CodeProtocol, cancel: toldAPI},
	{name: "sent/error", work: func(w *work) { w.fail(execution.CodeUpstreamError, false) }, code: execution.CodeProtocol, cancel: toldAPI},
	{name: "sent/stream ends", work: hangsUp, code: execution.CodeProtocol, cancel: toldAPI},
	{name: "sent/gap", work: after(skips, accepts), code: execution.CodeProtocol, cancel: toldAPI},
	{name: "sent/caller gone", during: then(at(untilSent), callerGone), code: execution.CodeClientGone, cancel: toldGone, only: true},
	{name: "sent/cancelled", during: then(at(untilSent), byAPI), code: execution.CodeCancelled, cancel: toldAPI},
	{name: "sent/deadline", spec: func(s *RunSpec) { s.Deadline = short }, code: execution.CodeDeadline, cancel: toldDeadline},
	{name: "sent/drain grace over", during: then(at(untilSent), graceOver), code: execution.CodeEdgeDraining, cancel: toldDraining, only: true},
	{name: "sent/RunEnded without a terminal", limits: terminalSoon, work: reportsEnd, code: execution.CodeProtocol, cancel: toldAPI},
	{name: "sent/panic", sink: func(l *listener) { l.onPlaced = func() { panic("a bug") } }, code: execution.CodeInternal, cancel: toldAPI, only: true},

	{name: "accepted/link lost", work: accepts, during: then(at(untilAccepted), cut), code: execution.CodeNodeLost, only: true},
	{name: "accepted/again", work: after(accepts, accepts), code: execution.CodeProtocol, cancel: toldAPI},
	{name: "accepted/rejected", work: after(accepts, func(w *work) { w.reject(execution.CodeAdapterBusy, true); w.ended = false }), code: execution.CodeProtocol, cancel: toldAPI},
	{name: "accepted/nothing but a complete", work: after(accepts, func(w *work) { w.complete("stop") })},
	{name: "accepted/error", work: after(accepts, func(w *work) { w.fail(execution.CodeAdapterPanic, false) }), code: execution.CodeAdapterPanic},
	{name: "accepted/cancelled by the node", work: after(accepts, func(w *work) { w.cancelled(pb.CancelCause_CANCEL_CAUSE_NODE_DRAINING) }), code: execution.CodeNodeDraining},
	{name: "accepted/cancelled without a cause", work: after(accepts, func(w *work) { w.cancelled(0) }), code: execution.CodeCancelled},
	{name: "accepted/stream ends", work: after(accepts, hangsUp), code: execution.CodeUpstreamTruncated, cancel: toldAPI},
	{name: "accepted/caller gone", work: accepts, during: then(at(untilAccepted), callerGone), code: execution.CodeClientGone, cancel: toldGone, only: true},
	{name: "accepted/cancelled", work: accepts, during: then(at(untilAccepted), byAPI), code: execution.CodeCancelled, cancel: toldAPI},
	{name: "accepted/deadline", work: accepts, spec: func(s *RunSpec) { s.Deadline = 4 * short }, code: execution.CodeDeadline, cancel: toldDeadline},
	{name: "accepted/RunEnded without a terminal", limits: terminalSoon, work: after(accepts, reportsEnd), code: execution.CodeProtocol, cancel: toldAPI},

	{name: "streaming/link lost", work: says, during: then(heardSomething, cut), text: "one", code: execution.CodeNodeLost, only: true},
	{name: "streaming/start again", work: after(says, func(w *work) { w.start("m") }), text: "one", code: execution.CodeProtocol, cancel: toldAPI},
	{name: "streaming/complete", work: talks, text: "onetwo"},
	{name: "streaming/error", work: after(says, func(w *work) { w.fail(execution.CodeUpstreamTruncated, false) }), text: "one", code: execution.CodeUpstreamTruncated}, // ST-17, ST-18
	{name: "streaming/connect error", work: after(says, func(w *work) { w.fail(execution.CodeUpstreamConnect, true) }), text: "one", code: execution.CodeUpstreamConnect},
	{name: "streaming/stream ends", work: after(says, hangsUp), text: "one", code: execution.CodeUpstreamTruncated, cancel: toldAPI},
	{name: "streaming/gap", work: after(says, skips, func(w *work) { w.delta("two") }), text: "one", code: execution.CodeProtocol, cancel: toldAPI},
	{name: "streaming/caller gone", work: says, during: then(heardSomething, callerGone), text: "one", code: execution.CodeClientGone, cancel: toldGone, only: true},
	{name: "streaming/write idle", work: says, sink: func(l *listener) {
		l.onEvent = func(execution.Event) error {
			return execution.Failf(execution.CodeClientSlow, execution.OriginCaller, "slow")
		}
	}, text: "one", code: execution.CodeClientSlow, cancel: pb.CancelCause_CANCEL_CAUSE_CLIENT_SLOW, only: true},
	{name: "streaming/a sink's own error", work: says, sink: func(l *listener) {
		l.onEvent = func(execution.Event) error { return errors.New("stays inside") }
	}, text: "one", code: execution.CodeInternal, cancel: toldAPI, only: true},
	{name: "streaming/cancelled", work: says, during: then(heardSomething, byAPI), text: "one", code: execution.CodeCancelled, cancel: toldAPI},
	{name: "streaming/deadline", work: says, spec: func(s *RunSpec) { s.Deadline = 4 * short }, text: "one", code: execution.CodeDeadline, cancel: toldDeadline},
	{name: "streaming/drain, in time", work: after(says, func(w *work) { pause(w, 2*short); w.complete("stop") }), during: then(heardSomething, func(r *rig, _ *hearing) { r.svc.Drain() }), text: "one"},
	{name: "streaming/drain grace over", work: says, during: then(heardSomething, graceOver), text: "one", code: execution.CodeEdgeDraining, cancel: toldDraining, only: true},
	{name: "streaming/RunEnded long before the terminal", limits: terminalSoon, work: after(says, reportsEnd, func(w *work) { pause(w, 3*short); w.complete("stop") }), text: "one"},
	{name: "streaming/panic", work: says, sink: func(l *listener) { l.onEvent = func(execution.Event) error { panic("a bug") } },
		text: "one", code: execution.CodeInternal, cancel: toldAPI, only: true},
}

// The table "Outcome" for runs, in the foreground and in the background: each cell gives exactly one outcome, tells the
// node what it must know, and gives its place back. CP-01, ST-17, ST-18 at the edge's half.
func TestRunOutcomeTable(t *testing.T) {
	patience.Alone(t, func(t *testing.T) {
		for _, c := range runCells {
			t.Run(c.name+"/foreground", func(t *testing.T) { patience.Bubble(t, func(t *testing.T) { c.check(t, false) }) })
			if !c.only {
				t.Run(c.name+"/background", func(t *testing.T) { patience.Bubble(t, func(t *testing.T) { c.check(t, true) }) })
			}
		}
	})
}

func (c *runCell) check(t *testing.T, background bool) {
	work := c.work
	if work == nil {
		work = hangs
	}
	r := newRig(t, setup{service: c.limits, work: work})
	n, l, spec := r.node("a", 1), &listener{}, r.spec("run-1")
	spec.Background = background
	if c.spec != nil {
		c.spec(spec)
	}
	if c.sink != nil {
		c.sink(l)
	}
	h := r.start(spec, l)
	var since time.Time
	if c.during != nil {
		c.during(r, h)
		since = time.Now()
	}
	o := r.result(h)
	if took := time.Since(since); c.code != execution.CodeOK && !since.IsZero() && took > 0 {
		t.Errorf("the outcome took %v", took)
	}
	if o == nil || code(o) != c.code || o.HeadSent != (c.text != "") || l.text() != c.text || l.gap {
		t.Fatalf("outcome %+v, answer %q; want %v, %q", o, l.text(), c.code, c.text)
	}
	if o.Kind != execution.KindRun || o.Background != background || o.Attempts != 1 || o.NodeID != "a" || o.Adapter != "p" {
		t.Errorf("%+v", o)
	}
	if c.cancel != 0 {
		if cause := n.awaitCancel("run-1"); cause != c.cancel {
			t.Errorf("the node was told %v, want %v", cause, c.cancel)
		}
	} else if c.code != execution.CodeNodeLost {
		n.noCancel("run-1")
	}
	r.idle()
	r.once("run-1")
	v, ok := r.svc.Run("run-1")
	if want := stateOf(o); !ok || v.State != want || v.Code != o.Code().String() || v.Live || v.EndedAt == nil || v.Background != background {
		t.Errorf("the table says %+v, want %s", v, want)
	}
}

// Every kind of event arrives as it was sent, in order and numbered from 1; usage and the finish reason are the
// outcome's.
func TestEvents(t *testing.T) {
	both(t, func(t *testing.T, background bool) {
		r := newRig(t, setup{work: func(w *work) {
			w.accept()
			w.start("tiny-1")
			w.reasoning("hm")
			w.delta("Grüße ")
			w.tool(0, "call_0", "look", `{"a"`)
			w.tool(1, "call_1", "find", `{}`)
			w.tool(0, "", "", `:1}`)
			w.tokens(11, 7)
			w.complete("tool_calls")
		}})
		spec := r.spec("run-1")
		spec.Background, spec.SessionID = background, "s-1"
		o, l := r.ask(spec)
		want := []execution.Event{
			{Kind: execution.EventStart, Model: "tiny-1"},
			{Kind: execution.EventReasoning, Text: "hm"},
			{Kind: execution.EventDelta, Text: "Grüße "},
			{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: 0, ID: "call_0", Name: "look", Arguments: `{"a"`}},
			{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: 1, ID: "call_1", Name: "find", Arguments: `{}`}},
			{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: 0, Arguments: `:1}`}},
			{Kind: execution.EventUsage, Usage: o.Usage},
		}
		if !reflect.DeepEqual(l.events, want) || l.gap || l.node != "a" {
			t.Errorf("events %+v", l.events)
		}
		// A complete that tells no usage leaves what was told before (ST-28).
		if !o.OK() || o.FinishReason != "tool_calls" || *o.Usage.Input != 11 || *o.Usage.Output != 7 || o.Usage.Cached != nil {
			t.Errorf("%+v", o)
		}
		if o.SessionID != "s-1" || o.BytesOut != int64(len("hm")+len("Grüße ")+len(`{"a":1}`)+len(`{}`)) || o.FirstByte == 0 {
			t.Errorf("%+v", o)
		}
		v, _ := r.svc.Run("run-1")
		if v.FinishReason != "tool_calls" || v.Usage == nil || *v.Usage.Input != 11 || v.Usage.Cached != nil || v.SessionID != "s-1" ||
			v.Kind != "run" || v.Target != "m" || v.Principal != "anonymous" {
			t.Errorf("%+v", v)
		}
	})
}

// ST-20: a thousand random orders of a node's events, with cancels and a lost link among them. Each run has exactly one
// outcome, and it is a success only if the node's words were whole.
func TestRandomRunOrders(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	scripts := map[string][]int{}
	r := newRig(t, setup{capacity: 64, failures: endless, work: func(w *work) {
		mu.Lock()
		script := scripts[w.runID]
		mu.Unlock()
		for _, step := range script {
			w.runStep(step)
		}
		w.hangup = true
	}})
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	for batch := 0; batch < rounds; batch += 25 {
		var wg sync.WaitGroup
		for i := batch; i < batch+25; i++ {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			script := []int{0}
			if rng.IntN(8) == 0 {
				script = nil
			}
			for range 1 + rng.IntN(6) {
				script = append(script, rng.IntN(runSteps))
			}
			id := fmt.Sprintf("run-%d", i)
			mu.Lock()
			scripts[id] = script
			mu.Unlock()
			wg.Go(func() {
				spec := r.spec(id)
				spec.Background = i%2 == 0
				h := r.start(spec, &listener{})
				cancelled := i%3 == 0
				if cancelled {
					cancelled = r.svc.Cancel(id, execution.CauseAPI) == Cancelling
				}
				o := r.result(h)
				if whole := runWhole(script); o.OK() != whole && !cancelled || cancelled && code(o) != execution.CodeCancelled || h.gap {
					t.Errorf("script %v: %v, cancelled %v", script, o.Failure, cancelled)
				}
			})
		}
		wg.Wait()
	}
	r.idle()
	for i := range rounds {
		r.once(fmt.Sprintf("run-%d", i))
	}
}

const runSteps = 9

// runStep sends the event of a random script: accepted, start, delta, reasoning, usage, complete, error, cancelled,
// rejected.
func (w *work) runStep(n int) {
	switch n {
	case 0:
		w.accept()
	case 1:
		w.start("m")
	case 2:
		w.delta("x")
	case 3:
		w.reasoning("x")
	case 4:
		w.tokens(1, 1)
	case 5:
		w.complete("stop")
	case 6:
		w.fail(execution.CodeUpstreamError, false)
	case 7:
		w.cancelled(pb.CancelCause_CANCEL_CAUSE_NODE_DRAINING)
	case 8:
		w.reject(execution.CodeBadRequest, true)
		w.ended = false
	}
}

// runWhole is the grammar, written down a second time.
func runWhole(script []int) bool {
	text := ""
	for _, s := range script {
		text += string("ASDDDCEXR"[s])
	}
	rest, ok := strings.CutPrefix(text, "A")
	return ok && strings.HasPrefix(strings.TrimLeft(strings.TrimPrefix(rest, "S"), "D"), "C")
}

// X4 and CA-07: the same session twice at once. One is cancelled, the other is untouched.
func TestSameSessionTwice(t *testing.T) {
	both(t, func(t *testing.T, background bool) {
		proceed := make(chan struct{})
		r := newRig(t, setup{work: func(w *work) {
			w.accept()
			w.delta(w.open.GetRun().GetSessionId())
			if w.runID == "kept" {
				<-proceed
				w.complete("stop")
			}
		}})
		runs := map[string]*hearing{}
		for _, id := range []string{"kept", "ended"} {
			spec := r.spec(id)
			spec.SessionID, spec.Background = "the-session", background
			runs[id] = r.start(spec, &listener{})
			heardSomething(r, runs[id])
		}
		r.svc.Cancel("ended", execution.CauseAPI)
		if o := r.result(runs["ended"]); code(o) != execution.CodeCancelled || o.SessionID != "the-session" {
			t.Errorf("%+v", o)
		}
		close(proceed)
		if o := r.result(runs["kept"]); !o.OK() || runs["kept"].text() != "the-session" || o.SessionID != "the-session" {
			t.Errorf("%+v", o)
		}
		r.idle()
		n := r.node("a", 1)
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, c := range n.cancels {
			if c.GetRunId() != "ended" {
				t.Errorf("the node was told to cancel %s", c.GetRunId())
			}
		}
	})
}
