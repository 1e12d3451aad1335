package node

import (
	"io"
	"sync"

	"iop/packages/go/execution"
	"iop/packages/go/transport"
)

// feedLimit is how much of a request body waits for the provider to read it. A body that fits lets the reader go on
// to the end of the stream, where it sees a caller that leaves.
const feedLimit = 256 << 10

// feed is a request body on its way from the stream's reader goroutine (take) to the adapter (Read, Close). It can be
// read once, checks the lengths and the order of what comes in, and wakes both sides when the other is gone.
type feed struct {
	declared int64 // -1 = unknown

	// owned by the reader goroutine
	seq uint64

	mu     sync.Mutex
	cond   sync.Cond
	buf    []byte // unread bytes are buf[off:]
	off    int
	total  int64
	whole  bool  // the end was seen and everything before it
	closed bool  // nobody reads any more
	err    error // what Read returns, whatever is left
}

func newFeed(declared int64) *feed {
	f := &feed{declared: declared}
	f.cond.L = &f.mu
	return f
}

// take adds one message of the stream. It waits while the buffer is full and somebody may still read. A failure says
// that the edge broke the contract; the feed then takes nothing more.
func (f *feed) take(in transport.Input) *execution.Failure {
	f.seq++
	if in.Seq != f.seq {
		return execution.Failf(execution.CodeProtocol, execution.OriginEdge, "input number %d where %d was due", in.Seq, f.seq)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.whole {
		return execution.Failf(execution.CodeBadRequest, execution.OriginEdge, "request body goes on after its end")
	}
	if in.End != nil {
		return f.endLocked(in.End.GetTotalBytes())
	}
	f.total += int64(len(in.Body))
	if f.declared >= 0 && f.total > f.declared {
		return execution.Failf(execution.CodeBadRequest, execution.OriginEdge,
			"request body is longer than the %d bytes that were declared", f.declared)
	}
	for len(f.buf)-f.off >= feedLimit && !f.closed && f.err == nil {
		f.cond.Wait()
	}
	if f.closed || f.err != nil {
		return nil
	}
	f.makeRoomLocked(len(in.Body))
	f.buf = append(f.buf, in.Body...)
	f.cond.Broadcast()
	return nil
}

func (f *feed) endLocked(total int64) *execution.Failure {
	if total != f.total || f.declared >= 0 && total != f.declared {
		return execution.Failf(execution.CodeBadRequest, execution.OriginEdge,
			"request body ended after %d bytes; %d were declared, its end says %d", f.total, f.declared, total)
	}
	f.whole = true
	f.cond.Broadcast()
	return nil
}

// makeRoomLocked keeps the buffer from growing when what was read leaves room, and takes one fitting allocation for a
// body of known length.
func (f *feed) makeRoomLocked(n int) {
	switch {
	case f.buf == nil:
		if f.declared > 0 {
			f.buf = make([]byte, 0, min(f.declared, feedLimit+transport.MaxBody))
		}
	case f.off == len(f.buf):
		f.buf, f.off = f.buf[:0], 0
	case len(f.buf)+n > cap(f.buf) && f.off > 0:
		f.buf = f.buf[:copy(f.buf, f.buf[f.off:])]
		f.off = 0
	}
}

// Read implements io.Reader for the adapter.
func (f *feed) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.err != nil:
			return 0, f.err
		case f.closed:
			return 0, io.ErrClosedPipe
		case f.off < len(f.buf):
			n := copy(p, f.buf[f.off:])
			f.off += n
			f.cond.Broadcast()
			return n, nil
		case f.whole:
			return 0, io.EOF
		}
		f.cond.Wait()
	}
}

// Close says that the adapter reads no more; what still comes is discarded.
func (f *feed) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed, f.buf, f.off = true, nil, 0
	f.cond.Broadcast()
	return nil
}

// fail wakes both sides for good; the first error stays.
func (f *feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.buf, f.off = nil, 0
	f.cond.Broadcast()
}

// received returns how many bytes of the body arrived.
func (f *feed) received() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total
}

// complete reports whether the whole body arrived.
func (f *feed) complete() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.whole
}
