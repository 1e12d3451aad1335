package service

import (
	"iop/apps/edge/internal/admission"
	"iop/packages/go/execution"
	"iop/packages/go/tracing"
	pb "iop/proto/iop"
)

// spans are what a run shows in its caller's trace. The run's driver owns them; where tracing is off they are nil.
type spans struct {
	wait *tracing.Span // for a place
	try  *tracing.Span // of the current attempt
}

// acquire asks for a place, and shows how long that took and what came of it.
func (r *Run) acquire() (*admission.Grant, error) {
	r.spans.wait = r.service.cfg.Tracer.Start(r.trace, tracing.Internal, tracing.NameQueue)
	r.spans.wait.Text(tracing.KeyRun, r.id)
	defer r.spans.wait.End()
	grant, err := r.service.cfg.Scheduler.Acquire(r.ctx, &r.request)
	if err != nil && err != admission.ErrRecalled && r.spans.wait.Recorded() {
		f := execution.AsFailure(err, execution.OriginEdge)
		if r.decided() { // that is why there is no place
			f, _ = verdict(r.cause())
		}
		r.spans.wait.Fail(f.Code.String())
	}
	return grant, err
}

// beginTry shows where the run went.
func (r *Run) beginTry() {
	try, o := r.service.cfg.Tracer.Start(r.trace, tracing.Client, tracing.NameAttempt), &r.out
	r.spans.try = try
	if !try.Recorded() {
		return
	}
	try.Text(tracing.KeyRun, r.id)
	try.Text(tracing.KeyKind, o.Kind.String())
	try.Text(tracing.KeyNode, o.NodeID)
	try.Text(tracing.KeyAdapter, o.Adapter)
	try.Number(tracing.KeyGeneration, int64(o.Generation))
	try.Number(tracing.KeyAttempt, int64(r.attempt))
}

// endTry shows what came of an attempt. One that gave its place back has said why.
func (a *attempt) endTry() {
	try := a.run.spans.try
	defer try.End()
	switch {
	case !try.Recorded():
	case a.lost:
		try.Text(tracing.KeyOutcome, "detached")
	case a.run.decided():
		f, _ := verdict(a.run.cause())
		if f == nil {
			try.Text(tracing.KeyOutcome, execution.CodeOK.String())
			return
		}
		try.Fail(f.Code.String())
	}
}

// traced says in an open where its attempt stands in the caller's trace. A node that doesn't know what that is passes
// on what the caller sent, as it were.
func (a *attempt) traced(open *pb.WorkOpen) {
	at := a.run.spans.try.Within(a.run.trace)
	if !at.Valid() {
		return
	}
	if a.node.Traces() {
		open.Traceparent, open.Tracestate = at.Traceparent(), at.Tracestate()
		return
	}
	t := open.GetTunnel()
	if t == nil {
		return
	}
	t.Headers = append(t.Headers, &pb.Header{Name: "Traceparent", Value: []byte(at.Traceparent())})
	if state := at.Tracestate(); state != "" {
		t.Headers = append(t.Headers, &pb.Header{Name: "Tracestate", Value: []byte(state)})
	}
}
