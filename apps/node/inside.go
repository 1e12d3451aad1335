package node

import (
	"iop/apps/node/internal/node"
	"iop/apps/node/internal/router"
	"iop/apps/node/internal/transport"
	link "iop/packages/go/transport"
)

// The words of the node's inside, for who can't import the packages that they come from.
type (
	// AdapterSpec is an adapter as an Edge's projection describes it.
	AdapterSpec = router.Spec
	// Work is what runs for one Edge.
	Work = node.Snapshot
	// LinkStatus is how the link to one Edge is.
	LinkStatus = transport.Status
	// ClockReading is what the machine's clocks say at one moment.
	ClockReading = link.ClockReading
)

// Inside is a running node: a simulation looks at what its surfaces don't show. It is an [Options].Inside's until Run
// returns.
type Inside struct{ p *program }

// Work returns what runs for each Edge.
func (i *Inside) Work() []Work { return i.p.work() }

// Links returns how the link to each Edge is.
func (i *Inside) Links() []LinkStatus { return i.p.linkStates() }
