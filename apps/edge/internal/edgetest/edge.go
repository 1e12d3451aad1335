// Package edgetest has what tests of the edge need: the node side of an edge put together as the program does it, fake
// nodes that speak the real protocol through the real link, a peer that breaks the rules byte by byte, and connections
// that go silent.
//
// It is for tests only. It must not decide what is right: it does what a test tells it and shows what came of it.
package edgetest

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/transport"
	"iop/packages/go/config"
	"iop/packages/go/identity"
	pb "iop/proto/iop"
)

// Options says what Start puts together. Everything has a default but Nodes.
type Options struct {
	Nodes           []config.NodeRecord
	Routes          []config.Route
	Timers          transport.Timers
	ConfirmLimit    time.Duration
	MaxUnregistered int
	MaxHandshakes   int
	Payload         func(*config.Projection) (*pb.NodeConfigPayload, error)
	Runs            transport.Runs
	Leases          transport.Leases
	Slots           []config.Slot
	Wrap            func(node.Scheduler) node.Scheduler // to look at what the scheduler is told
	Listener        net.Listener                        // default: TCP on loopback
	Identity        *identity.Source                    // mode managed; default: mode dev
	Log             io.Writer                           // default: nowhere
}

// Edge is the node side of an edge: everything below the HTTP surfaces and the service.
type Edge struct {
	Bus         *events.Bus
	Scheduler   *admission.Scheduler
	Generations *node.Generations
	Registry    *node.Registry
	Server      *transport.Server
	Listener    net.Listener

	state  atomic.Pointer[config.State]
	cancel context.CancelFunc
	done   chan error
	taken  atomic.Bool // Stop was called
}

// Start runs an edge until the test is over, and then waits for all of it.
func Start(t testing.TB, o Options) *Edge {
	t.Helper()
	generations, err := node.OpenGenerations(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e := &Edge{Bus: events.NewBus(), Generations: generations, Listener: o.Listener, done: make(chan error, 1)}
	e.state.Store(config.NewState(&config.Edge{Mode: mode(o.Identity), Nodes: o.Nodes, Routes: o.Routes, Slots: o.Slots}, 1, nil))
	e.build(o)
	if e.Listener == nil {
		if e.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	go func() { e.done <- e.Server.Serve(ctx, e.Listener) }()
	t.Cleanup(func() {
		if taken := e.taken.Load(); !taken {
			if err := e.Stop(); err != nil {
				t.Errorf("serve: %v", err)
			}
		}
		_ = generations.Close()
	})
	return e
}

func (e *Edge) build(o Options) {
	log := zerolog.Nop()
	if o.Log != nil {
		log = zerolog.New(o.Log)
	}
	e.Scheduler = admission.New(admission.Config{
		ConfirmLimit:  o.ConfirmLimit,
		OnUnconfirmed: func(id string, generation uint64) { e.Registry.Unconfirmed(id, generation) },
	})
	var scheduler node.Scheduler = e.Scheduler
	if o.Wrap != nil {
		scheduler = o.Wrap(scheduler)
	}
	e.Registry = node.New(node.Config{
		State: e.State, Scheduler: scheduler, Events: e.Bus, Generations: e.Generations, Log: log,
	})
	e.Server = transport.NewServer(transport.Config{
		Registry: e.Registry, Identity: o.Identity, Runs: o.Runs, Leases: o.Leases, Events: e.Bus, Timers: o.Timers, Payload: o.Payload,
		MaxUnregistered: o.MaxUnregistered, MaxHandshakes: o.MaxHandshakes, Log: log,
	})
}

// State returns the configuration in force.
func (e *Edge) State() *config.State { return e.state.Load() }

// Configure puts other nodes in force, as a reload does.
func (e *Edge) Configure(nodes []config.NodeRecord) {
	old := e.State()
	e.state.Store(config.NewState(&config.Edge{Mode: old.Edge.Mode, Nodes: nodes, Routes: old.Edge.Routes, Slots: old.Edge.Slots}, old.Version+1, old))
}

func mode(s *identity.Source) string {
	if s == nil {
		return "dev"
	}
	return "managed"
}

// Addr is where nodes dial.
func (e *Edge) Addr() string { return e.Listener.Addr().String() }

// Stop ends the edge as the end of a drain does, waits for it, and returns what Serve returned. A test that doesn't
// call it fails when Serve returned an error.
func (e *Edge) Stop() error {
	e.taken.Store(true)
	e.cancel()
	err := <-e.done
	e.done <- err // for the next one who asks
	return err
}

// Record returns an enabled node record with one loopback adapter of that many places. Its token is Token(id).
func Record(id string, places int) config.NodeRecord {
	return config.NodeRecord{
		ID: id, Enabled: true, TokenHashes: []config.TokenHash{{SHA256: hexHash(Token(id))}},
		Adapters: []config.Adapter{{Name: "loopback", Kind: "loopback", MaxConcurrency: places}},
	}
}
