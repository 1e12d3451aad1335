package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/httprules"
)

// pool dials connections to one provider and keeps a few that are idle.
type pool struct {
	base    httprules.Base
	connect time.Duration
	tls     *tls.Config   // nil on http://
	max     int           // idle connections kept
	rest    time.Duration // streamRest; a test's to change
	end     time.Duration // how long an answer's end is waited for when the sink has enough
	log     zerolog.Logger

	// Memory that is used again.
	readers sync.Pool // *bufio.Reader of closed connections
	heads   sync.Pool // *[]byte that requests are written from
	pieces  sync.Pool // *[]byte that answers are read to

	mu     sync.Mutex
	idle   []*conn // the one used last is at the end
	timer  *time.Timer
	keep   time.Duration // how long a connection may be idle; on http:// it is learned, see trust
	most   time.Duration // what keep may grow to
	fresh  time.Time     // until then no connection is kept, see distrust
	closed bool
}

func newPool(b httprules.Base, cfg Config) *pool {
	p := &pool{base: b, connect: cfg.Connect, max: max(cfg.MaxConcurrency, 1), end: endLimit, rest: streamRest, keep: idleKeepPlain, most: idleKeepMost, log: cfg.Log}
	p.heads.New = func() any { return buffer(outSize) }
	p.pieces.New = func() any { return buffer(MaxPiece) }
	if p.connect <= 0 {
		p.connect = DefaultConnect
	}
	if b.TLS {
		p.keep, p.most = idleKeepTLS, idleKeepTLS
		// HTTP/1.1 is the only protocol offered: one request owns one connection, which is what makes cancel, cut
		// and "nothing was sent" exact.
		p.tls = &tls.Config{ServerName: b.Name, RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	return p
}

// outSize is how much of a request is written at once.
const outSize = 32 << 10

func buffer(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// streamRest is how long a connection rests after a chunked answer. llama-server closes after each, whatever its head says,
// and with TLS too: the next request met that close. Who closes does it at once, so that what is open by then stays open.
const streamRest = 50 * time.Millisecond

// restedLocked returns the place of the connection used last that may be used, -1 if there is none.
func (p *pool) restedLocked(now time.Time) int {
	for at := len(p.idle) - 1; at >= 0; at-- {
		if c := p.idle[at]; !c.streamed || now.Sub(c.idleSince) >= p.rest {
			return at
		}
	}
	return -1
}

// take returns an idle connection that is alive as far as can be seen, nil if there is none.
func (p *pool) take() *conn {
	for {
		p.mu.Lock()
		at := p.restedLocked(time.Now())
		if at < 0 {
			p.mu.Unlock()
			return nil
		}
		c := p.idle[at]
		p.idle = slices.Delete(p.idle, at, at+1)
		young, quiet := time.Since(c.idleSince) < p.keep, c.quiet()
		if young && !quiet {
			p.distrustLocked()
		}
		p.mu.Unlock()
		if young && quiet {
			c.reused = true
			return c
		}
		p.discard(c)
	}
}

// trustLocked says that a connection was still there when it had been idle for as long as one is kept: the next ones may
// be idle for twice as long. A provider that closes idle connections soon shows it while nobody uses them.
func (p *pool) trustLocked() { p.keep = min(2*p.keep, p.most) }

// distrust is distrustLocked for a connection that its request met closed.
func (p *pool) distrust() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.distrustLocked()
}

// distrustLocked says that the provider closed a connection that had just carried an answer, without a word in its
// head. Some do it always, so that every connection kept is a request that may be lost; for a while none is.
func (p *pool) distrustLocked() {
	p.shortenLocked()
	p.fresh = time.Now().Add(distrustFor)
	p.log.Debug().Str("provider", p.base.Addr).Msg("provider closes connections unannounced; none is kept for a while")
}

// shortenLocked says that the provider closed a connection while it was idle: none is ever kept for so long again.
func (p *pool) shortenLocked() {
	p.most = max(p.keep/4, min(idleKeepPlain, p.most))
	p.keep = min(p.keep, p.most)
}

// put keeps a connection for the next request, or closes it.
func (p *pool) put(c *conn) {
	c.idleSince = time.Now()
	p.mu.Lock()
	if p.closed || len(p.idle) >= p.max || c.idleSince.Before(p.fresh) {
		p.mu.Unlock()
		p.discard(c)
		return
	}
	p.idle = append(p.idle, c)
	switch {
	case p.timer == nil:
		p.timer = time.AfterFunc(p.keep, p.expire)
	case len(p.idle) == 1:
		p.timer.Reset(p.keep)
	}
	p.mu.Unlock()
}

// expire closes what has been idle for too long; it runs while something is idle.
func (p *pool) expire() {
	p.mu.Lock()
	old := 0
	for old < len(p.idle) && time.Since(p.idle[old].idleSince) >= p.keep {
		old++
	}
	expired := append([]*conn(nil), p.idle[:old]...)
	p.idle = append(p.idle[:0], p.idle[old:]...)
	switch {
	case slices.ContainsFunc(expired, func(c *conn) bool { return !c.quiet() }):
		p.shortenLocked()
	case old > 0:
		p.trustLocked()
	}
	if len(p.idle) > 0 && !p.closed {
		p.timer.Reset(p.keep - time.Since(p.idle[0].idleSince))
	}
	p.mu.Unlock()
	for _, c := range expired {
		p.discard(c)
	}
}

func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.idle = nil
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	for _, c := range idle {
		p.discard(c)
	}
}

// discard closes a connection that nobody uses and takes its reader back.
func (p *pool) discard(c *conn) {
	c.abort()
	c.br.Reset(nil)
	p.readers.Put(c.br)
}

// dial connects within the connect limit. No byte of a request has been sent when it fails. It asks no proxy: where
// requests go is the configuration's word alone. (E22)
func (p *pool) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.connect)
	defer cancel()
	var dialer net.Dialer
	nc, err := dialer.DialContext(ctx, "tcp", p.base.Addr)
	if err != nil {
		return nil, connectFailure(p, err)
	}
	c := &conn{Conn: nc, tcp: nc}
	if c.raw, err = nc.(syscall.Conn).SyscallConn(); err != nil {
		_ = nc.Close()
		return nil, connectFailure(p, err)
	}
	if p.tls != nil {
		tc := tls.Client(nc, p.tls)
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = nc.Close()
			return nil, connectFailure(p, err)
		}
		c.Conn = tc
	}
	if br, ok := p.readers.Get().(*bufio.Reader); ok {
		br.Reset(c)
		c.br = br
	} else {
		c.br = bufio.NewReader(c)
	}
	return c, nil
}
