package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/node"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/identity"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// ending is how a connection that was up ended.
type ending struct {
	err     error
	goodbye *pb.Goodbye // what the edge said, if it did
	atOnce  bool        // this side ended it, to dial again at once
}

// connection is one registered connection. It is the multiplexer's handler.
type connection struct {
	link    *Link
	mux     *transport.Link
	session *node.Session
	log     zerolog.Logger
	peer    *identity.Peer     // who the edge proved to be; nil without an identity
	lending *lending           // nil = leases weren't negotiated
	stop    context.CancelFunc // of the building
	all     sync.WaitGroup     // of the connection's goroutines
	serving atomic.Bool        // Ready was said; set before it is
	acked   chan struct{}      // the first dispatchable ReadyAck; closed by the control reader
	confirm sync.Once          // of acked

	mu      sync.Mutex
	newest  *pb.NodeConfigPayload // the projection that is still to be applied
	highest uint64                // number of the newest one ever offered
	offered chan struct{}         // capacity 1: there may be a newest
}

// serve runs a registered connection, and those that it is handed over to, until the end of the last.
func (l *Link) serve(ctx context.Context, reg *registration, watch *sleepWatch) ending {
	c := l.begin(reg)
	for {
		next, atOnce := c.supervise(ctx, watch)
		if next == nil {
			l.setMux(nil)
			return c.finish(atOnce)
		}
		l.registered(next.resp)
		l.shown = next.peer.Shown
		old := c
		c = l.begin(next)
		l.departing.Go(func() { old.depart(l.left) })
	}
}

// begin starts everything that serves a registered connection.
func (l *Link) begin(reg *registration) *connection {
	c := &connection{
		link: l, acked: make(chan struct{}), offered: make(chan struct{}, 1), peer: reg.peer,
		log: l.log.With().Uint64("connection_generation", reg.resp.GetConnectionGeneration()).Logger(),
	}
	cfg := l.muxConfig(reg.resp)
	lends, err := l.lend(reg)
	if err != nil { // what the edge says of this connection makes no sense to the guard: work without leases
		c.log.Error().Err(err).Msg("no leases on this connection")
	}
	if c.lending = lends; lends != nil {
		cfg.Clocks, cfg.Exchanged = l.cfg.Clocks, lends.exchanged
	}
	c.mux = transport.NewNodeLink(reg.conn, cfg, c)
	c.session = l.cfg.Executor.NewSession(c.mux, reg.resp.GetConnectionGeneration(), reg.resp.GetFeatures()...)
	if lends != nil {
		c.session.UseLeases(lends.guard, lends.now)
	}
	l.setMux(c.mux)
	c.offer(reg.resp.GetConfig())

	building, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.all.Go(func() { _ = c.mux.Run(context.Background()) }) // ends with the connection; finish ends that
	c.all.Go(func() { c.build(building) })
	if lends != nil {
		c.all.Go(func() { lends.tend(c.mux) })
	}
	return c
}

// finish ends the connection if it isn't over, and waits for all that served it.
func (c *connection) finish(atOnce bool) ending {
	c.mux.Close(transport.ReasonClosed)
	<-c.mux.Down()
	c.session.End()
	c.stop()
	c.all.Wait()
	end := ending{err: c.mux.Err(), atOnce: atOnce}
	if e, ok := end.err.(*transport.LinkError); ok {
		end.goodbye = e.Goodbye
	}
	return end
}

// muxConfig is the configuration with what the edge says of its heartbeat.
func (l *Link) muxConfig(resp *pb.RegisterResponse) transport.Config {
	cfg := l.cfg.Mux
	cfg.Log = l.log
	if ms := resp.GetLimits().GetHeartbeatMs(); ms > 0 && ms < maxRetryAfter.Milliseconds() {
		cfg.Heartbeat = time.Duration(ms) * time.Millisecond
	}
	if ms := resp.GetLimits().GetDeadMs(); ms > 0 && ms < maxRetryAfter.Milliseconds() {
		cfg.Dead = time.Duration(ms) * time.Millisecond
	}
	return cfg
}

func (l *Link) setMux(m *transport.Link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mux = m
}

// supervise waits for what ends the connection, and ends it; atOnce says that the next one is to be dialed without a
// wait. Or it returns a registered connection that is to take this one's place, which is still up.
func (c *connection) supervise(ctx context.Context, watch *sleepWatch) (next *registration, atOnce bool) {
	acked := c.acked
	stable := time.NewTimer(c.link.cfg.Timers.BackoffReset)
	stable.Stop() // until the edge has confirmed
	defer stable.Stop()
	r := newRenewal(c)
	defer r.end()
	for {
		select {
		case <-c.mux.Down():
			return nil, false
		case <-ctx.Done():
			c.leave(pb.GoodbyeCode_GOODBYE_CODE_KILLED)
			return nil, false
		case <-c.link.drain:
			r.end() // a successor would stand in the way of the goodbye
			c.drain(ctx)
			return nil, false
		case <-watch.tick.C:
			if watch.woke() {
				c.log.Info().Msg("the machine was asleep; closing the link")
				return nil, true
			}
		case <-acked:
			acked = nil
			stable.Reset(c.link.cfg.Timers.BackoffReset)
			r.confirmed()
		case <-stable.C:
			c.link.backoff.stable()
		case <-r.changed:
			if !r.look() {
				return nil, true
			}
		case <-r.expired.C:
			c.log.Warn().Msg("the edge's certificate has expired; closing the link")
			return nil, true
		case <-r.due.C:
			r.try(ctx)
		case tried := <-r.tried:
			if r.ended(tried) {
				return tried.reg, false
			}
		}
	}
}

// drain takes no new work, waits for what runs, at most for the drain limit, cancels the rest, and leaves.
func (c *connection) drain(ctx context.Context) {
	x, timers := c.link.cfg.Executor, c.link.cfg.Timers
	if !c.serving.Load() {
		c.leave(pb.GoodbyeCode_GOODBYE_CODE_NODE_DRAINING)
		return
	}
	c.link.enter(StateDraining)
	c.log.Info().Dur("drain_ms", timers.Drain).Msg("draining")
	x.Drain()
	code := pb.GoodbyeCode_GOODBYE_CODE_NODE_DRAINING
	if !c.await(ctx, x.Quiet(), timers.Drain) && ctx.Err() == nil {
		x.CancelAll(execution.CauseNodeDraining)
		c.await(ctx, x.Quiet(), timers.Stop)
	}
	if ctx.Err() != nil {
		code = pb.GoodbyeCode_GOODBYE_CODE_KILLED
	}
	c.leave(code)
}

// await waits for the channel, at most for the limit, the end of ctx or of the connection. It reports false when the
// limit was the first.
func (c *connection) await(ctx context.Context, quiet <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-quiet:
	case <-c.mux.Down():
	case <-ctx.Done():
	case <-timer.C:
		return false
	}
	return true
}

// leave says why this side goes, and gives that a moment to arrive.
func (c *connection) leave(code pb.GoodbyeCode) {
	c.mux.SendGoodbye(&pb.Goodbye{Code: code})
	timer := time.NewTimer(c.link.cfg.Timers.Leave)
	defer timer.Stop()
	select {
	case <-c.mux.Down():
	case <-timer.C:
	}
}

// offer takes a projection to be applied; only the newest counts. It reports whether it was newer than all others.
func (c *connection) offer(p *pb.NodeConfigPayload) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.GetProjection() <= c.highest {
		return false
	}
	c.newest, c.highest = p, p.GetProjection()
	select {
	case c.offered <- struct{}{}:
	default:
	}
	return true
}

func (c *connection) take() *pb.NodeConfigPayload {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.newest
	c.newest = nil
	return p
}

// build applies projections, one after the other, and says Ready for each that wasn't overtaken by a newer one. It is
// a goroutine of its own: a provider that hangs in its probe must not hold up a cancel.
func (c *connection) build(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.offered:
		}
		p := c.take()
		if p == nil {
			continue
		}
		c.session.Apply(ctx, p)
		if ctx.Err() != nil {
			return
		}
		if c.overtaken() {
			continue
		}
		c.awaitTime(ctx)
		c.ready()
	}
}

// awaitTime waits until the edge's time is known, for a while: no lease can be judged without, and those may come at once
// when Ready was said.
func (c *connection) awaitTime(ctx context.Context) {
	if c.lending == nil {
		return
	}
	limit := time.NewTimer(credentiallease.MaxRoundTrip)
	defer limit.Stop()
	select {
	case <-c.lending.synced:
	case <-limit.C:
	case <-c.mux.Down():
	case <-ctx.Done():
	}
}

func (c *connection) overtaken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest != nil
}

// ready says Ready. The node serves from this moment: the edge may send work before its ReadyAck arrives here.
func (c *connection) ready() {
	if !c.serving.Swap(true) {
		c.link.mu.Lock()
		if c.link.status.State == StateBuilding {
			c.link.enterLocked(StateServing)
		}
		c.link.mu.Unlock()
	}
	projection := c.session.Serve()
	c.link.mu.Lock()
	c.link.status.Projection = projection
	c.link.mu.Unlock()
}

// Work implements transport.NodeHandler.
func (c *connection) Work(s *transport.Stream) {
	if !c.serving.Load() {
		s.Close()
		c.kill("work before Ready")
		return
	}
	c.session.Work(s)
}

// kill ends the link for a breach of the protocol.
func (c *connection) kill(text string) { c.session.Kill(text) }

// Control implements transport.NodeHandler. It is called by the one control reader and does nothing that takes time.
func (c *connection) Control(m *pb.EdgeControl) {
	if !c.handle(m) {
		c.session.Late("control")
	}
}

// handle reports whether the message had business here and now.
func (c *connection) handle(m *pb.EdgeControl) bool {
	switch v := m.GetMessage().(type) {
	case *pb.EdgeControl_Cancel:
		if !c.serving.Load() {
			return false // nothing can be running
		}
		c.session.Cancel(v.Cancel)
	case *pb.EdgeControl_ReadyAck:
		return c.readyAck(v.ReadyAck)
	case *pb.EdgeControl_RunEndedAck:
		return c.serving.Load() && c.session.Acknowledged(v.RunEndedAck.GetRunIds())
	case *pb.EdgeControl_ConfigRefresh:
		return c.offer(v.ConfigRefresh.GetConfig())
	case *pb.EdgeControl_DrainNotice:
		c.log.Info().Int64("grace_ms", v.DrainNotice.GetGraceMs()).Bool("undo", v.DrainNotice.GetUndo()).
			Msg("the edge drains; this link stays until its work has ended")
	case *pb.EdgeControl_Goodbye:
		c.log.Info().Str("code", goodbyeName(v.Goodbye.GetCode())).Str("reason", printable(v.Goodbye.GetText())).
			Msg("the edge says goodbye")
	case *pb.EdgeControl_CredentialRevoked:
		if c.lending == nil {
			return false
		}
		if ack := c.session.Revoked(v.CredentialRevoked); ack != nil {
			c.mux.SendRevokeAck(ack)
		}
	case *pb.EdgeControl_RecipientChallenge:
		if c.lending == nil {
			return false
		}
		c.all.Go(func() { // a computation, which isn't the control reader's to do
			if !c.lending.answer(c.mux, v.RecipientChallenge) {
				c.session.Late("control")
			}
		})
	default:
		// What isn't known comes from a newer edge.
		return false
	}
	return true
}

func (c *connection) readyAck(ack *pb.ReadyAck) bool {
	if !c.serving.Load() {
		c.kill("ReadyAck before Ready")
		return false
	}
	c.session.Settled(ack.GetProjection())
	if !ack.GetDispatchable() {
		return true
	}
	c.confirm.Do(func() {
		close(c.acked)
		c.log.Info().Uint64("projection", ack.GetProjection()).Msg("ready")
		c.link.cfg.OnReady(c.link.cfg.Edge)
	})
	return true
}
