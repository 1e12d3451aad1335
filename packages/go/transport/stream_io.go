package transport

import (
	"time"

	"github.com/hashicorp/yamux"
	"google.golang.org/protobuf/proto"

	pb "iop/proto/iop"
)

// Input is one message from edge to node after the open: a body, or the end when End isn't nil.
type Input struct {
	Seq  uint64
	Body []byte // valid until the next read
	End  *pb.InputEnd
}

// Frame is one message of a tunnel from node to edge: a body, or another kind when Msg isn't nil.
type Frame struct {
	Seq  uint64
	Body []byte // valid until the next read
	Msg  *pb.ProviderTunnelFrame
}

// ReadOpen reads the first message of a work stream within limit; node only. When nothing whole came in time it
// returns os.ErrDeadlineExceeded.
func (s *Stream) ReadOpen(limit time.Duration) (*pb.WorkOpen, error) {
	s.setDeadline(reading, time.Now().Add(limit))
	b, err := s.next(MaxOpen)
	s.setDeadline(reading, time.Time{})
	if err != nil {
		return nil, err
	}
	m := new(pb.WorkOpen)
	if err := unmarshal(b, m); err != nil {
		return nil, err
	}
	if m.Work == nil {
		return nil, frameErrorf(FrameUnknown, "WorkOpen of an unknown kind")
	}
	return m, nil
}

// ReadInput reads the next input; node only.
func (s *Stream) ReadInput() (Input, error) {
	b, err := s.next(MaxInput)
	if err != nil {
		return Input{}, err
	}
	return decodeInput(b)
}

// ReadTunnel reads the next frame of a tunnel; edge only.
func (s *Stream) ReadTunnel() (Frame, error) {
	b, err := s.next(MaxTunnelFrame)
	if err != nil {
		return Frame{}, err
	}
	return decodeTunnel(b)
}

// ReadEvent reads the next event of a run; edge only.
func (s *Stream) ReadEvent() (*pb.RunEvent, error) {
	b, err := s.next(MaxRunEvent)
	if err != nil {
		return nil, err
	}
	m := new(pb.RunEvent)
	if err := unmarshal(b, m); err != nil {
		return nil, err
	}
	if m.Event == nil {
		return nil, frameErrorf(FrameUnknown, "RunEvent of an unknown kind")
	}
	return m, nil
}

// ReadCommand reads the next message of a command; edge only.
func (s *Stream) ReadCommand() (*pb.NodeCommandResponse, error) {
	b, err := s.next(MaxCommandResponse)
	if err != nil {
		return nil, err
	}
	m := new(pb.NodeCommandResponse)
	if err := unmarshal(b, m); err != nil {
		return nil, err
	}
	if m.Response == nil {
		return nil, frameErrorf(FrameUnknown, "NodeCommandResponse of an unknown kind")
	}
	return m, nil
}

// Buffered reports whether a whole further frame is in the reader, so that it doesn't pay to flush yet. Only the
// reading goroutine may ask.
func (s *Stream) Buffered() bool { return s.in.buffered() }

// smallMessage is the room that is kept for a message whose size isn't known; a larger one grows the buffer.
const smallMessage = 512

// Append encodes m into the stream's pending buffer. The cap of its kind is checked; on an error nothing was added.
func (s *Stream) Append(m proto.Message) error {
	limit := workCap(m)
	if limit == 0 {
		return frameErrorf(FrameUnknown, "%s doesn't belong on a work stream", m.ProtoReflect().Descriptor().Name())
	}
	s.reserve(smallMessage)
	b, err := appendFrame(s.out.b, m, limit)
	s.out.b = b
	return err
}

// AppendBody encodes p as a body frame into the pending buffer; the bytes are the same for WorkInput and
// ProviderTunnelFrame. p is at most [MaxBody] bytes and isn't kept.
func (s *Stream) AppendBody(seq uint64, p []byte) error {
	if len(p) > MaxBody {
		return frameErrorf(FrameTooLarge, "body of %d bytes over the cap of %d", len(p), MaxBody)
	}
	s.reserve(prefixLen + len(p) + 32)
	s.out.b = appendBody(s.out.b, seq, p)
	return nil
}

// reserve sees to it that n more bytes fit into the pending buffer, in a buffer of the pool's sizes.
func (s *Stream) reserve(n int) {
	old := s.out
	if old != nil && len(old.b)+n <= cap(old.b) {
		return
	}
	var have []byte
	if old != nil {
		have = old.b
	}
	s.out = s.link.buffers.get(len(have) + n)
	s.out.b = append(s.out.b[:0], have...)
	s.link.buffers.put(old)
}

// Flush writes what is pending as one write. It waits for the gate and for the stream's window; Cancel ends both, and
// so does Interrupt, after which what wasn't written is pending still.
func (s *Stream) Flush() error {
	if s.out == nil {
		return nil
	}
	rest, err := s.send(s.out.b)
	if err == ErrInterrupted {
		s.out.b = s.out.b[:copy(s.out.b, rest)]
		return err
	}
	s.link.buffers.put(s.out)
	s.out = nil
	return err
}

// Write is Append and Flush.
func (s *Stream) Write(m proto.Message) error {
	if err := s.Append(m); err != nil {
		return err
	}
	return s.Flush()
}

// send writes p by the write rule of the wire contract. The stream's write deadline stands in the past, so that the
// multiplexer never waits for window; on ErrTimeout its n is exact. Bytes are admitted by the gate before they go to
// the multiplexer, and nothing of the gate is held while the window is awaited: a reader that stalls would otherwise
// stop all streams of the link (it did). It returns what wasn't written.
func (s *Stream) send(p []byte) ([]byte, error) {
	if s.closed.Load() {
		return p, ErrCancelled
	}
	c, k, halt := s.link.conn, classOf(len(p)), s.halting()
	for len(p) > 0 {
		n := min(len(p), piece)
		if err := c.acquire(halt, &s.flow, k, n); err != nil {
			return p, s.halted(err)
		}
		sent, err := s.mux.Write(p[:n])
		c.back(&s.flow, k, n-sent)
		p = p[sent:]
		if err == yamux.ErrTimeout && len(p) > 0 {
			c.expect(&s.flow, 1)
			sent, err = s.awaitWindow(p[:1])
			c.force(&s.flow, k, sent, 1-sent)
			p = p[sent:]
		}
		if err != nil && err != yamux.ErrTimeout {
			return p, s.failure(err)
		}
	}
	return nil, nil
}

// awaitWindow writes one byte as soon as the window is open. No limit stands on the wait: Cancel, a reset or the
// link's end finish it, and whoever drives the stream has the limits.
func (s *Stream) awaitWindow(p []byte) (int, error) {
	s.setDeadline(writing, time.Time{})
	n, err := s.mux.Write(p)
	s.setDeadline(writing, past())
	return n, err
}
