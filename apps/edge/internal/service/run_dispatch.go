package service

import (
	"context"
	"time"

	"iop/packages/go/execution"
)

// RunSpec is one normalized run: which provider is asked, and for what.
type RunSpec struct {
	RunID     string // "" = SubmitRun draws one and fills it in; one that is known already is duplicate_run
	Principal string // id of the principal, as the scheduler and the node see it
	SessionID string // opaque correlation: copied through, never state

	Adapter string // name of the adapter
	Target  string // what it is asked to run
	Node    string // "" = any that has the adapter and offers the target

	// Input is what the provider is told: Messages, Tools, ToolChoice and Options. Its other fields are filled in here
	// and at the node.
	Input    *execution.Request
	Metadata map[string]string

	// Background runs go on without their caller and their node's connection.
	Background bool
	// Deadline bounds the whole run, waiting included; 0 = none.
	Deadline time.Duration
}

// EventSink takes the events of a run. One goroutine calls its methods, one at a time.
type EventSink interface {
	// Placed tells where the run went and how long it waited, before anything else. It is called again when the run
	// went to another place; the last call counts.
	Placed(nodeID string, queued time.Duration)
	// Event passes an event on. They are numbered from 1 without gaps; none of them is the terminal, which is the
	// outcome. An error is a *execution.Failure with client_gone or client_slow, and means that nobody wants the rest.
	// A sink bounds its own writes (write_idle).
	Event(seq uint64, e execution.Event) error
}

// SubmitRun carries spec to a node and the events to sink, and returns the run's one outcome. When it returns an outcome
// with an Attempts of 0, nothing was sent to anybody.
//
// A foreground run is driven in the caller's goroutine. When ctx ends it is cancelled and the call returns within a
// second, whatever the node does; the cause of ctx may be an execution.CancelCause, any other means that the caller is
// gone.
//
// A background run is driven by a goroutine of the service, whatever becomes of ctx; SubmitRun follows it. It returns
// nil when it stops following before the run has ended: because ctx ended (one that has ended already is the way to
// start a run and leave), because sink returned an error, or because sink fell too far behind. A nil sink takes nothing.
func (s *Service) SubmitRun(ctx context.Context, spec *RunSpec, sink EventSink) *Outcome {
	panic("not yet")
}
