package transport

import (
	"sync"
	"testing"
)

func newGateConn() *conn {
	a, _ := memPair(0)
	return newConn(a, nil)
}

func (c *conn) freeBytes() (bulkFree, smallFree int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gate[bulk].free, c.gate[small].free
}

func waiters(c *conn, k class) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for f := c.gate[k].head; f != nil; f = f.next {
		n++
	}
	return n
}

// TestGateDoneFirst: whoever is cancelled isn't admitted, even with bytes free.
func TestGateDoneFirst(t *testing.T) {
	c := newGateConn()
	done := make(chan struct{})
	close(done)
	if err := c.acquire(done, new(flow), bulk, 1); err != ErrCancelled {
		t.Errorf("got %v", err)
	}
	if b, _ := c.freeBytes(); b != bulkBudget {
		t.Errorf("%d free", b)
	}
}

// TestGateBudgetsAreApart: bodies don't serialise token streams.
func TestGateBudgetsAreApart(t *testing.T) {
	c := newGateConn()
	for range 2 {
		if err := c.acquire(nil, new(flow), bulk, piece); err != nil {
			t.Fatal(err)
		}
	}
	for range smallBudget / smallFrame {
		if err := c.acquire(nil, new(flow), small, smallFrame); err != nil {
			t.Fatal(err)
		}
	}
	if b, s := c.freeBytes(); b != 0 || s != 0 {
		t.Errorf("free: %d and %d", b, s)
	}
}

// TestGateIsFIFO: first come, first served, also when a later one wants less.
func TestGateIsFIFO(t *testing.T) {
	c := newGateConn()
	c.force(new(flow), bulk, bulkBudget, 0)
	order := make(chan int, 3)
	var running sync.WaitGroup
	for i, n := range []int{piece, piece, 1} {
		if i == 2 {
			c.back(new(flow), bulk, 10) // enough for the last, but others were first
		}
		running.Go(func() {
			if c.acquire(nil, new(flow), bulk, n) == nil {
				order <- i
			}
		})
		eventually(t, "it waits", func() bool { return waiters(c, bulk) == i+1 })
	}
	for _, left := range []int{2, 0} {
		c.back(new(flow), bulk, piece)
		if n := waiters(c, bulk); n != left {
			t.Errorf("%d wait, want %d", n, left)
		}
		if got := within(t, "admission", order); left == 2 && got != 0 {
			t.Errorf("%d came first", got)
		}
	}
	running.Wait()
}

// TestGateCancelWhileWaiting: a waiter that leaves lets the next one through and keeps nothing.
func TestGateCancelWhileWaiting(t *testing.T) {
	c := newGateConn()
	c.force(new(flow), bulk, bulkBudget, 0)
	done := make(chan struct{})
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- c.acquire(done, new(flow), bulk, piece) }()
	eventually(t, "the first waits", func() bool { return waiters(c, bulk) == 1 })
	go func() { second <- c.acquire(nil, new(flow), bulk, 5) }()
	eventually(t, "the second waits", func() bool { return waiters(c, bulk) == 2 })
	close(done)
	if err := within(t, "cancel", first); err != ErrCancelled {
		t.Errorf("got %v", err)
	}
	c.back(new(flow), bulk, 5)
	if err := within(t, "admission", second); err != nil {
		t.Errorf("got %v", err)
	}
	if b, _ := c.freeBytes(); b != 0 {
		t.Errorf("%d free", b)
	}
}

// TestGateCancelRacesGrant: granted and cancelled at once, the bytes come back, always.
func TestGateCancelRacesGrant(t *testing.T) {
	c := newGateConn()
	f := new(flow)
	for range 2000 {
		c.force(new(flow), bulk, bulkBudget, 0)
		done := make(chan struct{})
		result := make(chan error, 1)
		go func() { result <- c.acquire(done, f, bulk, piece) }()
		go c.back(new(flow), bulk, bulkBudget)
		close(done)
		if <-result == nil {
			c.back(new(flow), bulk, piece)
		}
		eventually(t, "the budget is whole", func() bool { b, _ := c.freeBytes(); return b == bulkBudget })
		if len(f.wake) != 0 {
			t.Fatal("a signal was left behind")
		}
	}
}

// TestGateGrantedTooLate is the same, step by step.
func TestGateGrantedTooLate(t *testing.T) {
	c := newGateConn()
	c.force(new(flow), bulk, bulkBudget, 0)
	f := &flow{want: piece, wake: make(chan struct{}, 1)}
	c.gate[bulk].push(f)
	c.back(new(flow), bulk, bulkBudget)
	done := make(chan struct{})
	close(done)
	if err := c.admitted(done, &c.gate[bulk], f); err != ErrCancelled || len(f.wake) != 0 {
		t.Errorf("got %v, %d signals left", err, len(f.wake))
	}
	if b, _ := c.freeBytes(); b != bulkBudget {
		t.Errorf("%d free", b)
	}
}

// TestGateLinkDown: everybody who waits is told, and nobody is admitted any more.
func TestGateLinkDown(t *testing.T) {
	c := newGateConn()
	c.force(new(flow), small, smallBudget, 0)
	errs := make(chan error, 3)
	for range 3 {
		go func() { errs <- c.acquire(nil, new(flow), small, 10) }()
	}
	eventually(t, "all wait", func() bool { return waiters(c, small) == 3 })
	c.kill()
	for range 3 {
		if err := within(t, "the link's end", errs); err != ErrLinkDown {
			t.Errorf("got %v", err)
		}
	}
	if err := c.acquire(nil, new(flow), bulk, 1); err != ErrLinkDown {
		t.Errorf("later: %v", err)
	}
}

// TestGateCreditGoesToTheFramesClass: the class belongs to the write, not to the piece: the last, short piece of a
// body counts as bulk. Crediting by the piece's size starved the link after 14 MB.
func TestGateCreditGoesToTheFramesClass(t *testing.T) {
	c, _ := startConn(t, 0)
	f := new(flow)
	c.register(2, f)
	send := func(k class, n int) {
		if err := c.acquire(nil, f, k, n); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, c, dataFrame(2, n, 'x'))
	}
	for range 500 {
		send(bulk, piece)
		send(bulk, 100) // the rest of the same write
		send(small, 100)
	}
	within(t, "flush", c.allFlushed())
	if b, s := c.freeBytes(); b != bulkBudget || s != smallBudget {
		t.Errorf("free: %d and %d, want %d and %d", b, s, bulkBudget, smallBudget)
	}
}

// TestGateGetsBackWhatComesBehindTheClose: a write that was under way when its stream was closed reaches the coalescer
// behind the FIN. Its bytes go back all the same: two such writes shut the gate of a whole link, for ever (found by
// callers that left in the middle of their answers; the link lived on and carried no body any more). Likewise the byte
// that a write waits for the window with, and what of a write never comes.
func TestGateGetsBackWhatComesBehindTheClose(t *testing.T) {
	c, _ := startConn(t, 0)
	admitted, expected, refused := new(flow), new(flow), new(flow)
	for id, f := range map[uint32]*flow{2: admitted, 4: expected, 6: refused} {
		c.register(id, f)
	}
	for _, f := range []*flow{admitted, refused} {
		if err := c.acquire(nil, f, bulk, 100); err != nil {
			t.Fatal(err)
		}
	}
	c.expect(expected, 1)
	for _, id := range []uint32{2, 4, 6} {
		mustWrite(t, c, rawHead(frameWindow, 4, id, 0)) // FIN
		c.unregister(id)
	}
	mustWrite(t, c, dataFrame(2, 60, 'x')) // in two pieces, as a window that is nearly empty makes them
	mustWrite(t, c, dataFrame(2, 40, 'x'))
	mustWrite(t, c, dataFrame(4, 1, 'x'))
	c.force(expected, bulk, 1, 0)
	c.back(refused, bulk, 100)
	within(t, "flush", c.allFlushed())
	if b, s := c.freeBytes(); b != bulkBudget || s != smallBudget {
		t.Errorf("free: %d and %d, want %d and %d", b, s, bulkBudget, smallBudget)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.flows) != 0 {
		t.Errorf("%d accounts are open", len(c.flows))
	}
}
