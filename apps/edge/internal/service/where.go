package service

import (
	"sync"
	"sync/atomic"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// whereabouts is where a run is: what others than its driver may see, and, of a background run, what they tell the
// driver. A background run is at a node by its attempt; when the link is gone it is detached, until a later connection
// of that node says that it is still running (home) or how it ended (end).
type whereabouts struct {
	changed chan struct{} // set once; holds a token when home or end may be new

	mu         sync.Mutex
	state      RunState
	kind       execution.Kind // of the last attempt; before the first, what was asked for
	node       string
	adapter    string
	generation uint64 // of the connection that the run was sent on, or adopted by
	attempt    uint32
	placedAt   time.Time
	home       Node       // the connection that adopted it, nil = none
	end        *pb.RunEnd // the node's word on how the attempt ended, nil = not yet
	absent     bool       // the node came back without it
	left       bool       // the driver looks no more
}

// progress is how far the answer of a run that is live has come. Its driver writes, anybody reads.
type progress struct {
	firstByte atomic.Int64 // ns after the submission, 0 = not yet
	bytes     atomic.Int64 // that the sink took
}

func (w *whereabouts) init(kind execution.Kind) {
	w.changed = make(chan struct{}, 1)
	w.state, w.kind = StateQueued, kind
}

// placed records a new attempt.
func (w *whereabouts) placed(g *admission.Grant, attempt uint32, kind execution.Kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state, w.kind, w.placedAt = StateRunning, kind, time.Now()
	w.node, w.adapter, w.generation, w.attempt = g.Node, g.Adapter, g.Generation, attempt
	w.home, w.end, w.absent = nil, nil, false
}

// enter records a state.
func (w *whereabouts) enter(s RunState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = s
}

// signal wakes a driver that waits; called with mu held.
func (w *whereabouts) signalLocked() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// hear takes a node's word on how an attempt ended. Another node's, another attempt's, or that of a connection before
// the one that the run is on changes nothing.
func (w *whereabouts) hear(nodeID string, generation uint64, e *pb.RunEnd) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if nodeID != w.node || e.GetAttempt() != w.attempt || generation < w.generation || w.end != nil {
		return false
	}
	w.end = e
	w.signalLocked()
	return true
}

// adopt takes a node's word that an attempt is still running, on a later connection than the one that it was on. What it
// returns says whether it is too late for that: the driver has left.
func (w *whereabouts) adopt(n Node, nodeID string, generation uint64, attempt uint32) (adopted, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case nodeID != w.node || attempt != w.attempt || generation <= w.generation:
		return false, false
	case w.left:
		return false, true
	}
	w.home, w.generation, w.state, w.absent = n, generation, StateRunning, false
	w.signalLocked()
	return true, false
}

// miss takes a node's word, on a later connection than the one that the run was on, that it isn't running there. It may
// come before the driver knows that the old one is gone.
func (w *whereabouts) miss(nodeID string, generation uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if nodeID == w.node && generation > w.generation && w.home == nil && w.end == nil && !w.absent {
		w.absent = true
		w.signalLocked()
	}
}

// away returns what a driver without a stream has to go by.
func (w *whereabouts) away() (end *pb.RunEnd, home Node, absent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.home == nil && w.end == nil {
		w.state = StateDetached
	}
	return w.end, w.home, w.absent
}

// ended reports whether the node has said how the attempt ended.
func (w *whereabouts) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.end != nil
}

// lose records that the connection that adopted the run is gone, unless another has adopted it meanwhile.
func (w *whereabouts) lose(home Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.home == home {
		w.home = nil
	}
}

// leave says that the driver looks no more, and returns the connection that has the run, if any.
func (w *whereabouts) leave() Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = true
	return w.home
}
