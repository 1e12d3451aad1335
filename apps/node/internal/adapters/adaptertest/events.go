package adaptertest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"iop/packages/go/execution"
)

// EventRecorder takes the events of one run, keeps them, and checks their order and form.
type EventRecorder struct {
	// OnEvent, when set before Execute is called, runs inside Emit with the number of events so far; an error is
	// handed on.
	OnEvent func(n int) error

	mu     sync.Mutex
	order  *execution.Sequence
	events []execution.Event
	calls  []execution.ToolCall
	faults []string
	failed bool // Emit returned an error
	ended  bool
	grown  chan struct{} // closed and replaced with each event
}

// NewEventRecorder returns an empty recorder.
func NewEventRecorder() *EventRecorder {
	r := &EventRecorder{order: execution.NewSequence(execution.KindRun), grown: make(chan struct{})}
	r.step(execution.StepAccepted)
	return r
}

// Emit is an [execution.Emit].
func (r *EventRecorder) Emit(e execution.Event) error {
	r.mu.Lock()
	r.take(e)
	n := len(r.events)
	close(r.grown)
	r.grown = make(chan struct{})
	r.mu.Unlock()
	if r.OnEvent == nil {
		return nil
	}
	err := r.OnEvent(n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || err != nil
	return err
}

func (r *EventRecorder) take(e execution.Event) {
	switch {
	case r.ended:
		r.fault("an event of kind %d after the return", e.Kind)
	case r.failed:
		r.fault("an event of kind %d after the emitter had enough", e.Kind)
	}
	switch e.Kind {
	case execution.EventStart:
		r.step(execution.StepStart)
	case execution.EventDelta, execution.EventReasoning:
		r.step(execution.StepDelta)
		if e.Text == "" || !utf8.ValidString(e.Text) {
			r.fault("text that is empty or not UTF-8: %q", e.Text[:min(len(e.Text), 99)])
		}
	case execution.EventToolCall:
		r.step(execution.StepDelta)
		r.takeCall(e.ToolCall)
	case execution.EventUsage:
		r.step(execution.StepUsage)
		if !e.Usage.Known() || r.usage().Known() {
			r.fault("usage that says nothing, or a second one") // ST-28
		}
	default:
		r.fault("an event of kind %d", e.Kind)
	}
	r.events = append(r.events, e)
}

// takeCall holds what pieces of a tool call promise. (ST-29, ST-30)
func (r *EventRecorder) takeCall(d execution.ToolCallDelta) {
	switch {
	case d.Index == len(r.calls):
		if d.ID == "" || d.Name == "" {
			r.fault("a tool call begins with id %q and name %q", d.ID, d.Name)
		}
		for _, c := range r.calls {
			if c.ID == d.ID {
				r.fault("two tool calls have the id %q", d.ID)
			}
		}
		r.calls = append(r.calls, execution.ToolCall{ID: d.ID, Name: d.Name, Arguments: d.Arguments})
	case d.Index < 0 || d.Index > len(r.calls) || d.ID != "" || d.Name != "" || d.Arguments == "":
		r.fault("a piece %+v with %d tool calls begun", d, len(r.calls))
	default:
		r.calls[d.Index].Arguments += d.Arguments
	}
}

func (r *EventRecorder) step(s execution.Step) {
	if err := r.order.Accept(s, r.order.Next()); err != nil {
		r.fault("%v", err)
	}
}

func (r *EventRecorder) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// usage returns what was emitted of it.
func (r *EventRecorder) usage() (u execution.Usage) {
	for _, e := range r.events {
		if e.Kind == execution.EventUsage {
			u = e.Usage
		}
	}
	return u
}

// Events returns the events so far.
func (r *EventRecorder) Events() []execution.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]execution.Event(nil), r.events...)
}

// Wait returns when there are at least n events, or fails the test.
func (r *EventRecorder) Wait(t testing.TB, n int) {
	t.Helper()
	limit := time.After(waitLimit)
	for {
		r.mu.Lock()
		have, grown := len(r.events), r.grown
		r.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-grown:
		case <-limit:
			t.Fatalf("%d events after %v, want %d", have, waitLimit, n)
		}
	}
}

// Outcome is what a run came to, in a form that can be compared.
type Outcome struct {
	Model     string
	Text      string
	Reasoning string
	Calls     []execution.ToolCall
	Finish    string
	Usage     string // input/output/cached/reasoning, - for what is unknown, "" when all is
	Code      execution.Code
	Status    int // the provider's, of a failure
}

// Execute runs req to its end and returns what it came to. It holds the order of events and the form of the outcome.
func Execute(t testing.TB, ctx context.Context, p execution.Executor, req *execution.Request) (Outcome, *EventRecorder, error) {
	t.Helper()
	r := NewEventRecorder()
	out, err := ExecuteWith(t, ctx, p, req, r)
	return out, r, err
}

// ExecuteWith is [Execute] with a recorder of the caller's.
func ExecuteWith(t testing.TB, ctx context.Context, p execution.Executor, req *execution.Request, r *EventRecorder) (Outcome, error) {
	t.Helper()
	done, err := p.Execute(ctx, req, r.Emit)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	out := Outcome{Calls: r.calls, Finish: done.FinishReason, Usage: usageText(r.usage())}
	for _, e := range r.events {
		switch e.Kind {
		case execution.EventStart:
			out.Model = e.Model
		case execution.EventDelta:
			out.Text += e.Text
		case execution.EventReasoning:
			out.Reasoning += e.Text
		}
	}
	if err != nil {
		r.step(execution.StepError)
		if done.FinishReason != "" || done.Usage.Known() {
			r.fault("a completion and an error: %+v", done)
		}
	} else {
		r.step(execution.StepComplete)
		if usageText(done.Usage) != out.Usage {
			r.fault("usage %s was emitted, %s returned", out.Usage, usageText(done.Usage))
		}
	}
	for _, fault := range r.faults {
		t.Errorf("events: %s", fault)
	}
	if r.failed {
		return out, err // the emitter's own
	}
	out.Code = Code(t, err)
	if f, ok := errors.AsType[*execution.Failure](err); ok {
		out.Status = f.UpstreamStatus
		if len(f.Text) > execution.MaxFailureText || f.Text == "" || f.Origin == 0 {
			t.Errorf("a failure without a text or an origin, or with too much of it: %+v", f)
		}
	}
	return out, err
}

// usageText is the form of usage in an [Outcome].
func usageText(u execution.Usage) string {
	if !u.Known() {
		return ""
	}
	var words []string
	for _, n := range []*int64{u.Input, u.Output, u.Cached, u.Reasoning} {
		word := "-"
		if n != nil {
			word = strconv.FormatInt(*n, 10)
		}
		words = append(words, word)
	}
	return strings.Join(words, "/")
}

// Ask returns a request with one message of a user.
func Ask(target, text string) *execution.Request {
	return &execution.Request{RunID: "run-1", Target: target,
		Messages: []execution.Message{{Role: execution.RoleUser, Parts: []execution.Part{{Text: text}}}}}
}
