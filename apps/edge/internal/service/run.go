package service

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/execution"
	"iop/packages/go/tracing"
)

// Run is one run from its submission to its outcome.
//
// The outcome is decided once, by whoever comes first: the goroutine that drives the run, its timers, the caller's
// context, or Cancel. The compare-and-swap is the end of the run's context: its first cause is the outcome (errDone is
// success), every later one is ignored, and waking the driver is the same step.
type Run struct {
	// Set once.
	service *Service
	job     job // nil when the run is of an earlier edge process
	id      string
	started time.Time
	ctx     context.Context
	end     context.CancelCauseFunc
	watch   watch
	where   whereabouts
	reached progress
	line    timeline
	trace   tracing.Context // where in its caller's trace it stands; the zero value = in none
	tail    *list.Element   // in the service's tails, which guard it; nil = isn't
	quit    func()          // gives back what its principal's limits counted; set when it enters

	// Owned by the driver.
	out      Outcome // RunID to Background are set once
	version  uint64  // of the state that the run was admitted by
	request  admission.Request
	budget   budget
	deadline time.Time // zero = none
	attempt  uint32
	lost     bool // the current attempt's link is gone, and the run goes on
	spans    spans
}

// budget counts what gave an attempt back without deciding the run; each has a limit, so that no run goes round for
// ever.
type budget struct {
	unsent   int                // the place was gone before anything was written
	busy     int                // the node said adapter_busy
	stale    int                // the node said stale_projection
	draining int                // the node said node_draining
	lease    int                // the node refused a lease that a fresh one may do for
	revision int                // the node refused a lease that names another revision of its route or profile than it has
	unfit    *execution.Failure // why the last place that isn't tried again couldn't take it
}

// The limits of budget.
const (
	maxUnsent   = 3 // the fourth is final
	maxBusy     = 3 // the third is final
	maxStale    = 1 // the second is final
	maxDraining = 3 // the third is final
	maxLease    = 1 // the second is final
	maxRevision = 8 // the ninth is final
)

// errDone is the outcome of a run that succeeded.
var errDone = errors.New("run is complete")

// errDeparted is the outcome of a background run that its edge leaves behind: it goes on at its node, which tells the
// next edge how it ended.
var errDeparted = errors.New("edge is gone")

// newRun returns a run whose context is live; finish ends it. out says who it is; limit is 0 for none.
func (s *Service) newRun(ctx context.Context, j job, limit time.Duration, out Outcome) *Run {
	r := &Run{service: s, job: j, id: out.RunID, started: time.Now(), out: out}
	if limit > 0 {
		r.deadline = r.started.Add(limit)
	}
	r.ctx, r.end = context.WithCancelCause(ctx)
	r.watch.expired = r.end
	r.where.init(out.Kind)
	if j == nil {
		return r
	}
	r.request = admission.Request{RunID: out.RunID, Principal: out.Principal, OnWait: r.waits}
	j.ask(s.cfg.State(), &r.request)
	r.version = r.request.SetRevision
	return r
}

// decide settles the run's outcome, unless somebody was faster.
func (r *Run) decide(f *execution.Failure) { r.end(f) }

// complete settles the run's outcome as success. False: somebody was faster, and the run is over for another reason.
func (r *Run) complete() bool {
	r.end(errDone)
	return r.cause() == errDone
}

// cancel settles the run's outcome as cancelled. False: it was decided before.
func (r *Run) cancel(cause execution.CancelCause) bool {
	if r.ctx.Err() != nil {
		return false
	}
	r.end(cause)
	return r.cause() == error(cause)
}

// departed reports whether the edge leaves the run behind.
func (r *Run) departed() bool { return r.cause() == errDeparted }

func (r *Run) decided() bool { return r.ctx.Err() != nil }

func (r *Run) cause() error { return context.Cause(r.ctx) }

// drive brings the run to its outcome: place after place until one of them decides.
func (r *Run) drive() {
	defer r.recovered()
	stop := r.armDeadline()
	defer stop()
	for !r.decided() {
		r.attempt++
		r.request.Attempt = r.attempt
		r.request.Weight = r.service.weight(r.out.Principal)
		grant, err := r.acquire()
		if err == admission.ErrRecalled {
			r.recalled()
			continue
		}
		if err != nil {
			r.refused(err)
			return
		}
		r.try(grant)
		if r.lost {
			r.detached()
		}
	}
}

// recalled looks at what the run asks for by the configuration in force: it may be asked for elsewhere now, or not at all.
func (r *Run) recalled() {
	state := r.service.cfg.State()
	if _, f := r.job.readmit(state, &r.request); f != nil {
		r.decide(f)
		return
	}
	r.version = state.Version
}

// armDeadline bounds the run by its deadline, if it has one.
func (r *Run) armDeadline() (stop func()) {
	if r.deadline.IsZero() {
		return func() {}
	}
	timer := time.AfterFunc(time.Until(r.deadline), func() { r.end(execution.CauseDeadline) })
	return func() { timer.Stop() }
}

// refused decides a run that got no place. When the candidates ran out because none of them was fit, as when providers
// couldn't be reached, that is what the caller is told.
func (r *Run) refused(err error) {
	f := execution.AsFailure(err, execution.OriginEdge)
	if f.Code == execution.CodeNoNode && r.budget.unfit != nil {
		f = r.budget.unfit
	}
	r.decide(f) // ctx's cause was faster when that is why Acquire returned
}

// recovered is deferred by what drives a run: a panic is that run's failure and nobody else's.
func (r *Run) recovered() {
	if p := recover(); p != nil {
		r.panicked(p)
	}
}

func (r *Run) panicked(p any) {
	r.service.cfg.Log.Error().Str("run_id", r.id).Str("panic", fmt.Sprint(p)).
		Bytes("stack", debug.Stack()).Msg("run panicked")
	r.decide(execution.Failf(execution.CodeInternal, execution.OriginEdge, "the edge failed inside this run; its log has more"))
}

// finish fills in what the outcome lacks once the run is decided. A failure that is there already is that of the last
// write of a response that was complete.
func (r *Run) finish() *Outcome {
	if r.out.Failure == nil {
		r.out.Failure, _ = verdict(r.cause())
	}
	r.out.Duration = time.Since(r.started)
	return &r.out
}
