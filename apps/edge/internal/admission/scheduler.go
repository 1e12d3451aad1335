// Package admission chooses where a run executes, bounds how many do, and keeps those waiting who find no place.
//
// It owns the places (one set of holders for each adapter of each connection), the candidate sets with their queues,
// and the marks of saturation. It has one mutex and no goroutine. It must not do I/O, know frames, sessions or HTTP, or
// decide an outcome: the caller drives the run and tells it what became of the place.
package admission

import (
	"context"
	"time"
)

// DefaultConfirmLimit is the ConfirmLimit of a zero Config.
const DefaultConfirmLimit = 60 * time.Second

// Config is what a Scheduler needs. The zero value works.
type Config struct {
	// ConfirmLimit is how long a place stays held after the run's outcome was decided and before the node has said
	// that the execution ended. Zero = DefaultConfirmLimit.
	ConfirmLimit time.Duration
	// OnUnconfirmed is called, from a goroutine of its own and without a lock held, when a place of that connection
	// was held longer than ConfirmLimit; once a connection. It is expected to fence it. Nil = nobody is told.
	OnUnconfirmed func(node string, generation uint64)
}

// Scheduler admits runs to places. The zero value is not usable, use [New]. All methods may be called concurrently;
// none blocks but Acquire.
type Scheduler struct{}

// New returns a scheduler that knows no node.
func New(cfg Config) *Scheduler { panic("not yet") }

// Publish replaces what is known of a node's current connection. The same again changes nothing; a generation lower
// than one seen, or fenced, is ignored. Places that are new or free are offered to those who wait; an adapter that is
// gone loses its places as they are freed, and a capacity below the number of holders ends nobody.
func (s *Scheduler) Publish(n Node) { panic("not yet") }

// Fence frees every place that is held at that generation of the node, and nothing else. Its adapters are no
// candidates any more; later words about this generation are ignored.
func (s *Scheduler) Fence(node string, generation uint64) { panic("not yet") }

// Adopt makes holders of executions that a node's new connection reported as running. Runs that hold a place of this
// connection already are left alone, so the same report may come again.
func (s *Scheduler) Adopt(node string, generation uint64, runs []Adopted) { panic("not yet") }

// Ended says that the node's execution is over (RunEnded): the place is free. False = no such holder; nothing changed.
func (s *Scheduler) Ended(node string, generation uint64, runID string, attempt uint32) bool {
	panic("not yet")
}

// Acquire returns a place for r, at once or after waiting. The error is a *execution.Failure (queue_full,
// queue_timeout, no_node, edge_draining, each with RetryAfter; duplicate_run) or ctx's cause. A request whose ctx ends
// leaves the queue at once and never holds a place afterwards.
func (s *Scheduler) Acquire(ctx context.Context, r *Request) (*Grant, error) { panic("not yet") }

// Saturated says that the node refused an open as busy though a place seemed free: until an execution there ends or
// the node publishes something new of that adapter, the place gets at most one grant a second. Call it before
// Grant.Rejected, or use [Grant.RejectedBusy].
func (s *Scheduler) Saturated(p Place, generation uint64) { panic("not yet") }

// Drain refuses everybody who waits or comes later with edge_draining. Places that are held stay held.
func (s *Scheduler) Drain() { panic("not yet") }

// Snapshot returns what is held and who waits.
func (s *Scheduler) Snapshot() Snapshot { panic("not yet") }

// Grant is a place that a run holds. Its methods may be called from anywhere at any time: what the state of the place
// doesn't allow changes nothing and is counted.
type Grant struct {
	Place
	Generation      uint64
	AdapterRevision uint64
	Queued          time.Duration // spent waiting, over all attempts of the request
	Position        int           // in the queue when it first had to wait, from 1; 0 = never waited
}

// Sent says that the open is about to be written. False means that the place is lost (connection fenced, adapter
// removed) and given back already: acquire again.
func (g *Grant) Sent() bool { panic("not yet") }

// Release gives the place of an open that was never written back. After Sent it is refused.
func (g *Grant) Release() bool { panic("not yet") }

// Rejected gives the place of an open back that started nothing: the node refused it, or its last byte was never
// handed to the link.
func (g *Grant) Rejected() bool { panic("not yet") }

// RejectedBusy is Saturated and Rejected in one step, so that the place isn't offered in between.
func (g *Grant) RejectedBusy() bool { panic("not yet") }

// Decided says that the run's outcome is decided: a place that was never sent to is free, any other stays held until
// the node confirms, at most for Config.ConfirmLimit. After the place was freed it is a no-op.
func (g *Grant) Decided() bool { panic("not yet") }

// Snapshot is the state of a Scheduler at one moment, sorted by name.
type Snapshot struct {
	Draining bool
	Queued   int // in all sets
	Sets     []SetSnapshot
	Places   []PlaceSnapshot
	Ignored  Ignored
}

// SetSnapshot is one candidate set.
type SetSnapshot struct {
	Set        string
	Queued     int
	Candidates int
}

// PlaceSnapshot is one adapter of one connection that is current or still has holders.
type PlaceSnapshot struct {
	Place
	Generation  uint64
	Capacity    int // 0 when nothing can be granted there for good: superseded, removed
	InFlight    int // holders, the two below included
	Unconfirmed int // outcome decided, end not yet confirmed
	Adopted     int
	Candidate   bool // dispatchable and available
	Saturated   bool
}

// Ignored counts the calls that changed nothing because of the state they found.
type Ignored struct {
	Sent, Release, Rejected, Decided uint64 // not allowed in that state, or the place was freed before
	Ended                            uint64 // unknown run, other attempt, other generation
	Stale                            uint64 // Publish, Adopt, Saturated of a generation that is over
}
