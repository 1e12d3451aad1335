package service

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"time"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// batch is how long body pieces may be gathered while more of them is at hand already. A piece with nothing behind it
// is flushed at once, so this delays no byte that a caller could have had.
const batch = time.Millisecond

// response is the caller's side of a tunnel.
type response struct {
	bytes   int64
	pending bool      // something was given to the sink without a flush
	flushed time.Time // when the sink last flushed, or the head was written
}

// take implements carrier.
func (j *tunnelJob) take(a *attempt, m *message) {
	if m.step == execution.StepBody {
		j.piece(a, m.body)
		return
	}
	switch f := m.frame.GetFrame().(type) {
	case *pb.ProviderTunnelFrame_Head:
		j.head(a, f.Head)
	case *pb.ProviderTunnelFrame_Usage:
		a.run.out.Usage = usageOf(f.Usage)
		j.flushPending(a)
	case *pb.ProviderTunnelFrame_Metadata:
		j.flushPending(a)
	case *pb.ProviderTunnelFrame_End:
		a.lastWord()
		j.end(a, f.End)
	}
}

// head starts the caller's response.
func (j *tunnelJob) head(a *attempt, h *pb.TunnelHead) {
	r := a.run
	status := int(h.GetStatus())
	if status < 200 || status > 999 {
		r.decide(protocolFailure("the node passed on a status that isn't the final one of a response"))
		return
	}
	header := headerOf(h.GetHeaders())
	if a.scan != nil && a.scan.Head(header) {
		a.reflected()
		return
	}
	if a.scan != nil && compressed(header) {
		r.decide(execution.Failf(execution.CodeUpstreamError, execution.OriginProvider, "the provider compressed its answer although it was "+
			"asked not to; an answer to a request with a key isn't passed on unless it can be searched for the key"))
		return
	}
	j.resp.flushed = a.streams()
	r.out.Status = status
	r.out.linesPerEvent = linesOf(header.Get("Content-Type"))
	j.resp.pending = true
	if j.sank(a, j.sink.Head(status, header)) {
		// A provider may say 200 long before its first token; the head alone is a sign of life.
		j.flushPending(a)
	}
}

// compressed reports whether a body is something else than what it reads like.
func compressed(h http.Header) bool {
	return slices.ContainsFunc(h["Content-Encoding"], func(v string) bool { return v != "" && !strings.EqualFold(v, "identity") })
}

// piece passes a piece of the body on. It is flushed unless more is at hand already and the last flush is a moment ago.
func (j *tunnelJob) piece(a *attempt, p []byte) {
	flush := !a.stream.Buffered()
	if now := time.Now(); flush || now.Sub(j.resp.flushed) >= batch {
		flush, j.resp.flushed = true, now
	}
	j.resp.bytes += int64(len(p))
	if out := &a.run.out; out.linesPerEvent > 0 {
		out.lines += int64(bytes.Count(p, []byte("\n")))
	}
	if a.scan != nil {
		var reflected bool
		if p, reflected = a.scan.Pass(p); reflected {
			a.reflected()
			return
		}
	}
	j.resp.pending = !flush
	if len(p) == 0 && !flush {
		return
	}
	if j.sank(a, j.sink.Body(p, flush)) {
		a.run.out.BytesOut += int64(len(p))
		a.run.reached.bytes.Store(j.resp.bytes)
	}
}

// flushPending lets out what was held back for a frame that turned out not to be a body.
func (j *tunnelJob) flushPending(a *attempt) {
	if j.resp.pending && !a.stream.Buffered() {
		j.resp.pending, j.resp.flushed = false, time.Now()
		j.sank(a, j.sink.Body(nil, true))
	}
}

// sank decides the run when the sink can't take any more.
func (j *tunnelJob) sank(a *attempt, err error) bool {
	if err != nil {
		j.resp.pending = false
	}
	return a.sank(err)
}

// end finishes a response that is whole. From complete on nobody can cancel the run any more; what can still fail is
// the last write to the caller.
func (j *tunnelJob) end(a *attempt, e *pb.TunnelEnd) {
	r := a.run
	if e.GetBytes() != j.resp.bytes {
		r.decide(execution.Failf(execution.CodeProtocol, execution.OriginNode,
			"the node counts %d bytes of response, %d arrived", e.GetBytes(), j.resp.bytes))
		return
	}
	if !r.complete() {
		return
	}
	j.resp.pending = false
	if a.scan != nil {
		if rest := a.scan.Rest(); len(rest) > 0 {
			if err := j.sink.Body(rest, false); err != nil {
				r.out.Failure = execution.AsFailure(err, execution.OriginEdge)
				return
			}
			r.out.BytesOut += int64(len(rest))
		}
	}
	if err := j.sink.End(); err != nil {
		r.out.Failure = execution.AsFailure(err, execution.OriginEdge)
	}
}

// abort implements carrier. It lets out what the caller may still have of a response that failed, so that it ends exactly where the
// provider's did.
func (j *tunnelJob) abort(a *attempt) {
	r := a.run
	if !j.resp.pending || !r.decided() {
		return
	}
	switch f, _ := verdict(r.cause()); {
	case f == nil, f.Code == execution.CodeClientGone, f.Code == execution.CodeClientSlow:
	default:
		j.resp.pending = false
		_ = j.sink.Body(nil, true) // the run has failed already, whatever comes of it
	}
}
