// Package transport is the edge's listener for nodes: it accepts connections, registers them on the bare connection
// under one deadline, and then serves each for as long as it lives (the table "Node connection at the edge" of
// protocol.md).
//
// It owns connections that haven't registered yet, the handshake, the timers of a connection, and the switch over what
// nodes say on control. It must not keep who is connected (node does), count places (admission does), drive runs
// (service does), or know the multiplexer (packages/go/transport does). Nobody who hasn't registered can make it do
// more than read 16 KiB.
package transport

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/packages/go/config"
	"iop/packages/go/faultpoint"
	"iop/packages/go/identity"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

// Timers are the time limits of a node connection. A zero field is its default.
type Timers struct {
	Heartbeat   time.Duration // between two heartbeats, 30 s
	Dead        time.Duration // silence that ends the link, 45 s
	ControlOpen time.Duration // from acceptance to the control stream, 5 s
	StreamReset time.Duration // from a stream's close to its reset, 10 s
	Handshake   time.Duration // the whole registration, probe included, 10 s
	Probe       time.Duration // for a predecessor to show that it lives, 3 s
	ReadyLimit  time.Duration // from registration to the first Ready, 60 s
	Dispatch    time.Duration // for the node to answer an open, 10 s
	Status      time.Duration // between two TRANSPORT_STATUS commands: heartbeats on the way that work goes. Heartbeat's value
}

// Runs is told what nodes say of executions; service.Service is one. It is called by the reader of a control stream and
// must not block.
type Runs interface {
	// RunEnded tells of each end on a current connection that freed a place there (held), and of each end of a
	// background run whether it did or not. When it has returned, the end of a background run may be confirmed.
	RunEnded(nodeID string, generation uint64, e *pb.RunEnd, held bool)
	// Adopted tells what a node's Ready named as still running.
	Adopted(nodeID string, generation uint64, running []*pb.RunningExecution)
}

// Config is what a Server needs.
type Config struct {
	// Registry holds the connections.
	Registry *node.Registry
	// Runs is told of executions that ended or still run. Nil = nobody.
	Runs Runs
	// Leases lends keys to nodes. Nil = nobody does, and no node is asked for a recipient key.
	Leases Leases
	// Events gets every refusal.
	Events node.Publisher
	// Identity is who the edge is towards nodes, and whom it believes: every connection begins with a TLS handshake in
	// which both prove themselves. Nil is mode dev: plaintext.
	Identity *identity.Source
	// Timers bound everything.
	Timers Timers
	// MaxUnregistered is how many connections may be open that haven't registered; the excess waits to be accepted.
	// Default 128.
	MaxUnregistered int
	// MaxHandshakes is how many of them may be worked on at once, from the whole request to the answer. Default 64.
	MaxHandshakes int
	// Payload makes what a node is told from its projection. Default [Payloads] of Leases.
	Payload func(*config.Projection) (*pb.NodeConfigPayload, error)
	// Now is the clock that nodes are told of, the one by which Leases issues. Nil is the wall clock.
	Now func() time.Time
	// Log gets a line for every refusal and every change of a connection's life.
	Log zerolog.Logger
	// Faults is asked at the points of a connection; nil is nobody.
	Faults *faultpoint.Hooks
}

// Server accepts node connections. It starts nothing before Serve.
type Server struct {
	cfg      Config
	instance []byte // of this process, told to nodes

	unregistered chan struct{} // one token for each connection that hasn't registered
	crowd        crowd         // of those, who hasn't said anything
	handshakes   chan struct{} // one token for each registration that is worked on
	strangers    *rate.Limiter // of log lines and events about peers that showed no valid token

	stats stats
	conns sync.WaitGroup
}

// Stats counts what the listener did since the start.
type Stats struct {
	Accepted     uint64
	AcceptErrors uint64
	Refused      map[string]uint64 // by reason; also those that were closed without an answer
	Unregistered int               // now
	Handshakes   int               // now
}

type stats struct {
	accepted, acceptErrors atomic.Uint64
	refused                [reasons]atomic.Uint64
	unregistered           atomic.Int64
}

// reasons is one more than the highest register reason.
const reasons = int(pb.RegisterReason_REGISTER_REASON_PROTOCOL) + 1

// NewServer returns a server for cfg.
func NewServer(cfg Config) *Server {
	cfg.Timers = cfg.Timers.withDefaults()
	if cfg.MaxUnregistered == 0 {
		cfg.MaxUnregistered = 128
	}
	if cfg.MaxHandshakes == 0 {
		cfg.MaxHandshakes = 64
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Payload == nil {
		cfg.Payload = Payloads(cfg.Leases)
	}
	instance := make([]byte, 16)
	_, _ = rand.Read(instance) // never fails
	return &Server{
		cfg: cfg, instance: instance,
		unregistered: make(chan struct{}, cfg.MaxUnregistered),
		handshakes:   make(chan struct{}, cfg.MaxHandshakes),
		strangers:    rate.NewLimiter(5, 50),
	}
}

func (t Timers) withDefaults() Timers {
	for _, f := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Heartbeat, 30 * time.Second}, {&t.Dead, 45 * time.Second}, {&t.ControlOpen, 5 * time.Second},
		{&t.StreamReset, 10 * time.Second}, {&t.Handshake, 10 * time.Second}, {&t.Probe, 3 * time.Second},
		{&t.ReadyLimit, 60 * time.Second}, {&t.Dispatch, 10 * time.Second},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	if t.Status == 0 {
		t.Status = t.Heartbeat
	}
	return t
}

func (t Timers) link(log zerolog.Logger) link.Config {
	return link.Config{Heartbeat: t.Heartbeat, Dead: t.Dead, ControlOpen: t.ControlOpen, StreamReset: t.StreamReset, Log: log}
}

// Serve accepts on ln until ctx ends; then it closes ln and what hasn't registered, says goodbye to every node, and
// returns when every connection is over. An error means that ln broke for good.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	err := s.acceptLoop(ctx, ln)
	cancel() // after a broken listener too: Serve ends whole
	stop()
	_ = ln.Close()
	s.conns.Wait()
	return err
}

// acceptLoop hands each connection to a goroutine of its own. It takes the token of an unregistered connection before
// it accepts, so that the excess waits in the kernel's queue instead of being refused.
func (s *Server) acceptLoop(ctx context.Context, ln net.Listener) error {
	var failures int
	for {
		if !s.room(ctx) {
			return nil
		}
		conn, err := ln.Accept()
		if err == nil {
			failures = 0
			s.stats.accepted.Add(1)
			s.conns.Go(func() { s.handle(ctx, conn) })
			continue
		}
		<-s.unregistered
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		s.acceptFailed(err, failures)
		if !sleep(ctx, acceptBackoff(failures)) {
			return nil
		}
		failures++
	}
}

// room waits for the token of an unregistered connection; false = ctx ended first. While there is none, those who are
// silent give way.
func (s *Server) room(ctx context.Context) bool {
	select {
	case s.unregistered <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(nextLook)
	defer timer.Stop()
	for {
		select {
		case s.unregistered <- struct{}{}:
			return true
		case <-ctx.Done():
			return false
		case <-timer.C:
			timer.Reset(s.crowd.giveWay())
		}
	}
}

// acceptFailed tells of the first of a row of failures: descriptors don't come back by logging.
func (s *Server) acceptFailed(err error, before int) {
	s.stats.acceptErrors.Add(1)
	if before > 0 {
		return
	}
	s.cfg.Log.Error().Err(err).Msg("node connections can't be accepted; raise the limit of open files (ulimit -n)")
	s.cfg.Events.Publish(events.Event{Kind: events.KindRefused, Code: "accept_failed", Text: err.Error()})
}

// acceptBackoff doubles from 5 ms to 1 s.
func acceptBackoff(failures int) time.Duration {
	return min(5*time.Millisecond<<min(failures, 10), time.Second)
}

// sleep waits for d; false = ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// handle owns one connection from accept to its end.
func (s *Server) handle(ctx context.Context, conn net.Conn) {
	s.stats.unregistered.Add(1)
	c := s.register(ctx, conn)
	s.stats.unregistered.Add(-1)
	<-s.unregistered
	if c != nil {
		s.serveConn(ctx, c)
	}
}

// Drain refuses registrations from now on and tells every node that the edge goes away: what runs goes on for grace,
// nodes are asked to dial elsewhere. End ctx of Serve when the grace is over.
func (s *Server) Drain(grace time.Duration) { s.cfg.Registry.Drain(grace, reconnectAfter) }

// reconnectAfter is what nodes are told to wait before they dial a draining edge again.
const reconnectAfter = 5 * time.Second

// Stats returns the counts.
func (s *Server) Stats() Stats {
	st := Stats{
		Accepted: s.stats.accepted.Load(), AcceptErrors: s.stats.acceptErrors.Load(),
		Refused:      make(map[string]uint64, reasons),
		Unregistered: int(s.stats.unregistered.Load()), Handshakes: len(s.handshakes),
	}
	for i := 1; i < reasons; i++ {
		st.Refused[node.ReasonName(pb.RegisterReason(i))] = s.stats.refused[i].Load()
	}
	return st
}
