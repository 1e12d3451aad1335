package service

import (
	"time"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
)

// take handles one message from the node. What breaks the grammar ends the run: nothing after it could be trusted.
func (a *attempt) take(m *message) {
	if err := a.seq.Accept(m.step, m.seq); err != nil {
		a.run.decide(execution.AsFailure(err, execution.OriginNode))
		return
	}
	switch m.step {
	case execution.StepAccepted:
		a.run.watch.enter(phaseAccepted)
		a.run.step(a.run.here(events.KindRunAccepted))
		a.node.Dispatched()
	case execution.StepRejected:
		a.refused = true
		a.lastWord()
		a.node.Dispatched()
		a.rejected(m.rejected())
	case execution.StepError:
		a.lastWord()
		a.failed(failureOf(m.failure()))
	default:
		a.by.take(a, m)
	}
}

// lastWord records that the node has nothing more to say. There is no read left to wake.
func (a *attempt) lastWord() {
	a.at(faultpoint.EdgeTerminal)
	a.over = true
	a.unwake()
}

// streams records that the answer begins.
func (a *attempt) streams() (now time.Time) {
	r := a.run
	now = time.Now()
	if a.lease != nil {
		a.lease.Used()
	}
	reading := r.watch.enter(phaseStreaming)
	r.out.HeadSent = true
	r.out.FirstByte = now.Sub(r.started)
	r.reached.firstByte.Store(int64(r.out.FirstByte))
	r.step(r.here(events.KindRunFirstByte))
	if reading && !r.out.Background {
		r.service.tails.add(r)
	}
	if a.grant.Trial { // the first byte is enough: the others needn't wait for the last
		a.grant.Judge(admission.Healthy, "")
	}
	return now
}

// sank decides the run when the sink can't take any more.
func (a *attempt) sank(err error) bool {
	if err != nil {
		a.run.decide(execution.AsFailure(err, execution.OriginEdge))
	}
	return err == nil
}

// failed handles a terminal error. The one that may go to another candidate is a provider that couldn't be reached
// while nothing of the request had been sent to it: each is tried once.
func (a *attempt) failed(f *execution.Failure) {
	r := a.run
	if a.echoes(f.Text) {
		return
	}
	if !r.out.HeadSent && f.NothingSent && a.again(f) {
		r.retry(a.grant, f)
		return
	}
	if r.out.HeadSent || f.Code != execution.CodeUpstreamConnect || !f.NothingSent {
		r.decide(f)
		return
	}
	a.elsewhere(f)
}

// elsewhere sends the run to the candidates that are left, but not to one that may come some day. When there are none,
// it ends with f.
func (a *attempt) elsewhere(f *execution.Failure) {
	r := a.run
	r.budget.unfit, a.failure = f, f
	r.request.FailFast = true
	r.exclude(a.grant.Place)
	r.retry(a.grant, f)
}
