// Package node is the node program: it dials its Edges, keeps one link to each, and runs what they send on the
// providers next to it. [Run] builds everything top to bottom; it is the only function that knows the whole
// configuration.
package node

import (
	"context"
	"net"

	"github.com/rs/zerolog"

	"iop/packages/go/config"
)

// Options is what a caller of [Run] may hand in beside the configuration. The zero value is usable.
type Options struct {
	// Log takes the node's log.
	Log zerolog.Logger
	// Version is what the node calls itself at registration and in its status; "" is "dev".
	Version string
	// OnReady is called each time that an Edge confirmed this node as dispatchable, with the Edge's address. It must
	// not block.
	OnReady func(edge string)
	// OnAdmin is called with the address of the admin listener, once it listens.
	OnAdmin func(addr net.Addr)
	// Kill ends Run at once, whatever is running; a second signal closes it. nil never does.
	Kill <-chan struct{}
}

// Run keeps the node's links until ctx is cancelled, then drains: it takes no new work, lets what runs finish for
// timers.drain, cancels the rest, takes leave of its Edges and returns nil. An error means that it couldn't start.
func Run(ctx context.Context, cfg *config.Node, opts Options) error { panic("not written yet") }
