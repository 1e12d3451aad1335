package transport

import (
	"encoding/binary"
	"net"

	"iop/packages/go/faultpoint"
)

// The multiplexer's frame header: version, type, flags (2), stream (4), length (4).
const (
	headerLen      = 12
	frameData      = 0
	frameWindow    = 1
	flagSYN        = 1
	controlStream  = 1 // the node opens it first, so its number is fixed
	maxFlush       = 32 << 10
	maxInline      = 1 << 10 // longest frame that the send loop flushes itself
	maxInlineTotal = 4 << 10 // and the most that it takes along
)

// mark is one frame in a lane: where it ends and who gets credit for its payload.
type mark struct {
	n       uint32 // header and payload
	payload uint32 // counted against the gate; 0 for frames that it doesn't count
	class   class
}

// lane is a run of whole frames.
type lane struct {
	buf   []byte
	marks []mark
}

// flushMark counts bytes, of control and in all.
type flushMark struct{ control, all uint64 }

// flushWaiter waits until what was appended before is with the kernel.
type flushWaiter struct {
	target flushMark
	done   chan struct{}
}

// batch is what one write to the socket settles.
type batch struct {
	bytes   int
	control int
	credit  [2]int
}

func (b *batch) add(o batch) {
	b.bytes += o.bytes
	b.control += o.control
	b.credit[bulk] += o.credit[bulk]
	b.credit[small] += o.credit[small]
}

// parser finds the frames in what the multiplexer writes: a header, then its body, in two writes. Owned by the send
// loop.
type parser struct {
	head  [headerLen]byte
	headN int
	left  int    // body bytes still to come
	body  []byte // collected so far, when a body comes in pieces
}

// Write implements io.Writer for the multiplexer. It takes everything at once; a header waits for its body before
// anything is queued, so that no frame is ever cut by another.
func (c *conn) Write(p []byte) (int, error) {
	total, s := len(p), &c.parser
	for len(p) > 0 {
		if s.headN < headerLen {
			n := copy(s.head[s.headN:], p)
			s.headN, p = s.headN+n, p[n:]
			if s.headN < headerLen {
				break
			}
			s.left = 0
			if s.head[1] == frameData {
				s.left = int(binary.BigEndian.Uint32(s.head[8:]))
			}
			if s.left > 0 {
				continue
			}
		}
		n := min(s.left, len(p))
		body := p[:n]
		s.left, p = s.left-n, p[n:]
		if s.left > 0 || len(s.body) > 0 {
			s.body = append(s.body, body...)
			if s.left > 0 {
				break
			}
			body = s.body
		}
		err := c.enqueue(s.head[:], body)
		s.headN, s.body = 0, s.body[:0]
		if err != nil {
			return 0, err
		}
		if c.faults != nil && !isControl(s.head[:]) {
			c.faults.At(faultpoint.LinkTaken, c.peer)
		}
	}
	return total, nil
}

// isControl tells which lane a frame takes. Window updates that carry a flag keep their place among the data of their
// stream: a FIN must not overtake it.
func isControl(head []byte) bool {
	flags := binary.BigEndian.Uint16(head[2:])
	switch head[1] {
	case frameData:
	case frameWindow:
		if flags == 0 {
			return true
		}
	default: // ping, GoAway
		return true
	}
	return binary.BigEndian.Uint32(head[4:]) == controlStream
}

// isOpen tells the frame that opens a work stream. It waits for the first frame of any kind behind it, since an open
// without a message is of no use to the peer: that saves a write a run.
func isOpen(head []byte) bool {
	return head[1] == frameWindow && binary.BigEndian.Uint16(head[2:]) == flagSYN &&
		binary.BigEndian.Uint32(head[4:]) != controlStream
}

// enqueue queues one frame and sees to its flush.
func (c *conn) enqueue(head, body []byte) error {
	c.mu.Lock()
	if err := c.appendLocked(head, body); err != nil {
		c.mu.Unlock()
		c.fail(err)
		return err
	}
	n := len(head) + len(body)
	if isOpen(head) && c.pending == c.idle+n {
		c.idle += n
		c.mu.Unlock()
		return nil
	}
	c.idle = 0
	switch {
	case c.flushing: // whoever flushes looks again before it stops
		c.mu.Unlock()
	case c.raw != nil && len(c.flows) <= 1 && len(body) <= maxInline && c.pending <= maxInlineTotal && len(c.out.carry) == 0:
		c.flushInlineLocked()
	default:
		c.mu.Unlock()
		c.kick()
	}
	return nil
}

// appendLocked puts one frame into its lane.
func (c *conn) appendLocked(head, body []byte) error {
	select {
	case <-c.failed:
		return net.ErrClosed
	default:
	}
	if c.pending == c.idle {
		c.counters.lastProgress.Store(int64(c.elapsed()))
	}
	n := len(head) + len(body)
	if isControl(head) {
		if len(c.control)+n > controlCap {
			return errOverflow
		}
		c.control = append(append(c.control, head...), body...)
		c.appended.control += uint64(n)
	} else {
		m := mark{n: uint32(n)}
		if f := c.flows[binary.BigEndian.Uint32(head[4:])]; f != nil {
			m.payload, m.class = uint32(len(body)), f.class
			c.cameLocked(f, len(body))
		}
		c.work.buf = append(append(c.work.buf, head...), body...)
		c.work.marks = append(c.work.marks, m)
	}
	c.appended.all += uint64(n)
	c.pending += n
	return nil
}

func (c *conn) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// flushInlineLocked writes all that waits from the send loop itself, without blocking: it saves the handover to the
// flusher while there is nobody else to coalesce with. What the kernel doesn't take goes first in the next flush. It
// unlocks c.mu.
func (c *conn) flushInlineLocked() {
	c.flushing = true
	o := &c.out
	b := batch{bytes: c.pending, control: len(c.control)}
	o.inline = append(append(o.inline[:0], c.control...), c.work.buf...)
	for _, m := range c.work.marks {
		b.credit[m.class] += int(m.payload)
	}
	c.control, c.work.buf, c.work.marks = c.control[:0], c.work.buf[:0], c.work.marks[:0]
	c.mu.Unlock()

	o.inlineN, o.inlineErr = 0, nil // on a closed connection tryWrite isn't called
	err := c.raw.Write(o.tryWrite)
	if err == nil {
		err = o.inlineErr
	}
	rest := o.inline[o.inlineN:]
	c.mu.Lock()
	c.flushing = false
	if len(rest) == 0 || err != nil {
		c.settleLocked(b)
	} else {
		o.carry, o.carried = append(o.carry[:0], rest...), b
		if o.inlineN > 0 {
			c.counters.lastProgress.Store(int64(c.elapsed()))
		}
	}
	again := c.pending > 0
	c.mu.Unlock()
	if err != nil {
		c.fail(err)
	}
	if again {
		c.kick()
	}
}

// settleLocked books a write that is through: it credits the gate and wakes whoever waited for the flush.
func (c *conn) settleLocked(b batch) {
	c.pending -= b.bytes
	c.idle = 0
	c.flushed.all += uint64(b.bytes)
	c.flushed.control += uint64(b.control)
	c.counters.lastProgress.Store(int64(c.elapsed()))
	c.counters.bytesOut.Add(int64(b.bytes))
	for k, n := range b.credit {
		if n > 0 {
			c.gate[k].credit(n)
		}
	}
	kept := c.waiters[:0]
	for _, w := range c.waiters {
		if c.flushed.control >= w.target.control && c.flushed.all >= w.target.all {
			close(w.done)
			continue
		}
		kept = append(kept, w)
	}
	clear(c.waiters[len(kept):])
	c.waiters = kept
}

// controlFlushed returns a channel that is closed once the control bytes appended so far are with the kernel.
func (c *conn) controlFlushed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waitLocked(flushMark{control: c.appended.control})
}

// allFlushed is controlFlushed for everything.
func (c *conn) allFlushed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waitLocked(c.appended)
}

func (c *conn) waitLocked(target flushMark) <-chan struct{} {
	w := &flushWaiter{target: target, done: make(chan struct{})}
	if c.flushed.control >= target.control && c.flushed.all >= target.all {
		close(w.done)
	} else {
		c.waiters = append(c.waiters, w)
		c.kick()
	}
	return w.done
}

// flushLoop writes what waits until the connection fails. The link starts it once.
func (c *conn) flushLoop() {
	for {
		select {
		case <-c.wake:
		case <-c.failed:
			return
		}
		c.mu.Lock()
		for !c.flushing && c.pending > 0 {
			c.flushing = true
			c.takeLocked()
			c.mu.Unlock()
			p, b := c.out.next()
			c.faults.At(faultpoint.LinkWrite, c.peer)
			_, err := c.net.Write(p)
			if err != nil {
				c.fail(err) // flushing stays set: nobody writes after a part of a frame
				return
			}
			c.mu.Lock()
			c.flushing = false
			c.settleLocked(b)
		}
		c.mu.Unlock()
	}
}

// takeLocked moves what waits to the flusher's side, by exchange.
func (c *conn) takeLocked() {
	o := &c.out
	if len(o.control) == 0 {
		o.control, c.control = c.control, o.controlBuf[:0]
		o.controlBuf = o.control[:0]
	}
	if o.at == len(o.work.marks) {
		o.work, c.work = c.work, lane{buf: o.work.buf[:0], marks: o.work.marks[:0]}
		o.at, o.off = 0, 0
	}
}

// outbound is the flusher's side: what was taken and isn't written yet. Owned by whoever set flushing.
type outbound struct {
	control    []byte
	controlBuf []byte // where control began, to be used again
	work       lane
	at, off    int // the next frame of work: its mark, its first byte
	joined     []byte

	carry   []byte // what an inline flush left, goes first; carried settles it
	carried batch

	inline    []byte
	inlineN   int
	inlineErr error
	tryWrite  func(fd uintptr) bool // writeNow, bound once
}

// next returns what to write now: the rest of an inline flush, all control (at most 32 KiB of it at once, so that
// progress shows), then at most 32 KiB of work, cut at a frame's border, so that control gets in between.
func (o *outbound) next() ([]byte, batch) {
	b := o.carried
	control := o.control[:min(len(o.control), maxFlush)]
	o.control = o.control[len(control):]
	b.add(batch{bytes: len(control), control: len(control)})
	var work []byte
	if len(o.control) == 0 {
		var w batch
		work, w = o.nextWork()
		b.add(w)
	}
	carry := o.carry
	o.carry, o.carried = o.carry[:0], batch{}
	switch {
	case len(carry)+len(control) == 0:
		return work, b
	case len(carry)+len(work) == 0:
		return control, b
	}
	o.joined = append(append(append(o.joined[:0], carry...), control...), work...)
	return o.joined, b
}

func (o *outbound) nextWork() ([]byte, batch) {
	var b batch
	payload := 0
	for o.at < len(o.work.marks) {
		m := o.work.marks[o.at]
		body := int(m.n) - headerLen
		if payload > 0 && payload+body > maxFlush {
			break
		}
		payload += body
		b.bytes += int(m.n)
		b.credit[m.class] += int(m.payload)
		o.at++
	}
	from := o.off
	o.off += b.bytes
	return o.work.buf[from:o.off], b
}

func (o *outbound) trim() {
	if cap(o.controlBuf) > keepBuffer && len(o.control) == 0 {
		o.control, o.controlBuf = nil, nil
	}
	if cap(o.work.buf) > keepBuffer && o.at == len(o.work.marks) {
		o.work, o.at, o.off = lane{}, 0, 0
	}
	if cap(o.joined) > keepBuffer {
		o.joined = nil
	}
}
