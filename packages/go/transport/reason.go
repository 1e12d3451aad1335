package transport

import (
	"errors"
	"io"

	pb "iop/proto/iop"
)

// ErrLinkDown says that the link is over; a *[LinkError] is one, too.
var ErrLinkDown = errors.New("link down")

// ErrCancelled says that this side cancelled or closed the stream.
var ErrCancelled = errors.New("stream cancelled")

// Reason is why a link ended. It doesn't travel.
type Reason uint8

// The reasons. The link itself finds the first six; the rest are for callers of [Link.Close].
const (
	ReasonLost            Reason = 1 // an I/O error, or the peer closed the connection
	ReasonDead            Reason = 2 // silence, or no write progress, for the dead limit
	ReasonLeft            Reason = 3 // the peer said Goodbye
	ReasonProtocol        Reason = 4 // the peer broke the protocol
	ReasonSendOverflow    Reason = 5 // control messages piled up over the cap
	ReasonClosed          Reason = 6 // this side closed it
	ReasonSuperseded      Reason = 7 // a newer connection of the same node took its place
	ReasonUnconfirmedRun  Reason = 8 // the node didn't confirm the end of a run
	ReasonEdgeDraining    Reason = 9
	ReasonNodeDisabled    Reason = 10
	ReasonIdentityExpired Reason = 11
)

// String returns the stable name that events, metrics and logs show.
func (r Reason) String() string {
	switch r {
	case ReasonLost:
		return "lost"
	case ReasonDead:
		return "dead"
	case ReasonLeft:
		return "left"
	case ReasonProtocol:
		return "protocol"
	case ReasonSendOverflow:
		return "send_overflow"
	case ReasonClosed:
		return "closed"
	case ReasonSuperseded:
		return "superseded"
	case ReasonUnconfirmedRun:
		return "unconfirmed_run"
	case ReasonEdgeDraining:
		return "edge_draining"
	case ReasonNodeDisabled:
		return "node_disabled"
	case ReasonIdentityExpired:
		return "identity_expired"
	}
	return "unknown"
}

// orderly reports whether what is pending is still worth sending when the link ends for r.
func (r Reason) orderly() bool {
	switch r {
	case ReasonLost, ReasonDead, ReasonProtocol, ReasonSendOverflow:
		return false
	}
	return true
}

// LinkError is how a link ended.
type LinkError struct {
	Reason  Reason
	Text    string
	Goodbye *pb.Goodbye // what the peer said, with ReasonLeft
	Err     error       // the I/O error beneath, if any
}

// Error implements error.
func (e *LinkError) Error() string {
	if e.Text == "" {
		return "link " + e.Reason.String()
	}
	return "link " + e.Reason.String() + ": " + e.Text
}

// Is makes every LinkError an [ErrLinkDown].
func (e *LinkError) Is(target error) bool { return target == ErrLinkDown }

// Unwrap returns the error beneath.
func (e *LinkError) Unwrap() error { return e.Err }

// connFault says how a link ends when its connection fails.
func connFault(err error) *LinkError {
	switch {
	case err == errOverflow:
		return &LinkError{Reason: ReasonSendOverflow, Text: err.Error()}
	case err == errSession, err == errPing:
		return &LinkError{Reason: ReasonProtocol, Text: err.Error()}
	case err == io.EOF, err == io.ErrUnexpectedEOF: // the latter under TLS, where nobody says goodbye to the records
		return &LinkError{Reason: ReasonLost, Text: "the peer closed the connection", Err: err}
	}
	return &LinkError{Reason: ReasonLost, Text: err.Error(), Err: err}
}
