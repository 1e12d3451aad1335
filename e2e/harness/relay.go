// Package harness has what the end-to-end tests are made of: the LINK relay between node and edge that can pause,
// drop, throttle, cut and reset; a raw HTTP caller that writes and reads bytes with their times; and both programs in
// one process on free ports. It is test support only.
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
	accepted atomic.Int64
	refuse   atomic.Bool

	mu    sync.Mutex
	conns map[*net.TCPConn]struct{}
	wg    sync.WaitGroup
}

type direction struct {
	mode    atomic.Int32
	rate    atomic.Int64 // bytes a second, 0 = no limit
	changed chan struct{}
	mu      sync.Mutex
}

func (d *direction) set(m Mode) {
	d.mode.Store(int32(m))
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *direction) change() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// NewRelay starts a relay to target on a free port; it ends with the test.
func NewRelay(t testing.TB, target string) *Relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{listener: listener, target: target, conns: map[*net.TCPConn]struct{}{}}
	r.toTarget.changed, r.toDialer.changed = make(chan struct{}), make(chan struct{})
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		listener.Close()
		r.Set(Pass, Pass)
		r.Reset()
		r.wg.Wait()
	})
	return r
}

// Addr is where the dialer dials.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Accepted is how many connections came so far.
func (r *Relay) Accepted() int64 { return r.accepted.Load() }

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

// Reset ends all open connections with RST on both sides.
func (r *Relay) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.SetLinger(0) // an ended connection has nothing to reset
		c.Close()
	}
}

func (r *Relay) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.accepted.Add(1)
		if r.refuse.Load() {
			conn.Close()
			continue
		}
		far, err := net.Dial("tcp", r.target)
		if err != nil {
			conn.Close()
			continue
		}
		near, there := conn.(*net.TCPConn), far.(*net.TCPConn)
		r.keep(near, there)
		r.wg.Go(func() { r.copy(there, near, &r.toTarget) })
		r.wg.Go(func() { r.copy(near, there, &r.toDialer) })
	}
}

func (r *Relay) keep(conns ...*net.TCPConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		r.conns[c] = struct{}{}
	}
}

// copy forwards one direction until its source ends. The half-close passes on unless bytes are being dropped: a link
// that went silent doesn't say goodbye either.
func (r *Relay) copy(to, from *net.TCPConn, d *direction) {
	buffer := make([]byte, 32<<10)
	for {
		change := d.change()
		if Mode(d.mode.Load()) == Pause {
			<-change
			continue
		}
		size, rate := len(buffer), d.rate.Load()
		if rate > 0 { // small pieces, so that the limit holds within a fraction of a second
			size = int(min(int64(size), max(1, rate/20)))
		}
		n, err := from.Read(buffer[:size])
		for Mode(d.mode.Load()) == Pause {
			<-d.change()
		}
		if n > 0 && Mode(d.mode.Load()) == Pass {
			if rate > 0 {
				<-time.After(time.Duration(n) * time.Second / time.Duration(rate))
			}
			if _, werr := to.Write(buffer[:n]); werr != nil {
				from.Close()
				return
			}
		}
		if err != nil {
			if Mode(d.mode.Load()) == Pass {
				_ = to.CloseWrite() // the other side may be gone
			}
			return
		}
	}
}
