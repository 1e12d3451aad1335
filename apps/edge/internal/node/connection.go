package node

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/identity"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// State is what a connection (or a node without one) can be used for.
type State string

// The states. The first five are a connection's, in the order of protocol.md §2.A; the last two a node's without one.
const (
	StateRegistered   State = "registered" // in the registry, no Ready yet
	StateNotReady     State = "not_ready"  // the same, for longer than the ready limit
	StateReady        State = "ready"
	StateDraining     State = "draining"     // keeps its runs, takes none
	StateUnresponsive State = "unresponsive" // connected, but doesn't answer opens
	StateFenced       State = "fenced"
	StateOffline      State = "offline"
	StateDisabled     State = "disabled"
)

// Identity is what a registration established about a connection.
type Identity struct {
	NodeID     string
	Generation uint64
	InstanceID [16]byte
	Token      [32]byte // hash of the token, looked up again at commit
	Version    string   // the node's software
	Remote     string
	Since      time.Time
	Features   []pb.Feature // that both sides know
	// Peer is who the node has proved to be, in mode managed; else nil. Its Export is the TLS session's, for what is to
	// be bound to this connection.
	Peer *identity.Peer
	// Handover says that the node's process comes with another certificate, and wants the connection that it has to
	// finish what runs there.
	Handover bool
}

// Connection is one node connection from its commit to its fence. Its methods may be called concurrently.
type Connection struct {
	Identity
	// Link carries the connection once it was started. Set by the handshake before Commit.
	Link *transport.Link

	registry   *Registry
	bare       io.Closer // the connection under the link, for the time before the link runs
	labels     map[string]string
	projection *config.Projection // the one sent at registration
	log        zerolog.Logger
	told       *rate.Limiter // of what the node makes the edge tell

	over    atomic.Bool   // fenced: nothing is published any more
	handed  chan struct{} // closed once a successor has taken over in order
	ignored ignored
	asking  commandTurns

	// order serialises "look at the state, tell the scheduler", so that the scheduler never sees an older state after
	// a newer one. It is held across calls of the scheduler, which never block; it is taken before mu.
	order sync.Mutex

	mu        sync.Mutex
	started   bool
	st        status
	recipient credentiallease.Recipient // to whom leases are sealed; of a connection that lends
}

// Ignored counts what a node sent and the edge had no use for, by kind.
type Ignored struct {
	RunEnded uint64 // unknown run, or another attempt of it
	Status   uint64 // a number that isn't above the last
	Events   uint64 // what it made the edge tell, over the rate
	Other    uint64 // not negotiated, or not a node's to say
	Late     uint64 // anything after the fence
}

// ignored are the counts of one connection, and with them those of the registry, which outlive it.
type ignored struct{ runEnded, status, events, other, late tally }

// tally counts in two places.
type tally struct {
	own   atomic.Uint64
	total *atomic.Uint64 // nil = there is no other place
}

// Add counts n more.
func (t *tally) Add(n uint64) {
	t.own.Add(n)
	if t.total != nil {
		t.total.Add(n)
	}
}

// within makes i count in the registry's counts, too.
func (i *ignored) within(all *ignored) {
	i.runEnded.total, i.status.total, i.events.total = &all.runEnded.own, &all.status.own, &all.events.own
	i.other.total, i.late.total = &all.other.own, &all.late.own
}

func (i *ignored) load() Ignored {
	return Ignored{RunEnded: i.runEnded.own.Load(), Status: i.status.own.Load(), Events: i.events.own.Load(),
		Other: i.other.own.Load(), Late: i.late.own.Load()}
}

// Ignored returns the counts.
func (c *Connection) Ignored() Ignored { return c.ignored.load() }

// Ignored returns the counts of all connections since the start.
func (r *Registry) Ignored() Ignored { return r.ignored.load() }

// NewConnection returns a connection that isn't in the registry yet. rec and p are what its node was found by and what
// it will be told; bare is closed by a fence that comes before Start.
func (r *Registry) NewConnection(id Identity, rec *config.NodeRecord, p *config.Projection, bare io.Closer) *Connection {
	log := r.cfg.Log.With().Str("node_id", id.NodeID).Uint64("connection_generation", id.Generation).Logger()
	c := &Connection{
		Identity: id, registry: r, bare: bare, labels: rec.Labels, projection: p, log: log,
		told: rate.NewLimiter(1, 20), asking: newCommandTurns(), handed: make(chan struct{}),
	}
	c.ignored.within(&r.ignored)
	c.st = newStatus(p)
	return c
}

// Start says that the link is about to run. False: the connection was fenced in the meantime and is closed already.
func (c *Connection) Start() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over.Load() {
		return false
	}
	c.started = true
	return true
}

// Over reports whether the connection was fenced.
func (c *Connection) Over() bool { return c.over.Load() }

// Log returns the connection's logger.
func (c *Connection) Log() *zerolog.Logger { return &c.log }

// Open opens a work stream. A node whose identity isn't good any more gets none: its connection ends.
func (c *Connection) Open(ctx context.Context) (*transport.Stream, error) {
	if why := c.unidentified(c.registry.State(), time.Now()); why != "" {
		c.registry.Fence(c, FenceIdentityExpired, why)
		return nil, transport.ErrLinkDown
	}
	return c.Link.Open(ctx)
}

// Background reports whether the node can go on with a run after its connection was lost.
func (c *Connection) Background() bool {
	return slices.Contains(c.Features, pb.Feature_FEATURE_BACKGROUND)
}

// Traces reports whether the node takes a place in a trace with an open.
func (c *Connection) Traces() bool { return slices.Contains(c.Features, pb.Feature_FEATURE_TRACE) }

// SendCancel asks the node to end a run. It never blocks.
func (c *Connection) SendCancel(runID string, cause execution.CancelCause) {
	c.Link.SendCancel(runID, cause)
}

// Down is closed when the connection is over.
func (c *Connection) Down() <-chan struct{} { return c.Link.Down() }

// State returns what the connection can be used for.
func (c *Connection) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stateLocked()
}

func (c *Connection) stateLocked() State {
	switch {
	case c.over.Load():
		return StateFenced
	case c.st.nodeDrains || c.st.edgeDrains || c.st.drained || c.st.expiring || c.st.succeeded:
		return StateDraining
	case c.st.applied == 0 && c.st.overdue:
		return StateNotReady
	case c.st.applied == 0:
		return StateRegistered
	case c.st.unresponsive:
		return StateUnresponsive
	}
	return StateReady
}

// announceRegistered tells the scheduler and the bus of a connection that was committed.
func (c *Connection) announceRegistered() {
	c.order.Lock()
	defer c.order.Unlock()
	if c.over.Load() {
		return
	}
	text := "registered from " + c.Remote
	if c.State() == StateDraining { // from the beginning
		text += "; an operator keeps new work from the node"
	}
	c.emit(zerolog.InfoLevel, events.Event{Kind: events.KindRegistered, Code: string(StateRegistered), Text: text})
	c.updateOrdered(func(*status) {})
}

// update changes the state under the lock and tells the scheduler and the bus what came of it.
func (c *Connection) update(change func(s *status)) {
	c.order.Lock()
	defer c.order.Unlock()
	c.updateOrdered(change)
}

// updateOrdered is update with c.order held. It returns the new state.
func (c *Connection) updateOrdered(change func(s *status)) State { return c.apply(change, c.emit) }

// apply is updateOrdered for a change that is told by emit or tell.
func (c *Connection) apply(change func(s *status), tell func(zerolog.Level, events.Event)) State {
	c.mu.Lock()
	before, first, adapters := c.stateLocked(), c.st.applied == 0, c.st.adapters
	change(&c.st)
	heard := c.st.applied != 0
	after := c.stateLocked()
	n, why := c.offerLocked(after), c.st.reason(after)
	c.mu.Unlock()
	if after == StateFenced {
		return after
	}
	c.registry.cfg.Scheduler.Publish(n)
	if before != after {
		c.announce(after, why, tell)
	}
	if heard {
		announceAdapters(adapters, n.Adapters, first, tell)
	}
	return after
}

// announce tells the bus and the log of a state that was entered, and why.
func (c *Connection) announce(s State, why string, tell func(zerolog.Level, events.Event)) {
	e := events.Event{Code: string(s), Text: why}
	level := zerolog.InfoLevel
	switch s {
	case StateReady:
		e.Kind = events.KindReady
	case StateDraining:
		e.Kind = events.KindDraining
	case StateNotReady:
		e.Kind, level = events.KindNotReady, zerolog.WarnLevel
	case StateUnresponsive:
		e.Kind, level = events.KindUnresponsive, zerolog.WarnLevel
	default:
		return
	}
	tell(level, e)
}

// announceAdapters tells of adapters whose provider came or went. Of those that a node names first, being there is no
// news.
func announceAdapters(before []adapterStatus, now []admission.Adapter, first bool, tell func(zerolog.Level, events.Event)) {
	for i := range now {
		a := &now[i]
		at := slices.IndexFunc(before, func(b adapterStatus) bool { return b.Name == a.Name })
		was := first || at >= 0 && before[at].Available
		e := events.Event{Kind: events.KindAdapterAvailable, Adapter: a.Name, Text: "its provider can be used"}
		level := zerolog.InfoLevel
		switch {
		case a.Available == was:
			continue
		case !a.Available:
			e.Kind, e.Text, level = events.KindAdapterUnavailable, a.Reason, zerolog.WarnLevel
		}
		e.Code = e.Kind.String()
		tell(level, e)
	}
}

// tell is emit for what the node's own words have caused: at most one a second after the first twenty. A node that says
// that it drains and doesn't in turn made 70,000 lines a second.
func (c *Connection) tell(level zerolog.Level, e events.Event) {
	if !c.told.Allow() {
		c.ignored.events.Add(1)
		return
	}
	c.emit(level, e)
}

// emit publishes an event of this connection and logs it.
func (c *Connection) emit(level zerolog.Level, e events.Event) {
	e.NodeID, e.Generation = c.NodeID, c.Generation
	c.registry.cfg.Events.Publish(e)
	line := c.log.WithLevel(level).Stringer("event", e.Kind).Str("code", e.Code)
	if e.Adapter != "" {
		line = line.Str("adapter", e.Adapter)
	}
	line.Str("text", e.Text).Msg("node " + e.Kind.String())
}

// reason says in words why a connection in state s gets work or none.
func (s *status) reason(is State) string {
	switch {
	case is != StateDraining:
		return is.text()
	case s.edgeDrains:
		return "the edge is stopping, and sends no new work"
	case s.nodeDrains:
		return "the node is stopping, and takes no new work"
	case s.succeeded:
		return "a connection with a new certificate has taken over"
	case s.expiring:
		return "the node's certificate is about to expire; renew it"
	}
	return "an operator keeps new work from the node"
}

// text says in words what a state that gets no work lacks.
func (s State) text() string {
	switch s {
	case StateRegistered:
		return "the node hasn't said that it is ready"
	case StateNotReady:
		return "the node hasn't become ready within the limit"
	case StateReady:
		return "work may be sent"
	case StateDraining:
		return "the connection takes no new work"
	case StateUnresponsive:
		return "the node doesn't answer what is sent to it"
	}
	return "the connection is over"
}
