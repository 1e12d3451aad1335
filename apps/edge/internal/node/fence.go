package node

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/events"
	"iop/packages/go/faultpoint"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// FenceReason is why a connection is over. The names are stable: events, logs and metrics show them.
type FenceReason string

// The reasons.
const (
	FenceLost            FenceReason = "lost"       // EOF or an error of the connection
	FenceSuperseded      FenceReason = "superseded" // a newer connection of the same node took its place
	FenceDead            FenceReason = "dead"       // silent for longer than the dead limit
	FenceLeft            FenceReason = "left"       // the node said goodbye
	FenceProtocol        FenceReason = "protocol"   // the node broke the rules
	FenceSendOverflow    FenceReason = "send_overflow"
	FenceUnconfirmedRun  FenceReason = "unconfirmed_run"
	FenceEdgeDraining    FenceReason = "edge_draining"
	FenceNodeDisabled    FenceReason = "node_disabled"
	FenceIdentityExpired FenceReason = "identity_expired"
)

// FenceReasons are all of them.
func FenceReasons() []FenceReason {
	return []FenceReason{FenceLost, FenceSuperseded, FenceDead, FenceLeft, FenceProtocol, FenceSendOverflow, FenceUnconfirmedRun,
		FenceEdgeDraining, FenceNodeDisabled, FenceIdentityExpired}
}

// fences counts connections by why they ended.
type fences struct {
	mu sync.Mutex
	n  map[FenceReason]uint64
}

func (f *fences) count(why FenceReason) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == nil {
		f.n = make(map[FenceReason]uint64)
	}
	f.n[why]++
}

// Ended returns how many connections have ended since the start, by why.
func (r *Registry) Ended() map[FenceReason]uint64 {
	r.ended.mu.Lock()
	defer r.ended.mu.Unlock()
	return maps.Clone(r.ended.n)
}

// FenceReasonOf translates how a link ended by itself.
func FenceReasonOf(r transport.Reason) FenceReason {
	switch r {
	case transport.ReasonDead:
		return FenceDead
	case transport.ReasonLeft:
		return FenceLeft
	case transport.ReasonProtocol:
		return FenceProtocol
	case transport.ReasonSendOverflow:
		return FenceSendOverflow
	}
	return FenceLost
}

// Ended returns why the link is over by itself, false while it isn't or never ran.
func (c *Connection) Ended() (FenceReason, string, bool) {
	var ended *transport.LinkError
	if !errors.As(c.Link.Err(), &ended) {
		return "", "", false
	}
	return FenceReasonOf(ended.Reason), ended.Text, true
}

// Fence ends a connection: whatever it is asked again or later, it happens once. In this order the connection leaves
// the registry, its link is closed (which wakes all its runs: they watch Down), its places are freed, and the bus is
// told. Only the first step holds the registry's lock. It reports whether this call did it.
func (r *Registry) Fence(c *Connection, reason FenceReason, text string) bool {
	if !c.over.CompareAndSwap(false, true) {
		return false
	}
	text = cut(text, maxText)
	r.remove(c, string(reason)+": "+text)
	r.cfg.Faults.At(faultpoint.EdgeFence, c.NodeID)
	c.close(reason, text)
	// With the order held nothing that was seen before the fence can be published after it.
	c.order.Lock()
	r.cfg.Scheduler.Fence(c.NodeID, c.Generation)
	c.order.Unlock()
	r.ended.count(reason)
	level := zerolog.WarnLevel
	if reason == FenceLeft || reason == FenceEdgeDraining || reason == FenceSuperseded {
		level = zerolog.InfoLevel
	}
	c.emit(level, events.Event{Kind: events.KindFenced, Code: string(reason), Text: text})
	return true
}

// remove takes c out of the registry unless another connection has taken its place, and keeps what can be shown of it
// afterwards.
func (r *Registry) remove(c *Connection, why string) {
	r.remember(c, why)
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entryLocked(c.NodeID)
	if e.current == c {
		e.current = nil
	}
	e.leaving = slices.DeleteFunc(e.leaving, func(l *Connection) bool { return l == c })
}

// remember keeps what can be shown of c when it isn't the node's current connection any more.
func (r *Registry) remember(c *Connection, why string) {
	now := time.Now()
	left := &departed{view: c.view(), over: now, why: why, at: now, list: c.models()}
	heard := c.heard()
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entryLocked(c.NodeID)
	switch {
	case e.gone != nil && e.gone.view.Generation > c.Generation:
		return
	case e.gone != nil && !heard:
		left.at, left.list = e.gone.at, e.gone.list
	}
	e.gone = left
}

// close ends the link, with a goodbye where the edge means to close. Before the link runs there is only the bare
// connection to close.
func (c *Connection) close(reason FenceReason, text string) {
	c.mu.Lock()
	started := c.started
	c.mu.Unlock()
	if code := reason.goodbye(); started && code != 0 {
		c.Link.SendGoodbye(&pb.Goodbye{Code: code, Text: text})
		return
	}
	c.Link.Close(reason.link())
	if !started {
		_ = c.bare.Close()
	}
}

func (f FenceReason) goodbye() pb.GoodbyeCode {
	switch f {
	case FenceEdgeDraining:
		return pb.GoodbyeCode_GOODBYE_CODE_EDGE_DRAINING
	case FenceNodeDisabled:
		return pb.GoodbyeCode_GOODBYE_CODE_NODE_DISABLED
	case FenceIdentityExpired:
		return pb.GoodbyeCode_GOODBYE_CODE_IDENTITY_EXPIRED
	}
	return 0
}

func (f FenceReason) link() transport.Reason {
	switch f {
	case FenceSuperseded:
		return transport.ReasonSuperseded
	case FenceDead:
		return transport.ReasonDead
	case FenceLeft:
		return transport.ReasonLeft
	case FenceProtocol:
		return transport.ReasonProtocol
	case FenceSendOverflow:
		return transport.ReasonSendOverflow
	case FenceUnconfirmedRun:
		return transport.ReasonUnconfirmedRun
	case FenceEdgeDraining:
		return transport.ReasonEdgeDraining
	case FenceNodeDisabled:
		return transport.ReasonNodeDisabled
	case FenceIdentityExpired:
		return transport.ReasonIdentityExpired
	}
	return transport.ReasonLost
}

// Unconfirmed ends the connection of a node that didn't confirm a run's end within the limit. The scheduler calls it.
func (r *Registry) Unconfirmed(nodeID string, generation uint64) {
	if c := r.Lookup(nodeID, generation); c != nil {
		r.Fence(c, FenceUnconfirmedRun, "the node didn't confirm within the limit that a run has ended")
	}
}
