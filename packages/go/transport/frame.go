package transport

import (
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
)

// The range of protocol versions that this build speaks.
const (
	ProtocolMin = 1
	ProtocolMax = 1
)

// Caps of the frames, in bytes of the message behind its length prefix. A length is checked against its cap before
// memory is reserved for it.
const (
	MaxRegisterRequest  = 16 << 10
	MaxRegisterResponse = 1 << 20
	MaxControl          = 1 << 20
	MaxTunnelFrame      = 128 << 10
	MaxRunEvent         = 32 << 10
	MaxCommandResponse  = 1 << 20
	MaxOpen             = 64 << 10
	MaxInput            = 64 << 10
	// MaxBody is the longest body that one frame carries: with every header around it the frame stays under 16 KiB,
	// so that a control message never waits behind more.
	MaxBody = 16320
)

// prefixLen is the length of a frame's length prefix.
const prefixLen = 4

// FrameFault is what is wrong with a frame.
type FrameFault uint8

// The faults.
const (
	FrameEmpty     FrameFault = 1 // length 0; no message of the protocol is empty
	FrameTooLarge  FrameFault = 2 // over the cap of its stream or of its kind
	FrameMalformed FrameFault = 3 // not a message of the type that is due here
	FrameUnknown   FrameFault = 4 // a kind that this version doesn't know, on a work stream
)

// FrameError says that the peer broke the framing (or that this side was asked to); it is never an I/O error.
type FrameError struct {
	Fault FrameFault
	Text  string
}

// Error implements error.
func (e *FrameError) Error() string { return "frame: " + e.Text }

func frameErrorf(fault FrameFault, format string, args ...any) *FrameError {
	return &FrameError{Fault: fault, Text: fmt.Sprintf(format, args...)}
}

// WriteMessage writes m as one frame with one Write. It is for the bare connection of the handshake; the caller sets
// the deadline.
func WriteMessage(w io.Writer, m proto.Message) error {
	frame, err := appendFrame(nil, m, maxAnyFrame)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// maxAnyFrame is the largest cap of all.
const maxAnyFrame = 1 << 20

// ReadMessage reads one frame of at most max bytes into m. It never reads a byte more than the frame, since what
// follows may belong to the multiplexer. It returns io.EOF when the connection ended before the frame,
// io.ErrUnexpectedEOF when it ended inside, and a *FrameError when the frame is at fault.
func ReadMessage(r io.Reader, max int, m proto.Message) error {
	var prefix [prefixLen]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return err
	}
	n, err := frameLength(prefix[:], max)
	if err != nil {
		return err
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	return unmarshal(b, m)
}

// frameLength decodes and checks a length prefix.
func frameLength(prefix []byte, max int) (int, error) {
	n := binary.BigEndian.Uint32(prefix)
	if n == 0 {
		return 0, frameErrorf(FrameEmpty, "length 0")
	}
	if uint64(n) > uint64(max) {
		return 0, frameErrorf(FrameTooLarge, "length %d over the cap of %d bytes", n, max)
	}
	return int(n), nil
}

// appendFrame appends m with its length prefix to b. On an error b is returned as it was.
func appendFrame(b []byte, m proto.Message, max int) ([]byte, error) {
	start := len(b)
	out, err := proto.MarshalOptions{}.MarshalAppend(append(b, 0, 0, 0, 0), m)
	if err != nil {
		return b, frameErrorf(FrameMalformed, "encode %s: %v", m.ProtoReflect().Descriptor().Name(), err)
	}
	n := len(out) - start - prefixLen
	switch {
	case n == 0:
		return b, frameErrorf(FrameEmpty, "%s is empty", m.ProtoReflect().Descriptor().Name())
	case n > max:
		return b, frameErrorf(FrameTooLarge, "%s of %d bytes over the cap of %d", m.ProtoReflect().Descriptor().Name(), n, max)
	}
	binary.BigEndian.PutUint32(out[start:], uint32(n))
	return out, nil
}

func unmarshal(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return frameErrorf(FrameMalformed, "not a %s", m.ProtoReflect().Descriptor().Name())
	}
	return nil
}
