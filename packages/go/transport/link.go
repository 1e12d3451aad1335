package transport

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// Config tunes a link. The zero value of a duration is its default.
type Config struct {
	Heartbeat   time.Duration // between two heartbeats, 30 s
	Dead        time.Duration // silence, or no write progress, that ends the link, 45 s
	ControlOpen time.Duration // edge: until the node has opened the control stream, 5 s
	StreamReset time.Duration // from a stream's Close until it is reset if the peer didn't close it, 10 s
	Log         zerolog.Logger
}

// EdgeHandler takes what a node says. The link calls it from the one control reader: it must return at once and never
// block.
type EdgeHandler interface {
	// Control takes every message but heartbeats. A Goodbye is passed on, then the link ends with ReasonLeft.
	Control(m *pb.NodeControl)
}

// NodeHandler takes what the edge says and asks for.
type NodeHandler interface {
	// Control is like EdgeHandler.Control.
	Control(m *pb.EdgeControl)
	// Work handles one work stream. The link calls it in a goroutine of its own; the handler closes s, and Run doesn't
	// return before the handler did.
	Work(s *Stream)
}

// ErrLinkDown says that the link is over. A *LinkError is one, too.
var ErrLinkDown = errors.New("link down")

// ErrCancelled says that this side cancelled or closed the stream.
var ErrCancelled = errors.New("stream cancelled")

// Reason is why a link ended.
type Reason uint8

// The reasons.
const (
	ReasonLost            Reason = 1
	ReasonDead            Reason = 2
	ReasonLeft            Reason = 3
	ReasonProtocol        Reason = 4
	ReasonSendOverflow    Reason = 5
	ReasonClosed          Reason = 6
	ReasonSuperseded      Reason = 7
	ReasonUnconfirmedRun  Reason = 8
	ReasonEdgeDraining    Reason = 9
	ReasonNodeDisabled    Reason = 10
	ReasonIdentityExpired Reason = 11
)

// LinkError is how a link ended.
type LinkError struct {
	Reason  Reason
	Text    string
	Goodbye *pb.Goodbye // what the peer said, with ReasonLeft
	Err     error       // the I/O error beneath, if any
}

// Error implements error.
func (e *LinkError) Error() string { panic("not built yet") }

// Status is a snapshot of a link for people.
type Status struct {
	OpenStreams int
	Since       time.Time
	LastRead    time.Time
	RTT         time.Duration // of the last heartbeat that was answered, 0 = none yet
	BytesIn     int64
	BytesOut    int64
	Pending     int // bytes not yet handed to the kernel
}

// Link is one multiplexed connection between an edge and a node.
type Link struct{}

// NewEdgeLink returns the edge's side of a registered connection. It starts nothing.
func NewEdgeLink(c net.Conn, cfg Config, h EdgeHandler) *Link { panic("not built yet") }

// NewNodeLink returns the node's side of a registered connection. It starts nothing.
func NewNodeLink(c net.Conn, cfg Config, h NodeHandler) *Link { panic("not built yet") }

// Run runs the link until it is over and every goroutine that it started has ended, the Work handlers among them.
func (l *Link) Run(ctx context.Context) error { panic("not built yet") }

// Ready is closed once the control stream is open.
func (l *Link) Ready() <-chan struct{} { panic("not built yet") }

// Down is closed at the first moment at which the link is over.
func (l *Link) Down() <-chan struct{} { panic("not built yet") }

// Err returns the *LinkError once Down is closed, nil before.
func (l *Link) Err() error { panic("not built yet") }

// Close begins the link's end and doesn't wait. The first reason wins.
func (l *Link) Close(r Reason) { panic("not built yet") }

// Open opens a work stream; edge only.
func (l *Link) Open(ctx context.Context) (*Stream, error) { panic("not built yet") }

// Probe asks the peer for a sign of life.
func (l *Link) Probe(ctx context.Context) error { panic("not built yet") }

// Status returns a snapshot for people.
func (l *Link) Status() Status { panic("not built yet") }

// SendCancel asks the node to cancel an execution; edge only.
func (l *Link) SendCancel(runID string, cause execution.CancelCause) { panic("not built yet") }

// SendReadyAck confirms a Ready; edge only.
func (l *Link) SendReadyAck(projection uint64, dispatchable bool) { panic("not built yet") }

// SendRefresh sends a new projection, the latest wins; edge only.
func (l *Link) SendRefresh(p *pb.NodeConfigPayload) { panic("not built yet") }

// SendDrainNotice tells the node that the edge drains; edge only.
func (l *Link) SendDrainNotice(n *pb.DrainNotice) { panic("not built yet") }

// SendRunEndedAck confirms ends of background runs; edge only.
func (l *Link) SendRunEndedAck(ids ...string) { panic("not built yet") }

// SendReady sends the node's full state, built when it is written; node only.
func (l *Link) SendReady(build func() *pb.Ready) { panic("not built yet") }

// SendStatus sends the node's state, built when it is written; node only.
func (l *Link) SendStatus(build func() *pb.NodeStatus) { panic("not built yet") }

// SendRunEnded says that an execution is over; node only.
func (l *Link) SendRunEnded(e *pb.RunEnd) { panic("not built yet") }

// SendCancelResult answers a cancel; node only.
func (l *Link) SendCancelResult(r *pb.CancelResult) { panic("not built yet") }

// SendEvent tells the edge of an event, at most 1/s with a burst of 20; node only.
func (l *Link) SendEvent(e *pb.EdgeNodeEvent) { panic("not built yet") }

// SendGoodbye says why this side leaves; the link ends after it was flushed.
func (l *Link) SendGoodbye(g *pb.Goodbye) { panic("not built yet") }
