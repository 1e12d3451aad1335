package sim

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge"
	"iop/apps/node"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// world is everything of one seed.
type world struct {
	*history
	seed uint64
	dir  string        // for what edges keep across their lives
	span time.Duration // in which callers come and things break
	log  zerolog.Logger

	net       *network
	providers *providers
	edges     []*edgeHost
	nodes     []*nodeHost
	hosts     []*nodeHost     // they and their twins
	keys      *keys           // nil = mode dev
	jobs      map[string]*job // all of them, from the beginning
	points    *points
	steps     steps
	faulty    []window
	twins     map[string]bool // nodes whose token somebody else has for a while
	reloaded  bool
	healed    time.Duration
	codes     map[string]string // how the edges say that runs ended
	callers   []*caller
	slow      map[string]*caller // those of tunnels that pause, by their jobs
	working   sync.WaitGroup     // callers
	living    sync.WaitGroup     // programs

	mu      sync.Mutex
	cancels []cancelled
}

// cancelled is a cancel by the API and its answer.
type cancelled struct {
	job    string
	at     time.Duration
	result edge.CancelResult
}

func (w *world) cancelled(job string, result edge.CancelResult) {
	w.tell(job, "cancelled by the API: %d", result)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancels = append(w.cancels, cancelled{job, w.now(), result})
}

// principals are who asks.
var principals = []string{"p0", "p1", "p2"}

// mostNodes is how many nodes there can be.
const mostNodes = 4

// newWorld draws who there is. Nothing runs yet.
func newWorld(seed uint64, dir string, logs io.Writer) *world {
	w := &world{history: newHistory(), seed: seed, dir: dir, log: zerolog.Nop(), jobs: map[string]*job{},
		twins: map[string]bool{}, codes: map[string]string{}, slow: map[string]*caller{}}
	w.keys = newKeys(w)
	switch {
	case w.keys != nil && logs != nil:
		logs = zerolog.MultiLevelWriter(logs, w.keys.log)
	case w.keys != nil:
		logs = w.keys.log
	}
	if logs != nil {
		w.log = zerolog.New(logs)
	}
	d := newDice(seed, "world")
	w.net = newNetwork(seed, w.tell)
	w.providers = newProviders(w)
	w.span = pick(d, d.between(3*time.Second, 15*time.Second), d.between(10*time.Second, 40*time.Second), d.between(30*time.Second, 100*time.Second))
	edges := 1
	if d.chance(20) {
		edges = 2
	}
	nodes := d.among(1, mostNodes)
	for i := range edges {
		w.edges = append(w.edges, &edgeHost{w: w, host: fmt.Sprintf("edge%d", i)})
	}
	for i := range nodes {
		w.nodes = append(w.nodes, newNodeHost(w, fmt.Sprintf("node%d", i), fmt.Sprintf("node%d", i)))
	}
	for _, e := range w.edges {
		e.plan = drawPlan(newDice(seed, "config", e.host), nodes)
	}
	for n := range d.among(4, 28) {
		j := w.drawJob(n)
		w.jobs[j.id] = j
	}
	for i := range w.edges {
		for _, n := range w.nodes {
			id := lastJob(i, n.id)
			w.jobs[id] = &job{id: id, kind: run, edge: i, adapter: "a", node: n.id, principal: principals[0], mode: good, pieces: 2, size: 100}
		}
	}
	w.points = newPoints(w)
	if w.keys != nil {
		for _, e := range w.edges {
			w.keys.put(e.host)
		}
	}
	return w
}

// edgeHost is the machine of an edge, which may have several lives.
type edgeHost struct {
	w    *world
	host string
	plan *plan

	life    int
	inside  *edge.Inside // of this life, nil = none
	ended   []*edge.Inside
	cancel  context.CancelFunc
	kill    chan struct{}
	done    chan struct{}
	ending  bool
	crashed *atomic.Bool
}

// config is the configuration by the plan as it is now.
func (e *edgeHost) config() *config.Edge {
	cfg := e.plan.edge(e.w.dir+"/"+e.host, len(e.w.nodes))
	e.w.keys.manage(cfg, e.host)
	return cfg
}

// up reports whether the edge takes callers.
func (e *edgeHost) up() bool { return e.inside != nil && !e.ending }

// start begins a life.
func (e *edgeHost) start() {
	w := e.w
	ctx, cancel := context.WithCancel(context.Background())
	e.life++
	e.cancel, e.kill, e.done, e.ending = cancel, make(chan struct{}), make(chan struct{}), false
	listening, done, kill, crashed := make(chan struct{}), e.done, e.kill, new(atomic.Bool)
	e.crashed = crashed
	cfg := e.config()
	w.tell(e.host, "starts")
	w.living.Go(func() {
		defer close(done)
		err := edge.Run(ctx, cfg, edge.Options{
			Log: w.log.With().Str("host", e.host).Logger(), Version: "sim", Kill: kill,
			Listen: func(name, _ string) (net.Listener, error) {
				if name == "nodes" {
					return w.net.listen(e.host)
				}
				return w.net.listen(e.host + "/" + name)
			},
			OnListen: func(edge.Addrs) { close(listening) },
			Inside:   func(i *edge.Inside) { e.inside = i },
			Faults:   w.points.of(e.host),
		})
		if err != nil && !crashed.Load() { // a crash closes the listener under it
			w.breach("end", "%s ended with %v", e.host, err)
		}
	})
	<-listening
	w.keys.loaded(e.host)
}

// stop ends this life as SIGTERM does. After wait it has ended.
func (e *edgeHost) stop() {
	if !e.up() {
		return
	}
	e.ending = true
	e.w.fault(e.host, "")
	e.w.tell(e.host, "is told to end")
	e.cancel()
}

// crash ends this life at once: the others see their connections reset, or nothing at all.
func (e *edgeHost) crash(silent bool) {
	if e.inside == nil || e.crashed.Load() {
		return
	}
	e.ending = true
	e.crashed.Store(true)
	e.w.fault(e.host, "")
	e.w.tell(e.host, "crashes, silent %v", silent)
	e.w.net.unplug(e.host, silent)
	for _, c := range e.w.callers {
		if c.job.edge == e.number() && c.edgeLife == e.life && !c.finished.Load() {
			c.orphan = true
			c.gone(nil)
		}
	}
	close(e.kill)
	e.cancel()
}

func (e *edgeHost) number() int {
	for i, o := range e.w.edges {
		if o == e {
			return i
		}
	}
	return -1
}

// bury waits for the end of a life that was ended.
func (e *edgeHost) bury() {
	if e.inside == nil {
		return
	}
	<-e.done
	e.w.tell(e.host, "has ended")
	e.ended = append(e.ended, e.inside)
	e.inside = nil
}

// nodeHost is the machine of a node, which may have several lives.
type nodeHost struct {
	w    *world
	id   string // that its token belongs to
	host string

	life    int
	inside  *node.Inside
	cancel  context.CancelFunc
	kill    chan struct{}
	done    chan struct{}
	ending  bool
	crashed bool
	slept   time.Duration // guarded by w.mu
	jumped  time.Duration // by how much its wall clock was set; guarded by w.mu
	begun   time.Duration // of this life
	crashes []time.Duration
}

func newNodeHost(w *world, id, host string) *nodeHost {
	n := &nodeHost{w: w, id: id, host: host}
	w.hosts = append(w.hosts, n)
	return n
}

// up reports whether the node runs and wasn't told to end.
func (n *nodeHost) up() bool { return n.inside != nil && !n.ending }

func tokenOf(id string) string { return "token-of-" + id + "-0123456789abcdef0123456789" }

// start begins a life.
func (n *nodeHost) start() {
	w := n.w
	ctx, cancel := context.WithCancel(context.Background())
	n.life++
	n.begun = w.now()
	n.cancel, n.kill, n.done, n.ending, n.crashed = cancel, make(chan struct{}), make(chan struct{}), false, false
	life := fmt.Sprintf("%s.%d", n.host, n.life)
	begun, done, kill := make(chan struct{}), n.done, n.kill
	cfg := &config.Node{Token: config.NewSecret(tokenOf(n.id)), Timers: nodeTimers, TLS: w.keys.node(n.id), DataDir: n.dataDir()}
	for _, e := range w.edges {
		cfg.Edges = append(cfg.Edges, e.host)
	}
	w.tell(n.host, "starts")
	w.living.Go(func() {
		defer close(done)
		err := node.Run(ctx, cfg, node.Options{
			Log: w.log.With().Str("host", life).Logger(), Version: "sim", Kill: kill,
			Dial:   func(ctx context.Context, address string) (net.Conn, error) { return w.net.dial(ctx, n.host, address) },
			Random: n.random(life),
			Slept:  n.asleep,
			Clocks: n.clocks,
			Build:  func(s node.AdapterSpec) (execution.Provider, error) { return w.providers.build(n, life, s), nil },
			Inside: func(i *node.Inside) {
				n.inside = i
				close(begun)
			},
			Faults: w.points.of(n.host),
		})
		if err != nil {
			w.breach("end", "%s ended with %v", n.host, err)
		}
	})
	<-begun
}

// random returns the numbers of a life. With two edges two links draw, in an order that may vary: each number is that of
// the moment.
func (n *nodeHost) random(life string) func() float64 {
	return func() float64 {
		return newDice(n.w.seed, "random", life, n.w.now().String()).Float64()
	}
}

func (n *nodeHost) asleep() time.Duration {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return n.slept
}

// wake is the moment after a sleep: what the machine's clock says of it.
func (n *nodeHost) wake() {
	n.w.tell(n.host, "was asleep")
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	n.slept += time.Hour
}

// jumpClock sets a node's wall clock forward or back. Its leases are refused until it has heard the edge's time again.
func (n *nodeHost) jumpClock(by time.Duration) {
	n.w.disturb(n.host)
	n.w.tell(n.host, "its clock is set by %v", by)
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	n.jumped += by
}

// clocks are what a node's machine says of the time.
func (n *nodeHost) clocks() node.ClockReading {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return node.ClockReading{Boot: n.w.now() + n.slept, Wall: time.Now().Add(n.slept + n.jumped).UnixMilli()}
}

// stop ends this life as SIGTERM does.
func (n *nodeHost) stop() {
	if !n.up() {
		return
	}
	n.ending = true
	n.w.tell(n.host, "is told to end")
	n.cancel()
}

// crash ends this life at once.
func (n *nodeHost) crash(silent bool) {
	if n.inside == nil || n.crashed {
		return
	}
	n.ending, n.crashed = true, true
	n.w.tell(n.host, "crashes, silent %v", silent)
	for _, e := range n.w.edges {
		if silent {
			n.w.hold(n.id, e.host)
		}
	}
	n.w.net.unplug(n.host, silent)
	n.freeze()
	close(n.kill)
	n.cancel()
}

// bury waits for the end of a life that was ended.
func (n *nodeHost) bury() {
	if n.inside == nil {
		return
	}
	<-n.done
	n.w.tell(n.host, "has ended")
	if n.crashed {
		n.thaw()
	}
	n.inside = nil
}

var nodeTimers = config.NodeTimers{
	FirstByte: 40 * time.Second, Idle: 30 * time.Second, AdapterStop: 10 * time.Second, Linger: 10 * time.Minute,
	Drain: 30 * time.Second, AdapterBuild: 30 * time.Second, OpenRead: 10 * time.Second, Connect: 5 * time.Second,
	Handshake: 10 * time.Second, ProbeInterval: 3 * time.Second, BackoffStart: time.Second, BackoffMax: 30 * time.Second,
	BackoffReset: 30 * time.Second, BackoffPermanent: 5 * time.Minute,
}
