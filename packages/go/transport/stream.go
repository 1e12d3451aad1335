package transport

import (
	"time"

	"google.golang.org/protobuf/proto"

	pb "iop/proto/iop"
)

// Stream is one work stream.
type Stream struct{}

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

// Append encodes m into the stream's pending buffer.
func (s *Stream) Append(m proto.Message) error { panic("not built yet") }

// AppendBody encodes a body frame into the pending buffer.
func (s *Stream) AppendBody(seq uint64, p []byte) error { panic("not built yet") }

// Flush writes what is pending.
func (s *Stream) Flush() error { panic("not built yet") }

// Write is Append and Flush.
func (s *Stream) Write(m proto.Message) error { panic("not built yet") }

// ReadOpen reads the first message of a work stream; node only.
func (s *Stream) ReadOpen(limit time.Duration) (*pb.WorkOpen, error) { panic("not built yet") }

// ReadInput reads the next input; node only.
func (s *Stream) ReadInput() (Input, error) { panic("not built yet") }

// ReadTunnel reads the next frame of a tunnel; edge only.
func (s *Stream) ReadTunnel() (Frame, error) { panic("not built yet") }

// ReadEvent reads the next event of a run; edge only.
func (s *Stream) ReadEvent() (*pb.RunEvent, error) { panic("not built yet") }

// ReadCommand reads the next message of a command; edge only.
func (s *Stream) ReadCommand() (*pb.NodeCommandResponse, error) { panic("not built yet") }

// Buffered reports whether a whole further frame is in the reader.
func (s *Stream) Buffered() bool { panic("not built yet") }

// Cancel wakes blocked reads and writes for good. It sends nothing.
func (s *Stream) Cancel() { panic("not built yet") }

// Close hands the stream to the reaper and returns at once.
func (s *Stream) Close() { panic("not built yet") }

// Link returns the link that the stream belongs to.
func (s *Stream) Link() *Link { panic("not built yet") }
