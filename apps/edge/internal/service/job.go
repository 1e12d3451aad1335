package service

import (
	"time"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// job is what a run carries: a provider tunnel or a normalized run. All else in a run's life is the same for both. The
// run's driver calls its methods, but for body's, which a goroutine of the attempt may read.
type job interface {
	kind() execution.Kind
	// ask fills in what the scheduler is asked for.
	ask(state *config.State, r *admission.Request)
	// readmit checks what the run was admitted by against a later configuration. False means that it differs, that r
	// was brought up to date, and that the run has to be admitted anew; a failure that it can't be any more.
	readmit(state *config.State, r *admission.Request) (bool, *execution.Failure)
	// open returns the first message of the work stream.
	open(r *Run, g *admission.Grant) *pb.WorkOpen
	// body is what follows; nil = nothing.
	body() Body
	// placed passes on where the run went.
	placed(nodeID string, queued time.Duration)
	// take handles a message that is neither accepted, rejected nor an error.
	take(a *attempt, m *message)
	// abort lets out what the caller may still have of an answer that failed.
	abort(a *attempt)
}
