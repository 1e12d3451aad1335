package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// The bounds of the commands of one connection.
const (
	maxCommands       = 4  // in work at once: a node refuses a fifth
	maxCommandWaiters = 64 // who waits for their turn
)

// commandTurns counts a connection's commands, the edge's own among them.
type commandTurns struct {
	turns   chan struct{} // one token for each that is in work
	waiting atomic.Int64
}

func newCommandTurns() commandTurns { return commandTurns{turns: make(chan struct{}, maxCommands)} }

// EnterCommand waits for its turn among the commands of the connection: in the order of arrival, as far as the runtime
// keeps it. The caller gives it back by leave once the node can have forgotten the command; a second time does nothing.
// An error is ctx's cause, an overloaded *execution.Failure, or transport.ErrLinkDown.
func (c *Connection) EnterCommand(ctx context.Context) (leave func(), err error) {
	if leave, ok := c.TryCommand(); ok {
		return leave, nil
	}
	if c.asking.waiting.Add(1) > maxCommandWaiters {
		c.asking.waiting.Add(-1)
		return nil, execution.Failf(execution.CodeOverloaded, execution.OriginEdge, "%d commands wait for this node", maxCommandWaiters)
	}
	defer c.asking.waiting.Add(-1)
	select {
	case c.asking.turns <- struct{}{}:
		return c.leaveCommand(), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.Down():
		return nil, transport.ErrLinkDown
	}
}

// TryCommand is EnterCommand for a command that needn't be sent when others are.
func (c *Connection) TryCommand() (leave func(), ok bool) {
	select {
	case c.asking.turns <- struct{}{}:
		return c.leaveCommand(), true
	default:
		return nil, false
	}
}

func (c *Connection) leaveCommand() func() { return sync.OnceFunc(func() { <-c.asking.turns }) }

// OllamaAPI reports whether the node knows the command OLLAMA_API.
func (c *Connection) OllamaAPI() bool {
	return slices.Contains(c.Features, pb.Feature_FEATURE_OLLAMA_COMMAND)
}

// Has reports whether the node was told of an adapter, and whether its provider can be asked.
func (c *Connection) Has(adapter string) (told, available bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.st.adapters {
		if a := &c.st.adapters[i]; a.Name == adapter {
			return true, a.Available
		}
	}
	return false, false
}
