package transport

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

// startMem runs both sides over an in-memory connection.
func startMem(t *testing.T, cfg Config, work func(*Stream)) (p *linkPair, edge, node *memConn) {
	edge, node = memPair(0)
	return startPair(t, edge, node, cfg, work), edge, node
}

// reasonOf waits for a link's end and returns how it ended and after what time.
func reasonOf(t *testing.T, l *Link) (*LinkError, time.Duration) {
	t.Helper()
	<-l.Down()
	e, ok := l.Err().(*LinkError)
	if !ok {
		t.Fatalf("the link ended with %v", l.Err())
	}
	return e, time.Since(l.since)
}

// TU-01: a peer that falls silent is noticed after 45 s, at both sides; nothing but silence tells.
func TestSilentPeerIsDead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, edge, node := startMem(t, testConfig(), nil)
		s := p.open(t, t.Context())
		time.Sleep(100 * time.Second) // idle, kept by heartbeats
		mute := func(p *memPipe) { p.mute = true }
		edge.out.set(mute)
		node.out.set(mute)
		began := time.Now()
		for _, l := range []*Link{p.edge, p.node} {
			e, _ := reasonOf(t, l)
			if took := time.Since(began); e.Reason != ReasonDead || took < 30*time.Second || took > 45*time.Second {
				t.Errorf("%v after %v of silence", e, took)
			}
		}
		if _, err := s.ReadTunnel(); err != ErrLinkDown {
			t.Errorf("the stream ended with %v", err)
		}
	})
}

// Row 7 of the fault catalogue: where only this side is deaf, its orderly end would queue behind bytes that nobody
// acknowledges while the peer still hears them. A dead link is reset, so that both sides know within the same limit.
func TestDeadLinkIsReset(t *testing.T) {
	patience.Widen(t, 500*time.Millisecond, func(dead time.Duration) (keptUp bool) {
		a, b := tcpPair(t)
		l := NewNodeLink(a, Config{Heartbeat: dead / 5, Dead: dead, Log: testConfig().Log}, nodeSide{newHandler(nil)})
		done := make(chan error, 1)
		go func() { done <- l.Run(t.Context()) }()
		n, err := io.Copy(io.Discard, b)
		within(t, "the link's end", done)
		if n == 0 {
			return false // it was dead before it had written anything
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the peer read %d bytes and then %v", n, err)
		}
		if e, _ := reasonOf(t, l); e.Reason != ReasonDead {
			t.Errorf("got %v", e)
		}
		return true
	})
}

// TestSilenceExact: 45 s from the last byte, not from a look at it.
func TestSilenceExact(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		edge, _ := memPair(0)
		l := NewEdgeLink(edge, Config{ControlOpen: time.Hour, Log: testConfig().Log}, edgeSide{newHandler(nil)})
		done := make(chan error, 1)
		go func() { done <- l.Run(t.Context()) }()
		if e, after := reasonOf(t, l); e.Reason != ReasonDead || after != 45*time.Second {
			t.Errorf("%v after %v", e, after)
		}
		<-done
	})
}

// TestIdleLinkLives: heartbeats alone keep an idle link, for as long as it takes.
func TestIdleLinkLives(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, _, _ := startMem(t, testConfig(), nil)
		time.Sleep(2 * time.Hour)
		if p.edge.isDown() || p.node.isDown() {
			t.Fatalf("the link ended: %v, %v", p.edge.Err(), p.node.Err())
		}
		if st := p.edge.Status(); time.Since(st.LastRead) > 30*time.Second || st.RTT == 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestAnyByteIsLife: a node whose heartbeats don't come is alive as long as anything does.
func TestAnyByteIsLife(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		edge, node := memPair(0)
		quiet := testConfig()
		quiet.Heartbeat, quiet.Dead = 24*time.Hour, 48*time.Hour
		cfg := testConfig()
		cfg.Heartbeat = 24 * time.Hour // an answer to a heartbeat would be a byte, too
		p := startSides(t, edge, node, cfg, quiet, func(s *Stream) {
			s.ReadOpen(patience.Limit)
			for n := uint64(1); n < 10; n++ {
				time.Sleep(40 * time.Second)
				s.AppendBody(n, []byte("x"))
				s.Flush()
			}
			lingerUntilEOF(s)
		})
		p.open(t, t.Context())
		if err, after := reasonOf(t, p.edge); err.Reason != ReasonDead || after != 9*40*time.Second+45*time.Second {
			t.Errorf("%v after %v", err, after)
		}
	})
}

// TestWriteStall: bytes that wait without progress for 45 s end the link, even while the peer's bytes come in.
func TestWriteStall(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		edge, node := memPair(0)
		patient := testConfig()
		patient.Dead = time.Hour
		p := startSides(t, edge, node, testConfig(), patient, func(s *Stream) {
			s.ReadOpen(patience.Limit)
			for n := uint64(1); ; n++ {
				time.Sleep(10 * time.Second)
				s.AppendBody(n, []byte("alive"))
				if s.Flush() != nil {
					return
				}
			}
		})
		s := p.open(t, t.Context())
		time.Sleep(10 * time.Minute)
		edge.out.set(func(p *memPipe) { p.stop = true })
		time.Sleep(5 * time.Second)
		s.AppendBody(1, []byte("never gets out"))
		s.Flush()
		began := time.Now()
		e, _ := reasonOf(t, p.edge)
		if took := time.Since(began); e.Reason != ReasonDead || took > 45*time.Second || took < 40*time.Second {
			t.Errorf("%v after %v", e, took)
		}
	})
}

// TestStallThatEnds: a link that stands still for less than the limit isn't harmed, and nothing is lost.
func TestStallThatEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, edge, node := startMem(t, testConfig(), answer(randomBytes(500<<10)))
		s := p.open(t, t.Context())
		for range 10 {
			edge.out.set(func(p *memPipe) { p.stop = true })
			node.out.set(func(p *memPipe) { p.stop = true })
			time.Sleep(8 * time.Second)
			edge.out.set(func(p *memPipe) { p.stop = false })
			node.out.set(func(p *memPipe) { p.stop = false })
			time.Sleep(time.Second)
		}
		if got, err := readAnswer(s, noPace); err != nil || len(got) != 500<<10 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		s.Close()
	})
}

func TestProbe(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, edge, node := startMem(t, testConfig(), nil)
		probe := func(l *Link) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			began := time.Now()
			err := l.Probe(ctx)
			return time.Since(began), err
		}
		for _, l := range []*Link{p.edge, p.node} {
			if took, err := probe(l); err != nil || took > time.Second {
				t.Errorf("alive: %v after %v", err, took)
			}
		}
		node.out.set(func(p *memPipe) { p.mute = true })
		if took, err := probe(p.edge); err != context.DeadlineExceeded || took != 3*time.Second {
			t.Errorf("silent: %v after %v", err, took)
		}
		edge.out.set(func(p *memPipe) { p.stop = true })
		if _, err := probe(p.edge); err != context.DeadlineExceeded {
			t.Errorf("stalled: %v", err)
		}
		p.edge.Close(ReasonClosed)
		if took, err := probe(p.edge); err != ErrLinkDown || took != 0 {
			t.Errorf("down: %v after %v", err, took)
		}
		if n := len(p.edge.beats.probes); n != 0 {
			t.Errorf("%d probes are kept", n)
		}
	})
}

// TestProbeAnyByte: a byte that comes after the probe went out is as good as its echo.
func TestProbeAnyByte(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, edge, node := startMem(t, testConfig(), func(s *Stream) {
			s.ReadOpen(patience.Limit)
			time.Sleep(2 * time.Second)
			s.Write(accepted(1))
			lingerUntilEOF(s)
		})
		s := p.open(t, t.Context())
		synctest.Wait()
		edge.out.set(func(p *memPipe) { p.mute = true }) // the nonce never comes to the node
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if err := p.edge.Probe(ctx); err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		s.Cancel()
		node.out.set(func(p *memPipe) { p.mute = true })
	})
}

// TestHeartbeatTellsRTTAndTime: the round trip leaves out what the peer took, and only the edge tells its wall time.
func TestHeartbeat(t *testing.T) {
	b := new(beats)
	n := b.next(time.Second, ClockReading{}, nil)
	b.echoed(n+5, 2*time.Second, 0)
	if b.lastRTT() != 0 {
		t.Error("an echo of a nonce that was never sent counts")
	}
	b.echoed(n, 1500*time.Millisecond, 100*time.Millisecond)
	if b.lastRTT() != 400*time.Millisecond {
		t.Errorf("round trip %v", b.lastRTT())
	}
	for _, edge := range []bool{true, false} {
		w := captureWriter(t, edge)
		w.link.cfg.Now = func() time.Time { return time.UnixMilli(1234) } // not the wall clock: leases go by it
		w.write(&letters{pulse: pulse{beat: true, echo: 7}})
		var hb *pb.Heartbeat
		if edge {
			hb = w.sentToNode(t)[0].GetHeartbeat()
		} else {
			hb = w.sentToEdge(t)[0].GetHeartbeat()
		}
		if hb.GetEcho() != 7 || hb.GetNonce() == 0 || (hb.GetSentMs() == 1234) != edge {
			t.Errorf("edge %v: %v", edge, hb)
		}
	}
}

// A heartbeat that is asked for doesn't follow one that isn't answered yet: of both no answer would tell the round trip,
// and on a link whose round trip is longer than the time between two of them none ever would. (found by review)
func TestBeatWaitsForTheLastAnswer(t *testing.T) {
	l := &Link{box: newMailbox()}
	beats := func() bool {
		l.Beat()
		asked := false
		l.box.put(func(m *letters) { asked, m.pulse.beat = m.pulse.beat, false })
		return asked
	}
	if !beats() {
		t.Error("the first isn't sent")
	}
	n := l.beats.next(time.Second, ClockReading{}, nil)
	if beats() {
		t.Error("another one is sent before the answer")
	}
	l.beats.echoed(n, 4500*time.Millisecond, 0)
	if !beats() || l.beats.lastRTT() != 3500*time.Millisecond {
		t.Errorf("nothing is sent after the answer, or the round trip is %v", l.beats.lastRTT())
	}
}

// TU-24: the wall clock takes no part in liveness. Times there are durations from a start that has a monotonic
// reading; nothing that would strip it, or compare wall times, is in the sources that judge.
func TestLivenessIgnoresTheWallClock(t *testing.T) {
	if start := newConn(&memConn{}, nil).start; start == start.Round(0) {
		t.Error("the start has no monotonic reading")
	}
	for _, name := range []string{"conn.go", "flush.go", "liveness.go", "link.go"} {
		src, err := os.ReadFile(filepath.Join(".", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"UnixNano", "UnixMilli", "UnixMicro", ".Unix(", "Round(0)", ".Before(", ".After(", ".Sub("} {
			if strings.Contains(string(src), word) {
				t.Errorf("%s uses %s", name, word)
			}
		}
	}
	// Monotonic time decides: 46 s of it without a byte are too many, 44 s aren't.
	edge, _ := memPair(0)
	l := NewEdgeLink(edge, testConfig(), edgeSide{newHandler(nil)})
	close(l.ready)
	l.conn.counters.lastRead.Store(int64(time.Hour))
	if _, fault := l.judge(time.Hour + 44*time.Second); fault != nil {
		t.Errorf("44 s: %v", fault)
	}
	if _, fault := l.judge(time.Hour + 46*time.Second); fault == nil {
		t.Error("46 s: alive")
	}
}

// TestControlBesideBulk: on 1 Mbit/s with 16 bulk streams, 3 of them stalled, a heartbeat's echo waits for one flush
// and what the path holds, not for the queue (plain yamux: 2.2 s in the middle).
func TestControlBesideBulk(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		edge, node := memPair(0)
		hold := make(chan struct{})
		p := startPair(t, &throttled{edge, 125_000}, node, testConfig(), func(s *Stream) {
			if s.mux.StreamID() <= 6 {
				<-hold
			}
			lingerUntilEOF(s)
		})
		ctx, cancel := context.WithCancel(t.Context())
		var streams []*Stream
		for range 16 {
			s := p.open(t, ctx)
			streams = append(streams, s)
			go func() {
				for n := uint64(1); ; n++ {
					s.AppendBody(n, make([]byte, MaxBody))
					if s.Flush() != nil {
						return
					}
				}
			}()
		}
		time.Sleep(5 * time.Second)
		var worst, sum time.Duration
		const rounds = 50
		for range rounds {
			began := time.Now()
			if err := p.node.Probe(ctx); err != nil { // the echo travels beside the bulk
				t.Fatal(err)
			}
			took := time.Since(began)
			worst, sum = max(worst, took), sum+took
			time.Sleep(100 * time.Millisecond)
		}
		if worst > 600*time.Millisecond {
			t.Errorf("worst %v, mean %v", worst, sum/rounds)
		}
		if n := p.edge.Status().Pending; n > bulkBudget+smallBudget+64<<10 {
			t.Errorf("%d bytes wait", n)
		}
		close(hold)
		for _, s := range streams {
			s.Cancel()
		}
		cancel()
	})
}

// throttled gives each write to the peer after the time that it takes at rate bytes a second. It comes whole: the
// multiplexer holds a mutex while the rest of a frame is on its way, which stops a bubble's clock.
type throttled struct {
	*memConn
	rate int
}

func (c *throttled) Write(p []byte) (int, error) {
	time.Sleep(time.Duration(len(p)) * time.Second / time.Duration(c.rate))
	return c.memConn.Write(p)
}
