package service

import (
	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// job is what a run is for: who may take it, and how each of them carries it. All else in a run's life is the same for
// every kind. The run's driver calls its methods.
type job interface {
	// ask fills in what the scheduler is asked for, SetRevision included: the version of the configuration by which
	// the job was admitted, 0 when that isn't state's.
	ask(state *config.State, r *admission.Request)
	// readmit checks what the run was admitted by against a later configuration. False means that it differs, that r
	// was brought up to date, and that the run has to be admitted anew; a failure that it can't be any more.
	readmit(state *config.State, r *admission.Request) (bool, *execution.Failure)
	// carrier returns how the run is carried at the place of a grant.
	carrier(g *admission.Grant) carrier
}

// carrier takes a run over one attempt: as a provider tunnel or as a normalized run. A job that may go either way has
// two, and an attempt of one kind may follow an attempt of the other. The run's driver calls its methods, but for
// body's, which a goroutine of the attempt may read.
type carrier interface {
	kind() execution.Kind
	// errand returns what a key is needed for; nil = the provider is asked without.
	errand(state *config.State) *errand
	// open returns the first message of the work stream.
	open(r *Run, g *admission.Grant) *pb.WorkOpen
	// body is what follows; nil = nothing.
	body() Body
	// placed passes on where the run went.
	placed(at Placement)
	// take handles a message that is neither accepted, rejected nor an error.
	take(a *attempt, m *message)
	// abort lets out what the caller may still have of an answer that failed.
	abort(a *attempt)
}

// sizeOf is the size of a body, which may be nil.
func sizeOf(b Body) int64 {
	if b == nil {
		return 0
	}
	return b.Size()
}
