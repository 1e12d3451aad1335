package admission

import "time"

// holding is the state of a holder: the columns of the place table.
type holding uint8

const (
	heldUnsent holding = iota
	heldSent
	heldDecided
	heldAdopted
	heldFree
)

// Grant is a place that a run holds. Its methods may be called from anywhere at any time: what the state of the place
// doesn't allow changes nothing, is counted and answered with false.
type Grant struct {
	Place
	Generation      uint64
	AdapterRevision uint64
	Kind            string        // the adapter's, as AllowPaths
	AllowPaths      []string      // shared, not to be changed
	Queued          time.Duration // spent waiting, over all attempts of the request
	Trial           bool          // tries out an adapter that was taken out for failing
	Position        int           // in the queue when it first had to wait, from 1; 0 = never waited

	// set once
	s   *Scheduler
	p   *place
	set *candidateSet // nil when adopted
	key holderKey
	// account is who holds it, nil when adopted; since is when it was granted.
	account *account
	since   time.Time

	// guarded by s.mu
	state      holding
	ended      bool // the node has said so
	decidedAt  time.Time
	prev, next *Grant // in s.unconfirmed
}

// Sent says that the open is about to be written. False means that the place is lost (connection fenced or superseded,
// adapter removed) and given back already: acquire again.
func (g *Grant) Sent() bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if g.state != heldUnsent {
		g.s.ignored.Sent++
		return false
	}
	if g.p.lost() {
		g.s.freeLocked(g, time.Now())
		return false
	}
	g.state = heldSent
	return true
}

// Release gives the place of an open back that was never begun to be written. After Sent it is refused.
func (g *Grant) Release() bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if g.state != heldUnsent {
		g.s.ignored.Release++
		return false
	}
	g.s.freeLocked(g, time.Now())
	return true
}

// Rejected gives the place of an open back that started nothing: the node refused it, or its last byte was never
// handed to the link.
func (g *Grant) Rejected() bool { return g.rejected(false) }

// RejectedBusy is Saturated and Rejected in one step, so that the place isn't offered in between.
func (g *Grant) RejectedBusy() bool { return g.rejected(true) }

func (g *Grant) rejected(busy bool) bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if g.state != heldSent && g.state != heldDecided {
		g.s.ignored.Rejected++
		return false
	}
	now := time.Now()
	if busy && !g.p.lost() {
		g.s.saturateLocked(g.p, now)
	}
	g.s.freeLocked(g, now)
	return true
}

// Decided says that the run's outcome is decided: a place that was never sent to is free, any other stays held until
// the node confirms, at most for Config.ConfirmLimit. When the place was freed before, as it mostly is, it is a no-op.
func (g *Grant) Decided() bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	switch g.state {
	case heldUnsent:
		g.s.freeLocked(g, time.Now())
	case heldSent:
		g.state = heldDecided
		g.decidedAt = time.Now()
		g.s.awaitConfirmLocked(g)
	case heldDecided:
		g.s.ignored.Decided++
		return false
	default:
		return false
	}
	return true
}
