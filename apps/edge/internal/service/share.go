package service

import (
	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/packages/go/execution"
)

// enter makes a run live, or says why not: its principal's own limits, or the table.
func (s *Service) enter(r *Run) *execution.Failure {
	leave, f := s.quotas.Enter(r.out.Principal, s.quota(r.out.Principal), r.out.BytesIn/bytesPerToken)
	if f != nil {
		return f
	}
	if f := s.runs.enter(r); f != nil {
		leave(0)
		return f
	}
	r.quit = func() { leave(r.out.usedTokens()) }
	r.step(step{kind: events.KindRunSubmitted})
	return nil
}

// quota is what the principal may ask for by the configuration in force.
func (s *Service) quota(principal string) admission.Quota {
	p := s.cfg.State().Principal(principal)
	if p == nil {
		return admission.Quota{}
	}
	q := admission.Quota{Concurrency: p.Limits.Concurrency, RequestsPerMinute: p.Limits.RequestsPerMinute,
		TokensPerMinute: int64(p.Limits.TokensPerMinute), TokensPerDay: int64(p.Limits.TokensPerDay)}
	if s.cfg.Meter != nil {
		q.SpentToday = func() int64 { return s.cfg.Meter.Today(principal) }
	}
	return q
}

// leave ends a run's life.
func (s *Service) leave(r *Run) {
	s.tails.remove(r)
	s.runs.leave(r)
	if r.quit != nil { // a run of an earlier edge process is nobody's here
		r.quit()
	}
}

// weight is the principal's share of what is contended, as the configuration in force has it.
func (s *Service) weight(principal string) float64 {
	if p := s.cfg.State().Principal(principal); p != nil {
		return float64(p.Weight)
	}
	return 1
}

// judge tells the scheduler what this attempt says about the adapter: whether the provider can be reached and answers,
// not whether it liked the request.
func (a *attempt) judge() {
	f := a.failure
	if f == nil && a.run.decided() {
		if f, _ = verdict(a.run.cause()); f == nil {
			a.grant.Judge(admission.Healthy, "")
			return
		}
	}
	if f != nil && faulty(f) {
		a.grant.Judge(admission.Faulty, f.Code.String()+": "+f.Text)
		return
	}
	a.grant.Judge(admission.Unsaid, "")
}

// faulty reports whether a failure is the adapter's or its provider's own, so that the next request would likely meet
// it, too. An answer with an error in it isn't one: the provider was there to give it.
func faulty(f *execution.Failure) bool {
	if f.Origin != execution.OriginProvider && f.Origin != execution.OriginNode {
		return false
	}
	switch f.Code {
	case execution.CodeUpstreamConnect, execution.CodeUpstreamTruncated, execution.CodeFirstByteTimeout,
		execution.CodeIdleTimeout, execution.CodeAdapterPanic, execution.CodeAdapterDecode:
		return true
	}
	return false
}
