package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"iop/apps/edge/internal/node"
	"iop/packages/go/execution"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

// serveConn owns a registered connection. It returns when the connection is fenced and everything that served it has
// ended.
func (s *Server) serveConn(ctx context.Context, c *node.Connection) {
	if !c.Start() {
		return
	}
	s.tellSlots(c)
	var monitor sync.WaitGroup
	monitor.Go(func() { s.monitor(ctx, c) })
	if c.Peer != nil {
		monitor.Go(func() { s.guard(c) })
	}
	// Not ctx: the end of the server is a fence with a goodbye, not a cut.
	_ = c.Link.Run(context.WithoutCancel(ctx))
	s.linkEnded(c)
	if s.cfg.Leases != nil && c.Lends() {
		s.cfg.Leases.Gone(c.NodeID, c.Generation)
	}
	monitor.Wait()
}

// monitor keeps a connection's timers. It ends with the link.
func (s *Server) monitor(ctx context.Context, c *node.Connection) {
	overdue := time.NewTimer(s.cfg.Timers.ReadyLimit)
	defer overdue.Stop()
	status := time.NewTicker(s.cfg.Timers.Status)
	defer status.Stop()
	ending := ctx.Done()
	for n := 1; ; {
		select {
		case <-c.Down():
			s.linkEnded(c)
			return
		case <-ending:
			s.cfg.Registry.Fence(c, node.FenceEdgeDraining, "the edge shuts down")
			ending = nil
		case <-overdue.C:
			c.ReadyOverdue()
		case <-status.C:
			s.askStatus(ctx, c, n)
			n++
		}
	}
}

// linkEnded fences a connection whose link is over.
func (s *Server) linkEnded(c *node.Connection) {
	reason, text, over := c.Ended()
	if !over {
		reason, text = node.FenceLost, "the connection ended"
	}
	s.cfg.Registry.Fence(c, reason, text)
}

// askStatus sends a TRANSPORT_STATUS command the way that work goes: heartbeats alone would show a node as well whose
// work streams nobody serves. It takes at most the dispatch limit. A connection that has all its commands in work needs
// no further one: whoever sent those finds out.
func (s *Server) askStatus(ctx context.Context, c *node.Connection, n int) {
	if st := c.State(); st != node.StateReady && st != node.StateUnresponsive {
		return
	}
	leave, ok := c.TryCommand()
	if !ok {
		return
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timers.Dispatch)
	defer cancel()
	id := fmt.Sprintf("status-%d-%d", c.Generation, n)
	answer, err := command(ctx, c, &pb.NodeCommandRequest{CommandId: id, Type: pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS})
	switch {
	case err == nil && answer.GetRejected() == nil:
		c.CommandAccepted()
	case err == nil, errors.Is(err, link.ErrLinkDown), errors.Is(ctx.Err(), context.Canceled):
		// rejected is an answer, though not the one that makes a node usable; the rest is the end of the connection
	default:
		c.SendCancel(id, execution.CauseDeadline)
		c.CommandTimeout()
	}
}

// errNoAnswer says that a command's stream ended before the node had answered.
var errNoAnswer = errors.New("the command was not answered")

// command sends one command on a work stream of its own and returns the first answer: accepted, rejected, or a
// result at once. It waits for the result, too, so that the node isn't told to cancel what it is about to answer.
func command(ctx context.Context, c *node.Connection, req *pb.NodeCommandRequest) (*pb.NodeCommandResponse, error) {
	st, err := c.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	stop := context.AfterFunc(ctx, st.Cancel)
	defer stop()
	open := &pb.WorkOpen{ConnectionGeneration: c.Generation, Attempt: 1, Work: &pb.WorkOpen_Command{Command: req}}
	if err := st.Write(open); err != nil {
		return nil, err
	}
	answer, err := st.ReadCommand()
	if err != nil {
		return nil, err
	}
	switch {
	case answer.GetError() != nil:
		return nil, errNoAnswer
	case answer.GetAccepted() != nil:
		_, _ = st.ReadCommand() // it accepted; what the result says is only for people
	}
	return answer, nil
}
