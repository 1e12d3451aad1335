package loopback

import (
	"context"
	"time"

	"iop/packages/go/execution"
)

// pace lets time pass, and lets an answer break off, as a plan says. Its pauses are reads from a provider: they end
// with the context, and with the limits on silence.
type pace struct {
	ctx    context.Context
	timers execution.Timers
	headed bool
	passed int // bytes told so far
	tokens int // told so far; what cut and stall count
}

// wait pauses as a provider that says nothing for d; a negative d is for ever.
func (p *pace) wait(d time.Duration) error {
	limit, code, what := p.timers.FirstByte, execution.CodeFirstByteTimeout, "didn't answer within"
	if p.headed {
		limit, code, what = p.timers.Idle, execution.CodeIdleTimeout, "sent nothing for"
	}
	silent := limit > 0 && (d < 0 || d > limit)
	if silent {
		d = limit
	}
	if d == 0 {
		if p.ctx.Err() != nil {
			return context.Cause(p.ctx)
		}
		return nil
	}
	var over <-chan time.Time // of a wait for ever: never
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	case <-over:
	}
	if silent {
		return execution.Failf(code, execution.OriginProvider, "provider %s %v", what, limit)
	}
	return nil
}

// token is called before each token: it pauses, and ends the answer where the plan says so.
func (p *pace) token(plan *plan) error {
	switch p.tokens {
	case plan.cut:
		return p.truncated()
	case plan.stall:
		return p.wait(-1)
	}
	p.tokens++
	return p.wait(plan.delay)
}

// end is called after the last token, where cut and stall may stand too.
func (p *pace) end(plan *plan) error {
	switch p.tokens {
	case plan.cut:
		return p.truncated()
	case plan.stall:
		return p.wait(-1)
	}
	return nil
}

func (p *pace) truncated() error {
	return execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider,
		"provider closed the connection after %d bytes, inside its answer", p.passed)
}
