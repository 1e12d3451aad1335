package sim

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// socketBuffers is what a connection holds of one direction, in flight and unread, before a write waits.
const socketBuffers = 192 << 10

// errReset is what a cut connection says.
var errReset = errors.New("connection reset by peer")

// wire is one connection with its two ends; ends[0] dialed. One mutex guards all of it: what happens on it is little.
type wire struct {
	net      *network
	name     string
	from, to string
	base     [2]time.Duration // delay towards ends[0] and ends[1]
	ends     [2]*end

	mu sync.Mutex
}

// end is one end of a wire: what it has received and is to receive, and how it ends. It is the net.Conn of its side.
type end struct {
	wire *wire
	side int // of wire.ends

	// guarded by wire.mu
	flight  []segment // towards this end, in order
	held    int       // bytes of flight and of inbox
	inbox   []byte
	inErr   error // after inbox: io.EOF or errReset
	outErr  error // of writes
	closed  bool
	mute    bool // the direction towards this end carries nothing
	gone    bool // and never will
	linger0 bool
	last    time.Time // when the last of flight arrives
	timer   *time.Timer
	changed chan struct{} // closed when anything above changes; made anew

	readBy, writeBy deadline
}

// segment is what was sent at one instant.
type segment struct {
	sent, due time.Time
	data      []byte
	fin, rst  bool
}

// deadline wakes who waits; guarded by wire.mu.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func newWire(n *network, name, from, to string) *wire {
	w := &wire{net: n, name: name, from: from, to: to}
	d := newDice(n.seed, "wire", name)
	for i := range w.ends {
		w.base[i] = d.between(50*time.Microsecond, 15*time.Millisecond)
		w.ends[i] = &end{wire: w, side: i, changed: make(chan struct{})}
	}
	w.ends[0].mute, w.ends[1].mute = n.deaf[path{to, from}], n.deaf[path{from, to}]
	return w
}

func (e *end) peer() *end { return e.wire.ends[1-e.side] }

// signalLocked wakes everybody who waits for this end.
func (e *end) signalLocked() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// sendLocked puts something on its way to this end. All that is sent at one instant arrives at one.
func (e *end) sendLocked(s segment) {
	now := time.Now()
	if k := len(e.flight); k > 0 && e.flight[k-1].sent.Equal(now) && !e.flight[k-1].fin && !e.flight[k-1].rst {
		l := &e.flight[k-1]
		l.data, l.fin, l.rst = append(l.data, s.data...), s.fin, s.rst
		return
	}
	w := e.wire
	jitter := mix(hashOf(w.net.seed, w.name)+uint64(now.UnixNano())*2+uint64(e.side)) % uint64(5*time.Millisecond)
	s.sent, s.due = now, now.Add(w.base[e.side]+time.Duration(jitter))
	if !s.due.After(e.last) {
		s.due = e.last.Add(1)
	}
	e.last = s.due
	s.data = append([]byte(nil), s.data...)
	e.flight = append(e.flight, s)
	e.armLocked()
}

// armLocked sees to it that what is in flight arrives.
func (e *end) armLocked() {
	if len(e.flight) == 0 || e.mute || e.gone {
		return
	}
	wait := max(time.Until(e.flight[0].due), 0)
	if e.timer == nil {
		e.timer = time.AfterFunc(wait, e.arrive)
		return
	}
	e.timer.Reset(wait)
}

// arrive delivers what is due.
func (e *end) arrive() {
	e.wire.mu.Lock()
	defer e.wire.mu.Unlock()
	now := time.Now()
	for len(e.flight) > 0 && !e.mute && !e.gone && !e.flight[0].due.After(now) {
		s := e.flight[0]
		e.flight = e.flight[1:]
		e.deliverLocked(s)
	}
	e.armLocked()
	e.signalLocked()
	e.peer().signalLocked() // there may be room
}

func (e *end) deliverLocked(s segment) {
	if e.closed {
		e.held -= len(s.data)
		if p := e.peer(); len(s.data) > 0 && !p.closed && p.inErr == nil {
			p.sendLocked(segment{rst: true}) // nobody is there any more
		}
		return
	}
	e.inbox = append(e.inbox, s.data...)
	switch {
	case s.rst:
		e.inErr, e.outErr = errReset, errReset
		e.flight = nil
		e.held = len(e.inbox)
	case s.fin && e.inErr == nil:
		e.inErr = io.EOF
	}
}

// Read implements net.Conn.
func (e *end) Read(p []byte) (int, error) {
	for {
		e.wire.mu.Lock()
		switch {
		case e.closed:
			e.wire.mu.Unlock()
			return 0, net.ErrClosed
		case e.readBy.over():
			e.wire.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(e.inbox) > 0:
			n := copy(p, e.inbox)
			e.inbox = e.inbox[n:]
			if len(e.inbox) == 0 {
				e.inbox = nil
			}
			e.held -= n
			e.peer().signalLocked()
			e.wire.mu.Unlock()
			return n, nil
		case e.inErr != nil:
			err := e.inErr
			e.wire.mu.Unlock()
			return 0, err
		}
		changed := e.changed
		e.wire.mu.Unlock()
		<-changed
	}
}

// Write implements net.Conn.
func (e *end) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		e.wire.mu.Lock()
		far := e.peer()
		switch {
		case e.closed:
			err = net.ErrClosed
		case e.outErr != nil:
			err = e.outErr
		case e.writeBy.over():
			err = os.ErrDeadlineExceeded
		case far.held < socketBuffers:
			k := min(socketBuffers-far.held, len(p))
			far.held += k
			far.sendLocked(segment{data: p[:k]})
			n, p = n+k, p[k:]
		default:
			changed := e.changed
			e.wire.mu.Unlock()
			<-changed
			continue
		}
		e.wire.mu.Unlock()
	}
	return n, err
}

// Close implements net.Conn. As with a kernel, unread bytes make it a reset.
func (e *end) Close() error {
	e.wire.mu.Lock()
	reset := e.linger0 || len(e.inbox) > 0
	e.wire.mu.Unlock()
	e.shut(reset, false)
	return nil
}

// abort ends this side, and resets the other.
func (e *end) abort() { e.shut(true, false) }

// vanish ends this side without a word to the other.
func (e *end) vanish() { e.shut(true, true) }

func (e *end) shut(reset, silent bool) {
	e.wire.mu.Lock()
	defer e.wire.mu.Unlock()
	if e.closed {
		return
	}
	e.closed = true
	e.held -= len(e.inbox)
	e.inbox = nil
	far := e.peer()
	switch {
	case silent || far.closed:
	case reset:
		far.sendLocked(segment{rst: true})
	case e.outErr == nil:
		far.sendLocked(segment{fin: true})
	}
	e.signalLocked()
	far.signalLocked()
}

// CloseWrite says that nothing more comes.
func (e *end) CloseWrite() error {
	e.wire.mu.Lock()
	defer e.wire.mu.Unlock()
	if e.closed || e.outErr != nil {
		return net.ErrClosed
	}
	e.outErr = errors.New("the write side is closed")
	e.peer().sendLocked(segment{fin: true})
	e.signalLocked()
	return nil
}

// SetLinger makes Close a reset, as with a TCP connection.
func (e *end) SetLinger(sec int) error {
	e.wire.mu.Lock()
	defer e.wire.mu.Unlock()
	e.linger0 = sec == 0
	return nil
}

// LocalAddr implements net.Conn.
func (e *end) LocalAddr() net.Addr { return address(e.wire.name) }

// RemoteAddr implements net.Conn: the wire's name, by which its generation is found.
func (e *end) RemoteAddr() net.Addr { return address(e.wire.name) }

// SetDeadline implements net.Conn.
func (e *end) SetDeadline(t time.Time) error {
	return errors.Join(e.SetReadDeadline(t), e.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (e *end) SetReadDeadline(t time.Time) error { return e.limit(&e.readBy, t) }

// SetWriteDeadline implements net.Conn.
func (e *end) SetWriteDeadline(t time.Time) error { return e.limit(&e.writeBy, t) }

func (e *end) limit(d *deadline, t time.Time) error {
	e.wire.mu.Lock()
	defer e.wire.mu.Unlock()
	if e.closed {
		return net.ErrClosed
	}
	if d.timer != nil {
		d.timer.Stop()
	}
	d.at, d.timer = t, nil
	if !t.IsZero() && !d.over() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			e.wire.mu.Lock()
			defer e.wire.mu.Unlock()
			e.signalLocked()
		})
	}
	e.signalLocked()
	return nil
}

func (d *deadline) over() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// over reports whether both ends are closed.
func (w *wire) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ends[0].closed && w.ends[1].closed
}

// setDeaf mutes the direction from one host to the other. What was held goes on with the delay of a retransmission.
func (w *wire) setDeaf(from, to string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var e *end
	switch {
	case w.from == from && w.to == to:
		e = w.ends[1]
	case w.to == from && w.from == to:
		e = w.ends[0]
	default:
		return
	}
	e.mute = on
	if on || len(e.flight) == 0 {
		return
	}
	again := time.Now().Add(time.Duration(mix(hashOf(w.net.seed, w.name, "again")+uint64(time.Now().UnixNano())) % uint64(300*time.Millisecond)))
	for i := range e.flight {
		if e.flight[i].due.Before(again) {
			e.flight[i].due = again
		}
	}
	if e.last.Before(again) {
		e.last = again
	}
	e.armLocked()
}

// cut resets both sides, as a middlebox does that forgot the connection. oneSide 0 or 1 resets only that one: the other
// hears nothing any more, and nobody hears it.
func (w *wire) cut(oneSide int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, e := range w.ends {
		if len(e.flight) > 0 && !e.mute && !e.closed { // a part of what was on its way
			data := e.flight[0].data
			e.inbox = append(e.inbox, data[:mix(w.net.seed+uint64(len(data)))%uint64(len(data)+1)]...)
		}
		e.flight, e.held = nil, len(e.inbox)
		e.gone = true
		if oneSide < 0 || oneSide == i {
			e.inErr, e.outErr = errReset, errReset
		}
		e.signalLocked()
	}
}
