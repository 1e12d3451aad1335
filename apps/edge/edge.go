// Package edge is the edge program: it lets nodes register, admits callers' requests, and carries each to a node and
// its answer back. [Run] builds everything top to bottom; it is the only function that knows the whole configuration.
package edge

import (
	"context"
	"net"

	"github.com/rs/zerolog"

	"iop/packages/go/config"
)

// Addrs are the addresses that an edge listens on.
type Addrs struct {
	Nodes net.Addr
	HTTP  net.Addr
	Admin net.Addr // nil = off
}

// Options is what a caller of [Run] may hand in beside the configuration. The zero value is usable.
type Options struct {
	// Log takes the edge's log.
	Log zerolog.Logger
	// Version is what the edge calls itself; "" is "dev".
	Version string
	// OnListen is called once, when all listeners are open.
	OnListen func(Addrs)
	// Kill ends Run at once, whatever is running; a second signal closes it. nil never does.
	Kill <-chan struct{}
}

// Run serves until ctx is cancelled, then drains: new requests are refused, nodes are told, what runs may finish for
// timers.drain, the rest ends as edge_draining. It returns nil after a drain. An error means that it couldn't start, or
// that a listener broke.
func Run(ctx context.Context, cfg *config.Edge, opts Options) error { panic("not written yet") }
