// Package edge is the edge program: it lets nodes register, admits callers' requests, and carries each to a node and
// its answer back. [Run] builds everything top to bottom; it is the only function that knows the whole configuration.
package edge

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"iop/apps/edge/internal/admin"
	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/credential"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/httpapi"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/apps/edge/internal/transport"
	"iop/apps/edge/internal/usage"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
	"iop/packages/go/identity"
	"iop/packages/go/logging"
	"iop/packages/go/tracing"
)

// Addrs are the addresses that an edge listens on.
type Addrs struct {
	Nodes net.Addr
	HTTP  net.Addr
	Admin net.Addr // nil = off
}

// Options is what a caller of [Run] may hand in beside the configuration. The zero value is usable.
type Options struct {
	// Log takes the edge's log.
	Log zerolog.Logger
	// Version is what the edge calls itself; "" is "dev".
	Version string
	// Tracing says where spans go; nil = nowhere.
	Tracing *tracing.Config
	// OnListen is called once, when all listeners are open.
	OnListen func(Addrs)
	// Reload asks for the configuration's file to be read again; it is, too, when it changes. Nil never asks.
	Reload <-chan struct{}
	// Kill ends Run at once, whatever is running; a second signal closes it. nil never does.
	Kill <-chan struct{}

	// Listen opens the listener of listen.nodes, listen.http or listen.admin, by its last word; nil is TCP.
	Listen func(name, addr string) (net.Listener, error)
	// Outlives reports that a listener's socket is somebody else's, too, and goes on to take connections when this process
	// closes it. Then a drain closes that of the callers at once: who connects from then on waits for the next process
	// instead of being refused. nil = none does.
	Outlives func(name string) bool
	// Inside is given the edge's inside, before anything listens. For a simulation; nil is nobody.
	Inside func(*Inside)
	// Faults is asked at the points at which a simulation may interfere; nil is nobody.
	Faults *faultpoint.Hooks
}

// Run serves until ctx is cancelled, then drains: new requests are refused, nodes are told, what runs may finish for
// timers.drain, the rest ends as edge_draining. It returns nil after a drain. An error means that it couldn't start, or
// that a listener broke.
func Run(ctx context.Context, cfg *config.Edge, opts Options) error {
	generations, err := node.OpenGenerations(cfg.StateDir)
	if err != nil {
		return err
	}
	tracer, err := tracing.Open(opts.Tracing, opts.Log)
	if err != nil {
		return errors.Join(err, generations.Close())
	}
	defer tracer.Close(opts.Kill)
	ledger, err := openLedger(cfg.StateDir, opts)
	if err != nil {
		return errors.Join(err, generations.Close())
	}
	g, err := build(cfg, generations, ledger, tracer, opts)
	if err != nil {
		return errors.Join(err, ledger.Close(), generations.Close())
	}
	if opts.Inside != nil {
		opts.Inside(&Inside{g})
	}
	return errors.Join(g.serve(ctx, opts), generations.Close())
}

// graph is the program's parts.
type graph struct {
	cfg       *config.Edge
	log       zerolog.Logger
	live      *live
	scheduler *admission.Scheduler
	service   *service.Service
	handler   *httpapi.Handler
	nodes     *transport.Server
	identity  *identity.Source  // nil = mode dev
	leases    *credential.Store // nil = mode dev
	usage     *usage.Ledger     // nil = none is kept
	events    *events.Bus
	callers   *http.Server
	shown     *x509.Certificate // to callers; nil = plain HTTP
	admin     *http.Server      // nil = off
	bind      func(name, addr string) (net.Listener, error)
	listen    listeners
	outlives  bool        // the callers' socket goes on without this process
	handed    atomic.Bool // it was left to the next one
}

type listeners struct{ nodes, http, admin net.Listener }

func build(cfg *config.Edge, generations *node.Generations, ledger *usage.Ledger, tracer *tracing.Tracer, opts Options) (*graph, error) {
	// Projection numbers must grow across restarts, as generations do: they come from the same numbers.
	version, err := generations.Next()
	if err != nil {
		return nil, err
	}
	l := &live{log: opts.Log, generations: generations, identity: make(chan struct{}, 1)}
	l.state.Store(config.NewState(cfg, version, nil))
	current := l.current

	g := &graph{cfg: cfg, log: opts.Log, live: l, usage: ledger, bind: opts.Listen,
		outlives: opts.Outlives != nil && opts.Outlives("http")}
	if g.bind == nil {
		g.bind = func(_, addr string) (net.Listener, error) { return net.Listen("tcp", addr) }
	}
	if cfg.Managed() {
		if g.identity, err = identity.Open(cfg.Identity()); err != nil {
			return nil, err
		}
	}
	bus := events.NewBus()
	var registry *node.Registry
	g.scheduler = admission.New(admission.Config{
		ConfirmLimit:  cfg.Timers.ConfirmLimit,
		OnUnconfirmed: func(id string, generation uint64) { registry.Unconfirmed(id, generation) },
	})
	places := &places{Scheduler: g.scheduler}
	registry = node.New(node.Config{State: current, Scheduler: places, Events: bus, Generations: generations, Log: opts.Log,
		Faults: opts.Faults})
	g.events = bus
	now := steady(time.Now())
	if g.leases, err = openLeases(cfg, current, registry.EdgeID(), credential.Config{Events: bus, Log: opts.Log, Now: now}); err != nil {
		return nil, err
	}
	var leases transport.Leases // not a nil *credential.Store in an interface
	var lends service.Leases
	if g.leases != nil {
		leases, lends = g.leases, lender{g.leases}
		g.connectLeases(g.leases, registry)
	}
	l.registry, l.leases, l.waiting = registry, g.leases, func() { g.service.Reconfigured() }
	l.tell = func() { registry.Reconfigured(transport.Must(transport.Payloads(leases))) }
	view := &view{registry: registry, scheduler: g.scheduler, places: places}
	metrics := admin.NewMetrics(opts.Version, admin.Sources{
		Nodes: view.nodes, Health: registry.Health, Certificates: g.certificates, Ended: registry.Ended, NodeIgnored: registry.Ignored, Places: g.scheduler.Snapshot,
		Links: view.links, Listener: func() admin.ListenerStats { return listenerStats(g.nodes) },
		Live: func() int { return g.service.Live() }, SlowAnswers: func() int { return g.service.SlowAnswers() },
		Frames:     func() map[string]uint64 { return g.service.Frames() },
		LateFrames: func() map[string]uint64 { return g.service.LateFrames() },
		Bus:        bus.Stats, BodyBytes: func() int64 { return g.handler.BodyBytes() }, Offered: view.offered,
		Config: func() uint64 { return current().Version }, Slots: g.slotStatus, Leases: g.leaseCounts,
	})
	l.told = func(changed bool, err error) {
		metrics.Reloaded(changed, err)
		publishReload(bus, current().Version, changed, err)
	}
	g.service = service.New(service.Config{
		State: current, Scheduler: g.scheduler, Nodes: connections{registry}, Commands: connections{registry}.commands, Events: bus, Tracer: tracer, Log: opts.Log,
		Leases: lends, Meter: g.meter(), Observers: []service.Observer{metrics}, Faults: opts.Faults,
		DispatchLimit: cfg.Timers.DispatchLimit, TerminalWait: cfg.Timers.TerminalWait,
		DetachedLimit: cfg.Timers.DetachedLimit, MaxInput: cfg.Limits.Body, SlowAnswers: cfg.Limits.SlowAnswers,
	})
	g.nodes = transport.NewServer(transport.Config{
		Registry: registry, Identity: g.identity, Runs: g.service, Leases: leases, Events: bus, Log: opts.Log, Timers: linkTimers(cfg.Timers),
		MaxUnregistered: cfg.Limits.Unregistered, MaxHandshakes: cfg.Limits.Handshakes, Faults: opts.Faults, Now: now,
	})
	g.handler = httpapi.New(httpapi.Config{
		State: current, Tunnels: g.service, Runs: g.service, Commands: g.service, Offers: view.offers,
		Observers: []service.Observer{metrics}, Tracer: tracer, Log: opts.Log,
		Limits: cfg.Limits, Origins: cfg.CORS.Origins, WriteIdle: cfg.Timers.WriteIdle,
	})
	g.callers = httpapi.NewServer(httpapi.ServerConfig{Handler: g.handler, HeaderRead: cfg.Timers.HeaderRead,
		MaxHeader: cfg.Limits.Header, Log: opts.Log})
	if files := cfg.Listen.HTTPTLS; files != nil {
		if g.callers.TLSConfig, err = httpapi.LoadTLS(files.Cert, files.Key); err != nil {
			return nil, err
		}
		g.shown = g.callers.TLSConfig.Certificates[0].Leaf // the server's configuration is its own from here on
	}
	if cfg.Listen.Admin != "" {
		g.admin = admin.NewServer(admin.New(admin.Config{
			Listen: cfg.Listen.Admin, Version: opts.Version, State: current, NotReady: view.notReady, Warnings: g.warnings, Nodes: view.nodes,
			Queue: g.scheduler.Snapshot, Metrics: metrics, Log: opts.Log,
			Runs: g.service.Runs, Explain: g.service.Explain, Events: bus, Find: g.find, AsRun: httpapi.GoesAsRun,
			Slots: g.slots(), Usage: g.used,
			Steer: admin.Steering{
				Cancel:  func(id string) service.CancelResult { return g.service.Cancel(id, execution.CauseAPI) },
				Command: g.service.Command, SetDrained: registry.SetDrained, Release: g.release(bus),
			},
		}))
		g.admin.ErrorLog = logging.HTTPErrors(opts.Log)
	}
	return g, nil
}

func linkTimers(t config.EdgeTimers) transport.Timers {
	return transport.Timers{Heartbeat: t.Heartbeat, Dead: t.Dead, ControlOpen: t.ControlOpen, StreamReset: t.StreamReset,
		Handshake: t.Handshake, Probe: t.Probe, ReadyLimit: t.ReadyLimit, Dispatch: t.DispatchLimit}
}

// connections lets the service find nodes in the registry.
type connections struct{ registry *node.Registry }

// Lookup implements service.Nodes.
func (c connections) Lookup(id string, generation uint64) service.Node {
	if found := c.registry.Lookup(id, generation); found != nil {
		return found
	}
	return nil // not a nil *node.Connection in an interface
}

// Connected implements service.Nodes.
func (c connections) Connected() []string {
	live := c.registry.Connections()
	ids := make([]string, len(live))
	for i := range live {
		ids[i] = live[i].NodeID
	}
	return ids
}

// commands are the connections that commands may go to.
func (c connections) commands() []service.CommandTarget {
	live := c.registry.Connections()
	targets := make([]service.CommandTarget, len(live))
	for i, n := range live {
		targets[i] = service.CommandTarget{NodeID: n.NodeID, Generation: n.Generation, State: n.State(), Conn: n}
	}
	return targets
}

// open opens every listener or none.
func (g *graph) open() (addrs Addrs, err error) {
	var opened []net.Listener
	listen := func(key, addr string) net.Listener {
		if err != nil || addr == "" {
			return nil
		}
		l, failure := g.bind(key, addr)
		if failure != nil {
			err = fmt.Errorf("listen.%s: %w", key, failure)
			return nil
		}
		opened = append(opened, l)
		return l
	}
	g.listen.nodes = listen("nodes", g.cfg.Listen.Nodes)
	g.listen.http = listen("http", g.cfg.Listen.HTTP)
	if g.admin != nil {
		g.listen.admin = listen("admin", g.cfg.Listen.Admin)
	}
	if err != nil {
		for _, l := range opened {
			l.Close()
		}
		return Addrs{}, err
	}
	addrs = Addrs{Nodes: g.listen.nodes.Addr(), HTTP: g.listen.http.Addr()}
	g.listen.http = httpapi.Bound(g.callers, logging.Accepting(g.listen.http, "http", g.log), g.cfg.Limits.Connections, g.log)
	if g.listen.admin != nil {
		addrs.Admin = g.listen.admin.Addr()
		g.listen.admin = logging.Accepting(g.listen.admin, "admin", g.log)
	}
	return addrs, nil
}

func (g *graph) serve(ctx context.Context, opts Options) error {
	addrs, err := g.open()
	if err != nil {
		return err
	}
	line := g.log.Info().Stringer("nodes", addrs.Nodes).Stringer("http", addrs.HTTP).Bool("tls", g.callers.TLSConfig != nil)
	if addrs.Admin != nil {
		line = line.Stringer("admin", addrs.Admin)
	}
	line.Str("version", opts.Version).Msg("edge is listening")
	if opts.OnListen != nil {
		opts.OnListen(addrs)
	}

	// The listener of nodes outlives ctx: links must carry what runs while the edge drains.
	nodes, endNodes := context.WithCancel(context.WithoutCancel(ctx))
	defer endNodes()
	group, broken := errgroup.WithContext(ctx)
	group.Go(func() error { return g.nodes.Serve(nodes, g.listen.nodes) })
	group.Go(func() error { return g.serveCallers() })
	if g.usage != nil {
		group.Go(func() error { g.usage.Run(nodes); return nil })
	}
	if len(g.cfg.Files) > 0 {
		g.live.bind(addrs)
		group.Go(func() error { g.live.follow(broken, opts.Reload); return nil })
	}
	if g.leases != nil {
		group.Go(func() error { g.leases.Run(nodes); return nil })
	}
	if g.identity != nil {
		group.Go(func() error { g.followIdentity(nodes); return nil })
	}
	if g.admin != nil {
		group.Go(func() error { return closed(g.admin.Serve(g.listen.admin)) })
	}
	group.Go(func() error {
		<-broken.Done() // told to stop, or one of the listeners above broke
		g.drain(opts.Kill)
		endNodes()
		return g.close()
	})
	err = group.Wait()
	g.service.Join() // what read late frames ends with the links, which are gone
	return errors.Join(err, g.usage.Close())
}

func (g *graph) serveCallers() error {
	var err error
	if g.callers.TLSConfig != nil {
		err = g.callers.ServeTLS(g.listen.http, "", "")
	} else {
		err = g.callers.Serve(g.listen.http)
	}
	if errors.Is(err, net.ErrClosed) && g.handed.Load() {
		return nil
	}
	return closed(err)
}

// closed turns the error of a server that was closed on purpose into none.
func closed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// drain lets what runs finish within timers.drain, ends the rest, and returns. New requests are answered with
// edge_draining all the while.
func (g *graph) drain(kill <-chan struct{}) {
	g.log.Info().Int("running", g.service.Live()).Stringer("grace", g.cfg.Timers.Drain).Msg("edge is draining")
	g.handOver(kill)
	g.nodes.Drain(g.cfg.Timers.Drain)
	g.service.Drain()
	// Background runs aren't waited for: their nodes go on with them, and tell the next edge process how they ended.
	defer g.service.Depart()
	done := make(chan struct{})
	go func() { // ends with the last run, which the steps below see to
		defer close(done)
		_ = g.service.Wait(context.Background())
	}()
	select {
	case <-done:
		return
	case <-time.After(g.cfg.Timers.Drain):
	case <-kill:
	}
	g.service.CancelAll(execution.CauseEdgeDraining)
	select {
	case <-done:
		return
	case <-time.After(closeLimit):
	case <-kill:
	}
	g.callers.Close() // a run whose caller doesn't read hangs in its write
	<-done
}

// handOverWait is how long requests are still taken on connections that were accepted before their socket was handed over.
const handOverWait = 250 * time.Millisecond

// handOver leaves the callers' socket to the next process, where it outlives this one.
func (g *graph) handOver(kill <-chan struct{}) {
	if !g.outlives {
		return
	}
	// Not by Shutdown: it has the server drop each request that it reads from then on, without an answer.
	g.handed.Store(true)
	g.callers.SetKeepAlivesEnabled(false) // closes those that are idle
	_ = g.listen.http.Close()
	g.log.Info().Msg("the callers' socket is handed over")
	select {
	case <-time.After(handOverWait):
	case <-kill:
	}
}

// closeLimit bounds how long callers may take to read the end of their answers.
const closeLimit = 2 * time.Second

func (g *graph) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	err := g.callers.Shutdown(ctx)
	if err != nil { // somebody doesn't read: their connection is cut
		err = g.callers.Close()
	}
	if g.admin != nil {
		err = errors.Join(err, g.admin.Close())
	}
	g.log.Info().Msg("edge has stopped")
	return err
}
