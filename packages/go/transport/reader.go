package transport

import (
	"encoding/binary"
	"io"
)

// frameReader cuts a stream into frames. It isn't bufio: the multiplexer may return n bytes together with an error,
// and the bytes stand first (bufio latches the error, which lost half of an answer). Between frames it waits with the
// four bytes of the prefix only, so that a stream that waits holds no buffer.
type frameReader struct {
	src   io.Reader
	pool  *buffers
	head  [prefixLen]byte
	headN int
	buf   *buffer // nil between bursts
	r, w  int     // buf.b[r:w] is read and not yet handed out
}

// next returns the next frame's message, at most max bytes long. It is valid until the next call. At a frame's border
// it returns the source's error as it is; inside a frame io.EOF becomes io.ErrUnexpectedEOF.
func (f *frameReader) next(max int) ([]byte, error) {
	n, err := f.begin(max)
	if err != nil {
		return nil, err
	}
	end := prefixLen + n
	f.makeRoom(end)
	if err := f.fill(end); err != nil {
		return nil, err
	}
	msg := f.buf.b[f.r+prefixLen : f.r+end]
	f.r += end
	return msg, nil
}

// begin waits for a prefix, checks it, and leaves it at buf.b[r:].
func (f *frameReader) begin(max int) (int, error) {
	if f.r < f.w {
		f.makeRoom(prefixLen)
		if err := f.fill(prefixLen); err != nil {
			return 0, err
		}
		return frameLength(f.buf.b[f.r:], max)
	}
	f.release()
	for f.headN < prefixLen {
		n, err := f.src.Read(f.head[f.headN:])
		f.headN += n
		if n == 0 && err != nil {
			return 0, insideFrame(err, f.headN)
		}
	}
	n, err := frameLength(f.head[:], max)
	if err != nil {
		return 0, err
	}
	f.buf = f.pool.get(prefixLen + n)
	f.headN = 0
	f.w = copy(f.buf.b, f.head[:])
	return n, nil
}

// makeRoom sees to it that a frame of n bytes fits behind r.
func (f *frameReader) makeRoom(n int) {
	if f.r+n <= len(f.buf.b) {
		return
	}
	old := f.buf
	if n > len(old.b) {
		f.buf = f.pool.get(n)
	}
	f.w = copy(f.buf.b, old.b[f.r:f.w])
	f.r = 0
	if f.buf != old {
		f.pool.put(old)
	}
}

// fill reads until n bytes stand behind r.
func (f *frameReader) fill(n int) error {
	for f.w-f.r < n {
		k, err := f.src.Read(f.buf.b[f.w:])
		f.w += k
		if k == 0 && err != nil {
			return insideFrame(err, f.w-f.r)
		}
	}
	return nil
}

// buffered reports whether a whole further frame is in the buffer.
func (f *frameReader) buffered() bool {
	have := f.w - f.r
	return have >= prefixLen && have-prefixLen >= int(binary.BigEndian.Uint32(f.buf.b[f.r:]))
}

// release gives the buffer back.
func (f *frameReader) release() {
	f.pool.put(f.buf)
	f.buf, f.r, f.w = nil, 0, 0
}

func insideFrame(err error, have int) error {
	if err == io.EOF && have > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}
