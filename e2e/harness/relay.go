// Package harness has what the end-to-end tests are made of: the LINK relay between node and edge that can pause,
// drop, throttle, cut and reset; a valve between them that understands the multiplexer's frames; a raw HTTP caller that
// writes and reads bytes with their times; both programs in one process on free ports; and a node and an edge that the
// test plays itself. It is test support only.
package harness

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Mode is what a relay does with the bytes of one direction.
type Mode int32

// The modes.
const (
	Pass  Mode = iota // forward
	Pause             // stop reading: the sender feels backpressure
	Drop              // read and throw away: silence without FIN or RST
)

// Relay forwards TCP connections to a target and misbehaves on demand.
type Relay struct {
	listener net.Listener
	target   string
	toTarget direction // node to edge, when the node dials the relay
	toDialer direction
	refuse   atomic.Bool

	mu    sync.Mutex
	pairs map[*pair]struct{}
	dials []time.Time
	wg    sync.WaitGroup
}

// pair is one forwarded connection.
type pair struct {
	near, far *net.TCPConn // the dialer's side and the target's
	silent    atomic.Bool  // nothing is forwarded any more, not even its end
}

type direction struct {
	rate atomic.Int64 // bytes a second, 0 = no limit

	mu      sync.Mutex
	mode    Mode
	changed chan struct{}
}

func (d *direction) set(m Mode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mode = m
	close(d.changed)
	d.changed = make(chan struct{})
}

// current returns the mode once it isn't Pause.
func (d *direction) current() Mode {
	for {
		d.mu.Lock()
		mode, changed := d.mode, d.changed
		d.mu.Unlock()
		if mode != Pause {
			return mode
		}
		<-changed
	}
}

// NewRelay starts a relay to target on a free port; it ends with the test.
func NewRelay(t testing.TB, target string) *Relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{listener: listener, target: target, pairs: map[*pair]struct{}{}}
	r.toTarget.changed, r.toDialer.changed = make(chan struct{}), make(chan struct{})
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		listener.Close()
		r.Set(Pass, Pass)
		r.Throttle(0)
		r.Reset()
		r.wg.Wait()
	})
	return r
}

// Addr is where the dialer dials.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Accepted is how many connections came so far.
func (r *Relay) Accepted() int64 { return int64(len(r.Dials())) }

// Dials returns when each connection came.
func (r *Relay) Dials() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]time.Time(nil), r.dials...)
}

// Set changes both directions, for the connections that are open and those that come.
func (r *Relay) Set(toTarget, toDialer Mode) {
	r.toTarget.set(toTarget)
	r.toDialer.set(toDialer)
}

// Throttle limits both directions to rate bytes a second; 0 lifts the limit.
func (r *Relay) Throttle(rate int64) {
	r.toTarget.rate.Store(rate)
	r.toDialer.rate.Store(rate)
}

// Refuse makes the relay close what is dialed from now on (true), or forward it again (false).
func (r *Relay) Refuse(on bool) { r.refuse.Store(on) }

// Retarget makes the relay forward what is dialed from now on to another address.
func (r *Relay) Retarget(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// Reset ends all open connections with RST on both sides.
func (r *Relay) Reset() { r.each(func(p *pair) { reset(p.near); reset(p.far) }) }

// Silence makes the connections that are open now silent for good: what either side sends is lost, and so is its end.
// Those that come later are forwarded.
func (r *Relay) Silence() { r.each(func(p *pair) { p.silent.Store(true) }) }

// Halve resets the dialers' sides of the open connections. The target's sides stay open and silent, until the target
// or Release ends them.
func (r *Relay) Halve() {
	r.each(func(p *pair) {
		p.silent.Store(true)
		reset(p.near)
	})
}

// Release ends what Silence and Halve left behind.
func (r *Relay) Release() {
	r.each(func(p *pair) {
		if p.silent.Load() {
			p.near.Close()
			p.far.Close()
		}
	})
}

func (r *Relay) each(do func(p *pair)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.pairs {
		do(p)
	}
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // an ended connection has nothing to reset
	c.Close()
}

func (r *Relay) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		r.dials = append(r.dials, time.Now())
		target := r.target
		r.mu.Unlock()
		if r.refuse.Load() {
			conn.Close()
			continue
		}
		far, err := net.Dial("tcp", target)
		if err != nil {
			conn.Close()
			continue
		}
		p := &pair{near: conn.(*net.TCPConn), far: far.(*net.TCPConn)}
		r.mu.Lock()
		r.pairs[p] = struct{}{}
		r.mu.Unlock()
		r.wg.Go(func() { r.serve(p) })
	}
}

func (r *Relay) serve(p *pair) {
	var back sync.WaitGroup
	back.Go(func() { p.copy(p.near, p.far, &r.toDialer) })
	p.copy(p.far, p.near, &r.toTarget)
	back.Wait()
	p.near.Close()
	p.far.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pairs, p)
}

// copy forwards one direction until its source ends. The half-close passes on unless bytes are being dropped: a link
// that went silent doesn't say goodbye either.
func (p *pair) copy(to, from *net.TCPConn, d *direction) {
	buffer := make([]byte, 32<<10)
	for {
		d.current()
		size, rate := len(buffer), d.rate.Load()
		if rate > 0 { // small pieces, so that the limit holds within a fraction of a second
			size = int(min(int64(size), max(1, rate/20)))
		}
		n, err := from.Read(buffer[:size])
		pass := d.current() == Pass && !p.silent.Load()
		if n > 0 && pass {
			if rate > 0 {
				<-time.After(time.Duration(n) * time.Second / time.Duration(rate))
			}
			if _, werr := to.Write(buffer[:n]); werr != nil {
				from.Close()
				return
			}
		}
		if err != nil {
			if pass {
				_ = to.CloseWrite() // the other side may be gone
			}
			return
		}
	}
}
