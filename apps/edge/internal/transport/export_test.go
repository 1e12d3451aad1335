package transport

import (
	"testing"

	"iop/apps/edge/internal/node"
	wait "iop/packages/go/patience"
	pb "iop/proto/iop"
)

// ControlOf returns what takes a connection's control messages, for a reader that is slower than the fence.
func ControlOf(s *Server, c *node.Connection) func(*pb.NodeControl) {
	return newControl(s, c).Control
}

// Announced announces a recipient key again and again, and returns how often the edge made a challenge of it.
func Announced(t testing.TB, s *Server, c *node.Connection, public []byte, times int) (asked int) {
	h := newControl(s, c)
	for range times {
		h.recipient(&pb.RecipientKey{PublicKey: public})
		wait.Until(t, "the computation's end", func() bool { return !h.asking.Load() })
		if h.challenge.Swap(nil) != nil {
			asked++
		}
	}
	return asked
}
