package service

import (
	"context"
	"errors"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
	"iop/packages/go/transport"
)

// attempt is one place's try at a run. However it ends, its place is settled exactly once, its body writer has ended,
// and its stream is on its way to the reaper when close returns. One goroutine owns it, the run's driver.
type attempt struct {
	run   *Run
	grant *admission.Grant
	by    carrier
	node  Node

	errand *errand // nil = no key is needed
	lease  Lease   // nil = none was issued, as are the next two
	scan   Scanner

	stream *transport.Stream
	unwake func() bool // stops the cancel of the stream with the run
	writer *writer     // nil = the body was written inline
	seq    *execution.Sequence
	msg    message // the one that is being handled
	got    [execution.StepError + 1]uint32

	opened  bool               // the node may have the whole open, and start
	written bool               // and the whole body; set by who writes it, see whole
	over    bool               // the node has said its last word: rejected or a terminal
	lost    bool               // the link is gone, and the run goes on without it
	refused bool               // the node refused the open, and nothing was started
	settled bool               // the place was given back
	failure *execution.Failure // why it goes elsewhere, if it does
}

// try spends a grant. Afterwards the run is decided, or goes on to ask for another place.
func (r *Run) try(g *admission.Grant) {
	by := r.job.carrier(g)
	a := &attempt{run: r, grant: g, by: by, seq: execution.NewSequence(by.kind())}
	r.placed(g, by)
	defer a.close()
	defer r.recovered() // before close: what a panic leaves behind is cleared away like any failure's
	a.at(faultpoint.EdgeGranted)
	if a.open() && a.send() {
		a.at(faultpoint.EdgeWritten)
		a.receive()
		if r.decided() {
			by.abort(a)
		}
	}
}

// placed records where the run went.
func (r *Run) placed(g *admission.Grant, by carrier) {
	r.out.Kind, r.out.BytesIn = by.kind(), sizeOf(by.body())
	r.out.NodeID, r.out.Adapter, r.out.Generation = g.Node, g.Adapter, g.Generation
	r.out.Queued = g.Queued
	r.out.Attempts++
	r.where.placed(g, r.attempt, by.kind())
	r.step(r.here(events.KindRunPlaced))
	r.beginTry()
	r.watch.begin(r.attempt, r.service.cfg.DispatchLimit)
}

// open checks that the place still stands and opens a stream to it. Nothing of the run is written yet, so what fails
// here costs nothing but a return to the queue.
func (a *attempt) open() bool {
	r := a.run
	ok, f := r.fence(a.grant)
	if f != nil {
		r.decide(f)
		return false
	}
	if a.node = r.service.cfg.Nodes.Lookup(a.grant.Node, a.grant.Generation); a.node == nil {
		return a.gone()
	}
	if !ok {
		return a.unsent()
	}
	if r.out.Background && !a.node.Background() {
		return a.unfit()
	}
	if !a.borrow() {
		return false
	}
	a.at(faultpoint.EdgeFenced)
	stream, err := a.node.Open(r.ctx)
	switch {
	case errors.Is(err, transport.ErrLinkDown):
		return a.gone()
	case err != nil:
		return a.unsent()
	}
	a.stream = stream
	a.unwake = context.AfterFunc(r.ctx, stream.Cancel)
	a.at(faultpoint.EdgeOpened)
	select {
	case <-a.node.Down():
		return a.gone()
	case <-r.ctx.Done():
		return false
	default:
	}
	if a.lease != nil && !a.lease.Current() {
		return a.unsent() // the key was changed or taken away in this moment: whatever holds now is asked for
	}
	if !a.grant.Sent() {
		a.settled = true // lost in the meantime, and taken back by the scheduler
		return a.unsent()
	}
	r.watch.enter(phaseSent)
	a.by.placed(Placement{Node: a.grant.Node, Queued: a.grant.Queued, Position: a.grant.Position})
	return true
}

// gone goes back to the queue because the connection is over. The scheduler may not know that yet, and would offer the
// same place again and again, until the run had used up its tries within a moment.
func (a *attempt) gone() bool {
	a.settled = true
	a.run.service.cfg.Scheduler.Fence(a.grant.Node, a.grant.Generation)
	return false
}

// unsent goes back to the queue, a few times at most: nothing was written.
func (a *attempt) unsent() bool {
	r := a.run
	if r.decided() {
		return false
	}
	if r.budget.unsent++; r.budget.unsent > maxUnsent {
		f := execution.Failf(execution.CodeNoNode, execution.OriginEdge,
			"the node's connection or the configuration changed %d times before the request could be sent; try again", r.budget.unsent)
		f.RetryAfter, f.NothingSent = retryAfter, true
		r.decide(f)
	}
	return false
}

// unfit gives a place back whose node can't do what the run asks for.
func (a *attempt) unfit() bool {
	f := execution.Failf(execution.CodeBadRequest, execution.OriginEdge,
		"node %s doesn't support background runs; name another node, upgrade it, or ask without background", a.grant.Node)
	f.NothingSent = true
	a.elsewhere(f)
	return false
}

// receive takes what the node says until it has said its last word, the stream ends, or the run is decided.
func (a *attempt) receive() {
	for !a.over && !a.run.decided() {
		var err error
		if a.msg, err = read(a.stream, a.by.kind()); err != nil {
			a.readFailed(err)
			return
		}
		a.got[a.msg.step]++
		a.take(&a.msg)
	}
}

// readFailed decides what the end of a stream without a terminal means. It never means success.
func (a *attempt) readFailed(err error) {
	r := a.run
	var fault *transport.FrameError
	switch {
	case r.decided(): // that is why the read ended
	case errors.Is(err, transport.ErrLinkDown):
		a.linkLost()
	case errors.As(err, &fault):
		r.decide(protocolFailure(fault.Error()))
	case r.watch.at() < phaseAccepted:
		r.decide(protocolFailure("the node closed the stream without an answer"))
	default:
		r.decide(execution.Failf(execution.CodeUpstreamTruncated, execution.OriginNode,
			"the node closed the stream without saying how the execution ended"))
	}
}

// linkLost decides a run whose link is over. For a background run that the node may have whole it isn't the end.
func (a *attempt) linkLost() {
	if r := a.run; r.out.Background && a.whole() {
		a.lost, r.lost = true, true
	} else {
		r.decide(nodeLost())
	}
}

// whole reports whether the node can have all of the request. It is for when the writer has ended, or the link, which ends it.
func (a *attempt) whole() bool {
	if a.writer != nil {
		<-a.writer.done
	}
	return a.written
}

// at is a fault point.
func (a *attempt) at(p faultpoint.Point) { a.run.service.cfg.Faults.At(p, a.run.id) }

// close ends the attempt: the place, the writer, the stream, and what the node is told.
func (a *attempt) close() {
	defer a.endTry()
	defer a.judge() // when the place is settled
	a.at(faultpoint.EdgeSettle)
	defer a.repay()
	a.run.service.frames.add(&a.got)
	phase := a.run.watch.at()
	a.run.watch.enter(phaseWaiting)
	if a.stream == nil {
		a.settle(a.grant.Release)
		a.report(phase)
		return
	}
	a.unwake()
	if a.writer != nil {
		a.writer.stop(a.stream)
	}
	a.report(phase)
	switch {
	case phase < phaseSent:
		a.settle(a.grant.Release)
		a.stream.Close()
	case !a.opened:
		a.settle(a.grant.Rejected)
		a.stop()
	case a.over, a.refused:
		if a.refused { // also when the edge crashed over it: nothing runs whose end the node could confirm
			a.settle(a.grant.Rejected)
		}
		a.settle(a.grant.Decided)
		a.run.service.late.glance(a.stream, a.by.kind())
		a.stream.Close()
	case a.lost:
		a.settled = true // the fence frees the place, or has done so
		a.stream.Close()
	case a.run.departed() && a.whole():
		// The edge goes, the run stays: a close would end it at the node. The stream ends with the link.
		a.settle(a.grant.Decided)
		a.stream.Release()
	default:
		a.settle(a.grant.Decided)
		a.stop()
	}
}

// settle gives the place back in the way that its state asks for; the first call counts.
func (a *attempt) settle(how func() bool) {
	if !a.settled {
		a.settled = true
		how()
	}
}

// stop cancels the execution at the node: a CancelRequest on the control stream and the end of the work stream, and
// waits for neither. What still comes is read aside, since a late rejected frees the place.
func (a *attempt) stop() {
	_, cause := verdict(a.run.cause())
	a.node.SendCancel(a.run.id, cause)
	a.run.service.late.follow(a.stream, a.by.kind(), a.grant)
}

// report tells the registry whether the node answers what is sent to it: a heartbeat alone proves nothing (TU-26).
func (a *attempt) report(phase phase) {
	if a.node == nil || phase >= phaseAccepted || a.over {
		return // accepted and rejected were reported when they came
	}
	f, _ := verdict(a.run.cause())
	if a.run.decided() && f != nil && (f.Code == execution.CodeDispatchTimeout || f.Code == execution.CodeProtocol) {
		a.node.DispatchTimeout()
	}
}

// retry records an attempt that gave its place back and sends the run to the queue again, at its old position.
func (r *Run) retry(g *admission.Grant, f *execution.Failure) {
	r.out.Tried = append(r.out.Tried, Try{NodeID: g.Node, Adapter: g.Adapter, Code: f.Code})
	r.where.enter(StateQueued)
	r.spans.try.Fail(f.Code.String())
	again := r.here(events.KindRunRetried)
	again.code = f.Code
	r.step(again)
	r.service.cfg.Log.Debug().Str("run_id", r.id).Str("node_id", g.Node).Str("adapter", g.Adapter).
		Uint32("attempt", r.attempt).Stringer("code", f.Code).Msg("attempt gave its place back")
}

// remaining is what is left of the run's deadline in milliseconds, 0 when it has none.
func (r *Run) remaining() int64 {
	if r.deadline.IsZero() {
		return 0
	}
	return max(1, time.Until(r.deadline).Milliseconds())
}
