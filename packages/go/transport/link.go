package transport

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"iop/packages/go/faultpoint"
	pb "iop/proto/iop"
)

// Config tunes a link. The zero value of a duration is its default.
type Config struct {
	Heartbeat   time.Duration // between two heartbeats, 30 s
	Dead        time.Duration // silence, or no write progress, that ends the link, 45 s
	ControlOpen time.Duration // until the node has opened the control stream, 5 s
	StreamReset time.Duration // from a stream's Close until it is reset if the peer didn't close it, 10 s
	Part        time.Duration // an orderly end: what is pending, the Goodbye, and the peer's own close, 1 s
	Log         zerolog.Logger
	Faults      *faultpoint.Hooks // asked at the points of the link; nil is nobody
	// Now is the clock by which an edge tells its nodes the time: the one that leases are issued by. Nil is the wall clock.
	Now func() time.Time

	// Clocks reads the node's clocks, and Exchanged is told of each heartbeat that the edge has answered, by the control
	// reader: it returns at once. Both or none; without them nobody is told.
	Clocks    func() ClockReading
	Exchanged func(Exchange)
}

// ClockReading is one look at a machine's clocks.
type ClockReading struct {
	Boot time.Duration // since its start, the time asleep included
	Wall int64         // Unix milliseconds
}

// Exchange is a node's heartbeat and its answer: what a node knows of the edge's clock.
type Exchange struct {
	EdgeMS         int64 // the edge's clock when it wrote the answer, Unix milliseconds
	Sent, Received ClockReading
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&c.Heartbeat, 30*time.Second)
	set(&c.Dead, 45*time.Second)
	set(&c.ControlOpen, 5*time.Second)
	set(&c.StreamReset, 10*time.Second)
	set(&c.Part, time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// EdgeHandler takes what a node says. The link calls it from the one control reader: it must return at once and never
// block.
type EdgeHandler interface {
	// Control takes every message but heartbeats, in order. A Goodbye is passed on, then the link ends with ReasonLeft.
	Control(m *pb.NodeControl)
}

// NodeHandler takes what the edge says and asks for.
type NodeHandler interface {
	// Control is like [EdgeHandler].Control.
	Control(m *pb.EdgeControl)
	// Work handles one work stream. The link calls it in a goroutine of its own and closes s when it returns, if the
	// handler didn't; Run doesn't return before the handler did.
	Work(s *Stream)
}

// Link is one multiplexed connection between an edge and a node: the control stream, which the node opens first, and
// the work streams, which the edge opens. Make one with [NewEdgeLink] or [NewNodeLink] after the handshake and call
// Run.
type Link struct {
	// Set once.
	cfg   Config
	since time.Time
	conn  *conn
	edge  EdgeHandler // one of edge and node is set
	node  NodeHandler
	box   *mailbox
	ready chan struct{} // closed once the control stream is open
	down  chan struct{} // closed once ended is set
	opener
	reaping chan struct{} // capacity 1: closing isn't empty

	// Each looks after itself.
	buffers buffers
	beats   beats
	unknown atomic.Int64 // control messages of kinds that this version doesn't know
	events  *rate.Limiter
	running sync.WaitGroup

	mu sync.Mutex
	linkState
}

// linkState is what a link's mutex guards.
type linkState struct {
	ended   *LinkError
	leaving bool // SendGoodbye was called: the peer's close is the expected answer
	streams map[uint32]*Stream
	closing []*Stream // for the reaper
}

// NewEdgeLink returns the edge's side of a registered connection. It starts nothing; c is the link's once Run was
// called.
func NewEdgeLink(c net.Conn, cfg Config, h EdgeHandler) *Link {
	l := newLink(c, cfg)
	l.edge = h
	return l
}

// NewNodeLink returns the node's side of a registered connection. It starts nothing; c is the link's once Run was
// called.
func NewNodeLink(c net.Conn, cfg Config, h NodeHandler) *Link {
	l := newLink(c, cfg)
	l.node = h
	return l
}

func newLink(c net.Conn, cfg Config) *Link {
	l := &Link{
		cfg:     cfg.withDefaults(),
		since:   time.Now(),
		box:     newMailbox(),
		ready:   make(chan struct{}),
		down:    make(chan struct{}),
		opener:  newOpener(),
		reaping: make(chan struct{}, 1),
	}
	l.events = rate.NewLimiter(1, maxEvents)
	l.streams = make(map[uint32]*Stream)
	l.conn = newConn(c, l.connFailed)
	if l.conn.faults = cfg.Faults; cfg.Faults != nil {
		l.conn.peer = c.RemoteAddr().String()
	}
	return l
}

// Run runs the link until it is over and every goroutine that it started has ended, the Work handlers among them. It
// returns the *[LinkError]. When ctx is done the link ends with ReasonClosed.
func (l *Link) Run(ctx context.Context) error {
	session, err := l.newSession()
	if err != nil {
		l.end(&LinkError{Reason: ReasonClosed, Text: err.Error(), Err: err})
		_ = l.conn.Close()
		return l.Err()
	}
	l.running.Go(l.conn.flushLoop) // ends with the connection
	l.running.Go(l.watch)          // and the rest when the link is down and its session closed
	l.running.Go(l.reapLoop)
	written := make(chan struct{})
	if l.edge != nil {
		l.running.Go(func() { l.openLoop(session) })
		l.running.Go(func() { l.acceptControl(session, written) })
	} else {
		l.running.Go(func() { l.openControl(session, written) })
		l.running.Go(func() { l.acceptWork(session) })
	}
	select {
	case <-ctx.Done():
		l.Close(ReasonClosed)
	case <-l.down:
	}
	l.teardown(session, written)
	l.running.Wait()
	return l.Err()
}

// teardown ends everything in the order that lets nobody spin: the gate, the blocked reads and writes, what is pending,
// the session.
func (l *Link) teardown(session *yamux.Session, written <-chan struct{}) {
	l.conn.kill()
	l.mu.Lock()
	streams := make([]*Stream, 0, len(l.streams))
	for _, s := range l.streams {
		streams = append(streams, s)
	}
	reason, leaving := l.ended.Reason, l.leaving
	l.mu.Unlock()
	for _, s := range streams {
		s.wakeAll()
	}
	if reason.orderly() {
		// A Goodbye is answered by the peer's close. To close first would race with it: an end of the connection is
		// seen at once, a message only when its reader runs.
		l.part(written, leaving && reason != ReasonLeft)
	}
	if reason == ReasonDead {
		l.conn.resetOnClose()
	}
	_ = session.Close()
}

// part sends what is pending and the Goodbye, says that nothing more comes (unless the peer is to do that first), and
// waits for the peer to close: closing a socket that still holds unread bytes would destroy what was sent last.
func (l *Link) part(written <-chan struct{}, peerFirst bool) {
	limit := time.NewTimer(l.cfg.Part)
	defer limit.Stop()
	wait := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		case <-l.conn.failed:
		case <-limit.C:
		}
		return false
	}
	select {
	case <-l.ready:
		if !wait(written) {
			return
		}
	default:
	}
	if wait(l.conn.allFlushed()) && (peerFirst || l.conn.closeWrite()) {
		wait(nil)
	}
}

// Ready is closed once the control stream is open.
func (l *Link) Ready() <-chan struct{} { return l.ready }

// Down is closed at the first moment at which the link is over.
func (l *Link) Down() <-chan struct{} { return l.down }

func (l *Link) isDown() bool {
	select {
	case <-l.down:
		return true
	default:
		return false
	}
}

// Err returns the *[LinkError] once Down is closed, nil before.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		return nil
	}
	return l.ended
}

// Close begins the link's end and doesn't wait. The first reason wins. Unless the link is lost or dead, what is
// pending, a Goodbye among it, is still sent, for a second at most.
func (l *Link) Close(r Reason) { l.end(&LinkError{Reason: r}) }

// end notes why the link is over, once, and wakes whoever waits for it. Run does the rest.
func (l *Link) end(e *LinkError) {
	l.mu.Lock()
	first := l.ended == nil
	if first {
		l.ended = e
		close(l.down) // with the lock held: who comes second, and returns at once, must find the link down
	}
	l.mu.Unlock()
	if first {
		l.conn.kill()
	}
}

func (l *Link) connFailed(err error) {
	e := connFault(err)
	l.mu.Lock()
	if l.leaving && e.Reason == ReasonLost {
		e.Reason = ReasonClosed
	}
	l.mu.Unlock()
	l.end(e)
}

// Status is a snapshot of a link for people.
type Status struct {
	OpenStreams    int
	Since          time.Time
	LastRead       time.Time
	RTT            time.Duration // of the last heartbeat that was answered, 0 = none yet
	BytesIn        int64
	BytesOut       int64
	Pending        int   // bytes not yet with the kernel
	UnknownControl int64 // control messages of kinds that this version doesn't know
}

// Status returns a snapshot for people.
func (l *Link) Status() Status {
	l.mu.Lock()
	open := len(l.streams)
	l.mu.Unlock()
	n := &l.conn.counters
	return Status{
		OpenStreams:    open,
		Since:          l.since,
		LastRead:       l.since.Add(time.Duration(n.lastRead.Load())),
		RTT:            l.beats.lastRTT(),
		BytesIn:        n.bytesIn.Load(),
		BytesOut:       n.bytesOut.Load(),
		Pending:        l.conn.waiting(),
		UnknownControl: l.unknown.Load(),
	}
}
