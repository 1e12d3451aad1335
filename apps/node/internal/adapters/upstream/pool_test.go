package upstream

import (
	"bufio"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/httprules"
)

// idleConn puts a connection into p whose provider leaves it alone, or has closed it.
func idleConn(t *testing.T, p *pool, closed bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	c := &conn{Conn: near, tcp: near, br: bufio.NewReader(near), headLeft: -1}
	if c.raw, err = near.(*net.TCPConn).SyscallConn(); err != nil {
		t.Fatal(err)
	}
	if closed {
		far.Close()
		for c.quiet() { // until the end has arrived
			runtime.Gosched()
		}
	}
	p.put(c)
}

// HT-14: how long a connection is kept on http:// grows while the provider leaves idle ones alone, and falls for good
// when it closes one.
func TestIdleTimeIsLearned(t *testing.T) {
	p := newPool(httprules.Base{}, Config{MaxConcurrency: 8, Log: zerolog.Nop()})
	defer p.close()
	expire := func() {
		p.mu.Lock()
		for _, c := range p.idle {
			c.idleSince = c.idleSince.Add(-time.Hour)
		}
		p.mu.Unlock()
		p.expire()
	}
	for want := 2 * idleKeepPlain; want < 4*idleKeepMost; want *= 2 {
		idleConn(t, p, false)
		expire()
		if p.keep != min(want, idleKeepMost) {
			t.Fatalf("kept for %v, want %v", p.keep, min(want, idleKeepMost))
		}
	}
	idleConn(t, p, true)
	expire()
	if p.keep != idleKeepMost/4 {
		t.Errorf("after an idle connection was closed: %v, want %v", p.keep, idleKeepMost/4)
	}
	idleConn(t, p, true)
	p.mu.Lock()
	p.idle[0].idleSince = time.Now().Add(time.Hour) // it is young, whatever the machine does
	p.mu.Unlock()
	if c := p.take(); c != nil || p.keep != idleKeepMost/16 {
		t.Errorf("a closed connection was taken (%v), or is kept for %v", c, p.keep)
	}
	idleConn(t, p, false)
	if len(p.idle) != 0 {
		t.Error("a connection was kept right after an unannounced close")
	}
	p.fresh = time.Time{}
	for range 9 {
		idleConn(t, p, false)
		expire()
	}
	if p.keep != idleKeepMost/16 {
		t.Errorf("trust came back to %v, want at most %v", p.keep, idleKeepMost/16)
	}
}
