package upstream

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// StreamRest is how long a connection rests after a chunked answer.
const StreamRest = streamRest

// KeepIdle changes how long idle connections are kept, so that a test on a busy machine can count connections.
func (c *Client) KeepIdle(d time.Duration) { c.pool.keep = d }

// NoRest uses a connection again at once after a chunked answer.
func (c *Client) NoRest() { c.pool.rest = 0 }

// AwaitEnd changes how long the end of an answer is waited for when the sink has enough, for the same reason.
func (c *Client) AwaitEnd(d time.Duration) { c.pool.end = d }

// ShortWrite makes every idle connection end after n further bytes.
func (c *Client) ShortWrite(n int) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	for _, idle := range c.pool.idle {
		idle.Conn = &shortConn{idle.Conn, n}
	}
}

type shortConn struct {
	net.Conn
	left int
}

func (s *shortConn) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p[:min(s.left, len(p))])
	s.left -= n
	if err == nil && n < len(p) {
		err = errors.Join(syscall.ECONNRESET, s.Conn.Close())
	}
	return n, err
}
