package transport

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

// TU-10: streams that are opened, written, read, cancelled and closed at random from both ends, while links end around
// them: nothing hangs, nothing is torn, nothing stays (goleak).
func TestRandomLives(t *testing.T) {
	limit := 8 * time.Second
	if testing.Short() {
		limit = time.Second
	}
	var whole, broken atomic.Int64
	began := time.Now()
	more := func() bool { // on a slow machine it takes longer until both kinds of life were seen
		over := time.Since(began)
		return over < limit || over < patience.Limit/2 && (whole.Load() == 0 || broken.Load() == 0)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var running sync.WaitGroup
		for i := range 4 {
			running.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				for more() {
					oneRandomLink(t, r.Uint64(), &whole, &broken)
				}
			})
		}
		running.Wait()
	}()
	within(t, "it ends", done)
	t.Logf("%d whole exchanges, %d that ended early", whole.Load(), broken.Load())
	if whole.Load() == 0 || broken.Load() == 0 {
		t.Error("one of the two never happened")
	}
}

// oneRandomLink runs a link with some streams and ends it at a random moment.
func oneRandomLink(t *testing.T, seed uint64, whole, broken *atomic.Int64) {
	r := rand.New(rand.NewPCG(seed, 2))
	cfg := testConfig()
	cfg.StreamReset = time.Duration(1+r.IntN(200)) * time.Millisecond
	a, b := tcpPair(t)
	h := newHandler(func(s *Stream) { randomNode(s, rand.New(rand.NewPCG(seed, uint64(s.mux.StreamID())))) })
	edge, node := NewEdgeLink(a, cfg, edgeSide{h}), NewNodeLink(b, cfg, nodeSide{h})
	var running sync.WaitGroup
	running.Go(func() { edge.Run(context.Background()) })
	running.Go(func() { node.Run(context.Background()) })
	for i := range 1 + r.IntN(20) {
		running.Go(func() {
			for range 1 + i%5 {
				if randomEdge(t, edge, rand.New(rand.NewPCG(seed, uint64(i)<<32))) {
					whole.Add(1)
				} else {
					broken.Add(1)
				}
			}
		})
	}
	running.Go(func() {
		for range 20 {
			edge.SendCancel("x", execution.CauseAPI)
			node.SendStatus(func() *pb.NodeStatus { return &pb.NodeStatus{Number: 1} })
		}
	})
	timer := time.NewTimer(time.Duration(50+r.IntN(500)) * time.Millisecond)
	<-timer.C
	switch r.IntN(4) {
	case 0:
		edge.Close(ReasonSuperseded)
	case 1:
		node.Close(ReasonClosed)
	case 2:
		a.Close()
	default:
		node.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_KILLED})
	}
	running.Wait()
}

// randomEdge drives one exchange, perhaps gives it up, and reports whether the answer came whole.
func randomEdge(t *testing.T, l *Link, r *rand.Rand) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(1000))*time.Millisecond)
	defer cancel()
	s, err := l.Open(ctx)
	if err != nil {
		return false
	}
	defer s.Close()
	switch r.IntN(4) {
	case 0:
		defer context.AfterFunc(ctx, s.Cancel)()
	case 1:
		s.Close() // at once
	}
	if s.Write(tunnelOpen("r")) != nil || sendInput(s, r.IntN(400<<10)) != nil {
		return false
	}
	body, err := readAnswer(s, noPace)
	if err != nil {
		return false
	}
	if want := bytes.Repeat([]byte{'n'}, len(body)); !bytes.Equal(body, want) {
		t.Error("an answer was torn")
	}
	return true
}

func sendInput(s *Stream, n int) error {
	buf := make([]byte, MaxBody)
	for seq := uint64(1); n > 0; seq++ {
		k := min(n, len(buf))
		if err := s.AppendBody(seq, buf[:k]); err != nil {
			return err
		}
		if err := s.Flush(); err != nil {
			return err
		}
		n -= k
	}
	return s.Write(&pb.WorkInput{Input: &pb.WorkInput_End{End: &pb.InputEnd{}}})
}

// randomNode answers, with the input read by a goroutine of its own as a node does it, or goes away at some point.
func randomNode(s *Stream, r *rand.Rand) {
	if _, err := s.ReadOpen(patience.Limit); err != nil {
		return
	}
	if r.IntN(8) == 0 {
		return
	}
	eof := make(chan struct{})
	go func() {
		defer close(eof)
		lingerUntilEOF(s)
		s.Cancel()
	}()
	defer func() { <-eof }()
	if s.Write(accepted(1)) != nil {
		return
	}
	body := bytes.Repeat([]byte{'n'}, r.IntN(400<<10))
	if sendBody(s, 2, body) != nil {
		return
	}
}

// CA-01: callers that leave in the middle of long answers, one after the other on one link: what they leave behind
// doesn't shut the gate for those who stay.
func TestLeaversLeaveTheGateWhole(t *testing.T) {
	p := startTCP(t, func(s *Stream) {
		if _, err := s.ReadOpen(patience.Limit); err != nil {
			return
		}
		var writing sync.WaitGroup
		writing.Go(func() { // its error is what the test is about
			if s.Write(accepted(1)) == nil {
				_ = sendBody(s, 2, make([]byte, 160<<10))
			}
		})
		lingerUntilEOF(s) // as the node does it: the reader closes while the adapter writes
		s.Cancel()
		s.Close()
		writing.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for range 60 {
				s, err := p.edge.Open(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				stop := context.AfterFunc(ctx, s.Cancel)
				if err := s.Write(tunnelOpen("r")); err != nil {
					t.Error(err)
				}
				for range i % 8 {
					if _, err := s.ReadTunnel(); err != nil {
						t.Errorf("an answer stands still: %v", err)
						break
					}
				}
				stop()
				s.Cancel()
				s.Close()
			}
		})
	}
	callers.Wait()
	for _, l := range []*Link{p.edge, p.node} {
		eventually(t, "both gates are whole again", func() bool {
			b, s := l.conn.freeBytes()
			return b == bulkBudget && s == smallBudget
		})
	}
}

// TestConcurrentCalls runs everything that may be called from anywhere at once, for the race detector.
func TestConcurrentCalls(t *testing.T) {
	p := startTCP(t, nil)
	var running sync.WaitGroup
	for _, call := range []func(){
		func() { p.edge.Status() },
		func() { p.edge.SendRefresh(&pb.NodeConfigPayload{Projection: 1}) },
		func() { p.edge.SendReadyAck(1, true) },
		func() { p.edge.SendRunEndedAck("r") },
		func() { p.edge.SendDrainNotice(&pb.DrainNotice{}) },
		func() { p.node.SendReady(func() *pb.Ready { return &pb.Ready{} }) },
		func() { p.node.SendRunEnded(&pb.RunEnd{RunId: "r"}) },
		func() { p.node.SendCancelResult(&pb.CancelResult{RunId: "r"}) },
		func() { p.node.SendEvent(&pb.EdgeNodeEvent{Code: "c"}) },
		func() { _ = p.edge.Probe(t.Context()) },
		func() { _ = p.node.Probe(t.Context()) },
		func() { s := p.open(t, t.Context()); s.Cancel(); s.Close() },
	} {
		running.Go(func() {
			for range 60 {
				call()
			}
		})
	}
	go func() { // nobody else takes them
		for range p.h.fromNode {
		}
	}()
	go func() {
		for range p.h.fromEdge {
		}
	}()
	running.Wait()
	p.edge.Close(ReasonClosed)
	<-p.edgeDone
	<-p.nodeDone
	close(p.h.fromNode)
	close(p.h.fromEdge)
}
