package service

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
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
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; what takes as long has failed.
const patience = 10 * time.Second

// rig is an edge without listeners: the real scheduler, the real links over loopback, and nodes that follow scripts.
type rig struct {
	testing.TB
	sched *admission.Scheduler
	svc   *Service
	state atomic.Pointer[config.State]
	dial  func(near net.Conn) net.Conn // wraps the edge's end of the next connections

	mu    sync.Mutex
	nodes map[string]*fakeNode
	ended []Outcome
}

// setup is what a test may ask of a rig.
type setup struct {
	nodes    []string // default: a
	capacity int      // default 4
	route    string   // further keys of the route, YAML flow style
	service  Config   // limits
	confirm  time.Duration
	work     func(w *work) // what every node does with an open
	manual   bool          // the test starts the nodes
}

func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	r := &rig{TB: t, nodes: map[string]*fakeNode{}}
	if s.nodes == nil {
		s.nodes = []string{"a"}
	}
	if s.capacity == 0 {
		s.capacity = 4
	}
	r.state.Store(config.NewState(edgeConfig(t, s, "p"), 1, nil))
	r.sched = admission.New(admission.Config{ConfirmLimit: s.confirm, OnUnconfirmed: func(node string, generation uint64) {
		if n := r.node(node, generation); n != nil {
			n.edge.Close(transport.ReasonUnconfirmedRun)
		}
	}})
	cfg := s.service
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
		fmt.Fprintf(&y, "    adapters: [{name: p, kind: loopback, max_concurrency: %d}]\n", s.capacity)
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
	nodes := r.nodes
	r.nodes = map[string]*fakeNode{}
	r.mu.Unlock()
	for _, n := range nodes {
		n.leave()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.svc.Wait(ctx); err != nil {
		r.Errorf("%d runs are still live: %v", r.svc.Live(), err)
	}
	if n := r.svc.Live(); n != 0 {
		r.Errorf("%d runs are live at the end", n)
	}
	for _, p := range r.sched.Snapshot().Places {
		if p.InFlight != 0 {
			r.Errorf("%+v is held at the end", p)
		}
	}
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
func (r *rig) Ended(_ *Tunnel, o *Outcome) {
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
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); !check(); {
		select {
		case <-tick.C:
		case <-end:
			r.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// idle waits until no place is held.
func (r *rig) idle() { r.Helper(); r.poll("places back to 0", func() bool { return r.held() == 0 }) }

// fakeNode is one node connection: both ends of a real link, a script for the work, and a record of what it was told.
type fakeNode struct {
	*transport.Link // the edge's end

	rig        *rig
	id         string
	generation uint64
	edge, far  *transport.Link
	script     func(w *work)
	ended      sync.WaitGroup

	dispatched, timeouts atomic.Int64

	mu      sync.Mutex
	opens   []*pb.WorkOpen
	cancels []*pb.CancelRequest
	told    chan struct{} // closed and replaced at each change of the two above
}

// join connects a node and makes it dispatchable.
func (r *rig) join(id string, generation uint64, capacity int, script func(w *work)) *fakeNode {
	r.Helper()
	n := &fakeNode{rig: r, id: id, generation: generation, script: script, told: make(chan struct{})}
	near, far := loopback(r)
	if r.dial != nil {
		near = r.dial(near)
	}
	cfg := transport.Config{StreamReset: time.Second, Log: zerolog.Nop()}
	n.edge, n.far = transport.NewEdgeLink(near, cfg, n), transport.NewNodeLink(far, cfg, (*farEnd)(n))
	n.Link = n.edge
	n.ended.Go(func() {
		_ = n.edge.Run(context.Background())
		r.mu.Lock()
		if r.nodes[id] == n {
			delete(r.nodes, id)
		}
		r.mu.Unlock()
		r.sched.Fence(id, generation)
	})
	n.ended.Go(func() { _ = n.far.Run(context.Background()) })
	<-n.edge.Ready()
	n.far.SendReady(func() *pb.Ready { return &pb.Ready{Projection: 1} }) // ends of runs go out after it only
	r.mu.Lock()
	r.nodes[id] = n
	r.mu.Unlock()
	n.publish(capacity)
	return n
}

func (n *fakeNode) publish(capacity int) { n.publishAs(capacity, true) }

func (n *fakeNode) publishAs(capacity int, dispatchable bool) {
	n.rig.sched.Publish(admission.Node{ID: n.id, Generation: n.generation, Dispatchable: dispatchable, Adapters: []admission.Adapter{{
		Name: "p", Kind: "loopback", Revision: revision(n.rig.state.Load(), admission.Place{Node: n.id, Adapter: "p"}),
		Capacity: capacity, Available: true,
	}}})
}

// leave ends the connection and waits for everything of it.
func (n *fakeNode) leave() {
	n.edge.Close(transport.ReasonClosed)
	n.far.Close(transport.ReasonClosed)
	n.ended.Wait()
}

// Dispatched implements Node.
func (n *fakeNode) Dispatched() { n.dispatched.Add(1) }

// DispatchTimeout implements Node.
func (n *fakeNode) DispatchTimeout() { n.timeouts.Add(1) }

// Control takes what the node says on the control stream, as the registry and edge.go do it.
func (n *fakeNode) Control(m *pb.NodeControl) {
	for _, e := range m.GetRunEnded().GetEnds() {
		n.rig.sched.Ended(n.id, n.generation, e.GetRunId(), e.GetAttempt())
		n.rig.svc.RunEnded(e.GetRunId(), e.GetAttempt())
	}
}

func (n *fakeNode) record(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	close(n.told)
	n.told = make(chan struct{})
}

// await waits until the node's record satisfies check.
func (n *fakeNode) await(what string, check func() bool) {
	n.rig.Helper()
	for end := time.After(patience); ; {
		n.mu.Lock()
		ok, told := check(), n.told
		n.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-told:
		case <-end:
			n.rig.Fatalf("node %s: %s: not within %v", n.id, what, patience)
		}
	}
}

// awaitCancel waits for a CancelRequest of this run and returns its cause.
func (n *fakeNode) awaitCancel(runID string) (cause pb.CancelCause) {
	n.rig.Helper()
	n.await("cancel of "+runID, func() bool {
		for _, c := range n.cancels {
			if c.GetRunId() == runID {
				cause = c.GetCause()
				return true
			}
		}
		return false
	})
	return cause
}

func (n *fakeNode) openCount() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.opens)
}

// farEnd is the node's own side.
type farEnd fakeNode

// Control records the cancels.
func (f *farEnd) Control(m *pb.EdgeControl) {
	if c := m.GetCancel(); c != nil {
		n := (*fakeNode)(f)
		n.record(func() { n.cancels = append(n.cancels, c) })
	}
}

// Work reads the open and follows the script.
func (f *farEnd) Work(s *transport.Stream) {
	defer s.Close()
	n := (*fakeNode)(f)
	open, err := s.ReadOpen(patience)
	if err != nil {
		return
	}
	n.record(func() { n.opens = append(n.opens, open) })
	w := &work{Stream: s, node: n, open: open, runID: open.GetTunnel().GetRunId(), attempt: open.GetAttempt()}
	n.script(w)
	w.linger()
}

// work is one open as a script sees it. Errors of writes are ignored: the edge may have left, which is what it may do.
type work struct {
	*transport.Stream
	node    *fakeNode
	open    *pb.WorkOpen
	runID   string
	attempt uint32
	seq     uint64
	bodies  int64 // bytes of response sent
	silent  bool  // don't send RunEnded
	ended   bool
	hangup  bool // close without waiting for the edge
}

func (w *work) frame(f *pb.ProviderTunnelFrame) {
	w.seq++
	f.Seq = w.seq
	_ = w.Write(f)
}

func (w *work) accept() {
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Accepted{Accepted: &pb.Accepted{}}})
}

func (w *work) reject(code execution.Code, neverStarted bool) {
	w.ended = true
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Rejected{Rejected: &pb.Rejected{
		Failure: &pb.Failure{Code: pb.FailureCode(code), Origin: pb.Origin_ORIGIN_NODE, Text: "refused"}, NeverStarted: neverStarted,
	}}})
}

func (w *work) head(status int32, headers ...*pb.Header) {
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Head{Head: &pb.TunnelHead{Status: status, Headers: headers}}})
}

func (w *work) body(p string) {
	w.seq++
	w.bodies += int64(len(p))
	_ = w.AppendBody(w.seq, []byte(p))
	_ = w.Flush()
}

func (w *work) usage(input, output int64) {
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Usage{Usage: &pb.Usage{Input: &input, Output: &output}}})
}

// finish says that the execution is over on the control stream, once; a node does it before the terminal.
func (w *work) finish(status pb.RunStatus) {
	if !w.ended && !w.silent {
		w.ended = true
		w.node.far.SendRunEnded(&pb.RunEnd{RunId: w.runID, Attempt: w.attempt, Status: status})
	}
}

func (w *work) end(bytes int64) {
	w.finish(pb.RunStatus_RUN_STATUS_COMPLETE)
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_End{End: &pb.TunnelEnd{Bytes: bytes}}})
}

func (w *work) fail(code execution.Code, nothingSent bool) {
	w.finish(pb.RunStatus_RUN_STATUS_ERROR)
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Error{Error: &pb.Failure{
		Code: pb.FailureCode(code), Origin: pb.Origin_ORIGIN_PROVIDER, Text: "provider said so", NothingSent: nothingSent,
	}}})
}

// answer is a whole response.
func (w *work) answer(body string) {
	w.accept()
	w.head(200)
	w.body(body)
	w.end(int64(len(body)))
}

// input reads the request body.
func (w *work) input() []byte {
	var all bytes.Buffer
	for {
		in, err := w.ReadInput()
		if err != nil {
			return nil
		}
		if in.End != nil {
			if in.End.GetTotalBytes() != int64(all.Len()) {
				w.node.rig.Errorf("the end counts %d bytes, %d came", in.End.GetTotalBytes(), all.Len())
			}
			return all.Bytes()
		}
		all.Write(in.Body)
	}
}

// awaitEOF waits until the edge has closed the stream (or the link has ended).
func (w *work) awaitEOF() {
	for {
		if _, err := w.ReadInput(); err != nil {
			return
		}
	}
}

// linger is what every script ends with: as a node does, it discards input until the edge has closed, and then reports
// the end of an execution that the script didn't end.
func (w *work) linger() {
	if !w.hangup {
		w.awaitEOF()
	}
	w.finish(pb.RunStatus_RUN_STATUS_CANCELLED)
}

// loopback returns the two ends of a TCP connection.
func loopback(t testing.TB) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if near, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

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

func (c *recorder) Placed(nodeID string, _ time.Duration) {
	c.node = nodeID
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
	case <-time.After(patience):
		r.Fatalf("no outcome within %v", patience)
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
