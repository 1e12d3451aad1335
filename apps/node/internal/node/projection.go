package node

import (
	"context"
	"fmt"
	"math"
	"time"

	"iop/apps/node/internal/router"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// maxProbes is how many providers are asked at once.
const maxProbes = 8

// refusal is a projection that wasn't applied.
type refusal struct {
	projection uint64
	failure    *execution.Failure
}

// Apply makes p the projection in force: it builds the adapters that are new or changed, asks all of them what they
// are, for a limited time, and swaps the table. An adapter that can't be built or asked is in the table, unavailable,
// with the reason. A projection that makes no sense as a whole is refused, and the table stays. When ctx ends, nothing
// was changed. What happened is in the next Ready; Serve sends it.
func (s *Session) Apply(ctx context.Context, p *pb.NodeConfigPayload) {
	s.x.applying.Lock()
	defer s.x.applying.Unlock()
	if f := checkProjection(p); f != nil {
		s.x.mu.Lock()
		s.refuseLocked(p, f)
		s.x.mu.Unlock()
		return
	}
	entries := make([]router.Entry, 0, len(p.GetAdapters()))
	for _, c := range p.GetAdapters() {
		spec := specFromWire(c)
		entries = append(entries, router.Entry{Adapter: s.x.adapter(spec), Revision: spec.Revision})
	}
	s.x.probeAll(ctx, entries)
	if ctx.Err() != nil {
		s.x.discard(entries)
		return
	}
	if !s.judgeBy(p) {
		s.x.discard(entries)
		return
	}
	s.x.cfg.Router.Swap(s.x.cfg.Edge, entries)
	s.x.mu.Lock()
	s.applied, s.refused = p.GetProjection(), nil
	s.x.mu.Unlock()
	if keep := p.GetStore(); keep != nil {
		s.x.cfg.Retain(milliseconds(max(keep.GetMaxAgeMs(), 0)), int(min(max(keep.GetMaxRows(), 0), math.MaxInt32)))
	}
	s.log.Info().Uint64("projection", p.GetProjection()).Int("adapters", len(entries)).Msg("projection applied")
}

// refuseLocked notes that a projection isn't applied.
func (s *Session) refuseLocked(p *pb.NodeConfigPayload, f *execution.Failure) {
	s.log.Error().Uint64("projection", p.GetProjection()).Str("reason", f.Text).Msg("projection refused")
	s.refused = &refusal{p.GetProjection(), f}
}

// checkProjection refuses what can't be applied as a whole.
func checkProjection(p *pb.NodeConfigPayload) *execution.Failure {
	bad := func(format string, args ...any) *execution.Failure {
		return execution.Failf(execution.CodeBadRequest, execution.OriginEdge, format, args...)
	}
	if p.GetProjection() == 0 {
		return bad("the projection has no number")
	}
	seen := map[string]bool{}
	for i, c := range p.GetAdapters() {
		switch {
		case c.GetName() == "":
			return bad("adapter %d has no name", i)
		case seen[c.GetName()]:
			return bad("two adapters are named %q", loggable(c.GetName()))
		}
		seen[c.GetName()] = true
	}
	return nil
}

// adapter returns the table's adapter if it is as spec says, else a new one.
func (x *Executor) adapter(spec router.Spec) *router.Adapter {
	if a := x.cfg.Router.Find(x.cfg.Edge, spec.Name); a != nil && a.Provider() != nil && a.Spec().Same(&spec) {
		return a
	}
	provider, err := x.build(spec)
	caps := execution.Capabilities{Reason: "the provider hasn't answered yet"}
	if err != nil {
		caps.Reason = err.Error()
		x.cfg.Log.Error().Str("adapter", spec.Name).Err(err).Msg("adapter can't be built; it stays unavailable")
	}
	return router.NewAdapter(spec, provider, caps)
}

func (x *Executor) build(spec router.Spec) (p execution.Provider, err error) {
	defer func() {
		if v := recover(); v != nil {
			x.cfg.Log.Error().Str("adapter", spec.Name).Type("panic", v).Msg("panic while an adapter was built")
			p, err = nil, fmt.Errorf("adapter %q: the driver crashed while it was built", spec.Name)
		}
	}()
	if spec.Capacity < 1 {
		return nil, fmt.Errorf("adapter %q: max_concurrency must be at least 1", spec.Name)
	}
	return x.cfg.Build(spec)
}

// discard closes the drivers that were built for a table that never came to be.
func (x *Executor) discard(entries []router.Entry) {
	for _, e := range entries {
		if p := e.Adapter.Provider(); p != nil && x.cfg.Router.Find(x.cfg.Edge, e.Adapter.Spec().Name) != e.Adapter {
			p.Close()
		}
	}
}

// probeAll asks all adapters what they are and waits for the answers, at most until the building limit or ctx's end.
// An answer that comes later still counts.
func (x *Executor) probeAll(ctx context.Context, entries []router.Entry) {
	ctx, cancel := context.WithTimeout(ctx, x.cfg.Timers.AdapterBuild)
	defer cancel()
	slots := make(chan struct{}, maxProbes)
	answers := make(chan struct{}, len(entries))
	waiting := 0
	for _, e := range entries {
		if e.Adapter.Provider() == nil {
			continue
		}
		waiting++
		x.work.Go(func() { // ends with the probe, which is bounded, or with ctx
			defer func() { answers <- struct{}{} }()
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			select {
			case <-x.probe(e.Adapter):
			case <-ctx.Done():
			}
			<-slots
		})
	}
	for range waiting {
		<-answers
	}
}

// watch asks the providers again and again what they are, as long as the session lasts, and tells when the clocks
// come in step or get out of it. clock is what they were when Ready was said.
func (s *Session) watch(clock pb.ClockState) {
	tick := time.NewTicker(s.x.cfg.Timers.ProbeEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		if now := s.clockState(); now != clock {
			clock = now
			s.x.sendStatus()
		}
		for _, a := range s.x.cfg.Router.Adapters(s.x.cfg.Edge) {
			if a.Provider() != nil {
				s.x.probe(a)
			}
		}
	}
}

// probe asks one provider what it is, unless it is being asked already, and returns a channel that is closed when the
// answer was noted. Asking has its own goroutine and its own limit: a provider that hangs holds up nobody.
func (x *Executor) probe(a *router.Adapter) <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if asked := x.probing[a]; asked != nil {
		return asked
	}
	answered := make(chan struct{})
	x.probing[a] = answered
	x.work.Go(func() { // ends with the probe, which returns by its context's deadline
		ctx, cancel := context.WithTimeout(x.ctx, x.cfg.Timers.Probe)
		defer cancel()
		caps := x.ask(ctx, a)
		changed := x.cfg.Router.Observe(a, caps, !caps.Available && ctx.Err() != nil)
		if changed {
			x.cfg.Log.Info().Str("adapter", a.Spec().Name).Bool("available", caps.Available).
				Str("reason", loggable(caps.Reason)).Int("models", len(caps.Models)).Msg("adapter changed")
			x.sendStatus()
		}
		x.mu.Lock()
		delete(x.probing, a)
		x.mu.Unlock()
		close(answered) // last: who waited for it says Ready, which has the change
	})
	return answered
}

func (x *Executor) ask(ctx context.Context, a *router.Adapter) (caps execution.Capabilities) {
	defer func() {
		if v := recover(); v != nil {
			x.cfg.Log.Error().Str("adapter", a.Spec().Name).Type("panic", v).Msg("panic in a probe")
			caps = execution.Capabilities{Reason: "the driver crashed when it was asked"}
		}
	}()
	return a.Provider().Probe(ctx)
}

// specFromWire reads one adapter of a projection.
func specFromWire(c *pb.AdapterConfig) router.Spec {
	spec := router.Spec{
		Name:       c.GetName(),
		Kind:       c.GetKind(),
		BaseURL:    c.GetBaseUrl(),
		Revision:   c.GetAdapterRevision(),
		Capacity:   int(c.GetMaxConcurrency()),
		AllowPaths: c.GetAllowPaths(),
		Targets:    c.GetTargets(),
	}
	if len(c.GetOptions()) > 0 {
		spec.Options = make(map[string]string, len(c.GetOptions()))
	}
	for _, kv := range c.GetOptions() {
		spec.Options[kv.GetKey()] = kv.GetValue()
	}
	return spec
}
