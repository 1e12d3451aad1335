// Package node is the node program: it dials its Edges, keeps one link to each, and runs what they send on the
// providers next to it. [Run] builds everything top to bottom; it is the only function that knows the whole
// configuration.
package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/adapters"
	"iop/apps/node/internal/admin"
	"iop/apps/node/internal/node"
	"iop/apps/node/internal/router"
	"iop/apps/node/internal/transport"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
	"iop/packages/go/identity"
	"iop/packages/go/logging"
	"iop/packages/go/tracing"
	link "iop/packages/go/transport"
)

// Options is what a caller of [Run] may hand in beside the configuration. The zero value is usable.
type Options struct {
	// Log takes the node's log.
	Log zerolog.Logger
	// Version is what the node calls itself at registration and in its status; "" is "dev".
	Version string
	// Tracing says where spans go; nil = nowhere.
	Tracing *tracing.Config
	// OnReady is called each time that an Edge confirmed this node as dispatchable, with the Edge's address. It must
	// not block.
	OnReady func(edge string)
	// OnStart is called once, when everything is open that the node needs of its own machine, before the first dial.
	OnStart func()
	// OnAdmin is called with the address of the admin listener, once it listens.
	OnAdmin func(addr net.Addr)
	// Reload asks for the files of the identity to be read again; they are, too, when they change. Nil never asks.
	Reload <-chan struct{}
	// Kill ends Run at once, whatever is running; a second signal closes it. nil never does.
	Kill <-chan struct{}

	// Dial makes the connection to an Edge; nil is TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Random returns numbers in [0, 1), by which the waits between dials differ; nil is the process's generator.
	Random func() float64
	// Slept returns how long the machine was asleep so far; nil asks the kernel.
	Slept func() time.Duration
	// Clocks reads the machine's clocks, by which leases are judged; nil asks the kernel.
	Clocks func() ClockReading
	// Build makes the driver of an adapter; nil takes those of the known kinds.
	Build func(AdapterSpec) (execution.Provider, error)
	// Inside is given the node's inside, before anything is dialed. For a simulation; nil is nobody.
	Inside func(*Inside)
	// Faults is asked at the points at which a simulation may interfere; nil is nobody.
	Faults *faultpoint.Hooks
}

// stopLimit is how long Run waits at its very end for drivers that don't return.
const stopLimit = time.Second

// What the limits are that a configuration leaves at 0, as a loaded one never does.
const (
	drainLimit  = 30 * time.Second
	adapterStop = 10 * time.Second
)

// Run keeps the node's links until ctx is cancelled, then drains: it takes no new work, lets what runs finish for
// timers.drain, cancels the rest, takes leave of its Edges and returns nil. An error means that it couldn't start.
func Run(ctx context.Context, cfg *config.Node, opts Options) error {
	opts.Version = cmp.Or(opts.Version, "dev")
	metrics := admin.NewMetrics()
	tracer, err := tracing.Open(opts.Tracing, opts.Log)
	if err != nil {
		return err
	}
	defer tracer.Close(opts.Kill)
	record, err := openJournal(cfg, opts)
	if err != nil {
		return err
	}
	defer func() {
		if err := record.close(); err != nil {
			opts.Log.Error().Err(err).Msg("the journal wasn't closed in order")
		}
	}()
	p, err := newProgram(cfg, opts, metrics, tracer, record)
	if err != nil {
		return err
	}
	stopAdmin, err := p.serveAdmin(cfg.Admin.Listen, metrics)
	if err != nil {
		return err
	}
	defer stopAdmin()
	record.run()
	stopIdentity := p.followIdentity(cfg, opts)
	defer stopIdentity()
	if opts.Inside != nil {
		opts.Inside(&Inside{p})
	}
	if opts.OnStart != nil {
		opts.OnStart()
	}
	p.run(ctx)
	return nil
}

// program is one running node: a link and an executor for each Edge.
type program struct {
	opts      Options
	record    *journal
	drain     time.Duration // for what still runs after the first signal
	stop      time.Duration // for it to end after its cancel
	links     []*transport.Link
	executors []*node.Executor
	identity  *identity.Source // nil = the links are plaintext
}

func newProgram(cfg *config.Node, opts Options, observer node.Observer, tracer *tracing.Tracer, record *journal) (*program, error) {
	p := &program{
		opts: opts, record: record,
		drain: cmp.Or(cfg.Timers.Drain, drainLimit), stop: cmp.Or(cfg.Timers.AdapterStop, adapterStop) + time.Second,
	}
	var edgeID identity.ID
	if cfg.TLS != nil {
		var err error
		if p.identity, err = identity.Open(cfg.Identity()); err != nil {
			return nil, err
		}
		edgeID = identity.ID(cfg.TLS.EdgeSPIFFEID)
	}
	var instance [16]byte
	if _, err := rand.Read(instance[:]); err != nil {
		return nil, fmt.Errorf("draw the instance id: %w", err)
	}
	table := router.New()
	build := func(s router.Spec) (execution.Provider, error) {
		return adapters.Build(adapters.Config{
			Name: s.Name, Kind: s.Kind, BaseURL: s.BaseURL, MaxConcurrency: s.Capacity, Options: s.Options,
			AllowPaths: s.AllowPaths, Targets: s.Targets, Connect: cfg.Timers.Connect, Log: opts.Log,
		})
	}
	if opts.Build != nil {
		build = opts.Build
	}
	for _, edge := range distinct(cfg.Edges) {
		x := node.New(node.Config{
			Edge: edge, Router: table, Build: build, Journal: record.rows, Timers: workTimers(cfg.Timers), Observer: observer,
			Tracer: tracer,
			Retain: func(maxAge time.Duration, maxRows int) { record.retain(edge, maxAge, maxRows) },
			Log:    opts.Log.With().Str("edge", edge).Logger(), Faults: opts.Faults,
		})
		p.executors = append(p.executors, x)
		p.links = append(p.links, transport.New(transport.Config{
			Edge: edge, Token: cfg.Token, Identity: p.identity, EdgeID: edgeID, InstanceID: instance, Version: opts.Version, Executor: x,
			Timers: linkTimers(cfg.Timers), OnReady: opts.OnReady, Log: opts.Log,
			Dial: dial(cfg, opts), Random: opts.Random, Slept: opts.Slept, Clocks: opts.Clocks, Mux: link.Config{Faults: opts.Faults},
		}))
	}
	if len(p.links) == 0 {
		return nil, errors.New("no edge to dial; name at least one under edges")
	}
	record.tell(p.executors)
	return p, nil
}

// distinct drops addresses that are there twice: two links of one node to one edge would only replace each other.
func distinct(edges []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, e := range edges {
		key := strings.ToLower(strings.TrimSpace(e))
		if key == "" || seen[key] {
			continue
		}
		seen[key] = true
		out = append(out, key)
	}
	return out
}

func workTimers(t config.NodeTimers) node.Timers {
	return node.Timers{
		FirstByte: t.FirstByte, Idle: t.Idle, AdapterStop: t.AdapterStop, Linger: t.Linger, OpenRead: t.OpenRead,
		AdapterBuild: t.AdapterBuild, ProbeEvery: t.ProbeInterval,
	}
}

func linkTimers(t config.NodeTimers) transport.Timers {
	timers := transport.Timers{
		Handshake: t.Handshake, BackoffStart: t.BackoffStart, BackoffMax: t.BackoffMax, BackoffReset: t.BackoffReset,
		BackoffPermanent: t.BackoffPermanent, Drain: t.Drain,
	}
	if t.AdapterStop > 0 {
		timers.Stop = t.AdapterStop + time.Second // by then what doesn't return was given up, and the edge told
	}
	return timers
}

// run runs the links until ctx is cancelled and they have drained, or until Kill.
func (p *program) run(ctx context.Context) {
	hard, kill := context.WithCancel(context.Background())
	defer kill()
	var links sync.WaitGroup
	for _, l := range p.links {
		links.Go(func() { l.Run(hard) })
	}
	ended := make(chan struct{})
	go func() { links.Wait(); close(ended) }()
	select {
	case <-ctx.Done():
	case <-p.opts.Kill:
	}
	limit := time.NewTimer(p.drain)
	defer limit.Stop()
	for _, l := range p.links {
		l.Drain()
	}
	select {
	case <-ended:
		p.outlive(limit.C)
	case <-p.opts.Kill:
		p.opts.Log.Warn().Msg("told to stop at once")
		kill()
		<-ended
	}
	p.close(hard.Err() != nil || p.killed())
}

// outlive gives background runs that have no link any more the same time as those that have one: to the drain limit,
// then for their end after the cancel.
func (p *program) outlive(limit <-chan time.Time) {
	for _, x := range p.executors {
		x.Drain()
	}
	if p.await(limit) {
		return
	}
	for _, x := range p.executors {
		x.CancelAll(execution.CauseNodeDraining)
	}
	stop := time.NewTimer(p.stop)
	defer stop.Stop()
	p.await(stop.C)
}

// await waits until nothing runs. It reports false when the limit was first, or Kill.
func (p *program) await(limit <-chan time.Time) bool {
	for _, x := range p.executors {
		select {
		case <-x.Quiet():
		case <-limit:
			return false
		case <-p.opts.Kill:
			return false
		}
	}
	return true
}

func (p *program) killed() bool {
	select {
	case <-p.opts.Kill:
		return true
	default:
		return false
	}
}

// close ends the executors. Only an adapter that ignores its cancel makes it wait, for a limited time, and none when
// the node was told to stop at once.
func (p *program) close(atOnce bool) {
	limit, stop := context.WithTimeout(context.Background(), stopLimit)
	defer stop()
	if atOnce {
		stop()
	}
	for _, x := range p.executors {
		x.Close(limit)
	}
}

// serveAdmin starts the admin listener, if there is one, and returns what stops it.
func (p *program) serveAdmin(listen string, metrics *admin.Metrics) (stop func(), err error) {
	if listen == "" {
		return func() {}, nil
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("admin.listen %s: %w", listen, err)
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10,
		Handler: admin.New(admin.Config{
			Listen: listen, Version: p.opts.Version, Links: p.linkStates, Work: p.work, Store: p.record.health(), Metrics: metrics,
			Certificates: p.certificates, Warnings: p.warnings, Log: p.opts.Log,
		}),
		ErrorLog: logging.HTTPErrors(p.opts.Log),
	}
	ended := make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		_ = server.Serve(logging.Accepting(ln, "admin", p.opts.Log))
	}()
	p.opts.Log.Info().Stringer("address", ln.Addr()).Msg("admin listens")
	if p.opts.OnAdmin != nil {
		p.opts.OnAdmin(ln.Addr())
	}
	return func() { _ = server.Close(); <-ended }, nil
}

func (p *program) linkStates() []transport.Status {
	out := make([]transport.Status, 0, len(p.links))
	for _, l := range p.links {
		out = append(out, l.Status())
	}
	return out
}

func (p *program) work() []node.Snapshot {
	out := make([]node.Snapshot, 0, len(p.executors))
	for _, x := range p.executors {
		out = append(out, x.Snapshot())
	}
	return out
}

// dial says how Edges are reached; nil = by TCP.
func dial(cfg *config.Node, opts Options) func(ctx context.Context, address string) (net.Conn, error) {
	if opts.Dial == nil && cfg.Proxy != "" {
		return transport.ThroughProxy(cfg.Proxy, cfg.ProxyCredentials)
	}
	return opts.Dial
}
