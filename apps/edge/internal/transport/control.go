package transport

import (
	"sync/atomic"

	"golang.org/x/time/rate"

	"iop/apps/edge/internal/node"
	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/faultpoint"
	pb "iop/proto/iop"
)

// control takes what a node says on its control stream. It is called by the link's one reader and never blocks.
type control struct {
	s *Server
	c *node.Connection

	keys      *rate.Limiter                             // of recipient keys that are looked at
	asking    atomic.Bool                               // a challenge is being made
	challenge atomic.Pointer[credentiallease.Challenge] // that waits for its answer
}

func newControl(s *Server, c *node.Connection) *control {
	return &control{s: s, c: c, keys: rate.NewLimiter(rate.Every(keyEvery), keyBurst)}
}

// Control implements the link's EdgeHandler.
func (h *control) Control(m *pb.NodeControl) {
	switch m := m.GetMessage().(type) {
	case *pb.NodeControl_Ready:
		h.ready(m.Ready)
	case *pb.NodeControl_NodeStatus:
		h.c.Status(m.NodeStatus)
	case *pb.NodeControl_RunEnded:
		h.runEnded(m.RunEnded)
	case *pb.NodeControl_Event:
		h.c.NodeEvent(m.Event)
	case *pb.NodeControl_CancelResult:
		// what became of a cancel shows in RunEnded; this is for people who read logs
		h.c.Log().Debug().Str("run_id", m.CancelResult.GetRunId()).
			Stringer("result", m.CancelResult.GetResult()).Msg("cancel answered")
	case *pb.NodeControl_RevokeAck:
		h.revokeAck(m.RevokeAck)
	case *pb.NodeControl_RecipientKey:
		h.recipient(m.RecipientKey)
	case *pb.NodeControl_RecipientProof:
		h.proof(m.RecipientProof)
	case *pb.NodeControl_Goodbye:
		h.s.cfg.Registry.Fence(h.c, node.FenceLeft, goodbyeText(m.Goodbye))
	default:
		h.c.Unknown() // newer than this version, or not negotiated
	}
}

// ready takes a node's full state. The scheduler has adopted what runs there before the runs learn of it.
func (h *control) ready(m *pb.Ready) {
	if err := h.c.Ready(m); err != nil {
		h.s.cfg.Registry.Fence(h.c, node.FenceProtocol, err.Error())
		return
	}
	if h.s.cfg.Runs != nil && !h.c.Over() {
		h.s.cfg.Runs.Adopted(h.c.NodeID, h.c.Generation, m.GetRunning())
	}
}

// runEnded frees the places of executions that ended. Ends of background runs are confirmed, known or not: the node
// repeats them until they are. On a connection that is over nothing is believed, and nothing could be confirmed.
func (h *control) runEnded(m *pb.RunEnded) {
	var confirm []string
	for _, e := range m.GetEnds() {
		h.s.cfg.Faults.At(faultpoint.EdgeRunEnded, e.GetRunId())
		held := h.c.RunEnded(e)
		if h.c.Over() {
			continue
		}
		h.leaseEnded(e)
		if h.s.cfg.Runs != nil && (held || e.GetBackground()) {
			h.s.cfg.Runs.RunEnded(h.c.NodeID, h.c.Generation, e, held)
		}
		if e.GetBackground() && config.ValidID(e.GetRunId()) {
			confirm = append(confirm, e.GetRunId())
		}
	}
	if len(confirm) > 0 {
		h.c.Link.SendRunEndedAck(confirm...)
	}
}

func goodbyeText(g *pb.Goodbye) string {
	switch g.GetCode() {
	case pb.GoodbyeCode_GOODBYE_CODE_NODE_DRAINING:
		return "the node has drained"
	case pb.GoodbyeCode_GOODBYE_CODE_KILLED:
		return "the node was told to end at once"
	case pb.GoodbyeCode_GOODBYE_CODE_PROTOCOL:
		return "the node says that the edge broke the protocol: " + g.GetText()
	}
	return "the node said goodbye"
}
