package service

import (
	"iop/apps/edge/internal/admission"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// rejected handles a node's refusal of an open. Only what never started may be sent again, and only as often as its
// reason allows; the place is free either way.
func (a *attempt) rejected(m *pb.Rejected) {
	r, f := a.run, failureOf(m.GetFailure())
	if a.lease != nil && f.Code == execution.CodeCredentialRefused {
		a.lease.Refused(f.Lease)
	}
	again := m.GetNeverStarted() && (a.retryable(f) || a.again(f))
	f.NothingSent = f.NothingSent || m.GetNeverStarted()
	switch {
	case f.Code == execution.CodeAdapterBusy, f.Code == execution.CodeStaleProjection, f.Code == execution.CodeNodeDraining,
		again: // a fresh lease is as stale as the first until the node has taken in what it is being told
		// The node knows something of this adapter that we don't know yet: no further open until it told us, or a
		// second has passed, so that the queue can't spin.
		a.settle(a.grant.RejectedBusy)
	default:
		a.settle(a.grant.Rejected)
	}
	if again {
		r.retry(a.grant, f)
		return
	}
	if f.RetryAfter == 0 && transient(f.Code) {
		f.RetryAfter = retryAfter
	}
	r.decide(f)
}

// retryable spends the run's budget for this refusal.
func (a *attempt) retryable(f *execution.Failure) bool {
	b := &a.run.budget
	switch f.Code {
	case execution.CodeAdapterBusy:
		b.busy++
		return b.busy < maxBusy
	case execution.CodeStaleProjection:
		b.stale++
		return b.stale <= maxStale
	case execution.CodeNodeDraining:
		b.draining++
		return b.draining < maxDraining
	}
	return false
}

// transient reports whether a refusal is about this moment, so that the caller may well try again.
func transient(code execution.Code) bool {
	switch code {
	case execution.CodeAdapterBusy, execution.CodeStaleProjection, execution.CodeNodeDraining, execution.CodeAdapterUnavailable:
		return true
	}
	return false
}

// exclude keeps the run from a place for the rest of its life. The list is its own: the scheduler may still read the
// old one.
func (r *Run) exclude(p admission.Place) {
	r.request.Exclude = append(r.request.Exclude[:len(r.request.Exclude):len(r.request.Exclude)], p)
}
