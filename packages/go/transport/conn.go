package transport

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"iop/packages/go/faultpoint"
)

const (
	// readBuffer is how much is read from the kernel at once; the multiplexer's own buffer is 4 KiB.
	readBuffer = 32 << 10
	// controlCap is the most that may wait in the control lane. Live runs and streams bound it far below.
	controlCap = 4 << 20
	// keepBuffer is the largest lane that outlives a quiet spell.
	keepBuffer = 16 << 10
)

// errOverflow is why a conn fails when its control lane is over its cap.
var errOverflow = errors.New("control messages wait, over 4 MiB of them")

// errSession is why a conn fails that the multiplexer closed by itself: the peer broke its protocol.
var errSession = errors.New("the multiplexer ended the session")

// conn is the connection under the multiplexer. It coalesces what the multiplexer writes in small pieces, sends
// control before work, holds the gate, and knows when bytes last came and went: liveness is judged here.
//
// Write is called by the multiplexer's one send loop and never waits: a writer that waits would stop heartbeat,
// cancel and window updates of all streams. Read is called by its one receive loop. One goroutine runs flushLoop.
type conn struct {
	// Set once.
	net    net.Conn
	raw    syscall.RawConn // nil when inline flushes aren't possible: TLS, fakes
	start  time.Time       // all times below are durations since start: monotonic, whatever the wall clock does
	onFail func(error)     // called once, before the failed call returns
	wake   chan struct{}   // capacity 1: the flusher has something to do
	failed chan struct{}   // closed at the first error, Close included
	faults *faultpoint.Hooks
	peer   string // by which faults is asked, with faults

	in     inbound
	parser parser
	out    outbound // owned by whoever set flushing

	counters counters
	failOnce sync.Once

	mu sync.Mutex
	queue
}

// queue is the state of a conn that its mutex guards.
type queue struct {
	control  []byte // control frames, flushed first
	work     lane   // frames of work streams
	flushing bool   // somebody writes to the socket: the flusher, or the send loop inline
	dead     bool   // the gate admits nobody any more
	pending  int    // bytes appended and not flushed, wherever they are
	idle     int    // all of pending when it is only opens of streams, which wait for their first message
	gate     [2]budget
	flows    map[uint32]*flow // the open work streams by their number

	appended, flushed flushMark
	waiters           []*flushWaiter
}

// counters is what others may read at any time.
type counters struct {
	lastRead     atomic.Int64 // durations since conn.start
	lastProgress atomic.Int64 // of the last write that took bytes, or when bytes began to wait
	bytesIn      atomic.Int64
	bytesOut     atomic.Int64
	onRead       atomic.Pointer[chan struct{}] // closed by the next read that brings bytes
}

// newConn wraps c. It starts nothing; onFail may be nil.
func newConn(c net.Conn, onFail func(error)) *conn {
	k := &conn{
		net:    c,
		start:  time.Now(),
		onFail: onFail,
		wake:   make(chan struct{}, 1),
		failed: make(chan struct{}),
	}
	k.gate[bulk].free, k.gate[small].free = bulkBudget, smallBudget
	k.flows = make(map[uint32]*flow)
	k.raw = tuneSocket(c)
	k.out.tryWrite = k.out.writeNow
	return k
}

// elapsed is the monotonic time since the connection began.
func (c *conn) elapsed() time.Duration { return time.Since(c.start) }

// Read implements io.Reader for the multiplexer, which gets whole frames only: see inbound.
func (c *conn) Read(p []byte) (int, error) {
	in := &c.in
	for in.whole == 0 {
		n, err := c.net.Read(in.room())
		if n > 0 {
			c.noteRead(n)
			err = in.took(n)
		}
		if err != nil {
			// Whoever sees the streams end must already be able to see that the link did.
			c.fail(err)
			return 0, err
		}
	}
	return in.give(p), nil
}

func (c *conn) noteRead(n int) {
	c.counters.lastRead.Store(int64(c.elapsed()))
	c.counters.bytesIn.Add(int64(n))
	if c.counters.onRead.Load() == nil {
		return
	}
	if ch := c.counters.onRead.Swap(nil); ch != nil {
		close(*ch)
	}
}

// nextRead returns a channel that the next read with bytes closes.
func (c *conn) nextRead() <-chan struct{} {
	for {
		if ch := c.counters.onRead.Load(); ch != nil {
			return *ch
		}
		ch := make(chan struct{})
		if c.counters.onRead.CompareAndSwap(nil, &ch) {
			return ch
		}
	}
}

// fail notes the first error and tells the link.
func (c *conn) fail(err error) {
	c.failOnce.Do(func() {
		if c.onFail != nil {
			c.onFail(err)
		}
		c.kill()
		close(c.failed)
	})
}

// kill closes the gate: writers of work streams give up. What is pending is still flushed.
func (c *conn) kill() {
	c.mu.Lock()
	c.dead = true
	c.killGateLocked()
	c.mu.Unlock()
}

// Close implements io.Closer for the multiplexer. It returns at once, under TLS too (which would otherwise write its
// alert behind a flush that doesn't end), and wakes a blocked Read and the flusher.
func (c *conn) Close() error {
	c.fail(errSession)
	return bottom(c.net).Close()
}

// resetOnClose makes Close drop what the kernel still has and reset the connection, where it can. The end of a silent
// connection would queue behind bytes that nobody acknowledges, and where only this side is deaf the peer would go on
// hearing them and believe that all is well; a reset overtakes them.
func (c *conn) resetOnClose() {
	if t, ok := bottom(c.net).(interface{ SetLinger(sec int) error }); ok {
		_ = t.SetLinger(0) // fails on a connection that is gone already
	}
}

// closeWrite tells the peer that nothing more comes, where the connection can.
func (c *conn) closeWrite() bool {
	h, ok := bottom(c.net).(interface{ CloseWrite() error })
	return ok && h.CloseWrite() == nil
}

// bottom returns the connection below TLS, or c itself.
func bottom(c net.Conn) net.Conn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c
}

// LocalAddr and RemoteAddr let the multiplexer name the connection.
func (c *conn) LocalAddr() net.Addr { return c.net.LocalAddr() }

// RemoteAddr is the peer's address.
func (c *conn) RemoteAddr() net.Addr { return c.net.RemoteAddr() }

// register opens the account of a work stream.
func (c *conn) register(id uint32, f *flow) {
	c.mu.Lock()
	f.id = id
	c.flows[id] = f
	c.mu.Unlock()
}

// unregister closes it. A write that was under way when its stream was closed may still come behind the FIN: until it
// has, the account stays, or nobody would get its bytes back and the gate would shut by and by.
func (c *conn) unregister(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flows[id]; f != nil {
		f.gone = true
		c.cameLocked(f, 0)
	}
}

// stalledSince tells since when bytes wait without progress; ok is false when none wait.
func (c *conn) stalledSince() (since time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.counters.lastProgress.Load()), c.pending > c.idle
}

// waiting returns the bytes that aren't with the kernel yet.
func (c *conn) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending
}

// trim gives up the buffers that a burst grew. The link calls it with each heartbeat.
func (c *conn) trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flushing || c.pending > 0 {
		return
	}
	if cap(c.control) > keepBuffer {
		c.control = nil
	}
	if cap(c.work.buf) > keepBuffer {
		c.work = lane{}
	}
	c.out.trim()
}
