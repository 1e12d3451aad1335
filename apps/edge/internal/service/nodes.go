package service

import (
	"context"

	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
)

// Nodes finds live node connections.
type Nodes interface {
	// Lookup returns the connection of this node and generation, nil unless it is the current one and not fenced.
	Lookup(nodeID string, generation uint64) Node
	// Connected returns the ids of the nodes that have a connection now.
	Connected() []string
}

// Node is one node connection, as far as a run needs it.
type Node interface {
	// Open opens a work stream. It honours ctx.
	Open(ctx context.Context) (*transport.Stream, error)
	// SendCancel asks the node to end a run. It never blocks.
	SendCancel(runID string, cause execution.CancelCause)
	// Recipient returns to whom leases for the connection are sealed, and the number of the projection that its node
	// works by. False: there are none for it.
	Recipient() (to credentiallease.Recipient, projection uint64, proven bool)
	// Background reports whether the node can go on with a run without its connection.
	Background() bool
	// Traces reports whether the node takes a place in a trace with an open.
	Traces() bool
	// Down is closed when the connection is over.
	Down() <-chan struct{}
	// Dispatched tells that the node answered an open.
	Dispatched()
	// DispatchTimeout tells that it didn't; after a few in a row the connection gets no work.
	DispatchTimeout()
}
