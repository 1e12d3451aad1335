package service

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// fakeNode is one node connection: both ends of a real link, a script for the work, and a record of what it was told.
type fakeNode struct {
	*transport.Link // the edge's end

	rig        *rig
	id         string
	generation uint64
	edge, far  *transport.Link
	script     func(w *work)
	ended      sync.WaitGroup
	hears      sync.Once

	dispatched, timeouts atomic.Int64
	foreground           bool          // it doesn't know background runs
	heard                chan struct{} // closed when the edge has heard that it is ready

	mu      sync.Mutex
	opens   []*pb.WorkOpen
	cancels []*pb.CancelRequest
	acked   []string
	told    chan struct{} // closed and replaced at each change of the three above
}

// join connects a node and makes it dispatchable.
func (r *rig) join(id string, generation uint64, capacity int, script func(w *work), running ...*pb.RunningExecution) *fakeNode {
	r.Helper()
	n := &fakeNode{rig: r, id: id, generation: generation, script: script, told: make(chan struct{}), heard: make(chan struct{})}
	near, far := loopback(r)
	if r.dial != nil {
		near = r.dial(near)
	}
	cfg := transport.Config{StreamReset: patience.Limit, Log: zerolog.Nop()}
	n.far = transport.NewNodeLink(far, cfg, (*farEnd)(n))
	cfg.Faults = r.link
	n.edge = transport.NewEdgeLink(near, cfg, n)
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
	r.mu.Lock()
	r.nodes[id] = n
	r.joined = append(r.joined, n)
	r.mu.Unlock()
	n.far.SendReady(func() *pb.Ready { return &pb.Ready{Projection: 1, Running: running} }) // ends of runs go out after it only
	select {                                                                                // as in the registry: work comes after it
	case <-n.heard:
	case <-n.edge.Down():
	}
	n.publish(capacity)
	return n
}

func (n *fakeNode) publish(capacity int) { n.publishAs(capacity, true) }

func (n *fakeNode) publishAs(capacity int, dispatchable bool) {
	state := n.rig.state.Load()
	n.rig.sched.Publish(admission.Node{ID: n.id, Generation: n.generation, Dispatchable: dispatchable, Adapters: []admission.Adapter{{
		Name: "p", Kind: state.Node(n.id).Adapters[0].Kind, Revision: revision(state, admission.Place{Node: n.id, Adapter: "p"}),
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

// Recipient implements Node.
func (n *fakeNode) Recipient() (credentiallease.Recipient, uint64, bool) {
	return credentiallease.Recipient{}, 1, true
}

// Background implements Node.
func (n *fakeNode) Traces() bool     { return !n.foreground }
func (n *fakeNode) Background() bool { return !n.foreground }

// DispatchTimeout implements Node.
func (n *fakeNode) DispatchTimeout() { n.timeouts.Add(1) }

// Control takes what the node says on the control stream, as the registry and edge.go do it.
func (n *fakeNode) Control(m *pb.NodeControl) {
	if m.GetReady() != nil {
		running := m.GetReady().GetRunning()
		adopted := make([]admission.Adopted, len(running))
		for i, e := range running {
			adopted[i] = admission.Adopted{RunID: e.GetRunId(), Attempt: e.GetAttempt(), Adapter: e.GetAdapter()}
		}
		n.rig.sched.Adopt(n.id, n.generation, adopted)
		n.rig.svc.Adopted(n.id, n.generation, running)
		n.hears.Do(func() { close(n.heard) })
	}
	for _, e := range m.GetRunEnded().GetEnds() {
		held := n.rig.sched.Ended(n.id, n.generation, e.GetRunId(), e.GetAttempt())
		if held || e.GetBackground() {
			n.rig.svc.RunEnded(n.id, n.generation, e, held)
		}
		if e.GetBackground() {
			n.edge.SendRunEndedAck(e.GetRunId())
		}
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
	for end := time.After(patience.Limit); ; {
		n.mu.Lock()
		ok, told := check(), n.told
		n.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-told:
		case <-end:
			n.rig.Fatalf("node %s: %s: not within %v", n.id, what, patience.Limit)
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

// Control records the cancels and the confirmations.
func (f *farEnd) Control(m *pb.EdgeControl) {
	n := (*fakeNode)(f)
	if c := m.GetCancel(); c != nil {
		n.record(func() { n.cancels = append(n.cancels, c) })
	}
	if ids := m.GetRunEndedAck().GetRunIds(); len(ids) > 0 {
		n.record(func() { n.acked = append(n.acked, ids...) })
	}
}

// Work reads the open and follows the script.
func (f *farEnd) Work(s *transport.Stream) {
	defer s.Close()
	n := (*fakeNode)(f)
	open, err := s.ReadOpen(patience.Limit)
	if err != nil {
		return
	}
	n.record(func() { n.opens = append(n.opens, open) })
	w := &work{Stream: s, node: n, open: open, runID: open.GetTunnel().GetRunId(), attempt: open.GetAttempt()}
	if run := open.GetRun(); run != nil {
		w.runID, w.isRun, w.background = run.GetRunId(), true, run.GetBackground()
	}
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
	isRun   bool // else a tunnel

	background bool

	seq    uint64
	bodies int64 // bytes of response sent
	silent bool  // don't send RunEnded
	ended  bool
	hangup bool // close without waiting for the edge
}

func (w *work) frame(f *pb.ProviderTunnelFrame) {
	w.seq++
	f.Seq = w.seq
	_ = w.Write(f)
}

func (w *work) accept() {
	if w.isRun {
		w.event(&pb.RunEvent{Event: &pb.RunEvent_Accepted{Accepted: &pb.Accepted{SessionId: w.open.GetRun().GetSessionId()}}})
		return
	}
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Accepted{Accepted: &pb.Accepted{}}})
}

func (w *work) reject(code execution.Code, neverStarted bool) {
	w.ended = true
	m := &pb.Rejected{Failure: &pb.Failure{Code: pb.FailureCode(code), Origin: pb.Origin_ORIGIN_NODE, Text: "refused"},
		NeverStarted: neverStarted}
	if w.isRun {
		w.event(&pb.RunEvent{Event: &pb.RunEvent_Rejected{Rejected: m}})
		return
	}
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Rejected{Rejected: m}})
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
		w.node.far.SendRunEnded(&pb.RunEnd{RunId: w.runID, Attempt: w.attempt, Status: status, Background: w.background})
	}
}

func (w *work) end(bytes int64) {
	w.finish(pb.RunStatus_RUN_STATUS_COMPLETE)
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_End{End: &pb.TunnelEnd{Bytes: bytes}}})
}

func (w *work) fail(code execution.Code, nothingSent bool) {
	w.finish(pb.RunStatus_RUN_STATUS_ERROR)
	m := &pb.Failure{Code: pb.FailureCode(code), Origin: pb.Origin_ORIGIN_PROVIDER, Text: "provider said so", NothingSent: nothingSent}
	if w.isRun {
		w.event(&pb.RunEvent{Event: &pb.RunEvent_Error{Error: m}})
		return
	}
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Error{Error: m}})
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
	if w.background && w.linkDown() {
		return // it goes on
	}
	w.finish(pb.RunStatus_RUN_STATUS_CANCELLED)
}

// loopback returns the two ends of a TCP connection, or on fake time of one in memory.
func loopback(t testing.TB) (near, far net.Conn) {
	t.Helper()
	if patience.IsAlone() {
		return net.Pipe()
	}
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
