package service

import (
	"cmp"
	"slices"
	"time"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// RunState is how far a run has come.
type RunState string

// The states.
const (
	StateQueued    RunState = "queued"    // has no place
	StateRunning   RunState = "running"   // was sent to a node
	StateDetached  RunState = "detached"  // a background run whose node's connection was lost
	StateComplete  RunState = "complete"  // ended well
	StateError     RunState = "error"     // ended with a failure
	StateCancelled RunState = "cancelled" // was ended by somebody's wish
	StateRecovered RunState = "recovered" // a background run of an earlier edge process, live or ended: known by its node's word
)

// RunView is one run or tunnel as APIs show it; the JSON names are settled. It holds nothing that went in or came out.
type RunView struct {
	RunID      string     `json:"run_id"`
	Kind       string     `json:"kind"` // run or tunnel
	State      RunState   `json:"state"`
	Live       bool       `json:"live"` // has no outcome yet
	Background bool       `json:"background"`
	Principal  string     `json:"principal"`
	SessionID  string     `json:"session_id"`
	Model      string     `json:"model"` // that a tunnel asked for
	Route      string     `json:"route"` // that a tunnel took
	Adapter    string     `json:"adapter"`
	Target     string     `json:"target"`
	Node       string     `json:"node"` // of the last attempt
	Generation uint64     `json:"connection_generation"`
	Attempts   int        `json:"attempts"`
	CreatedAt  time.Time  `json:"created_at"`
	PlacedAt   *time.Time `json:"placed_at"` // when it last got a place
	EndedAt    *time.Time `json:"ended_at"`

	QueuedMS     int64      `json:"queue_ms"`      // 0 while it is live
	FirstByteMS  int64      `json:"first_byte_ms"` // 0 = there is none yet
	DurationMS   int64      `json:"duration_ms"`
	BytesIn      int64      `json:"bytes_in"`
	BytesOut     int64      `json:"bytes_out"` // so far
	Usage        *UsageView `json:"usage"`     // null = unknown
	FinishReason string     `json:"finish_reason"`
	Code         string     `json:"code"`   // "" while it is live, ok when it succeeded
	Origin       string     `json:"origin"` // of the failure
	Error        string     `json:"error"`  // its text
}

// UsageView counts tokens; null is unknown.
type UsageView struct {
	Input     *int64 `json:"input"`
	Output    *int64 `json:"output"`
	Cached    *int64 `json:"cached"`
	Reasoning *int64 `json:"reasoning"`
}

// Run returns the run with this id, if it is live or among those that ended last.
func (s *Service) Run(runID string) (RunView, bool) {
	r, ended := s.runs.lookup(runID)
	switch {
	case r != nil:
		return r.view(), true
	case ended != nil:
		return ended.RunView, true
	}
	return RunView{}, false
}

// Runs returns the live runs and those that ended last, the newest first.
func (s *Service) Runs() []RunView {
	live := s.runs.all()
	views := make([]RunView, len(live))
	for i, r := range live {
		views[i] = r.view()
	}
	slices.SortFunc(views, func(a, b RunView) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.RunID, b.RunID))
	})
	seen := make(map[string]bool, len(views))
	for i := range views {
		seen[views[i].RunID] = true
	}
	for _, v := range s.runs.recentViews() {
		if !seen[v.RunID] { // it may have ended in between
			views = append(views, v)
		}
	}
	return views
}

// view shows a run that is live, as far as others than its driver may know.
func (r *Run) view() RunView {
	w := &r.where
	w.mu.Lock()
	defer w.mu.Unlock()
	v := r.identity()
	v.Live, v.State, v.Kind = true, w.state, w.kind.String()
	v.Node, v.Adapter, v.Generation, v.Attempts = w.node, w.adapter, w.generation, int(w.attempt)
	if r.job == nil && w.state == StateRunning {
		v.State = StateRecovered
	}
	v.PlacedAt = timeOf(w.placedAt)
	v.FirstByteMS, v.BytesOut = waitedMS(time.Duration(r.reached.firstByte.Load())), r.reached.bytes.Load()
	return v
}

// identity is what never changes of a run.
func (r *Run) identity() RunView {
	o, route := &r.out, ""
	if o.Route != nil {
		route = o.Route.Model
	}
	return RunView{Route: route, RunID: o.RunID, Background: o.Background, Principal: o.Principal,
		SessionID: o.SessionID, Model: o.Model, Target: o.Target, CreatedAt: r.started}
}

// endedView shows a run whose outcome is there. The driver calls it.
func (r *Run) endedView() RunView {
	v, o := r.view(), &r.out
	v.Live, v.State = false, stateOf(o)
	if r.job == nil {
		v.State = StateRecovered
	}
	v.Attempts = o.Attempts
	v.EndedAt = timeOf(r.started.Add(o.Duration))
	v.QueuedMS, v.FirstByteMS, v.DurationMS = o.Queued.Milliseconds(), waitedMS(o.FirstByte), o.Duration.Milliseconds()
	v.BytesIn, v.BytesOut, v.FinishReason = o.BytesIn, o.BytesOut, o.FinishReason
	v.Usage = usageView(o.Usage)
	v.failed(o.Failure)
	return v
}

// failed fills in how a run ended; nil = well.
func (v *RunView) failed(f *execution.Failure) {
	v.Code = execution.CodeOK.String()
	if f != nil {
		v.Code, v.Origin, v.Error = f.Code.String(), f.Origin.String(), f.Text
	}
}

// stateOf is the state of a run that ended.
func stateOf(o *Outcome) RunState {
	switch o.Code() {
	case execution.CodeOK:
		return StateComplete
	case execution.CodeCancelled, execution.CodeClientGone, execution.CodeClientSlow:
		return StateCancelled
	}
	return StateError
}

// recoveredView shows a background run of an earlier edge process by its node's word on how it ended.
func recoveredView(nodeID string, generation uint64, e *pb.RunEnd) RunView {
	now := time.Now()
	started, ended := instant(e.GetStartedMs(), now), instant(e.GetEndedMs(), now)
	v := RunView{RunID: e.GetRunId(), Kind: execution.KindRun.String(), State: StateRecovered, Background: true,
		Node: nodeID, Generation: generation, Attempts: int(e.GetAttempt()), CreatedAt: started, EndedAt: &ended,
		DurationMS: max(0, ended.Sub(started).Milliseconds()),
		BytesIn:    max(0, e.GetBytesIn()), BytesOut: max(0, e.GetBytesOut()), Usage: usageView(usageOf(e.GetUsage()))}
	v.failed(failureOfEnd(e))
	return v
}

// instant is a node's wall time, or now when it doesn't tell one.
func instant(ms int64, now time.Time) time.Time {
	if ms <= 0 {
		return now
	}
	return time.UnixMilli(ms)
}

// waitedMS is the wait for a first byte, so that 0 always means that there was none.
func waitedMS(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return max(1, d.Milliseconds())
}

func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func usageView(u execution.Usage) *UsageView {
	if !u.Known() {
		return nil
	}
	return &UsageView{Input: u.Input, Output: u.Output, Cached: u.Cached, Reasoning: u.Reasoning}
}
