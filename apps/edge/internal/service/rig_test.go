package service

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onFakeTime runs a test alone, on fake time: every limit is exact there, however busy the machine is. Tests whose limits
// are meant to pass need it, and those that say that something is prompt.
func onFakeTime(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	patience.Alone(t, func(t *testing.T) { patience.Bubble(t, test) })
}

// rig is an edge without listeners: the real scheduler, the real links over loopback, and nodes that follow scripts.
type rig struct {
	testing.TB
	sched *admission.Scheduler
	svc   *Service
	state atomic.Pointer[config.State]
	dial  func(near net.Conn) net.Conn // wraps the edge's end of the next connections
	link  *faultpoint.Hooks            // of the edge's ends of the connections

	mu     sync.Mutex
	nodes  map[string]*fakeNode // the connected
	joined []*fakeNode          // all that ever were; the places of one that is gone are fenced a moment later
	ended  []Outcome
}

// setup is what a test may ask of a rig.
type setup struct {
	nodes    []string // default: a
	kinds    []string // of their adapters, in the same order; default: loopback
	capacity int      // default 4
	route    string   // further keys of the route, YAML flow style
	service  Config   // limits
	confirm  time.Duration
	work     func(w *work) // what every node does with an open
	manual   bool          // the test starts the nodes
	failures int           // in a row, which take an adapter out; default the scheduler's
	link     *faultpoint.Hooks
}

// endless is for nodes that may fail again and again and keep their place.
const endless = math.MaxInt

func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	r := &rig{TB: t, nodes: map[string]*fakeNode{}, link: s.link}
	if s.nodes == nil {
		s.nodes = []string{"a"}
	}
	if s.capacity == 0 {
		s.capacity = 4
	}
	r.state.Store(config.NewState(edgeConfig(t, s, "p"), 1, nil))
	r.sched = admission.New(admission.Config{ConfirmLimit: s.confirm, Failures: s.failures, OnUnconfirmed: func(node string, generation uint64) {
		if n := r.node(node, generation); n != nil {
			n.edge.Close(transport.ReasonUnconfirmedRun)
		}
	}})
	cfg := s.service
	if !patience.IsAlone() { // in real time limits that nothing is said about don't pass
		cfg.DispatchLimit = cmp.Or(cfg.DispatchLimit, 2*patience.Limit)
		cfg.TerminalWait = cmp.Or(cfg.TerminalWait, 2*patience.Limit)
	}
	cfg.State, cfg.Scheduler, cfg.Nodes, cfg.Log = r.state.Load, r.sched, r, zerolog.Nop()
	cfg.Observers = append(cfg.Observers, r)
	r.svc = New(cfg)
	if !s.manual {
		for _, id := range s.nodes {
			r.join(id, 1, s.capacity, s.work)
		}
	}
	t.Cleanup(r.close)
	return r
}

// edgeConfig is a real configuration: the nodes, each with an adapter p, and a route m.
func edgeConfig(t testing.TB, s setup, target string) *config.Edge {
	t.Helper()
	var y strings.Builder
	y.WriteString("nodes:\n")
	for i, id := range s.nodes {
		fmt.Fprintf(&y, "  - id: %s\n    token_hashes: [{sha256: %064x}]\n", id, i+1)
		kind := "loopback"
		if i < len(s.kinds) {
			kind = s.kinds[i] + ", base_url: 'http://127.0.0.1:1'"
		}
		fmt.Fprintf(&y, "    adapters: [{name: p, kind: %s, max_concurrency: %d}]\n", kind, s.capacity)
	}
	fmt.Fprintf(&y, "routes:\n  - {model: m, adapter: p, target: %s%s}\n", target, s.route)
	e, err := config.ParseEdge(t.TempDir()+"/edge.yaml", []byte(y.String()))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// close ends every link and checks that nothing is left of any run.
func (r *rig) close() {
	r.mu.Lock()
	nodes := r.joined
	r.nodes = map[string]*fakeNode{}
	r.mu.Unlock()
	for _, n := range nodes {
		n.leave()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience.Limit)
	defer cancel()
	if err := r.svc.Wait(ctx); err != nil {
		r.Errorf("%d runs are still live: %v", r.svc.Live(), err)
	}
	r.svc.Join()
	if n := r.svc.Live(); n != 0 {
		r.Errorf("%d runs are live at the end", n)
	}
	for _, p := range r.sched.Snapshot().Places {
		if p.InFlight != 0 {
			r.Errorf("%+v is held at the end", p)
		}
	}
}

// Connected implements Nodes.
func (r *rig) Connected() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.nodes))
}

// Lookup implements Nodes.
func (r *rig) Lookup(nodeID string, generation uint64) Node {
	if n := r.node(nodeID, generation); n != nil {
		return n
	}
	return nil
}

func (r *rig) node(id string, generation uint64) *fakeNode {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[id]; n != nil && n.generation == generation {
		return n
	}
	return nil
}

// Ended implements Observer.
func (r *rig) Ended(o *Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, *o)
}

// held returns how many places are held, whoever of them waits for a confirmation.
func (r *rig) held() (inFlight int) {
	for _, p := range r.sched.Snapshot().Places {
		inFlight += p.InFlight
	}
	return inFlight
}

// poll waits until check holds.
func (r *rig) poll(what string, check func() bool) {
	r.Helper()
	patience.Until(r, what, check)
}

// idle waits until no place is held.
func (r *rig) idle() { r.Helper(); r.poll("places back to 0", func() bool { return r.held() == 0 }) }

// recorder is a Sink that keeps what it is given; hooks may stand in for a caller that misbehaves.
type recorder struct {
	mu      sync.Mutex
	node    string
	status  int
	header  http.Header
	body    bytes.Buffer
	flushes []int // length of the body at each flush
	ends    int

	onPlaced func()
	onHead   func() error
	onBody   func(p []byte) error
	onEnd    func() error
}

func (c *recorder) Placed(at Placement) {
	c.node = at.Node
	if c.onPlaced != nil {
		c.onPlaced()
	}
}

func (c *recorder) Head(status int, h http.Header) error {
	c.mu.Lock()
	c.status, c.header = status, h
	c.mu.Unlock()
	if c.onHead != nil {
		return c.onHead()
	}
	return nil
}

func (c *recorder) Body(p []byte, flush bool) error {
	c.mu.Lock()
	c.body.Write(p)
	if flush {
		c.flushes = append(c.flushes, c.body.Len())
	}
	c.mu.Unlock()
	if c.onBody != nil && len(p) > 0 {
		return c.onBody(p)
	}
	return nil
}

func (c *recorder) End() error {
	c.ends++
	if c.onEnd != nil {
		return c.onEnd()
	}
	return nil
}

func (c *recorder) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.body.String()
}

// tunnel returns a request for the rig's route.
func (r *rig) tunnel(runID string, body string) *Tunnel {
	t := &Tunnel{RunID: runID, Principal: "anonymous", Model: "m", Route: r.state.Load().Route("m"), Target: "p",
		Method: "POST", Path: "/v1/chat/completions", Header: http.Header{"Content-Type": {"application/json"}}}
	if body != "" {
		t.Body = strings.NewReader(body)
	}
	return t
}

// pending is a run in flight.
type pending struct {
	*recorder
	leave context.CancelFunc // the caller goes
	done  chan *Outcome
}

// submit starts a run of its own.
func (r *rig) submit(t *Tunnel, c *recorder) *pending {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pending{recorder: c, leave: cancel, done: make(chan *Outcome, 1)}
	go func() {
		defer cancel()
		p.done <- r.svc.SubmitProviderTunnel(ctx, t, c)
	}()
	return p
}

// outcome waits for the run's outcome.
func (r *rig) outcome(p *pending) *Outcome {
	r.Helper()
	select {
	case o := <-p.done:
		return o
	case <-time.After(patience.Limit):
		r.Fatalf("no outcome within %v", patience.Limit)
		return nil
	}
}

// run submits and waits.
func (r *rig) run(t *Tunnel) (*Outcome, *recorder) {
	r.Helper()
	c := &recorder{}
	return r.outcome(r.submit(t, c)), c
}

func code(o *Outcome) execution.Code {
	if o.Failure == nil {
		return execution.CodeOK
	}
	return o.Failure.Code
}
