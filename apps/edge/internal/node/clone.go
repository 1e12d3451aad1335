package node

import (
	"slices"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/events"
	pb "iop/proto/iop"
)

const (
	// cloneReturns is how often within cloneWindow processes of a node may come back after another had taken their place.
	// A node that restarts is another process each time and none comes back, so this takes two that live: somebody has
	// copied the node's token, and its certificate if there are any.
	cloneReturns = 3
	cloneWindow  = 10 * time.Minute
	// cloneMemory is how many earlier processes are remembered.
	cloneMemory = 8
)

// turns is who was here for a node: the generation counter of Teleport's renewable identities, by processes.
type turns struct {
	seen    [][16]byte // instances, the current one last
	returns []time.Time
	cloned  *[32]byte // hash of the token that two have; nil = none
}

// take notes that an instance takes over, and reports whether it is one too many.
func (t *turns) take(id [16]byte, now time.Time) bool {
	if n := len(t.seen); n > 0 && t.seen[n-1] == id {
		return false
	}
	if at := slices.Index(t.seen, id); at >= 0 {
		t.seen = slices.Delete(t.seen, at, at+1)
		t.returns = append(slices.DeleteFunc(t.returns, func(r time.Time) bool { return now.Sub(r) > cloneWindow }), now)
	}
	if t.seen = append(t.seen, id); len(t.seen) > cloneMemory {
		t.seen = slices.Delete(t.seen, 0, 1)
	}
	return len(t.returns) >= cloneReturns
}

// errCloned is a token that two machines use in turns. Nobody can tell which of them is the right one.
var errCloned = &Refusal{Reason: pb.RegisterReason_REGISTER_REASON_NODE_DISABLED,
	Text: "two machines use this node's token in turns; make a new one with iop-edge token new, and give it to the right one"}

// clonedLocked reports whether the node's token is in two hands.
func (r *Registry) clonedLocked(nodeID string, token [32]byte) bool {
	e := r.entries[nodeID]
	return e != nil && e.turns.cloned != nil && *e.turns.cloned == token
}

// disown puts out what is connected with a token that is in two hands, and says so.
func (r *Registry) disown(nodeID string) {
	r.cfg.Events.Publish(events.Event{Kind: events.KindClone, NodeID: nodeID, Code: events.KindClone.String(), Text: errCloned.Text})
	r.cfg.Log.WithLevel(zerolog.ErrorLevel).Str("node_id", nodeID).Msg("node's token is used from two machines in turns: disabled until it has another token")
	for _, c := range r.all() {
		if c.NodeID == nodeID {
			r.Fence(c, FenceNodeDisabled, errCloned.Text)
		}
	}
}
