package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func newReader(src io.Reader) *frameReader { return &frameReader{src: src, pool: new(buffers)} }

// rawFrames are frames of the given lengths, each filled with its own number.
func rawFrames(lengths ...int) []byte {
	var raw []byte
	for i, n := range lengths {
		raw = binary.BigEndian.AppendUint32(raw, uint32(n))
		raw = append(raw, bytes.Repeat([]byte{byte(i + 1)}, n)...)
	}
	return raw
}

func checkFrames(t *testing.T, f *frameReader, max int, lengths ...int) {
	t.Helper()
	for i, n := range lengths {
		b, err := f.next(max)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if !bytes.Equal(b, bytes.Repeat([]byte{byte(i + 1)}, n)) {
			t.Fatalf("frame %d: %d bytes, want %d of %d", i, len(b), n, i+1)
		}
	}
	if _, err := f.next(max); err != io.EOF {
		t.Fatalf("after the last frame: %v, want EOF", err)
	}
}

// TestReaderSizes goes over every border of the buffers, in sources that give all at once, half, and single bytes.
func TestReaderSizes(t *testing.T) {
	lengths := []int{1, 2, smallBuffer - prefixLen, smallBuffer - prefixLen + 1, 3, MaxBody, MaxBody, MaxBody, 5,
		bigBuffer - prefixLen, bigBuffer, 7, MaxTunnelFrame, 1, 8000, 8000, 8000}
	raw := rawFrames(lengths...)
	for name, src := range map[string]io.Reader{
		"whole": bytes.NewReader(raw),
		"half":  iotest.HalfReader(bytes.NewReader(raw)),
		"byte":  iotest.OneByteReader(bytes.NewReader(raw)),
	} {
		t.Run(name, func(t *testing.T) { checkFrames(t, newReader(src), MaxTunnelFrame, lengths...) })
	}
}

func TestReaderTruncatedAtEveryOffset(t *testing.T) {
	raw := rawFrames(3, 5)
	for cut := range raw {
		f := newReader(bytes.NewReader(raw[:cut]))
		var err error
		for err == nil {
			_, err = f.next(100)
		}
		want := io.ErrUnexpectedEOF
		if cut == 0 || cut == 3+prefixLen {
			want = io.EOF
		}
		if err != want {
			t.Errorf("cut after %d bytes: %v, want %v", cut, err, want)
		}
	}
}

// TU-28, E31: on a stream, too, and behind another frame.
func TestReaderBadLength(t *testing.T) {
	for length, fault := range badPrefixes(MaxInput) {
		prefix := binary.BigEndian.AppendUint32(nil, length)
		f := newReader(bytes.NewReader(prefix))
		_, err := f.next(MaxInput)
		wantFault(t, err, fault)
		if f.buf != nil {
			t.Errorf("length %#x: a buffer was taken", length)
		}
		f = newReader(bytes.NewReader(append(rawFrames(1), prefix...)))
		if _, err := f.next(MaxInput); err != nil {
			t.Fatal(err)
		}
		_, err = f.next(MaxInput)
		wantFault(t, err, fault)
		if len(f.buf.b) != smallBuffer {
			t.Errorf("length %#x: the buffer grew to %d", length, len(f.buf.b))
		}
	}
}

// bytesAndError returns each piece together with an error, as the multiplexer does when a window update waits too
// long: bufio latches such an error and loses what comes after it (524,288 of 921,600 bytes arrived).
type bytesAndError struct{ r io.Reader }

var errWithBytes = errors.New("window update waited too long")

func (b bytesAndError) Read(p []byte) (int, error) {
	n, err := b.r.Read(p[:min(len(p), 1000)])
	if err == nil {
		err = errWithBytes
	}
	return n, err
}

func TestReaderTakesBytesBeforeTheirError(t *testing.T) {
	lengths := []int{900, 20000, 5, 60000, 1}
	checkFrames(t, newReader(bytesAndError{bytes.NewReader(rawFrames(lengths...))}), MaxInput, lengths...)
}

// TestReaderHoldsNoBufferWhileItWaits: that is what makes an idle stream cheap.
func TestReaderHoldsNoBufferWhileItWaits(t *testing.T) {
	f := newReader(nil)
	held := -1
	raw := rawFrames(3)
	f.src = readerFunc(func(p []byte) (int, error) {
		if len(raw) == 0 {
			held = f.w - f.r
			if f.buf != nil {
				t.Error("a buffer is held while nothing is read")
			}
			return 0, io.EOF
		}
		n := copy(p, raw)
		raw = raw[n:]
		return n, nil
	})
	if _, err := f.next(10); err != nil {
		t.Fatal(err)
	}
	if _, err := f.next(10); err != io.EOF || held != 0 {
		t.Fatalf("%v, %d bytes held", err, held)
	}
}

func TestReaderBuffered(t *testing.T) {
	whole := rawFrames(3, 4)
	f := newReader(bytes.NewReader(append(whole, 0, 0, 0, 9, 1)))
	for i, want := range []bool{true, false} {
		if _, err := f.next(10); err != nil {
			t.Fatal(err)
		}
		if got := f.buffered(); got != want {
			t.Errorf("after frame %d: buffered %v", i, got)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// FuzzReader: whatever the pieces in which bytes come, the same frames come out, or the same fault.
func FuzzReader(f *testing.F) {
	f.Add(rawFrames(1, 2, 3), uint8(1))
	f.Add(rawFrames(8200), uint8(200))
	f.Add([]byte{0, 0, 0, 0}, uint8(3))
	f.Fuzz(func(t *testing.T, raw []byte, step uint8) {
		read := func(src io.Reader) ([][]byte, error) {
			r := newReader(src)
			var all [][]byte
			for {
				b, err := r.next(MaxInput)
				if err != nil {
					return all, err
				}
				all = append(all, bytes.Clone(b))
			}
		}
		want, wantErr := read(bytes.NewReader(raw))
		rest := raw
		got, gotErr := read(readerFunc(func(p []byte) (int, error) {
			if len(rest) == 0 {
				return 0, io.EOF
			}
			n := copy(p[:min(len(p), int(step)+1)], rest)
			rest = rest[n:]
			return n, nil
		}))
		if len(got) != len(want) || gotErr.Error() != wantErr.Error() {
			t.Fatalf("%d frames and %v, want %d and %v", len(got), gotErr, len(want), wantErr)
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("frame %d differs", i)
			}
		}
	})
}
