package edgetest

import (
	"net"
	"sync"
	"sync/atomic"
)

// Listener accepts connections that are made by its Dial, in memory: it works inside a synctest bubble.
type Listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Listen returns a listener in memory.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Dial connects. It waits until the connection is accepted; nil = the listener was closed.
func (l *Listener) Dial() net.Conn {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near
	case <-l.done:
		return nil
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return memory{} }

type memory struct{}

func (memory) Network() string { return "memory" }
func (memory) String() string  { return "memory" }

// Cable is a connection that can go silent without an end: what is written into it is swallowed, and what arrives is
// thrown away, as behind a firewall that forgot the connection.
type Cable struct {
	net.Conn
	deaf, mute atomic.Bool
}

// Silence drops both directions from now on.
func (c *Cable) Silence() { c.Deafen(); c.Mute() }

// Deafen drops what arrives.
func (c *Cable) Deafen() { c.deaf.Store(true) }

// Mute drops what is written.
func (c *Cable) Mute() { c.mute.Store(true) }

// Heal lets both directions through again.
func (c *Cable) Heal() { c.deaf.Store(false); c.mute.Store(false) }

// Read implements net.Conn.
func (c *Cable) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.deaf.Load() {
			return n, err
		}
	}
}

// Write implements net.Conn.
func (c *Cable) Write(p []byte) (int, error) {
	if c.mute.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}
