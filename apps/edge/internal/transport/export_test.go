package transport

import (
	"iop/apps/edge/internal/node"
	pb "iop/proto/iop"
)

// ControlOf returns what takes a connection's control messages, for a reader that is slower than the fence.
func ControlOf(s *Server, c *node.Connection) func(*pb.NodeControl) {
	return (&control{s: s, c: c}).Control
}
