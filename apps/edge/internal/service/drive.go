package service

import (
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// batch is how long body pieces may be gathered while more of them is at hand already. A piece with nothing behind it
// is flushed at once, so this delays no byte that a caller could have had.
const batch = time.Millisecond

// response is the caller's side of an attempt.
type response struct {
	bytes   int64
	pending bool      // something was given to the sink without a flush
	flushed time.Time // when the sink last flushed, or the head was written
}

// take handles one frame from the node. What breaks the grammar ends the run: nothing after it could be trusted.
func (a *attempt) take(f transport.Frame) {
	if err := a.seq.Accept(stepOf(f), f.Seq); err != nil {
		a.run.decide(execution.AsFailure(err, execution.OriginNode))
		return
	}
	if f.Msg == nil {
		a.body(f.Body)
		return
	}
	switch m := f.Msg.GetFrame().(type) {
	case *pb.ProviderTunnelFrame_Accepted:
		a.run.watch.enter(phaseAccepted)
		a.node.Dispatched()
	case *pb.ProviderTunnelFrame_Rejected:
		a.lastWord()
		a.node.Dispatched()
		a.rejected(m.Rejected)
	case *pb.ProviderTunnelFrame_Head:
		a.head(m.Head)
	case *pb.ProviderTunnelFrame_Usage:
		a.run.out.Usage = usageOf(m.Usage)
		a.flushPending()
	case *pb.ProviderTunnelFrame_Metadata:
		a.flushPending()
	case *pb.ProviderTunnelFrame_End:
		a.lastWord()
		a.end(m.End)
	case *pb.ProviderTunnelFrame_Error:
		a.lastWord()
		a.failed(failureOf(m.Error))
	}
}

// lastWord records that the node has nothing more to say. There is no read left to wake.
func (a *attempt) lastWord() {
	a.over = true
	a.unwake()
}

// head starts the caller's response.
func (a *attempt) head(h *pb.TunnelHead) {
	r := a.run
	status := int(h.GetStatus())
	if status < 200 || status > 999 {
		r.decide(protocolFailure("the node passed on a status that isn't the final one of a response"))
		return
	}
	r.watch.enter(phaseStreaming)
	r.out.HeadSent, r.out.Status = true, status
	a.resp.flushed = time.Now()
	r.out.FirstByte = a.resp.flushed.Sub(r.started)
	a.resp.pending = true
	if a.sank(r.sink.Head(status, headerOf(h.GetHeaders()))) {
		// A provider may say 200 long before its first token; the head alone is a sign of life.
		a.flushPending()
	}
}

// body passes a piece on. It is flushed unless more is at hand already and the last flush is a moment ago.
func (a *attempt) body(p []byte) {
	flush := !a.stream.Buffered()
	if now := time.Now(); flush || now.Sub(a.resp.flushed) >= batch {
		flush, a.resp.flushed = true, now
	}
	a.resp.pending = !flush
	if a.sank(a.run.sink.Body(p, flush)) {
		a.resp.bytes += int64(len(p))
		a.run.out.BytesOut = a.resp.bytes
	}
}

// flushPending lets out what was held back for a frame that turned out not to be a body.
func (a *attempt) flushPending() {
	if a.resp.pending && !a.stream.Buffered() {
		a.resp.pending, a.resp.flushed = false, time.Now()
		a.sank(a.run.sink.Body(nil, true))
	}
}

// sank decides the run when the sink can't take any more.
func (a *attempt) sank(err error) bool {
	if err != nil {
		a.resp.pending = false
		a.run.decide(execution.AsFailure(err, execution.OriginEdge))
	}
	return err == nil
}

// end finishes a response that is whole. From complete on nobody can cancel the run any more; what can still fail is
// the last write to the caller.
func (a *attempt) end(e *pb.TunnelEnd) {
	r := a.run
	if e.GetBytes() != a.resp.bytes {
		r.decide(execution.Failf(execution.CodeProtocol, execution.OriginNode,
			"the node counts %d bytes of response, %d arrived", e.GetBytes(), a.resp.bytes))
		return
	}
	if !r.complete() {
		return
	}
	a.resp.pending = false
	if err := r.sink.End(); err != nil {
		r.out.Failure = execution.AsFailure(err, execution.OriginEdge)
	}
}

// failed handles a terminal error. The one that may go to another candidate is a provider that couldn't be reached
// while nothing of the request had been sent to it: each is tried once.
func (a *attempt) failed(f *execution.Failure) {
	r := a.run
	if r.out.HeadSent || f.Code != execution.CodeUpstreamConnect || !f.NothingSent {
		r.decide(f)
		return
	}
	r.budget.connect = f
	r.request.FailFast = true // the rest of the candidates, but not one that may come some day
	r.exclude(a.grant.Place)
	r.retry(a.grant, f)
}

// aborted lets out what the caller may still have of a response that failed, so that it ends exactly where the
// provider's did.
func (a *attempt) aborted() {
	r := a.run
	if !a.resp.pending || !r.decided() {
		return
	}
	switch f, _ := verdict(r.cause()); {
	case f == nil, f.Code == execution.CodeClientGone, f.Code == execution.CodeClientSlow:
	default:
		a.resp.pending = false
		_ = r.sink.Body(nil, true) // the run has failed already, whatever comes of it
	}
}
