package transport

// class is which budget a frame's bytes count against.
type class uint8

const (
	bulk  class = 0
	small class = 1
)

const (
	// smallFrame is the longest write that counts as small: token streams aren't serialised by bodies.
	smallFrame = 1 << 10
	// piece is the longest piece that is handed to the multiplexer at once.
	piece = 16 << 10

	bulkBudget  = 32 << 10
	smallBudget = 128 << 10
)

func classOf(n int) class {
	if n <= smallFrame {
		return small
	}
	return bulk
}

// flow is one work stream's account at the gate. The class is that of the write in progress: the coalescer notes it
// with each frame of the stream, so that the credit goes back to where it came from. Guarded by conn.mu.
type flow struct {
	id      uint32
	class   class
	due     int  // bytes that the multiplexer may still bring to the coalescer
	gone    bool // unregistered; the account is closed once nothing is due
	want    int
	granted bool
	wake    chan struct{} // one signal: granted, or the link is down; made at the first wait
	next    *flow
}

// budget is one class's bytes that may still be admitted, and who waits for them, in order. Guarded by conn.mu.
type budget struct {
	free       int // may be below 0 after force
	head, tail *flow
}

func (b *budget) push(f *flow) {
	f.next = nil
	if b.tail == nil {
		b.head, b.tail = f, f
		return
	}
	b.tail.next, b.tail = f, f
}

func (b *budget) remove(f *flow) {
	var before *flow
	for at := b.head; at != nil; before, at = at, at.next {
		if at != f {
			continue
		}
		if before == nil {
			b.head = f.next
		} else {
			before.next = f.next
		}
		if b.tail == f {
			b.tail = before
		}
		f.next = nil
		return
	}
}

// credit returns n bytes and admits whom they are enough for, first come first.
func (b *budget) credit(n int) {
	b.free += n
	for b.head != nil && b.free >= b.head.want {
		f := b.head
		b.head = f.next
		if b.head == nil {
			b.tail = nil
		}
		f.next = nil
		b.free -= f.want
		f.granted = true
		f.wake <- struct{}{}
	}
}

// acquire waits until n bytes of the class may go to the multiplexer. It counts bytes of work streams that were
// admitted and not yet flushed to the kernel; they come back from the flusher. It fails when done is closed, which is
// looked at first, even with bytes free, or when the link is down.
func (c *conn) acquire(done <-chan struct{}, f *flow, k class, n int) error {
	select {
	case <-done:
		return ErrCancelled
	default:
	}
	c.mu.Lock()
	if c.dead {
		c.mu.Unlock()
		return ErrLinkDown
	}
	f.class = k
	b := &c.gate[k]
	if b.head == nil && b.free >= n {
		b.free -= n
		f.due += n
		c.mu.Unlock()
		return nil
	}
	if f.wake == nil {
		f.wake = make(chan struct{}, 1)
	}
	f.want, f.granted = n, false
	b.push(f)
	c.mu.Unlock()

	select {
	case <-f.wake:
	case <-done:
	}
	return c.admitted(done, b, f)
}

// admitted settles a wait: whoever was granted bytes and doesn't want them any more gives them back.
func (c *conn) admitted(done <-chan struct{}, b *budget, f *flow) error {
	cancelled := false
	select {
	case <-done:
		cancelled = true
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !cancelled && f.granted && !c.dead {
		f.due += f.want
		return nil
	}
	if f.granted {
		b.credit(f.want)
	} else {
		b.remove(f)
	}
	select { // the signal that nobody took
	case <-f.wake:
	default:
	}
	if cancelled {
		return ErrCancelled
	}
	return ErrLinkDown
}

// back returns n admitted bytes that found no window and so aren't in the queue.
func (c *conn) back(f *flow, k class, n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	c.gate[k].credit(n)
	c.cameLocked(f, n)
	c.mu.Unlock()
}

// expect announces n bytes that are about to be written without being admitted.
func (c *conn) expect(f *flow, n int) {
	c.mu.Lock()
	f.due += n
	c.mu.Unlock()
}

// force accounts for what was expected: n bytes were written, left were not.
func (c *conn) force(f *flow, k class, n, left int) {
	c.mu.Lock()
	c.gate[k].free -= n
	c.cameLocked(f, left)
	c.mu.Unlock()
}

// cameLocked says that n bytes came to the coalescer, or never will.
func (c *conn) cameLocked(f *flow, n int) {
	f.due -= n
	if f.gone && f.due <= 0 {
		delete(c.flows, f.id)
	}
}

// killGateLocked wakes everybody who waits; the link is down.
func (c *conn) killGateLocked() {
	for k := range c.gate {
		b := &c.gate[k]
		for b.head != nil {
			f := b.head
			b.head, f.next = f.next, nil
			f.wake <- struct{}{}
		}
		b.tail = nil
	}
}
