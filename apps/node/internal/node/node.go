// Package node executes what one Edge asks of this node: it owns the executions from the open of their work stream
// to their end, the projection that names the adapters, and what the Edge is told about both.
//
// It must not know how a link is made or kept (apps/node/internal/transport does that), nor any provider's dialect
// (the adapters do). One [Executor] serves one Edge and outlives its connections; one [Session] is one connection.
package node

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/page"
	"iop/apps/node/internal/router"
	"iop/apps/node/internal/store"
	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
	"iop/packages/go/tracing"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// Config is what an Executor needs.
type Config struct {
	// Edge is the address of the Edge; it keys the adapters.
	Edge string
	// Router holds the adapters and places of all Edges.
	Router *router.Router
	// Build makes the driver of an adapter. It asks the provider nothing.
	Build func(router.Spec) (execution.Provider, error)
	// Journal records what was executed; nil records nothing, and the ends of background runs are told once only.
	Journal *store.Journal
	// Retain is told what the Edge's projection says of the journal: how old and how many rows it keeps, 0 = untold.
	// nil is nobody.
	Retain func(maxAge time.Duration, maxRows int)
	// Timers bound what the executor waits for.
	Timers Timers
	// Observer is told of ends and refusals; nil is nobody.
	Observer Observer
	// Tracer shows each execution in its caller's trace; nil = tracing is off.
	Tracer *tracing.Tracer
	// Log takes one line per execution, and what went wrong.
	Log zerolog.Logger
	// Faults is asked at the points of an execution; nil is nobody.
	Faults *faultpoint.Hooks
}

// Timers bound what an executor waits for. Zero is the default in brackets.
type Timers struct {
	FirstByte    time.Duration // a provider's head, where the route doesn't say (10 min)
	Idle         time.Duration // a pause inside a provider's answer, where the route doesn't say (5 min)
	AdapterStop  time.Duration // an adapter's return after its cancel (10 s)
	Linger       time.Duration // the edge's close after the end (10 min)
	RejectLinger time.Duration // the edge's close after a rejection (10 s)
	Parting      time.Duration // the link of an edge that goes outlives the streams that it closes (2 s)
	OpenRead     time.Duration // the head of a work stream (10 s)
	AdapterBuild time.Duration // all adapters of a projection (30 s)
	Probe        time.Duration // one answer of a provider about itself (5 s)
	Fresh        time.Duration // the answers that a CAPABILITIES command waits for (3 s)
	Command      time.Duration // a command from its open to its answer (1 min)
	ProbeEvery   time.Duration // from one look at the providers to the next (15 s)
}

func (t Timers) withDefaults() Timers {
	return Timers{
		FirstByte:    cmp.Or(t.FirstByte, 10*time.Minute),
		Idle:         cmp.Or(t.Idle, 5*time.Minute),
		AdapterStop:  cmp.Or(t.AdapterStop, 10*time.Second),
		Linger:       cmp.Or(t.Linger, 10*time.Minute),
		RejectLinger: cmp.Or(t.RejectLinger, 10*time.Second),
		Parting:      cmp.Or(t.Parting, 2*time.Second),
		OpenRead:     cmp.Or(t.OpenRead, 10*time.Second),
		AdapterBuild: cmp.Or(t.AdapterBuild, 30*time.Second),
		Probe:        cmp.Or(t.Probe, 5*time.Second),
		Fresh:        cmp.Or(t.Fresh, 3*time.Second),
		Command:      cmp.Or(t.Command, time.Minute),
		ProbeEvery:   cmp.Or(t.ProbeEvery, 15*time.Second),
	}
}

// provider returns the timers of a route that sets none.
func (t Timers) provider() execution.Timers {
	return execution.Timers{FirstByte: t.FirstByte, Idle: t.Idle}
}

// Observer is told what the node did. Its methods must return at once.
type Observer interface {
	// Ended is called once for each execution.
	Ended(e Ended)
	// Refused is called for each open that was rejected.
	Refused(code execution.Code)
	// Late counts what came after its time, or had no business here, by kind.
	Late(kind string)
}

// Ended is one execution that is over.
type Ended struct {
	Adapter  string
	Status   execution.Status
	Code     execution.Code
	Duration time.Duration
	BytesIn  int64
	BytesOut int64
}

type nobody struct{}

func (nobody) Ended(Ended)            {}
func (nobody) Refused(execution.Code) {}
func (nobody) Late(string)            {}

// maxLingering is how many ended executions may wait for the edge's close; beyond it the oldest is closed.
const maxLingering = 256

// Executor runs one Edge's executions. Its methods may be called concurrently.
type Executor struct {
	cfg  Config
	ctx  context.Context // of the probes
	stop context.CancelFunc
	work sync.WaitGroup // adapters' goroutines and probes

	applying sync.Mutex // one projection at a time

	// mu is taken before the router's lock, never the other way round, and never held across a call to a driver or a
	// stream.
	mu        sync.Mutex
	serving   *Session // the connection that was told Ready; nil between connections
	draining  bool
	running   map[string]*task    // by run_id
	lingering *list.List          // of *task, the oldest first
	commands  map[string]*command // by command_id, until their streams are over
	asked     int                 // commands in work
	tombs     tombstones
	status    uint64        // number of the last NodeStatus
	quiet     chan struct{} // closed when nothing runs or lingers; nil while nobody asks
	probing   map[*router.Adapter]chan struct{}
	storeNews *pb.EdgeNodeEvent // the last one that no connection could tell

	pages page.Pool // in which keys are in the clear for a moment
}

// New returns an executor without adapters. It starts nothing.
func New(cfg Config) *Executor {
	cfg.Timers = cfg.Timers.withDefaults()
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	if cfg.Retain == nil {
		cfg.Retain = func(time.Duration, int) {}
	}
	ctx, stop := context.WithCancel(context.Background())
	x := &Executor{
		cfg: cfg, ctx: ctx, stop: stop,
		running: map[string]*task{}, lingering: list.New(), commands: map[string]*command{}, probing: map[*router.Adapter]chan struct{}{},
	}
	cfg.Router.Watch(cfg.Edge, x.sendStatus)
	return x
}

// Drain makes the executor refuse every new open, and tells the Edge. It can't be undone.
func (x *Executor) Drain() {
	x.mu.Lock()
	x.draining = true
	x.mu.Unlock()
	x.sendStatus()
}

// Quiet returns a channel that is closed once nothing runs, no command is in work and every answer was taken. It is for a draining executor:
// one that takes new work may not be quiet any more when the caller looks.
func (x *Executor) Quiet() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.quiet == nil {
		x.quiet = make(chan struct{})
		x.calmLocked()
	}
	return x.quiet
}

// calmLocked tells who waits for it that nothing runs or lingers.
func (x *Executor) calmLocked() {
	if x.quiet == nil || len(x.running) > 0 || x.lingering.Len() > 0 || x.asked > 0 {
		return
	}
	select {
	case <-x.quiet:
	default:
		close(x.quiet)
	}
}

// CancelAll cancels every execution and every command.
func (x *Executor) CancelAll(cause execution.CancelCause) {
	x.mu.Lock()
	all := make([]context.CancelCauseFunc, 0, len(x.running)+len(x.commands))
	for _, t := range x.running {
		all = append(all, t.cancel)
	}
	for _, c := range x.commands {
		all = append(all, c.cancel)
	}
	x.mu.Unlock()
	for _, cancel := range all {
		cancel(cause)
	}
}

// Close cancels what still runs, closes the drivers, and waits until ctx is done for the goroutines to end. It is
// called when no connection is left.
func (x *Executor) Close(ctx context.Context) {
	x.CancelAll(execution.CauseNodeDraining)
	x.stop()
	x.cfg.Router.Swap(x.cfg.Edge, nil)
	ended := make(chan struct{})
	go func() { // ends with the last driver that returns
		x.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		x.cfg.Log.Warn().Msg("an adapter didn't stop; leaving without it")
	}
	x.pages.Close()
}

// Session is one connection to the Edge, from its registration to its end.
type Session struct {
	x          *Executor
	link       *transport.Link
	generation uint64
	since      time.Time
	log        zerolog.Logger
	ctx        context.Context // of the executions; its cause is why the connection ended
	cancel     context.CancelCauseFunc
	background bool    // background runs were negotiated
	ollama     bool    // the command OLLAMA_API was negotiated
	traces     bool    // opens say where they stand in their callers\' traces
	leases     *leases // nil = leases weren't negotiated; set before the first Apply

	// guarded by Executor.mu
	over    bool
	keyed   keyed  // what it says of keys
	applied uint64 // the projection in force, 0 = none that this connection sent
	refused *refusal
	told    map[string]bool // background runs whose end was told on this connection, and isn't acknowledged
	asked   int             // commands in work
}

// Features returns what the node offers at a registration.
func Features() []pb.Feature {
	return []pb.Feature{pb.Feature_FEATURE_BACKGROUND, pb.Feature_FEATURE_OLLAMA_COMMAND, pb.Feature_FEATURE_TRACE}
}

// NewSession returns the session of a connection with that generation, on which both sides offered the features. link
// is the connection's, and may be one that doesn't run yet.
func (x *Executor) NewSession(link *transport.Link, generation uint64, features ...pb.Feature) *Session {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Session{
		x: x, link: link, generation: generation, since: time.Now(), ctx: ctx, cancel: cancel,
		background: slices.Contains(features, pb.Feature_FEATURE_BACKGROUND),
		ollama:     slices.Contains(features, pb.Feature_FEATURE_OLLAMA_COMMAND),
		traces:     slices.Contains(features, pb.Feature_FEATURE_TRACE),
		log:        x.cfg.Log.With().Uint64("connection_generation", generation).Logger(),
	}
}

// Serve makes this the connection that takes work, and tells the Edge so. It is called when a projection was applied
// or refused, and again after each further one. It returns the number of the projection in force.
func (s *Session) Serve() (projection uint64) {
	s.x.cfg.Faults.At(faultpoint.NodeReady, s.x.cfg.Edge)
	s.x.mu.Lock()
	first, over := s.x.serving != s, s.over
	if !over {
		s.x.serving = s
	}
	projection = s.applied
	s.x.mu.Unlock()
	if over {
		return projection
	}
	clock := s.clockState() // before Ready: what changes after it is told
	s.link.SendReady(s.ready)
	if first {
		s.tellUnreported()
		s.tellStore()
		s.x.work.Go(func() { s.watch(clock) })
	}
	return projection
}

// End says that the connection is over: what it carried is cancelled, and nothing is sent on it any more.
func (s *Session) End() {
	s.x.mu.Lock()
	s.over = true
	if s.x.serving == s {
		s.x.serving = nil
	}
	s.x.mu.Unlock()
	if s.leases != nil {
		s.leases.guard.Close()
	}
	s.cancel(execution.CauseLinkLost)
}

// Work handles one work stream. It returns when the stream is over; the adapter may take longer.
func (s *Session) Work(stream *transport.Stream) {
	defer stream.Close()
	open, err := stream.ReadOpen(s.x.cfg.Timers.OpenRead)
	if errors.Is(err, transport.ErrLinkDown) {
		return
	}
	if err != nil {
		s.x.cfg.Observer.Late("open")
		s.log.Debug().Err(err).Msg("work stream without a readable open")
		return
	}
	if open.GetConnectionGeneration() != s.generation {
		s.Kill(fmt.Sprintf("an open names connection generation %d, this is %d", open.GetConnectionGeneration(), s.generation))
		return
	}
	switch w := open.GetWork().(type) {
	case *pb.WorkOpen_Tunnel:
		s.x.cfg.Faults.At(faultpoint.NodeAdmit, w.Tunnel.GetRunId())
		s.tunnel(stream, open, w.Tunnel)
	case *pb.WorkOpen_Command:
		s.command(stream, w.Command)
	case *pb.WorkOpen_Run:
		s.x.cfg.Faults.At(faultpoint.NodeAdmit, w.Run.GetRunId())
		s.run(stream, open, w.Run)
	default: // a kind of work that this version doesn't know: no message could be understood as its answer
		s.x.cfg.Observer.Late("work")
		s.log.Warn().Msg("work stream of an unknown kind closed")
	}
}
