package node

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// What a node may say about itself is shown to people and kept in memory: it is cut to these lengths, in bytes.
const (
	maxText = 256
	maxName = 64
	// maxModels is how many models of one adapter count, and maxModel how long their names may be: requests look for
	// theirs among them under the scheduler's lock.
	maxModels = 4096
	maxModel  = 256
)

// status is the changing part of a connection.
type status struct {
	sent         []*config.Projection // what the node was told, oldest first
	applied      uint64               // number of the projection that the last Ready applied, 0 = no Ready yet
	overdue      bool                 // no Ready within the limit
	nodeDrains   bool
	edgeDrains   bool
	drained      bool // by an operator
	expiring     bool // its certificate is about to
	succeeded    bool // by a connection that took over in order
	unresponsive bool
	misses       [2]int // opens in a row that weren't answered, by openKind
	number       uint64
	store        pb.StoreState
	clock        pb.ClockState
	reported     []*pb.AdapterState // what the node said last
	adapters     []adapterStatus    // one for each adapter of the projection that is due
}

// adapterStatus is an adapter of the projection with what the node last said of it.
type adapterStatus struct {
	admission.Adapter
	version  string
	inFlight int
}

func newStatus(p *config.Projection) status {
	return status{sent: []*config.Projection{p}, adapters: combine(p, nil, "not reported yet")}
}

// projection finds a projection that the node was told, nil = never.
func (s *status) projection(number uint64) *config.Projection {
	for _, p := range s.sent {
		if p.Number == number {
			return p
		}
	}
	return nil
}

// report takes a full account of the node's adapters.
func (s *status) report(adapters []*pb.AdapterState) {
	s.reported = adapters
	s.adapters = combine(s.due(), adapters, "the node doesn't report it")
}

// combine lays what a node reported beside what it was told. An adapter that it wasn't told of doesn't count, and one
// that it runs by another revision isn't available.
func combine(p *config.Projection, reported []*pb.AdapterState, missing string) []adapterStatus {
	byName := make(map[string]*pb.AdapterState, len(reported))
	for _, a := range reported {
		byName[a.GetName()] = a
	}
	out := make([]adapterStatus, len(p.Adapters))
	for i := range p.Adapters {
		out[i] = combineOne(&p.Adapters[i], byName[p.Adapters[i].Name], missing)
	}
	return out
}

func combineOne(told *config.ProjectedAdapter, said *pb.AdapterState, missing string) adapterStatus {
	a := adapterStatus{version: "unknown", Adapter: admission.Adapter{
		Name: told.Name, Kind: told.Kind, Revision: told.Revision, Capacity: told.MaxConcurrency, AllowPaths: told.AllowPaths,
		Targets: told.Targets,
	}}
	if said == nil {
		a.Reason = missing
		return a
	}
	a.version = cut(said.GetVersion(), maxText)
	a.inFlight = max(0, int(said.GetInFlight()))
	a.Capacity = min(a.Capacity, max(0, int(said.GetCapacity())))
	a.Models = models(said.GetModels())
	a.Available, a.Reason = said.GetAvailable(), cut(said.GetReason(), maxText)
	switch {
	case said.GetRevision() != told.Revision:
		a.Available = false
		a.Reason = fmt.Sprintf("the node runs revision %d, %d is due", said.GetRevision(), told.Revision)
	case a.Available:
		a.Reason = ""
	case a.Reason == "":
		a.Reason = "the node says that it isn't available"
	}
	return a
}

func models(ms []*pb.ModelState) []execution.Model {
	out := make([]execution.Model, 0, min(len(ms), maxModels))
	for _, m := range ms {
		if len(out) == maxModels {
			break
		}
		if len(m.GetName()) > maxModel {
			continue
		}
		out = append(out, execution.Model{Name: m.GetName(), Loaded: m.GetLoaded(), Context: max(m.GetContext(), 0)})
	}
	return out
}

// cut shortens s to at most n bytes, on a character's border.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// offerLocked is what the scheduler is told while the connection is in state s.
func (c *Connection) offerLocked(s State) admission.Node {
	n := admission.Node{ID: c.NodeID, Generation: c.Generation, Dispatchable: s == StateReady, Labels: c.labels}
	if !n.Dispatchable {
		n.Reason = c.st.reason(s)
	}
	n.Adapters = make([]admission.Adapter, len(c.st.adapters))
	for i := range c.st.adapters {
		n.Adapters[i] = c.st.adapters[i].Adapter
	}
	return n
}

// Ready takes a node's full state after it applied, or refused, a projection. An error is a violation of the protocol:
// the link has to end.
func (c *Connection) Ready(m *pb.Ready) error {
	c.order.Lock()
	defer c.order.Unlock()
	if c.late() {
		return nil
	}
	p, err := c.checkReady(m)
	if err != nil {
		return err
	}
	if m.GetRefusedProjection() != 0 {
		c.tell(zerolog.WarnLevel, events.Event{Kind: events.KindRefusedProjection,
			Code: execution.Code(m.GetRefuseCode()).String(),
			Text: cut(fmt.Sprintf("projection %d: %s", m.GetRefusedProjection(), m.GetRefuseText()), maxText)})
	}
	if p == nil {
		return nil
	}
	c.registry.cfg.Scheduler.Adopt(c.NodeID, c.Generation, adopted(m.GetRunning(), p))
	state := c.apply(func(s *status) {
		s.apply(p.Number)
		s.unresponsive, s.misses = false, [2]int{}
		s.report(m.GetAdapters())
	}, c.tell)
	c.confirm(p.Number, state)
	return nil
}

// confirm tells the node that its Ready was taken, and whether work may come. An edge that drains doesn't.
func (c *Connection) confirm(projection uint64, s State) {
	c.mu.Lock()
	drained := c.st.drained && !c.st.edgeDrains
	c.mu.Unlock()
	if s == StateReady || s == StateDraining && drained {
		c.Link.SendReadyAck(projection, s == StateReady)
	}
}

// checkReady finds the projection that m applies; nil = it only refuses the one that it was told first.
func (c *Connection) checkReady(m *pb.Ready) (*config.Projection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	number, refused := m.GetProjection(), m.GetRefusedProjection()
	if refused != 0 && c.st.projection(refused) == nil {
		return nil, fmt.Errorf("ready refuses projection %d, which was never sent", refused)
	}
	if number == 0 && refused != 0 {
		return nil, nil
	}
	p := c.st.projection(number)
	switch {
	case p == nil:
		return nil, fmt.Errorf("ready applies projection %d, which was never sent", number)
	case number < c.st.applied:
		return nil, fmt.Errorf("ready goes back to projection %d from %d", number, c.st.applied)
	}
	return p, nil
}

// adopted lists the executions that a node still has, as far as their adapter is one that it was told of.
func adopted(running []*pb.RunningExecution, p *config.Projection) []admission.Adopted {
	runs := make([]admission.Adopted, 0, len(running))
	for _, e := range running {
		known := slices.ContainsFunc(p.Adapters, func(a config.ProjectedAdapter) bool { return a.Name == e.GetAdapter() })
		if known && e.GetRunId() != "" && len(e.GetRunId()) <= maxName {
			runs = append(runs, admission.Adopted{RunID: e.GetRunId(), Attempt: e.GetAttempt(), Adapter: e.GetAdapter()})
		}
	}
	return runs
}

// Status takes a node's full state between two Readys. One that isn't newer than the last is ignored.
func (c *Connection) Status(m *pb.NodeStatus) {
	c.order.Lock()
	defer c.order.Unlock()
	if c.late() {
		return
	}
	c.mu.Lock()
	old := c.st
	c.mu.Unlock()
	if m.GetNumber() <= old.number {
		c.ignored.status.Add(1)
		return
	}
	c.apply(func(s *status) {
		s.number, s.nodeDrains = m.GetNumber(), m.GetDraining()
		s.store, s.clock = m.GetStoreState(), m.GetClockState()
		s.report(m.GetAdapters())
	}, c.tell)
	if degraded := pb.StoreState_STORE_STATE_DEGRADED; m.GetStoreState() == degraded && old.store != degraded {
		c.tell(zerolog.WarnLevel, events.Event{Kind: events.KindStoreDegraded, Code: "store_degraded",
			Text: "the node's run store can't write"})
	}
	if unsynced := pb.ClockState_CLOCK_STATE_UNSYNCED; m.GetClockState() == unsynced && old.clock != unsynced {
		c.tell(zerolog.WarnLevel, events.Event{Kind: events.KindClockSkew, Code: "clock_skew",
			Text: "the node's clock isn't in step with the edge's"})
	}
}

// RunEnded takes the end of one execution. False: nobody holds a place under that name on this connection, and nothing
// changed.
func (c *Connection) RunEnded(e *pb.RunEnd) bool {
	if c.late() {
		return false
	}
	if !c.registry.cfg.Scheduler.Ended(c.NodeID, c.Generation, e.GetRunId(), e.GetAttempt()) {
		c.ignored.runEnded.Add(1)
		return false
	}
	return true
}

// NodeEvent passes on what a node tells of itself, at most one a second after the first twenty. A node can't tell of
// what only the edge decides.
func (c *Connection) NodeEvent(m *pb.EdgeNodeEvent) {
	kind := m.GetKind()
	switch {
	case c.late():
	case kind < pb.EventKind_EVENT_KIND_REFUSED_PROJECTION || kind > pb.EventKind_EVENT_KIND_CAPACITY_DRIFT:
		c.ignored.other.Add(1)
	default:
		c.tell(zerolog.InfoLevel, events.Event{Kind: events.Kind(kind), Code: cut(m.GetCode(), maxName),
			Adapter: cut(m.GetAdapter(), maxName), Text: cut(m.GetText(), maxText)})
	}
}

// Unknown counts a message that this version has no use for.
func (c *Connection) Unknown() {
	if !c.late() {
		c.ignored.other.Add(1)
	}
}

// late reports, and counts, that something came after the fence.
func (c *Connection) late() bool {
	if !c.over.Load() {
		return false
	}
	c.ignored.late.Add(1)
	return true
}

// ReadyOverdue says that the ready limit has passed. It changes nothing once the node was ready.
func (c *Connection) ReadyOverdue() { c.update(func(s *status) { s.overdue = true }) }

// openKind tells the two kinds of opens apart whose answers are counted.
type openKind uint8

const (
	runs     openKind = 0
	commands openKind = 1 // the edge's own TRANSPORT_STATUS
)

// DispatchTimeout says that the open of a run wasn't answered within the dispatch limit. A few in a row make the node
// unresponsive.
func (c *Connection) DispatchTimeout() { c.missed(runs) }

// Dispatched says that the open of a run was answered.
func (c *Connection) Dispatched() { c.answered(runs) }

// CommandTimeout says the same of one of the edge's own commands. They are counted apart from runs: a node that answers
// commands and ignores runs is unresponsive, and so is the other way round.
func (c *Connection) CommandTimeout() { c.missed(commands) }

// CommandAccepted says that one of the edge's own commands was accepted.
func (c *Connection) CommandAccepted() { c.answered(commands) }

func (c *Connection) missed(k openKind) {
	c.update(func(s *status) {
		s.misses[k]++
		s.unresponsive = s.unresponsive || s.misses[k] >= c.registry.cfg.Misses
	})
}

// answered clears the count. A single answer, of either kind, makes an unresponsive node usable again.
func (c *Connection) answered(k openKind) {
	c.mu.Lock()
	unresponsive := c.st.unresponsive
	if !unresponsive {
		c.st.misses[k] = 0 // nearly always: nothing was wrong, nobody need be told
	}
	c.mu.Unlock()
	if unresponsive {
		c.update(func(s *status) { s.unresponsive, s.misses = false, [2]int{} })
	}
}

// edgeDrains says that the edge is going away: the node keeps what runs and should dial elsewhere.
func (c *Connection) edgeDrains(n *pb.DrainNotice) {
	c.update(func(s *status) { s.edgeDrains = true })
	c.Link.SendDrainNotice(n)
}
