package nodetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// Limit is how long a test waits for what must happen.
const Limit = patience.Limit

// Eventually polls until ok.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	patience.Until(t, what, ok)
}

// Receive waits for a value of ch, or its close.
func Receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	return patience.Receive(t, what, ch)
}

// ConnPair returns the two ends of a loopback connection.
func ConnPair(t testing.TB) (edge, node net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if node, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if edge, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return edge, node
}

// EdgeSide is the edge's end of one connection, after its registration.
type EdgeSide struct {
	Link       *transport.Link
	Generation uint64

	t    testing.TB
	done chan error

	mu      sync.Mutex
	news    *sync.Cond
	control []*pb.NodeControl // what came and wasn't awaited yet
}

// NewEdgeSide runs the edge's end of a registered connection; it ends with the test.
func NewEdgeSide(t testing.TB, conn net.Conn, generation uint64, cfg transport.Config) *EdgeSide {
	cfg.Log = zerolog.Nop()
	cfg.Part = cmp.Or(cfg.Part, 2*Limit)
	cfg.ControlOpen = cmp.Or(cfg.ControlOpen, 2*Limit) // a machine that stands still is no breach
	e := &EdgeSide{t: t, Generation: generation, done: make(chan error, 1)}
	e.news = sync.NewCond(&e.mu)
	e.Link = transport.NewEdgeLink(conn, cfg, e)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.done <- e.Link.Run(context.Background())
		e.mu.Lock()
		e.news.Broadcast()
		e.mu.Unlock()
	}()
	t.Cleanup(func() { e.Link.Close(transport.ReasonClosed); <-ended })
	return e
}

// Control implements transport.EdgeHandler. RunEnded is taken apart: one message an end.
func (e *EdgeSide) Control(m *pb.NodeControl) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ends := m.GetRunEnded().GetEnds(); len(ends) > 1 {
		for _, end := range ends {
			e.control = append(e.control, &pb.NodeControl{Message: &pb.NodeControl_RunEnded{RunEnded: &pb.RunEnded{Ends: []*pb.RunEnd{end}}}})
		}
	} else {
		e.control = append(e.control, m)
	}
	e.news.Broadcast()
}

// Await returns the first message that matches and wasn't awaited before; what came before it stays.
func (e *EdgeSide) Await(what string, match func(*pb.NodeControl) bool) *pb.NodeControl {
	e.t.Helper()
	timer := time.AfterFunc(Limit, func() { e.mu.Lock(); e.news.Broadcast(); e.mu.Unlock() })
	defer timer.Stop()
	end := time.Now().Add(Limit)
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		for i, m := range e.control {
			if match(m) {
				e.control = append(e.control[:i:i], e.control[i+1:]...)
				return m
			}
		}
		if !time.Now().Before(end) {
			e.t.Fatalf("not within %v: %s; link: %v; what came: %v\n%s", Limit, what, e.Link.Err(), e.control, patience.Stacks())
		}
		e.news.Wait()
	}
}

// Seen counts the messages that came and weren't awaited.
func (e *EdgeSide) Seen(match func(*pb.NodeControl) bool) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, m := range e.control {
		if match(m) {
			n++
		}
	}
	return n
}

// Ready waits for a Ready.
func (e *EdgeSide) Ready() *pb.Ready {
	e.t.Helper()
	return e.Await("Ready", func(m *pb.NodeControl) bool { return m.GetReady() != nil }).GetReady()
}

// Status waits for a NodeStatus that is as asked.
func (e *EdgeSide) Status(what string, match func(*pb.NodeStatus) bool) *pb.NodeStatus {
	e.t.Helper()
	return e.Await("NodeStatus: "+what, func(m *pb.NodeControl) bool {
		return m.GetNodeStatus() != nil && match(m.GetNodeStatus())
	}).GetNodeStatus()
}

// RunEnd waits for the end of an execution.
func (e *EdgeSide) RunEnd(runID string) *pb.RunEnd {
	e.t.Helper()
	return e.Await("RunEnded of "+runID, func(m *pb.NodeControl) bool {
		ends := m.GetRunEnded().GetEnds()
		return len(ends) == 1 && ends[0].GetRunId() == runID
	}).GetRunEnded().GetEnds()[0]
}

// RunEnds counts the ends of an execution that weren't awaited.
func (e *EdgeSide) RunEnds(runID string) int {
	return e.Seen(func(m *pb.NodeControl) bool {
		ends := m.GetRunEnded().GetEnds()
		return len(ends) == 1 && ends[0].GetRunId() == runID
	})
}

// CancelResult waits for the answer to a cancel.
func (e *EdgeSide) CancelResult(runID string) *pb.CancelResult {
	e.t.Helper()
	return e.Await("CancelResult of "+runID, func(m *pb.NodeControl) bool {
		return m.GetCancelResult() != nil && m.GetCancelResult().GetRunId() == runID
	}).GetCancelResult()
}

// Goodbye waits for the node's Goodbye.
func (e *EdgeSide) Goodbye() *pb.Goodbye {
	e.t.Helper()
	return e.Await("Goodbye", func(m *pb.NodeControl) bool { return m.GetGoodbye() != nil }).GetGoodbye()
}

// Ended waits for the end of the link.
func (e *EdgeSide) Ended() *transport.LinkError {
	e.t.Helper()
	err := Receive(e.t, "the link's end", e.done)
	e.done <- err
	var link *transport.LinkError
	if !errors.As(err, &link) {
		e.t.Fatalf("link ended with %v", err)
	}
	return link
}

// Work is one work stream as its edge writes it.
type Work struct {
	*transport.Stream
	t     testing.TB
	seq   uint64
	total int64
}

// Tunnel is one work stream whose answer is a tunnel's.
type Tunnel struct{ Work }

// Open opens a work stream and sends the open on it.
func (e *EdgeSide) Open(open *pb.WorkOpen) *Tunnel {
	e.t.Helper()
	tn := e.Stream()
	if err := tn.Write(open); err != nil {
		e.t.Fatal(err)
	}
	return tn
}

// Breach sends an open that the node answers with the end of the link. That may come before the writer is told that the
// open is written, which then reads as a failure.
func (e *EdgeSide) Breach(open *pb.WorkOpen) {
	e.t.Helper()
	if err := e.Stream().Write(open); err != nil && !errors.Is(err, transport.ErrLinkDown) {
		e.t.Fatal(err)
	}
}

// Stream opens a work stream on which nothing was sent; it is closed with the test.
func (e *EdgeSide) Stream() *Tunnel {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	s, err := e.Link.Open(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(s.Close)
	return &Tunnel{Work{Stream: s, t: e.t}}
}

// TunnelOpen is the open of a tunnel without a body on the adapter "a" at revision 1.
func (e *EdgeSide) TunnelOpen(runID string) *pb.WorkOpen {
	return &pb.WorkOpen{ConnectionGeneration: e.Generation, Attempt: 1, Work: &pb.WorkOpen_Tunnel{Tunnel: &pb.ProviderTunnelRequest{
		RunId: runID, Adapter: "a", AdapterRevision: 1, Method: "POST", Path: "/v1/chat/completions", Target: "m",
	}}}
}

// Start opens a tunnel without a body.
func (e *EdgeSide) Start(runID string) *Tunnel {
	e.t.Helper()
	return e.Open(e.TunnelOpen(runID)).End()
}

// Body sends body bytes in frames.
func (tn *Tunnel) Body(p []byte) *Tunnel { tn.t.Helper(); tn.send(p); return tn }

// End sends the end of the body as it is.
func (tn *Tunnel) End() *Tunnel { tn.t.Helper(); return tn.EndOf(tn.total) }

// EndOf sends an end that names a length.
func (tn *Tunnel) EndOf(total int64) *Tunnel { tn.t.Helper(); tn.end(total); return tn }

func (w *Work) send(p []byte) {
	w.t.Helper()
	for len(p) > 0 {
		n := min(len(p), transport.MaxBody)
		w.seq++
		if err := w.AppendBody(w.seq, p[:n]); err != nil {
			w.t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			w.t.Fatal(err)
		}
		w.total += int64(n)
		p = p[n:]
	}
}

func (w *Work) end(total int64) {
	w.t.Helper()
	w.seq++
	if err := w.Write(&pb.WorkInput{Seq: w.seq, Input: &pb.WorkInput_End{End: &pb.InputEnd{TotalBytes: total}}}); err != nil {
		w.t.Fatal(err)
	}
}

// Next reads one frame. Only this side's reader may be waited for so long.
func (tn *Tunnel) Next() (transport.Frame, error) {
	timer := time.AfterFunc(Limit, tn.Cancel)
	defer timer.Stop()
	return tn.ReadTunnel()
}

// Accepted reads the first frame, which must be accepted.
func (tn *Tunnel) Accepted() *pb.Accepted {
	tn.t.Helper()
	f, err := tn.Next()
	if err != nil || f.Msg.GetAccepted() == nil {
		tn.t.Fatalf("first frame: %v, %v, want accepted", f.Msg, err)
	}
	return f.Msg.GetAccepted()
}

// Result is everything that came on a stream.
type Result struct {
	Kinds    string // one letter a frame: a(ccepted) r(ejected) h(ead) b(ody) u(sage) m(etadata) e(nd) x(error)
	Head     *pb.TunnelHead
	Body     []byte
	Usage    *pb.Usage
	End      *pb.TunnelEnd
	Error    *pb.Failure
	Rejected *pb.Rejected
	Err      error // why reading stopped before a terminal
}

// Collect reads until the terminal, checks the numbers, and closes the stream as an edge does.
func (tn *Tunnel) Collect() Result {
	tn.t.Helper()
	var r Result
	seq := uint64(0)
	for {
		f, err := tn.Next()
		if err != nil {
			r.Err = err
			return r
		}
		if seq++; f.Seq != seq && seq != 1 { // a caller may have read the first frames
			tn.t.Errorf("frame number %d where %d was due", f.Seq, seq)
		}
		seq = f.Seq
		if r.add(f) {
			tn.Close()
			return r
		}
	}
}

func (r *Result) add(f transport.Frame) (terminal bool) {
	if f.Msg == nil {
		r.Kinds += "b"
		r.Body = append(r.Body, f.Body...)
		return false
	}
	switch v := f.Msg.GetFrame().(type) {
	case *pb.ProviderTunnelFrame_Accepted:
		r.Kinds += "a"
	case *pb.ProviderTunnelFrame_Rejected:
		r.Kinds, r.Rejected = r.Kinds+"r", v.Rejected
		return true
	case *pb.ProviderTunnelFrame_Head:
		r.Kinds, r.Head = r.Kinds+"h", v.Head
	case *pb.ProviderTunnelFrame_Usage:
		r.Kinds, r.Usage = r.Kinds+"u", v.Usage
	case *pb.ProviderTunnelFrame_Metadata:
		r.Kinds += "m"
	case *pb.ProviderTunnelFrame_End:
		r.Kinds, r.End = r.Kinds+"e", v.End
		return true
	case *pb.ProviderTunnelFrame_Error:
		r.Kinds, r.Error = r.Kinds+"x", v.Error
		return true
	}
	return false
}

// After reports what comes on the stream once its terminal was read: io.EOF at most, when the node closes too.
func (tn *Tunnel) After() error {
	f, err := tn.Next()
	if err == nil {
		return fmt.Errorf("a frame after the terminal: %v", f.Msg)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, transport.ErrCancelled) {
		return nil
	}
	return err
}
