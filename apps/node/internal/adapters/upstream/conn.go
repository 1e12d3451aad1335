package upstream

import (
	"bufio"
	"errors"
	"net"
	"syscall"
	"time"
)

// conn is one connection to a provider. One exchange owns it at a time; abort may be called from anywhere.
type conn struct {
	net.Conn          // TLS or TCP: where bytes go
	tcp      net.Conn // what is below
	raw      syscall.RawConn
	br       *bufio.Reader // reads through Read

	// Owned by the goroutine that reads.

	reused    bool
	streamed  bool // its last answer was chunked
	idleSince time.Time
	idle      time.Duration // limit of each read, 0 = the deadline is somebody else's business
	headLeft  int           // what may still be read of the head; negative: the head is over
	readErr   error         // how the connection itself failed, nil when only its bytes were wrong
}

var errHeadTooLarge = errors.New("head too large")

// Read implements [io.Reader] for br. Its deadline is set for each read that really waits for the provider, so the
// time in which the caller is slow doesn't count.
func (c *conn) Read(p []byte) (int, error) {
	if c.headLeft == 0 {
		return 0, errHeadTooLarge
	}
	if c.headLeft > 0 && len(p) > c.headLeft {
		p = p[:c.headLeft]
	}
	if c.idle > 0 {
		if err := c.SetReadDeadline(time.Now().Add(c.idle)); err != nil {
			c.readErr = err
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	if c.headLeft > 0 {
		c.headLeft -= n
	}
	if err != nil {
		c.readErr = err
	}
	return n, err
}

// abort ends the connection at once and wakes who reads or writes. The TLS layer isn't asked: its close waits for the
// peer.
func (c *conn) abort() { _ = c.tcp.Close() }

// quiet reports whether nothing has come on an idle connection: no end, no reset, and no bytes either, since nobody
// asked for any.
func (c *conn) quiet() bool {
	if c.br.Buffered() > 0 {
		return false
	}
	var (
		b   [1]byte
		err error
	)
	ctl := c.raw.Control(func(fd uintptr) {
		_, _, err = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return ctl == nil && (err == syscall.EAGAIN || err == syscall.EWOULDBLOCK)
}

// cut reports whether the connection ended or failed, as opposed to bytes that make no sense.
func (c *conn) cut() bool { return c.readErr != nil }
