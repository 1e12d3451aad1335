// Package service drives runs at the edge: it asks the scheduler for a place, sends the work to the node that owns it,
// carries the answer to the caller, and decides each run's outcome exactly once (the tables "One run at the edge" of
// the wire contract).
//
// It owns the outcome, the numbering of attempts, what may be sent again, and the table of live runs. It must not
// count places (admission does), know HTTP dialects (httpapi does), keep connections (node does), or touch the
// multiplexer (packages/go/transport does).
package service

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
	"iop/packages/go/tracing"
	"iop/packages/go/transport"
)

// Config is what a Service is built from.
type Config struct {
	// State returns the configuration in force; called for each run and once more before something is sent.
	State func() *config.State
	// Scheduler gives the places.
	Scheduler *admission.Scheduler
	// Nodes finds the connection that a place belongs to.
	Nodes Nodes
	// Commands returns the node connections that commands may go to; nil = there are none.
	Commands func() []CommandTarget
	// Leases lends provider keys; nil = there are none.
	Leases Leases
	// Meter keeps what principals use, and is asked for the day's budgets; nil = nobody does.
	Meter Meter
	// Observers are told of each run's end, in the goroutine that drove it, before SubmitProviderTunnel returns.
	Observers []Observer
	// Events gets the steps of each run that is live; nil = nobody does.
	Events Publisher
	// Tracer shows each run's wait and attempts; nil = tracing is off.
	Tracer *tracing.Tracer
	// Log gets one line a run.
	Log zerolog.Logger
	// Faults is asked at the points of a run; nil is nobody.
	Faults *faultpoint.Hooks

	// DispatchLimit bounds the time from a place to the node's accepted or rejected. Default 10 s.
	DispatchLimit time.Duration
	// TerminalWait bounds the time from a node's RunEnded to the terminal on the work stream, unless the response
	// has begun. Default 10 s.
	TerminalWait time.Duration
	// DetachedLimit is how long a background run waits for its node to come back. Default 1 h.
	DetachedLimit time.Duration
	// CommandLimit bounds a command, its wait for a turn included. Default 30 s.
	CommandLimit time.Duration
	// MaxInput is the largest content of a run in bytes, as it is sent to the node. Default 64 MiB.
	MaxInput int64
	// SlowAnswers is how many answers may be whole here while their callers still read; beyond it the longest are cut
	// as client_slow. Default 256.
	SlowAnswers int
	// Recent is how many ended runs are remembered by id. Default 10,000.
	Recent int
}

// CancelResult is what became of a request to cancel a run.
type CancelResult uint8

// The results.
const (
	Cancelling   CancelResult = 1 // the run ends as cancelled
	NotFound     CancelResult = 2
	AlreadyEnded CancelResult = 3
)

// Service drives runs. Its methods may be called concurrently.
type Service struct {
	cfg      Config
	runs     *table
	quotas   admission.Quotas
	tails    tails
	commands commands
	late     late
	frames   frames    // that came in time
	buffers  sync.Pool // of *[]byte, transport.MaxBody long
}

// New returns a Service. It starts nothing.
func New(cfg Config) *Service {
	if cfg.DispatchLimit == 0 {
		cfg.DispatchLimit = 10 * time.Second
	}
	if cfg.TerminalWait == 0 {
		cfg.TerminalWait = 10 * time.Second
	}
	if cfg.DetachedLimit == 0 {
		cfg.DetachedLimit = time.Hour
	}
	if cfg.Commands == nil {
		cfg.Commands = func() []CommandTarget { return nil }
	}
	if cfg.CommandLimit == 0 {
		cfg.CommandLimit = 30 * time.Second
	}
	if cfg.MaxInput == 0 {
		cfg.MaxInput = 64 << 20
	}
	if cfg.Recent == 0 {
		cfg.Recent = 10_000
	}
	if cfg.SlowAnswers == 0 {
		cfg.SlowAnswers = 256
	}
	s := &Service{cfg: cfg, runs: newTable(cfg.Recent), tails: tails{most: cfg.SlowAnswers}}
	s.buffers.New = func() any {
		b := make([]byte, transport.MaxBody)
		return &b
	}
	return s
}

// Cancel ends the run with this id for this cause. Cancelling promises that it ends with the cause's code and no other
// way; a run that was decided before, or whose response is complete, has ended already.
func (s *Service) Cancel(runID string, cause execution.CancelCause) CancelResult {
	r, known := s.runs.find(runID)
	switch {
	case r != nil && r.cancel(cause):
		return Cancelling
	case known:
		return AlreadyEnded
	}
	return NotFound
}

// Drain refuses new runs and commands, and the runs that wait (edge_draining); what has a place goes on, and so do
// commands.
func (s *Service) Drain() {
	s.runs.drain()
	s.commands.drain()
	s.cfg.Scheduler.Drain()
}

// CancelAll ends every foreground run and every command for this cause: the grace of a drain is over. Background runs are left to
// [Service.Depart].
func (s *Service) CancelAll(cause execution.CancelCause) {
	for _, r := range s.runs.all() {
		if !r.out.Background {
			r.cancel(cause)
		}
	}
	s.commands.cancelAll(cause)
}

// Wait blocks until no foreground run and no command is live, or ctx ends. It is for after Drain, when no run can begin any more.
func (s *Service) Wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() { // ends with the last of them, which CancelAll brings about
		defer close(done)
		s.runs.busy.Wait()
		s.commands.busy.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Join blocks until no goroutine of the service is left. What still reads of ended runs ends with the links at the
// latest, and background runs with Depart, so it is for after both.
func (s *Service) Join() {
	s.runs.backgrounds.Wait()
	s.late.reading.Wait()
	s.commands.reading.Wait()
}

// SlowAnswers returns how many answers are whole here while their callers still read.
func (s *Service) SlowAnswers() int { return s.tails.len() }

// Reconfigured lets the runs that wait look at what they ask for by the configuration in force, which has just changed.
func (s *Service) Reconfigured() { s.cfg.Scheduler.Recall() }

// Live returns how many runs are live, the detached ones included.
func (s *Service) Live() int { return s.runs.len() }

// LateFrames returns, by kind, how many frames came after their run was decided.
func (s *Service) LateFrames() map[string]uint64 { return s.late.counts.snapshot() }

// Frames returns, by kind, how many frames of work streams came before their run was decided. Those of an attempt are
// counted when it ends.
func (s *Service) Frames() map[string]uint64 { return s.frames.snapshot() }
