package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
)

// rawHead is a header as the multiplexer writes it.
func rawHead(kind byte, flags uint16, stream, length uint32) []byte {
	h := make([]byte, headerLen)
	h[1] = kind
	binary.BigEndian.PutUint16(h[2:], flags)
	binary.BigEndian.PutUint32(h[4:], stream)
	binary.BigEndian.PutUint32(h[8:], length)
	return h
}

func dataFrame(stream uint32, n int, fill byte) []byte {
	return append(rawHead(frameData, 0, stream, uint32(n)), bytes.Repeat([]byte{fill}, n)...)
}

// The flags of the multiplexer beside flagSYN.
const (
	flagACK = 2
	flagFIN = 4
	flagRST = 8
)

// startConn runs a conn over one end of an in-memory connection whose other end's bytes are returned.
func startConn(t *testing.T, limit int) (c *conn, peer *memConn) {
	t.Helper()
	a, b := memPair(limit)
	c = newConn(a, nil)
	var running sync.WaitGroup
	running.Go(c.flushLoop)
	t.Cleanup(func() { c.Close(); running.Wait() })
	return c, b
}

func mustWrite(t testing.TB, w io.Writer, b []byte) {
	t.Helper()
	if n, err := w.Write(b); n != len(b) || err != nil {
		t.Fatalf("write: %d of %d, %v", n, len(b), err)
	}
}

// takeAll makes the pipe take again and returns what has come when everything is flushed.
func takeAll(t *testing.T, c *conn) []byte {
	t.Helper()
	pipe := c.net.(*memConn).out
	pipe.set(func(p *memPipe) { p.stop = false })
	within(t, "flush", c.allFlushed())
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	return slices.Clone(pipe.buf)
}

// TestControlGoesFirst: what the kernel hasn't got yet is reordered, control before work, each lane in order, and a
// FIN behind the data of its stream.
func TestControlGoesFirst(t *testing.T) {
	c, _ := startConn(t, 0)
	c.net.(*memConn).out.set(func(p *memPipe) { p.stop = true })
	first := dataFrame(2, 10, 'a')
	mustWrite(t, c, first) // the flusher stands at this one
	eventually(t, "the flusher took the first frame", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.flushing
	})
	work := [][]byte{dataFrame(2, 20, 'b'), rawHead(frameWindow, flagFIN, 2, 0), rawHead(frameWindow, flagRST, 6, 0),
		rawHead(frameWindow, flagSYN, 8, 1<<18), rawHead(frameWindow, flagACK, 9, 0), dataFrame(4, 0, 0)}
	control := [][]byte{dataFrame(1, 5, 'c'), rawHead(frameWindow, 0, 2, 99), rawHead(2, 1, 0, 7), rawHead(3, 0, 0, 0),
		rawHead(frameWindow, flagFIN, 1, 0)}
	for i := range work {
		mustWrite(t, c, work[i])
		if i < len(control) {
			mustWrite(t, c, control[i])
		}
	}
	want := slices.Concat(first, slices.Concat(control...), slices.Concat(work...))
	if got := takeAll(t, c); !bytes.Equal(got, want) {
		t.Errorf("got\n% x\nwant\n% x", got, want)
	}
}

// TestHeaderWaitsForItsBody: a frame is queued whole, in however many pieces it comes.
func TestHeaderWaitsForItsBody(t *testing.T) {
	c, _ := startConn(t, 0)
	frame := dataFrame(2, 100, 'x')
	for i := range frame {
		if n := c.waiting(); n != 0 {
			t.Fatalf("%d bytes wait after %d of the frame", n, i)
		}
		mustWrite(t, c, frame[i:i+1])
	}
	if got := takeAll(t, c); !bytes.Equal(got, frame) {
		t.Errorf("got % x", got)
	}
}

// TestFlushIsCutAtAFrameBorder: a flush takes at most 32 KiB of payload, so that control gets in between.
func TestFlushIsCutAtAFrameBorder(t *testing.T) {
	var o outbound
	for range 5 {
		o.work.buf = append(o.work.buf, dataFrame(2, piece, 'x')...)
		o.work.marks = append(o.work.marks, mark{n: headerLen + piece, payload: piece, class: bulk})
	}
	for i, want := range []int{2, 2, 1, 0} {
		p, b := o.next()
		if len(p) != want*(headerLen+piece) || b.bytes != len(p) || b.credit[bulk] != want*piece {
			t.Errorf("flush %d: %d bytes, %+v, want %d frames", i, len(p), b, want)
		}
	}
	o.control = make([]byte, maxFlush+5)
	o.work, o.at, o.off = lane{buf: dataFrame(2, 3, 'w'), marks: []mark{{n: headerLen + 3}}}, 0, 0
	if p, b := o.next(); len(p) != maxFlush || b.control != maxFlush {
		t.Errorf("a long control lane: %d bytes", len(p))
	}
	if p, b := o.next(); len(p) != 5+headerLen+3 || b.control != 5 {
		t.Errorf("its rest and work: %d bytes", len(p))
	}
}

// TestWriteNeverWaits: whatever the peer does, the multiplexer's send loop isn't held.
func TestWriteNeverWaits(t *testing.T) {
	c, _ := startConn(t, 1) // a pipe of one byte that nobody reads
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			_, _ = c.Write(dataFrame(2, 1000, 'x'))
			_, _ = c.Write(rawHead(frameWindow, 0, 2, 1))
		}
	}()
	within(t, "200 writes", done)
}

// TestControlOverflow: the control lane has a hard cap; over it the connection fails.
func TestControlOverflow(t *testing.T) {
	a, _ := memPair(1)
	failed := make(chan error, 1)
	c := newConn(a, func(err error) { failed <- err })
	defer c.Close()
	body := dataFrame(controlStream, 1<<20, 'x')
	var err error
	for range 5 {
		if _, err = c.Write(body); err != nil {
			break
		}
	}
	if err != errOverflow || within(t, "failure", failed) != errOverflow {
		t.Errorf("got %v", err)
	}
	if connFault(err).Reason != ReasonSendOverflow {
		t.Errorf("reason %v", connFault(err).Reason)
	}
}

// TestWriteErrorEndsTheConn: an error shows late, at whoever flushes, and then everywhere.
func TestWriteErrorEndsTheConn(t *testing.T) {
	a, b := memPair(0)
	failed := make(chan error, 2)
	c := newConn(a, func(err error) { failed <- err })
	var running sync.WaitGroup
	running.Go(c.flushLoop)
	b.Close()
	mustWrite(t, c, dataFrame(2, 5, 'x'))
	if err := within(t, "failure", failed); err != io.ErrClosedPipe {
		t.Errorf("failed with %v", err)
	}
	running.Wait()
	if _, err := c.Write(dataFrame(2, 5, 'x')); err == nil {
		t.Error("a write after the failure succeeded")
	}
	c.Close()
	if len(failed) != 0 {
		t.Error("it failed twice")
	}
}

// TestReadFailsBeforeItReturns: whoever sees the streams end must be able to see that the link did.
func TestReadFailsBeforeItReturns(t *testing.T) {
	a, b := memPair(0)
	failed := false
	c := newConn(a, func(error) { failed = true })
	frame := dataFrame(2, 3, 'x')
	mustWrite(t, b, frame)
	b.Close()
	p := make([]byte, headerLen)
	for _, want := range [][]byte{frame[:headerLen], frame[headerLen:]} {
		if n, err := c.Read(p); !bytes.Equal(p[:n], want) || err != nil || failed {
			t.Fatalf("read %q, %v, failed %v", p[:n], err, failed)
		}
	}
	if _, err := c.Read(p); err != io.EOF || !failed {
		t.Fatalf("got %v, failed %v", err, failed)
	}
}

// inlineConn is a loopback connection whose conn may flush inline, without a flusher unless it is started.
func inlineConn(t *testing.T) (*conn, net.Conn) {
	a, b := tcpPair(t)
	c := newConn(a, nil)
	if c.raw == nil {
		t.Skip("no inline flushes on this system")
	}
	return c, b
}

// TestInlineFlush: with at most one work stream a small frame goes out from Write itself; a larger one, or with more
// streams open, it waits for the flusher.
func TestInlineFlush(t *testing.T) {
	c, peer := inlineConn(t)
	defer c.Close()
	c.register(2, new(flow))
	small := dataFrame(2, maxInline, 'x')
	mustWrite(t, c, rawHead(frameWindow, flagSYN, 2, 0)) // goes with the first message
	if c.waiting() != headerLen {
		t.Errorf("the open of a stream was flushed alone")
	}
	mustWrite(t, c, small)
	if c.waiting() != 0 {
		t.Fatalf("%d bytes wait after a small frame", c.waiting())
	}
	got := make([]byte, headerLen+len(small))
	if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got[headerLen:], small) {
		t.Fatalf("the peer got something else: %v", err)
	}
	mustWrite(t, c, dataFrame(2, maxInline+1, 'x'))
	if c.waiting() == 0 {
		t.Error("a large frame was flushed inline")
	}
	c, _ = inlineConn(t)
	defer c.Close()
	c.register(2, new(flow))
	c.register(4, new(flow))
	mustWrite(t, c, small)
	if c.waiting() == 0 {
		t.Error("flushed inline with two streams open")
	}
}

// TestOpenAloneIsNoStall: what waits by intent isn't progress that is missing, and it goes when somebody waits for it.
func TestOpenAloneIsNoStall(t *testing.T) {
	c, _ := startConn(t, 0)
	mustWrite(t, c, rawHead(frameWindow, flagSYN, 2, 0))
	mustWrite(t, c, rawHead(frameWindow, flagSYN, 4, 0))
	if _, stalled := c.stalledSince(); stalled || c.waiting() != 2*headerLen {
		t.Errorf("stalled: %v, %d bytes wait", stalled, c.waiting())
	}
	within(t, "flush", c.allFlushed())
}

// TestInlineFlushNeverBlocks: when the kernel takes no more, what is left goes first in the next flush, and nothing is
// lost, doubled or cut.
func TestInlineFlushNeverBlocks(t *testing.T) {
	c, peer := inlineConn(t)
	c.register(2, new(flow))
	var want []byte
	full := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.out.carry) > 0
	}
	for i := 0; !full(); i++ {
		f := dataFrame(2, 1000, byte(i))
		want = append(want, f...)
		mustWrite(t, c, f)
	}
	sent := len(want)/(headerLen+1000)*1000 + 10
	late := dataFrame(2, 10, '!')
	urgent := rawHead(frameWindow, 0, 2, 5)
	mustWrite(t, c, late)
	mustWrite(t, c, urgent)
	want = slices.Concat(want, urgent, late) // the frame that was begun, then control, then work
	var running sync.WaitGroup
	running.Go(c.flushLoop)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(peer, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the peer got something else")
	}
	within(t, "all flushed", c.allFlushed())
	c.Close()
	running.Wait()
	// Nothing was acquired, so the credit for every byte stands on top.
	if b, _ := c.freeBytes(); b != bulkBudget+sent {
		t.Errorf("%d bytes credited, want %d", b-bulkBudget, sent)
	}
}

// TestInlineFlushNotUnderTLS: a raw write would break the records.
func TestInlineFlushNotUnderTLS(t *testing.T) {
	a, _ := tcpPair(t)
	if c := newConn(fakeTLS{a}, nil); c.raw != nil {
		t.Error("raw writes below TLS")
	}
}

type fakeTLS struct{ net.Conn }

func (f fakeTLS) NetConn() net.Conn { return f.Conn }

// TestConnFlushWaits: the waits are for what was appended before, control alone or everything.
func TestConnFlushWaits(t *testing.T) {
	c, _ := startConn(t, 0)
	pipe := c.net.(*memConn).out
	pipe.set(func(p *memPipe) { p.stop = true })
	within(t, "nothing to flush", c.allFlushed())
	mustWrite(t, c, dataFrame(2, 5, 'x'))
	within(t, "no control to flush", c.controlFlushed())
	all := c.allFlushed()
	select {
	case <-all:
		t.Error("flushed while the pipe takes nothing")
	default:
	}
	pipe.set(func(p *memPipe) { p.stop = false })
	within(t, "flush", all)
}

// randomFrames returns frames of all kinds.
func randomFrames(r *rand.Rand, n int) [][]byte {
	frames := make([][]byte, n)
	for i := range frames {
		stream := uint32(1 + r.IntN(6))
		switch r.IntN(6) {
		case 0, 1:
			frames[i] = dataFrame(stream, r.IntN(3000), byte(i))
		case 2:
			frames[i] = dataFrame(stream, r.IntN(20), byte(i))
		case 3:
			frames[i] = rawHead(frameWindow, uint16(r.IntN(16)), stream, uint32(i))
		case 4:
			frames[i] = rawHead(2, uint16(1+r.IntN(2)), 0, uint32(i))
		default:
			frames[i] = rawHead(frameWindow, 0, stream, uint32(i))
		}
	}
	return frames
}

// cutFrames cuts a byte stream into frames and fails when it isn't one.
func cutFrames(t *testing.T, b []byte) (control, work [][]byte) {
	t.Helper()
	for len(b) > 0 {
		if len(b) < headerLen {
			t.Fatal("a header is cut")
		}
		n := headerLen
		if b[1] == frameData {
			n += int(binary.BigEndian.Uint32(b[8:]))
		}
		if len(b) < n {
			t.Fatal("a body is cut")
		}
		if isControl(b) {
			control = append(control, b[:n])
		} else {
			work = append(work, b[:n])
		}
		b = b[n:]
	}
	return control, work
}

// FuzzConn: frames of all kinds in pieces of all sizes, over a connection that takes bytes as it likes: nothing is
// lost, doubled or cut, and each lane keeps its order.
func FuzzConn(f *testing.F) {
	f.Add(uint64(1), uint8(40), uint16(12))
	f.Add(uint64(2), uint8(200), uint16(5000))
	f.Add(uint64(3), uint8(100), uint16(1))
	f.Fuzz(func(t *testing.T, seed uint64, n uint8, step uint16) {
		r := rand.New(rand.NewPCG(seed, 0))
		frames := randomFrames(r, int(n))
		a, b := memPair(1 + r.IntN(5000))
		c := newConn(a, nil)
		var running sync.WaitGroup
		running.Go(c.flushLoop)
		got := make(chan []byte, 1)
		running.Go(func() {
			all, _ := io.ReadAll(b)
			got <- all
		})
		for rest := slices.Concat(frames...); len(rest) > 0; {
			k := min(len(rest), 1+r.IntN(int(step)+1))
			mustWrite(t, c, rest[:k])
			rest = rest[k:]
		}
		<-c.allFlushed()
		if n := c.waiting(); n != 0 {
			t.Errorf("%d bytes wait after everything was flushed", n)
		}
		c.Close()
		running.Wait()
		wantControl, wantWork := cutFrames(t, slices.Concat(frames...))
		gotControl, gotWork := cutFrames(t, <-got)
		if !slices.EqualFunc(gotControl, wantControl, bytes.Equal) || !slices.EqualFunc(gotWork, wantWork, bytes.Equal) {
			t.Error("a lane differs from what was written")
		}
	})
}

// TestTrim: the buffers that a burst grew don't outlive it.
func TestTrim(t *testing.T) {
	c, peer := startConn(t, 0)
	go io.Copy(io.Discard, peer)
	for range 10 {
		mustWrite(t, c, dataFrame(1, 20000, 'c'))
		mustWrite(t, c, dataFrame(2, 20000, 'w'))
	}
	within(t, "flush", c.allFlushed())
	eventually(t, "the buffers are given up", func() bool {
		c.trim()
		c.mu.Lock()
		defer c.mu.Unlock()
		held := cap(c.control) + cap(c.work.buf) + cap(c.out.controlBuf) + cap(c.out.work.buf) + cap(c.out.joined)
		return !c.flushing && held <= 5*keepBuffer
	})
}

func TestConnFault(t *testing.T) {
	for err, want := range map[error]Reason{io.EOF: ReasonLost, errOverflow: ReasonSendOverflow, errSession: ReasonProtocol,
		errors.New("reset"): ReasonLost} {
		if got := connFault(err); got.Reason != want || !errors.Is(got, ErrLinkDown) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
