package transport

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	pb "iop/proto/iop"
)

// TestSlowReaderGetsAll: an answer of 900 KiB to a reader that takes many times StreamReset is byte-exact, because
// only the edge closes, and after the terminal. So is what comes long after the end of the request body.
func TestSlowReaderGetsAll(t *testing.T) {
	cfg := testConfig()
	cfg.StreamReset = 20 * time.Millisecond
	body := randomBytes(900 << 10)
	a, b := tcpPair(t)
	p := startPair(t, a, b, cfg, answer(body))
	s := p.open(t, t.Context())
	s.Write(&pb.WorkInput{Seq: 1, Input: &pb.WorkInput_End{End: &pb.InputEnd{}}})
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	got, err := readAnswer(s, func() { <-tick.C })
	s.Close()
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("%d of %d bytes, %v", len(got), len(body), err)
	}
}

// TestStalledReadersDontStopOthers is deadlock 1 of the wire contract: a gate around Write that is held while the
// window is awaited stops the whole link with three stalled readers. Also TU-08: what a stalled reader costs is
// bounded by its window, and it can go on later.
func TestStalledReadersDontStopOthers(t *testing.T) {
	body := randomBytes(8 << 20)
	p := startTCP(t, answer(body))
	var stalled []*Stream
	for range 3 {
		stalled = append(stalled, p.open(t, t.Context()))
	}
	eventually(t, "the stalled streams fill their windows", func() bool {
		return p.edge.Status().BytesIn > 3*streamWindow
	})
	in := p.edge.Status().BytesIn
	if limit := int64(3*(streamWindow+piece) + 64<<10); in > limit {
		t.Errorf("%d bytes came for three stalled readers, want at most %d", in, limit)
	}
	var running sync.WaitGroup
	for range 5 {
		s := p.open(t, t.Context())
		running.Go(func() {
			defer s.Close()
			got, err := readAnswer(s, noPace)
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("live: %d bytes, %v", len(got), err)
			}
		})
	}
	live := make(chan struct{})
	go func() { running.Wait(); close(live) }()
	within(t, "the live streams end", live)
	eventually(t, "the gate is whole again", func() bool {
		b, s := p.node.conn.freeBytes()
		return b == bulkBudget && s == smallBudget
	})
	for _, s := range stalled {
		got, err := readAnswer(s, noPace)
		s.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("stalled: %d bytes, %v", len(got), err)
		}
	}
}

// TestSmallFramesPassBulk: token streams move while bodies wait for the kernel at the gate.
func TestSmallFramesPassBulk(t *testing.T) {
	a, b := memPair(0)
	p := startPair(t, a, b, testConfig(), nil)
	tokens, bodies := p.open(t, t.Context()), p.open(t, t.Context())
	eventually(t, "quiet", func() bool { return p.edge.conn.waiting() == 0 })
	a.out.set(func(p *memPipe) { p.stop = true })
	blocked := make(chan error, 1)
	go func() {
		for n := uint64(1); ; n++ {
			bodies.AppendBody(n, make([]byte, MaxBody))
			if err := bodies.Flush(); err != nil {
				blocked <- err
				return
			}
		}
	}()
	eventually(t, "the body waits at the gate", func() bool { return waiters(p.edge.conn, bulk) == 1 })
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		for n := uint64(1); n <= 100; n++ {
			tokens.AppendBody(n, make([]byte, 100))
			tokens.Flush()
		}
	}()
	within(t, "100 small frames pass", passed)
	bodies.Cancel()
	if err := within(t, "the body gives up", blocked); err != ErrCancelled {
		t.Errorf("got %v", err)
	}
	a.out.set(func(p *memPipe) { p.stop = false })
	bodies.Close()
	tokens.Close()
}

// TestSlowTCP: a whole exchange over connections that give and take a few bytes at a time.
func TestSlowTCP(t *testing.T) {
	a, b := tcpPair(t)
	body := randomBytes(20 << 10)
	p := startPair(t, trickle{a}, trickle{b}, testConfig(), answer(body))
	s := p.open(t, context.Background())
	got, err := readAnswer(s, noPace)
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	s.Close()
}

// trickle gives a connection's bytes in pieces of a few.
type trickle struct{ net.Conn }

func (c trickle) Read(p []byte) (int, error) { return c.Conn.Read(p[:min(len(p), 1+rand.IntN(7))]) }

func (c trickle) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		n, err := c.Conn.Write(p[:min(len(p), 1+rand.IntN(50))])
		total, p = total+n, p[n:]
		if err != nil {
			return total, err
		}
	}
	return total, nil
}
