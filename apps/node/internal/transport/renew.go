package transport

import (
	"context"
	"time"
)

const (
	// renewSpread bounds the random wait before a renewed certificate is shown: one CA's nodes may all get theirs in the
	// same moment.
	renewSpread = 10 * time.Second
	// renewRetry is the longest wait after a handover that failed; towards the end of a certificate it is shorter.
	renewRetry = time.Minute
	renewPause = time.Second
)

// identityChanged returns what tells of another identity; without one it never does.
func (l *Link) identityChanged() <-chan struct{} {
	if l.cfg.Identity == nil {
		return nil
	}
	return l.cfg.Identity.Changed()
}

// unshown reports whether there is an identity that the edge hasn't seen yet.
func (l *Link) unshown() bool {
	return l.cfg.Identity != nil && l.shown != nil && l.shown != l.cfg.Identity.Current()
}

// renewal hands a connection over to another one, while it lives, when this node's certificate was renewed and when the
// edge's is getting old: TLS looks at certificates only when a connection begins. Owned by supervise.
type renewal struct {
	c       *connection
	changed <-chan struct{} // another identity came into force
	due     *time.Timer     // for the next try
	expired *time.Timer     // the edge's certificate
	tried   chan attempted  // not nil while a try is under way
	cancel  context.CancelFunc
	ready   bool // the edge has confirmed: before that there is nothing to hand over
	wanted  bool // a try was due before
	tries   int  // that failed
}

// attempted is how a try ended.
type attempted struct {
	reg *registration
	err error
}

func newRenewal(c *connection) *renewal {
	r := &renewal{c: c, changed: c.link.identityChanged(), due: time.NewTimer(time.Hour), expired: time.NewTimer(time.Hour)}
	r.due.Stop()
	r.expired.Stop()
	if c.peer == nil {
		return r
	}
	r.expired.Reset(time.Until(c.peer.NotAfter))
	// In the last quarter of its life: an edge whose files are renewed has another one by then. If not, again and again.
	left, life := time.Until(c.peer.NotAfter), c.peer.NotAfter.Sub(c.peer.NotBefore)
	wait := left - life/4 + time.Duration(c.link.cfg.Random()*float64(life)/20)
	if wait <= 0 {
		wait = max(left/2, renewPause)
	}
	r.due.Reset(wait)
	if c.peer.Shown != c.link.cfg.Identity.Current() && !r.look() { // changed since the handshake, and disowns the edge
		r.expired.Reset(0)
	}
	return r
}

// look is called when another identity came into force. False: it disowns the edge of this connection.
func (r *renewal) look() bool {
	c := r.c
	r.changed = c.link.identityChanged()
	now := c.link.cfg.Identity.Current()
	if err := now.Still(c.peer, time.Now()); err != nil {
		c.log.Warn().Str("reason", printable(err.Error())).Msg("the edge's certificate isn't good any more; closing the link")
		return false
	}
	if !now.SameLeaf(c.peer.Shown) {
		spread := min(renewSpread, time.Until(c.peer.Shown.NotAfter())/10)
		r.due.Reset(time.Duration(c.link.cfg.Random() * float64(max(spread, 0))))
	}
	return true
}

// confirmed says that the edge sends work.
func (r *renewal) confirmed() {
	r.ready = true
	if r.wanted {
		r.due.Reset(0)
	}
}

// try begins a connection beside this one.
func (r *renewal) try(ctx context.Context) {
	switch {
	case !r.ready:
		r.wanted = true
		return
	case r.tried != nil:
		return // one is under way
	}
	ctx, r.cancel = context.WithCancel(ctx)
	r.tried = make(chan attempted, 1)
	l, tried := r.c.link, r.tried
	go func() { // ends within the limits of dial and handshake, or with ctx; end waits for it
		bare, err := l.dial(ctx)
		if err != nil {
			tried <- attempted{err: err}
			return
		}
		reg, err := l.introduce(ctx, bare, true)
		tried <- attempted{reg, err}
	}()
}

// ended takes the outcome of a try, and reports whether there is a connection to go on with.
func (r *renewal) ended(t attempted) bool {
	r.cancel()
	r.tried = nil
	if t.err == nil {
		r.c.log.Info().Uint64("successor", t.reg.resp.GetConnectionGeneration()).Msg("handing over to a connection with renewed certificates")
		return true
	}
	left := min(time.Until(r.c.peer.NotAfter), time.Until(r.c.peer.Shown.NotAfter()))
	wait := min(max(left/4, renewPause), doubled(r.c.link.cfg.Timers.BackoffStart, r.tries, renewRetry))
	r.tries++
	r.c.log.Warn().Str("reason", printable(t.err.Error())).Dur("retry_in_ms", wait).
		Msg("no connection with renewed certificates; this one stays")
	r.due.Reset(wait)
	return false
}

// end ends a try that is under way. It may be called again.
func (r *renewal) end() {
	r.due.Stop()
	r.expired.Stop()
	if r.tried == nil {
		return
	}
	r.cancel()
	if t := <-r.tried; t.reg != nil {
		t.reg.conn.Close()
	}
	r.tried = nil
}

// depart waits until what runs on a connection that was handed over has ended: the edge closes it then. It ends with
// ctx, too, and with the edge's certificate.
func (c *connection) depart(ctx context.Context) {
	expired := time.NewTimer(time.Until(c.peer.NotAfter))
	defer expired.Stop()
	select {
	case <-c.mux.Down():
	case <-expired.C:
	case <-ctx.Done():
	}
	c.finish(false)
	c.log.Info().Msg("the connection that was handed over has ended")
}
