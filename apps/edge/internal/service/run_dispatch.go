package service

import (
	"bytes"
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/execution"
	"iop/packages/go/tracing"
	pb "iop/proto/iop"
)

// RunSpec is one normalized run: which provider is asked, and for what.
type RunSpec struct {
	RunID     string // "" = SubmitRun draws one and fills it in; one that is known already is duplicate_run
	Principal string // id of the principal, as the scheduler and the node see it
	SessionID string // opaque correlation: copied through, never state

	Adapter string // name of the adapter
	Target  string // what it is asked to run
	Node    string // "" = any that has the adapter and offers the target

	// Input is what the provider is told: Messages, Tools, ToolChoice and Options. Its other fields are filled in here
	// and at the node.
	Input    *execution.Request
	Metadata map[string]string

	// Trace is where in its caller's trace the run stands; the zero value = in none.
	Trace tracing.Context

	// Background runs go on without their caller and their node's connection.
	Background bool
	// Deadline bounds the whole run, waiting included; 0 = none.
	Deadline time.Duration
}

// EventSink takes the events of a run. One goroutine calls its methods, one at a time.
type EventSink interface {
	// Placed tells where the run went and how long it waited, before anything else. It is called again when the run
	// went to another place; the last call counts.
	Placed(at Placement)
	// Event passes an event on. They are numbered from 1 without gaps; none of them is the terminal, which is the
	// outcome. An error is a *execution.Failure with client_gone or client_slow, and means that nobody wants the rest.
	// A sink bounds its own writes (write_idle).
	Event(seq uint64, e execution.Event) error
}

// SubmitRun carries spec to a node and the events to sink, and returns the run's one outcome. When it returns an outcome
// with an Attempts of 0, nothing was sent to anybody.
//
// A foreground run is driven in the caller's goroutine. When ctx ends it is cancelled and the call returns within a
// second, whatever the node does; the cause of ctx may be an execution.CancelCause, any other means that the caller is
// gone.
//
// A background run is driven by a goroutine of the service, whatever becomes of ctx; SubmitRun follows it. It returns
// nil when it stops following before the run has ended: because ctx ended (one that has ended already is the way to
// start a run and leave), because sink returned an error, or because sink fell too far behind. A nil sink takes nothing.
func (s *Service) SubmitRun(ctx context.Context, spec *RunSpec, sink EventSink) *Outcome {
	if spec.RunID == "" {
		spec.RunID = NewRunID()
	}
	j := &runJob{runWay: runWay{spec: *spec, sink: sink}, only: s.single()}
	if sink == nil {
		j.sink = nowhere{}
	}
	if spec.Background {
		return s.submitBackground(ctx, j)
	}
	r, f := s.newNormalized(ctx, j)
	if f != nil {
		r.decide(f)
		return s.ended(r)
	}
	defer s.leave(r)
	r.drive()
	return s.ended(r)
}

// NewRunID draws the id of a run.
func NewRunID() string { return "run-" + rand.Text() }

// newNormalized returns a run that is in the table, or one that isn't and why.
func (s *Service) newNormalized(ctx context.Context, j *runJob) (*Run, *execution.Failure) {
	spec := &j.spec
	f := spec.check()
	if f == nil {
		_, f = j.admissible(s.cfg.State())
	}
	if f == nil {
		j.input, f = encodeInput(spec.Input, s.cfg.MaxInput)
	}
	spec.Input = nil // encoded, or not wanted; a background run outlives its caller's copy
	id := spec.RunID
	if !isID(id) {
		id = "" // and so refused
	}
	r := s.newRun(ctx, j, spec.Deadline, Outcome{RunID: id, Kind: execution.KindRun, SessionID: spec.SessionID,
		Principal: spec.Principal, Target: spec.Target, Background: spec.Background, BytesIn: sizeOf(j.body())})
	r.trace = spec.Trace
	if f == nil {
		r.where.adapter = spec.Adapter
		f = s.enter(r)
	}
	return r, f
}

// runJob is a normalized run as a run carries it.
type runJob struct {
	runWay
	only string // the one node that was connected at submission, "" when there were others
}

// carrier implements job.
func (j *runJob) carrier(*admission.Grant) carrier { return &j.runWay }

// runWay carries a normalized run.
type runWay struct {
	spec  RunSpec
	sink  EventSink
	input *bytes.Reader
	seq   uint64 // of the last event that the sink was given
}

// kind implements carrier.
func (w *runWay) kind() execution.Kind { return execution.KindRun }

// body implements carrier.
func (w *runWay) body() Body {
	if w.input == nil {
		return nil // not a nil *bytes.Reader in an interface
	}
	return w.input
}

// placed implements carrier.
func (w *runWay) placed(at Placement) { w.sink.Placed(at) }

// abort implements carrier: events are never held back.
func (w *runWay) abort(*attempt) {}

// open implements carrier.
func (w *runWay) open(r *Run, g *admission.Grant) *pb.WorkOpen {
	s := &w.spec
	req := &pb.RunRequest{
		RunId:           s.RunID,
		Adapter:         g.Adapter,
		Target:          s.Target,
		SessionId:       s.SessionID,
		Background:      s.Background,
		AdapterRevision: g.AdapterRevision,
		DeadlineMs:      r.remaining(),
		InputBytes:      r.out.BytesIn,
		PrincipalRef:    s.Principal,
	}
	for _, key := range slices.Sorted(maps.Keys(s.Metadata)) {
		req.Metadata = append(req.Metadata, &pb.KeyValue{Key: key, Value: s.Metadata[key]})
	}
	return &pb.WorkOpen{ConnectionGeneration: g.Generation, Attempt: r.attempt, Work: &pb.WorkOpen_Run{Run: req}}
}

// take implements carrier.
func (w *runWay) take(a *attempt, m *message) {
	r := a.run
	switch e := m.event.GetEvent().(type) {
	case *pb.RunEvent_Start:
		if a.echoes(e.Start.GetModel()) {
			return
		}
		w.pass(a, execution.Event{Kind: execution.EventStart, Model: shorten(e.Start.GetModel(), maxWord)})
	case *pb.RunEvent_Delta:
		w.pass(a, execution.Event{Kind: execution.EventDelta, Text: e.Delta})
	case *pb.RunEvent_ReasoningDelta:
		w.pass(a, execution.Event{Kind: execution.EventReasoning, Text: e.ReasoningDelta})
	case *pb.RunEvent_ToolCall:
		c := e.ToolCall
		w.pass(a, execution.Event{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{
			Index: int(c.GetIndex()), ID: c.GetId(), Name: c.GetName(), Arguments: c.GetArgumentsFragment()}})
	case *pb.RunEvent_Usage:
		r.out.Usage = usageOf(e.Usage)
		w.pass(a, execution.Event{Kind: execution.EventUsage, Usage: r.out.Usage})
	case *pb.RunEvent_Complete:
		a.lastWord()
		if a.echoes(e.Complete.GetFinishReason()) {
			return
		}
		r.succeed(e.Complete.GetFinishReason(), e.Complete.GetUsage())
	case *pb.RunEvent_Cancelled:
		a.lastWord()
		r.decide(cancelledByNode(e.Cancelled.GetCause()))
	}
}

// nowhere is the sink of a run whose events nobody wants.
type nowhere struct{}

// Placed implements EventSink.
func (nowhere) Placed(Placement) {}

// Event implements EventSink.
func (nowhere) Event(uint64, execution.Event) error { return nil }

// maxWord cuts what a provider calls things, in bytes.
const maxWord = 256

// pass gives the sink an event.
func (w *runWay) pass(a *attempt, e execution.Event) {
	r := a.run
	if a.echoes(e.Text) || a.echoes(e.ToolCall.Arguments) || a.echoes(e.ToolCall.ID) || a.echoes(e.ToolCall.Name) {
		return
	}
	if !r.out.HeadSent {
		a.streams()
	}
	w.seq++
	if a.sank(w.sink.Event(w.seq, e)) {
		r.out.BytesOut += int64(len(e.Text) + len(e.ToolCall.Arguments))
		r.reached.bytes.Store(r.out.BytesOut)
	}
}

// succeed ends a run well, unless somebody was faster. Usage that was told before stands when the end tells none.
func (r *Run) succeed(reason string, usage *pb.Usage) {
	r.out.FinishReason = shorten(reason, maxWord)
	if u := usageOf(usage); u.Known() {
		r.out.Usage = u
	}
	if !r.complete() {
		r.out.FinishReason = ""
	}
}
