// Package nodetest is for tests of the node: a provider driver that does what a script says, and an Edge made of the
// real transport. It has no part in the program.
package nodetest

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"iop/packages/go/execution"
)

// Adapter is a provider whose answers are functions. It counts what happens to it.
type Adapter struct {
	// OnTunnel is the tunnel; nil answers 200 with the body "ok".
	OnTunnel func(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error
	// OnExecute is the run; nil emits a start and the text "ok", and finishes with "stop".
	OnExecute func(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error)
	// OnCommand is the command; nil answers 200 with the method, the path and the body.
	OnCommand func(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error
	// OnProbe is the probe; nil is available, version "1", with the model "m".
	OnProbe func(ctx context.Context) execution.Capabilities

	Calls    atomic.Int64 // of Tunnel and Execute
	Commands atomic.Int64
	Probes   atomic.Int64
	Closes   atomic.Int64

	mu        sync.Mutex
	now, peak int
}

// Tunnel implements execution.Tunneler.
func (a *Adapter) Tunnel(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	a.Calls.Add(1)
	a.count(1)
	defer a.count(-1)
	if a.OnTunnel == nil {
		return Answer(sink, "ok")
	}
	return a.OnTunnel(ctx, req, sink)
}

// Execute implements execution.Executor.
func (a *Adapter) Execute(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
	a.Calls.Add(1)
	a.count(1)
	defer a.count(-1)
	if a.OnExecute == nil {
		return Say(emit, "ok")
	}
	return a.OnExecute(ctx, req, emit)
}

// Command implements execution.Commander.
func (a *Adapter) Command(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	a.Commands.Add(1)
	if a.OnCommand != nil {
		return a.OnCommand(ctx, req, sink)
	}
	said := req.Method + " " + req.Path
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return err
		}
		said += " " + string(body)
	}
	return Answer(sink, said)
}

func (a *Adapter) count(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now += n
	a.peak = max(a.peak, a.now)
}

// Peak returns the most executions that there were at once, and how many there are.
func (a *Adapter) Peak() (peak, now int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peak, a.now
}

// Probe implements execution.Provider.
func (a *Adapter) Probe(ctx context.Context) execution.Capabilities {
	a.Probes.Add(1)
	if a.OnProbe == nil {
		return Up()
	}
	return a.OnProbe(ctx)
}

// Close implements execution.Provider.
func (a *Adapter) Close() { a.Closes.Add(1) }

// Up is what a provider says that is well.
func Up() execution.Capabilities {
	return execution.Capabilities{Available: true, Version: "1", Models: []execution.Model{{Name: "m"}}}
}

// Answer gives a whole answer.
func Answer(sink execution.TunnelSink, body string) error {
	if err := sink.Head(http.StatusOK, http.Header{"Content-Type": {"text/plain"}}); err != nil {
		return err
	}
	return sink.Body([]byte(body))
}

// Hang waits for the cancel and returns its cause, as an adapter does whose provider is silent.
func Hang(ctx context.Context, _ *execution.TunnelRequest, _ execution.TunnelSink) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// Say is a whole run that says the texts.
func Say(emit execution.Emit, texts ...string) (execution.Completion, error) {
	if err := emit(execution.Event{Kind: execution.EventStart, Model: "m"}); err != nil {
		return execution.Completion{}, err
	}
	for _, text := range texts {
		if err := emit(execution.Event{Kind: execution.EventDelta, Text: text}); err != nil {
			return execution.Completion{}, err
		}
	}
	return execution.Completion{FinishReason: "stop"}, nil
}

// HangRun is [Hang] for runs.
func HangRun(ctx context.Context, _ *execution.Request, _ execution.Emit) (execution.Completion, error) {
	<-ctx.Done()
	return execution.Completion{}, context.Cause(ctx)
}
