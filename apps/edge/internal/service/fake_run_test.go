package service

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

// The node's side of a normalized run.

func (w *work) event(e *pb.RunEvent) {
	w.seq++
	e.Seq = w.seq
	_ = w.Write(e)
}

func (w *work) start(model string) {
	w.event(&pb.RunEvent{Event: &pb.RunEvent_Start{Start: &pb.RunStart{Model: model}}})
}

func (w *work) delta(text string) { w.event(&pb.RunEvent{Event: &pb.RunEvent_Delta{Delta: text}}) }

func (w *work) reasoning(text string) {
	w.event(&pb.RunEvent{Event: &pb.RunEvent_ReasoningDelta{ReasoningDelta: text}})
}

func (w *work) tool(index uint32, id, name, arguments string) {
	w.event(&pb.RunEvent{Event: &pb.RunEvent_ToolCall{ToolCall: &pb.ToolCall{Index: index, Id: id, Name: name, ArgumentsFragment: arguments}}})
}

func (w *work) tokens(input, output int64) {
	w.event(&pb.RunEvent{Event: &pb.RunEvent_Usage{Usage: &pb.Usage{Input: &input, Output: &output}}})
}

func (w *work) complete(reason string) {
	w.finish(pb.RunStatus_RUN_STATUS_COMPLETE)
	w.event(&pb.RunEvent{Event: &pb.RunEvent_Complete{Complete: &pb.RunComplete{FinishReason: reason}}})
}

func (w *work) cancelled(cause pb.CancelCause) {
	w.finish(pb.RunStatus_RUN_STATUS_CANCELLED)
	w.event(&pb.RunEvent{Event: &pb.RunEvent_Cancelled{Cancelled: &pb.RunCancelled{Cause: cause}}})
}

func (w *work) linkDown() bool {
	select {
	case <-w.node.far.Down():
		return true
	default:
		return false
	}
}

// content reads the input and decodes it.
func (w *work) content() *pb.RunInput {
	m := &pb.RunInput{}
	raw := w.input()
	if err := proto.Unmarshal(raw, m); err != nil {
		w.node.rig.Errorf("run input: %v", err)
	}
	if int64(len(raw)) != w.open.GetRun().GetInputBytes() {
		w.node.rig.Errorf("%d bytes of input, the open says %d", len(raw), w.open.GetRun().GetInputBytes())
	}
	return m
}

// talks is a whole run.
func talks(w *work) {
	w.accept()
	w.delta("one")
	w.delta("two")
	w.complete("stop")
}

// running is what a node says in its Ready of a background run that goes on.
func running(id string, attempt uint32) *pb.RunningExecution {
	return &pb.RunningExecution{RunId: id, Attempt: attempt, Adapter: "p", Background: true}
}

// end is what a node says of a background run that ended.
func end(id string, attempt uint32, status pb.RunStatus, code execution.Code) *pb.RunEnd {
	return &pb.RunEnd{RunId: id, Attempt: attempt, Status: status, Code: pb.FailureCode(code), Background: true,
		Usage: &pb.Usage{Output: proto.Int64(42)}}
}

// awaitAck waits until the edge has confirmed the end of this run.
func (n *fakeNode) awaitAck(runID string) {
	n.rig.Helper()
	n.await("confirmation of "+runID, func() bool {
		for _, id := range n.acked {
			if id == runID {
				return true
			}
		}
		return false
	})
}

// listener is an EventSink that keeps what it is given.
type listener struct {
	mu     sync.Mutex
	node   string
	events []execution.Event
	gap    bool // the numbers weren't 1, 2, 3, …

	onPlaced func()
	onEvent  func(e execution.Event) error
}

func (l *listener) Placed(at Placement) {
	l.mu.Lock()
	l.node = at.Node
	l.mu.Unlock()
	if l.onPlaced != nil {
		l.onPlaced()
	}
}

func (l *listener) Event(seq uint64, e execution.Event) error {
	l.mu.Lock()
	l.events = append(l.events, e)
	l.gap = l.gap || seq != uint64(len(l.events))
	l.mu.Unlock()
	if l.onEvent != nil {
		return l.onEvent(e)
	}
	return nil
}

// text is the answer so far.
func (l *listener) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all strings.Builder
	for _, e := range l.events {
		if e.Kind == execution.EventDelta {
			all.WriteString(e.Text)
		}
	}
	return all.String()
}

// spec is a run that the rig's nodes can take.
func (r *rig) spec(runID string) *RunSpec {
	return &RunSpec{RunID: runID, Principal: "anonymous", Adapter: "p", Target: "m", Input: &execution.Request{
		Messages: []execution.Message{{Role: execution.RoleUser, Parts: []execution.Part{{Text: "hello"}}}},
	}}
}

func (r *rig) inBackground(runID string) *RunSpec {
	spec := r.spec(runID)
	spec.Background = true
	return spec
}

// hearing is a run that somebody follows.
type hearing struct {
	*listener
	leave context.CancelFunc
	done  chan *Outcome // nil = it was left before its end
}

func (r *rig) start(spec *RunSpec, l *listener) *hearing {
	ctx, cancel := context.WithCancel(context.Background())
	h := &hearing{listener: l, leave: cancel, done: make(chan *Outcome, 1)}
	go func() {
		defer cancel()
		h.done <- r.svc.SubmitRun(ctx, spec, l)
	}()
	return h
}

func (r *rig) result(h *hearing) *Outcome {
	r.Helper()
	select {
	case o := <-h.done:
		return o
	case <-time.After(patience.Limit):
		r.Fatalf("no outcome within %v", patience.Limit)
		return nil
	}
}

// ask submits a run and waits.
func (r *rig) ask(spec *RunSpec) (*Outcome, *listener) {
	r.Helper()
	l := &listener{}
	return r.result(r.start(spec, l)), l
}

// stateOf is what the table says of a run.
func (r *rig) stateOf(id string) RunState {
	v, _ := r.svc.Run(id)
	return v.State
}

func (r *rig) untilState(id string, s RunState) {
	r.Helper()
	r.poll(fmt.Sprintf("%s is %s", id, s), func() bool { return r.stateOf(id) == s })
}

// outcomeOf returns the one outcome that the observers were told of a run.
func (r *rig) outcomeOf(id string) Outcome {
	r.Helper()
	var all []Outcome
	r.poll("an outcome of "+id, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		all = all[:0]
		for _, o := range r.ended {
			if o.RunID == id {
				all = append(all, o)
			}
		}
		return len(all) > 0
	})
	if len(all) != 1 {
		r.Fatalf("%s has %d outcomes", id, len(all))
	}
	return all[0]
}

// both runs a test for foreground and for background runs.
func both(t *testing.T, f func(t *testing.T, background bool)) {
	for _, background := range []bool{false, true} {
		t.Run(fmt.Sprintf("background %v", background), func(t *testing.T) { f(t, background) })
	}
}
