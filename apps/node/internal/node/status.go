package node

import (
	"slices"
	"strings"
	"time"

	"iop/apps/node/internal/router"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// ready builds the node's full state; the link calls it when it writes it.
func (s *Session) ready() *pb.Ready {
	s.x.mu.Lock()
	ready := &pb.Ready{Projection: s.applied, Running: s.x.runningLocked(s)}
	if r := s.refused; r != nil {
		ready.RefusedProjection = r.projection
		ready.RefuseCode = pb.FailureCode(r.failure.Code)
		ready.RefuseText = cut(r.failure.Text, execution.MaxFailureText)
	}
	s.x.mu.Unlock()
	ready.Adapters = statesToWire(s.x.cfg.Router.Snapshot(s.x.cfg.Edge))
	return ready
}

// runningLocked lists what runs. What is ending still holds its place: what was cancelled, and every foreground
// execution of an earlier connection that is over.
func (x *Executor) runningLocked(s *Session) []*pb.RunningExecution {
	out := make([]*pb.RunningExecution, 0, len(x.running))
	for _, t := range x.running {
		out = append(out, &pb.RunningExecution{
			RunId: t.runID, Attempt: t.attempt, Adapter: t.adapter, Background: t.background,
			Ending: t.ctx.Err() != nil || !t.background && t.session != s && t.session.over,
		})
	}
	slices.SortFunc(out, func(a, b *pb.RunningExecution) int { return strings.Compare(a.GetRunId(), b.GetRunId()) })
	return out
}

// sendStatus tells the Edge the node's state if it was told Ready before.
func (x *Executor) sendStatus() {
	x.mu.Lock()
	s := x.serving
	x.mu.Unlock()
	if s != nil {
		s.link.SendStatus(x.nodeStatus)
	}
}

// nodeStatus builds the state between two Readys; the link calls it when it writes it.
func (x *Executor) nodeStatus() *pb.NodeStatus {
	x.mu.Lock()
	x.status++
	status := &pb.NodeStatus{Number: x.status, Draining: x.draining}
	s := x.serving
	x.mu.Unlock()
	status.ClockState = s.clockState()
	status.Adapters = statesToWire(x.cfg.Router.Snapshot(x.cfg.Edge))
	status.StoreState = x.storeState()
	return status
}

// clockState is whether the node knows the Edge's time, by which it judges leases; without them it says nothing.
func (s *Session) clockState() pb.ClockState {
	switch {
	case s == nil || s.leases == nil:
		return pb.ClockState_CLOCK_STATE_UNSPECIFIED
	case s.leases.now().Synced:
		return pb.ClockState_CLOCK_STATE_SYNCED
	}
	return pb.ClockState_CLOCK_STATE_UNSYNCED
}

// IdentityReloadFailed tells the Edge that this node's renewed certificate can't be used. It never blocks.
func (x *Executor) IdentityReloadFailed(text string) {
	x.mu.Lock()
	s := x.serving
	x.mu.Unlock()
	if s != nil {
		s.link.SendEvent(&pb.EdgeNodeEvent{Kind: pb.EventKind_EVENT_KIND_IDENTITY_RELOAD_FAILED, Code: "identity_reload_failed",
			Text: cut(text, 256), AtMs: time.Now().UnixMilli()})
	}
}

// drifted tells the Edge that an adapter lost a place to an execution that doesn't stop.
func (x *Executor) drifted(t *task) {
	x.sendStatus()
	x.mu.Lock()
	s := x.serving
	x.mu.Unlock()
	if s == nil {
		return
	}
	s.link.SendEvent(&pb.EdgeNodeEvent{
		Kind: pb.EventKind_EVENT_KIND_CAPACITY_DRIFT, Code: execution.StatusAbandoned.String(), Adapter: t.adapter,
		Text: "an execution didn't stop after its cancel; its place is lost until it does", AtMs: time.Now().UnixMilli(),
	})
}

// Snapshot is what the node shows of one Edge's work.
type Snapshot struct {
	Edge      string
	Draining  bool
	Running   []Running
	Lingering int
	Adapters  []router.State
}

// Running is one execution in work.
type Running struct {
	RunID      string
	Attempt    uint32
	Kind       execution.Kind
	Adapter    string
	Target     string
	Background bool
	Generation uint64
	Since      time.Time
}

// Snapshot returns the executor's state for people.
func (x *Executor) Snapshot() Snapshot {
	x.mu.Lock()
	snap := Snapshot{Edge: x.cfg.Edge, Draining: x.draining, Lingering: x.lingering.Len()}
	for _, t := range x.running {
		snap.Running = append(snap.Running, Running{
			RunID: t.runID, Attempt: t.attempt, Kind: t.kind, Adapter: t.adapter, Target: loggable(t.target),
			Background: t.background, Generation: t.session.generation, Since: t.started,
		})
	}
	x.mu.Unlock()
	slices.SortFunc(snap.Running, func(a, b Running) int { return strings.Compare(a.RunID, b.RunID) })
	snap.Adapters = x.cfg.Router.Snapshot(x.cfg.Edge)
	return snap
}

// What an adapter may say of itself: a provider's words are bounded before they go on.
const (
	maxReasonText  = 256
	maxVersionText = 128
	maxModelName   = 512
	maxStateBytes  = 768 << 10 // of all models in one message, whose cap is 1 MiB
	modelBytes     = 20        // of a model beside its name, at most
)

// statesToWire writes the adapters' states. A list of models that is too long for one message is cut: the edge then
// finds the rest by asking for them.
func statesToWire(states []router.State) []*pb.AdapterState {
	out := make([]*pb.AdapterState, 0, len(states))
	left := maxStateBytes
	for _, s := range states {
		a := &pb.AdapterState{
			Name:      s.Name,
			Revision:  s.Revision,
			Available: s.Caps.Available,
			Reason:    cut(s.Caps.Reason, maxReasonText),
			Capacity:  int32(s.Capacity),
			InFlight:  int32(s.InFlight),
			Version:   cut(s.Caps.Version, maxVersionText),
		}
		for _, m := range s.Caps.Models {
			if len(m.Name) > maxModelName {
				continue
			}
			if left -= len(m.Name) + modelBytes; left < 0 {
				break
			}
			a.Models = append(a.Models, &pb.ModelState{Name: cut(m.Name, maxModelName), Loaded: m.Loaded, Context: max(m.Context, 0)})
		}
		out = append(out, a)
	}
	return out
}
