package service

import (
	"sync"
	"time"

	"iop/apps/edge/internal/events"
	"iop/packages/go/execution"
	"iop/packages/go/tracing"
	pb "iop/proto/iop"
)

// Publisher takes events; [events.Bus] is one. Publish never blocks.
type Publisher interface {
	Publish(e events.Event)
}

// step is one transition of a run's life. It names places and codes: nothing that went in or came out.
type step struct {
	kind       events.Kind
	code       execution.Code // of a retry and of the end
	attempt    uint32
	position   int           // in the queue
	after      time.Duration // since the submission; set when it is recorded
	generation uint64
	node       string
	adapter    string
}

const (
	// usualSteps is how many a run has that waited and was served by the first place.
	usualSteps = 6
	// mostSteps bounds what is remembered of one run: the first keptFirst and the last.
	mostSteps = 24
	keptFirst = 8
)

// timeline is what is remembered of a run's steps. Its driver writes, anybody reads.
type timeline struct {
	mu      sync.Mutex
	steps   []step
	leftOut int // between the first keptFirst and the rest
}

func (t *timeline) add(s step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.steps == nil {
		t.steps = make([]step, 0, usualSteps)
	}
	if len(t.steps) == mostSteps {
		copy(t.steps[keptFirst:], t.steps[keptFirst+1:])
		t.steps = t.steps[:mostSteps-1]
		t.leftOut++
	}
	t.steps = append(t.steps, s)
}

// begun reports whether the run had a first step.
func (t *timeline) begun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.steps) > 0
}

// load returns the steps, not to be changed: those of a run that has ended are its own list, of one that is live a copy.
func (t *timeline) load(live bool) ([]step, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if live {
		return append([]step(nil), t.steps...), t.leftOut
	}
	return t.steps, t.leftOut
}

// step records a step of the run and tells the bus. The run's driver calls it, without a lock.
func (r *Run) step(s step) {
	now := time.Now()
	s.after = now.Sub(r.started)
	r.line.add(s)
	bus := r.service.cfg.Events
	if bus == nil {
		return
	}
	o := &r.out
	e := events.Event{At: now, Kind: s.kind, RunID: r.id, Attempt: s.attempt, NodeID: s.node, Adapter: s.adapter,
		Generation: s.generation, Principal: o.Principal, Model: o.Model, Position: s.position, After: s.after}
	if e.Model == "" {
		e.Model = o.Target // of a run
	}
	if s.kind == events.KindRunRetried || s.kind == events.KindRunEnded {
		e.Code = s.code.String() // and not the text: a provider may have written it
	}
	bus.Publish(e)
}

// here is a step at the place of the current attempt.
func (r *Run) here(kind events.Kind) step {
	return step{kind: kind, attempt: r.attempt, node: r.out.NodeID, adapter: r.out.Adapter, generation: r.out.Generation}
}

// waits records that the run stands in the queue.
func (r *Run) waits(position int) {
	r.spans.wait.Number(tracing.KeyPosition, int64(position))
	r.step(step{kind: events.KindRunQueued, attempt: r.attempt, position: position})
}

// over records the end, if the run was ever live: one that was refused at the door is nobody's news.
func (r *Run) over(o *Outcome) {
	if !r.line.begun() {
		return
	}
	end := r.here(events.KindRunEnded)
	end.code = o.Code()
	r.step(end)
}

// publishRecovered tells the bus how a run of an earlier edge process has ended. It was never live here.
func (s *Service) publishRecovered(nodeID string, generation uint64, e *pb.RunEnd) {
	if s.cfg.Events == nil {
		return
	}
	code := execution.CodeOK
	if f := failureOfEnd(e); f != nil {
		code = f.Code
	}
	s.cfg.Events.Publish(events.Event{Kind: events.KindRunRecovered, RunID: e.GetRunId(), Attempt: e.GetAttempt(),
		NodeID: nodeID, Generation: generation, Code: code.String()})
}

// StepView is one transition of a run's life as the admin API shows it; the JSON names are settled.
type StepView struct {
	Event      string    `json:"event"` // the kind of the event on the bus
	At         time.Time `json:"at"`
	AfterMS    int64     `json:"after_ms"` // since the submission
	Attempt    uint32    `json:"attempt"`  // 0 = before the first
	Node       string    `json:"node"`     // "" = the step isn't at a node
	Adapter    string    `json:"adapter"`
	Generation uint64    `json:"connection_generation"`
	Position   int       `json:"position"` // in the queue, when it begins to wait
	Code       string    `json:"code"`     // why it is tried again, or how it ended
	Skipped    int       `json:"skipped"`  // steps directly before this one that aren't remembered
}

// Explanation is a run with all that happened to it.
type Explanation struct {
	RunView
	Timeline []StepView `json:"timeline"`
}

// Explain returns the run with this id and its steps, if it is live or among those that ended last.
func (s *Service) Explain(runID string) (Explanation, bool) {
	r, ended := s.runs.lookup(runID)
	var (
		x       Explanation
		steps   []step
		leftOut int
	)
	switch {
	case r != nil:
		x.RunView = r.view()
		steps, leftOut = r.line.load(true)
	case ended != nil:
		x.RunView, steps, leftOut = ended.RunView, ended.steps, ended.leftOut
	default:
		return x, false
	}
	x.Timeline = make([]StepView, len(steps))
	for i := range steps {
		x.Timeline[i] = steps[i].view(x.CreatedAt)
	}
	if leftOut > 0 {
		x.Timeline[keptFirst].Skipped = leftOut
	}
	return x, true
}

func (s *step) view(started time.Time) StepView {
	v := StepView{Event: s.kind.String(), At: started.Add(s.after), AfterMS: s.after.Milliseconds(), Attempt: s.attempt,
		Node: s.node, Adapter: s.adapter, Generation: s.generation, Position: s.position}
	if s.kind == events.KindRunRetried || s.kind == events.KindRunEnded {
		v.Code = s.code.String()
	}
	return v
}
