package edge

import (
	"context"

	"iop/apps/edge/internal/admin"
	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// The words of the edge's inside, for who can't import the packages that they come from.
type (
	// Tunnel is a provider request to be carried as it is.
	Tunnel = service.Tunnel
	// RunSpec is a normalized run.
	RunSpec = service.RunSpec
	// Outcome is how one of them ended.
	Outcome = service.Outcome
	// Placement is where it went.
	Placement = service.Placement
	// Sink takes a tunnel's answer.
	Sink = service.Sink
	// EventSink takes a run's answer.
	EventSink = service.EventSink
	// CancelResult is what became of a wish to cancel.
	CancelResult = service.CancelResult
	// RunView is a run as operators see it.
	RunView = service.RunView
	// Places is the scheduler's state.
	Places = admission.Snapshot
	// Slots is what operators may do with the providers' keys.
	Slots = admin.Slots
	// SlotChange is what came of it.
	SlotChange = admin.SlotChange
	// Event is something that happened.
	Event = events.Event
)

// Inside is a running edge below its surfaces: a simulation drives it without HTTP, and looks at what the surfaces don't
// show. It is an [Options].Inside's until Run returns.
type Inside struct{ g *graph }

// Tunnel carries t as the API surfaces do, in the caller's goroutine.
func (i *Inside) Tunnel(ctx context.Context, t *Tunnel, sink Sink) *Outcome {
	return i.g.service.SubmitProviderTunnel(ctx, t, sink)
}

// Execute carries spec as the runs API does.
func (i *Inside) Execute(ctx context.Context, spec *RunSpec, sink EventSink) *Outcome {
	return i.g.service.SubmitRun(ctx, spec, sink)
}

// Cancel ends a run as the API does.
func (i *Inside) Cancel(runID string) CancelResult {
	return i.g.service.Cancel(runID, execution.CauseAPI)
}

// SetDrained keeps new work from a node, or doesn't any more, as an operator does.
func (i *Inside) SetDrained(node string, on bool) bool { return i.g.live.registry.SetDrained(node, on) }

// Reload puts cfg in force as if the file had changed to it.
func (i *Inside) Reload(cfg *config.Edge) error { return i.g.live.replace(cfg) }

// Slots returns what operators may do with the providers' keys; nil = mode dev.
func (i *Inside) Slots() *Slots { return i.g.slots() }

// Route returns what serves a model by the configuration in force; nil = nothing.
func (i *Inside) Route(model string) *config.Route { return i.g.live.current().Route(model) }

// Places returns what is held and who waits.
func (i *Inside) Places() Places { return i.g.scheduler.Snapshot() }

// Current returns the generation of the node's current connection, 0 = it has none.
func (i *Inside) Current(node string) uint64 {
	if c := i.g.live.registry.Current(node); c != nil {
		return c.Generation
	}
	return 0
}

// Runs returns the live runs and those that ended last.
func (i *Inside) Runs() []RunView { return i.g.service.Runs() }

// Live returns how many runs are live.
func (i *Inside) Live() int { return i.g.service.Live() }

// Events returns what has happened so far, as far as it is remembered, the oldest first.
func (i *Inside) Events() []Event {
	var begin uint64
	s, all, _ := i.g.events.Follow(events.Query{After: &begin})
	s.Close()
	return all
}

// replace is the part of a reload that follows the reading of the file.
func (l *live) replace(next *config.Edge) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	state, err := l.check(l.current(), next)
	if err != nil || state == nil {
		return err
	}
	l.install(state)
	l.told(true, nil)
	return nil
}
