package transport

import (
	"context"
	"fmt"
	"sync"
	"time"

	pb "iop/proto/iop"
)

// beats keeps the nonces that this side sent. All its times are monotonic, measured from the connection's start.
type beats struct {
	mu     sync.Mutex
	nonce  uint64
	sent   time.Duration // when nonce went out
	read   ClockReading  // the same by Config.Clocks
	open   bool          // nonce has no answer yet
	rtt    time.Duration // of the last echo, 0 = none yet
	probes []*probe
}

// probe is one wait for a sign of life.
type probe struct {
	nonce  uint64
	sent   chan (<-chan struct{}) // capacity 1: the nonce is with the kernel; what the next read closes
	echoed chan struct{}
}

// next returns a new nonce for a heartbeat that also serves the probes.
func (b *beats) next(now time.Duration, read ClockReading, probes []*probe) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nonce++
	b.sent, b.read, b.open = now, read, true
	for _, p := range probes {
		p.nonce = b.nonce
	}
	b.probes = append(b.probes, probes...)
	return b.nonce
}

// echoed takes an answer. It returns when what was answered was sent, and false if that isn't the last.
func (b *beats) echoed(nonce uint64, now, delay time.Duration) (sent ClockReading, last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last = nonce == b.nonce; last {
		b.rtt, b.open = max(now-b.sent-max(delay, 0), 1), false
	}
	kept := b.probes[:0]
	for _, p := range b.probes {
		if p.nonce == nonce {
			close(p.echoed)
			continue
		}
		kept = append(kept, p)
	}
	clear(b.probes[len(kept):])
	b.probes = kept
	return b.read, last
}

// reading looks at the clocks, if anybody wants to know.
func (l *Link) reading() ClockReading {
	if l.cfg.Clocks == nil {
		return ClockReading{}
	}
	return l.cfg.Clocks()
}

// awaited reports whether the last nonce has no answer yet.
func (b *beats) awaited() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// drop forgets a probe that gave up.
func (b *beats) drop(gone *probe) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, p := range b.probes {
		if p == gone {
			b.probes = append(b.probes[:i], b.probes[i+1:]...)
			return
		}
	}
}

func (b *beats) lastRTT() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rtt
}

func (l *Link) handleHeartbeat(hb *pb.Heartbeat) {
	now := l.conn.elapsed()
	if hb.Nonce != 0 {
		l.box.put(func(m *letters) { m.pulse.echo, m.pulse.heard = hb.Nonce, now })
	}
	if hb.Echo != 0 {
		sent, last := l.beats.echoed(hb.Echo, now, time.Duration(hb.EchoDelayMs)*time.Millisecond)
		if last && hb.SentMs > 0 && l.cfg.Exchanged != nil {
			l.cfg.Exchanged(Exchange{EdgeMS: hb.SentMs, Sent: sent, Received: l.reading()})
		}
	}
}

// probesFlushed tells probes that their nonce is with the kernel: any byte that is read from now on is a sign of life.
func (l *Link) probesFlushed(probes []*probe) {
	for _, p := range probes {
		p.sent <- l.conn.nextRead()
	}
}

// Probe asks the peer for a sign of life: a heartbeat with a nonce. It returns nil as soon as the echo comes, or any
// byte that was read after the nonce went out; ctx's error when nothing came, and ErrLinkDown when the link ended.
func (l *Link) Probe(ctx context.Context) error {
	p := &probe{sent: make(chan (<-chan struct{}), 1), echoed: make(chan struct{})}
	defer l.beats.drop(p)
	l.box.put(func(m *letters) { m.pulse.probes = append(m.pulse.probes, p) })
	var read <-chan struct{}
	for {
		select {
		case read = <-p.sent:
		case <-read:
			return nil
		case <-p.echoed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-l.down:
			return ErrLinkDown
		}
	}
}

// watch sends the heartbeats and judges the link by what the connection read and wrote, never by a message's handler
// and never by the wall clock.
func (l *Link) watch() {
	// Not NewTimer(0), to begin with: under the race detector on fake time, polling a timer that is over already while
	// others fire crashes the runtime (go1.26; seen).
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var beat time.Duration
	for {
		now := l.conn.elapsed()
		if now >= beat {
			l.beat()
			l.conn.trim()
			beat = now + l.cfg.Heartbeat
		}
		next, fault := l.judge(now)
		if fault != nil {
			l.end(fault)
			return
		}
		timer.Reset(min(next, beat) - now)
		select {
		case <-timer.C:
		case <-l.down:
			return
		}
	}
}

// judge returns when to look again, or why the link is over.
func (l *Link) judge(now time.Duration) (next time.Duration, fault *LinkError) {
	dead := l.cfg.Dead
	next = time.Duration(l.conn.counters.lastRead.Load()) + dead
	if now >= next {
		return 0, &LinkError{Reason: ReasonDead, Text: fmt.Sprintf("nothing was read for %v", dead)}
	}
	// Bytes that begin to wait after this look are looked at with the next one, which is at most a heartbeat away.
	if since, ok := l.conn.stalledSince(); ok {
		if now >= since+dead {
			return 0, &LinkError{Reason: ReasonDead, Text: fmt.Sprintf("bytes wait and none was taken for %v", dead)}
		}
		next = min(next, since+dead)
	}
	select {
	case <-l.ready:
	default:
		if now >= l.cfg.ControlOpen {
			return 0, &LinkError{Reason: ReasonProtocol, Text: fmt.Sprintf("no control stream after %v", l.cfg.ControlOpen)}
		}
		next = min(next, l.cfg.ControlOpen)
	}
	return next, nil
}
