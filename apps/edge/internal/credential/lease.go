package credential

import (
	"fmt"
	"time"

	"iop/packages/go/execution"
)

// Lease is one attempt's lease, and what its answer is searched with. Its methods are for one goroutine. Of Used, Void,
// Refused and Lost the first one that says how it ended counts; [Store.Ended] may say it before them. Close must be called,
// last.
type Lease struct {
	store *Store
	entry *entry
	wire  []byte

	route, profile                 string
	routeRevision, profileRevision uint64
	scanner                        Scanner
}

// Format implements fmt.Formatter: a lease is named, never shown.
func (l *Lease) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "[lease %s]", l.entry.id) }

// Wire is what the node is sent. It is valid after Close, too.
func (l *Lease) Wire() []byte { return l.wire }

// ID is the lease's id, in hex.
func (l *Lease) ID() string { return l.entry.id }

// Slot is the slot whose key it lends.
func (l *Lease) Slot() string { return l.entry.slot }

// Profile is the profile by which the key is used.
func (l *Lease) Profile() string { return l.profile }

// Current reports whether slot, profile and route are as they were when the lease was made: the fence before it is sent.
func (l *Lease) Current() bool {
	state := l.store.cfg.State()
	if state.RouteRevision(l.route) != l.routeRevision || state.ProfileRevision(l.profile) != l.profileRevision {
		return false
	}
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lendableLocked(l.entry.slot) == nil && s.records[l.entry.slot].Revision == l.entry.revision
}

// Used says that the provider has answered: the key was sent.
func (l *Lease) Used() { l.store.move(l.entry, leaseCommitted) }

// Void says that the node never got the lease, or refused the request for another reason.
func (l *Lease) Void() { l.store.move(l.entry, leaseVoid) }

// Refused says that the node refused the request because of the lease.
func (l *Lease) Refused(why execution.LeaseRefusal) {
	s := l.store
	s.mu.Lock()
	ended := s.refuseLocked(l.entry, why)
	s.mu.Unlock()
	if ended {
		s.refusedThere(l.entry, why)
	}
}

// Lost says that the link went after the lease was sent: the key must be assumed to have been used.
func (l *Lease) Lost() { l.store.move(l.entry, leaseCommitted) }

// Close says that the attempt is over. What becomes of the lease from here on is the node's to tell. Calling it again
// changes nothing.
func (l *Lease) Close() {
	k := l.scanner.key
	l.scanner.close()
	k.release()
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	l.entry.open = false
	s.ledger.settle(l.entry, time.Now())
}

// Scanner returns what finds the key in the provider's answer. It is the same each time.
func (l *Lease) Scanner() *Scanner { return &l.scanner }

// move says how a lease that was issued ended.
func (s *Store) move(e *entry, to leaseState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moveLocked(e, to)
}

// moveLocked reports whether it was the lease's end; every lease ends once.
func (s *Store) moveLocked(e *entry, to leaseState) bool {
	if e.state != leaseIssued {
		return false
	}
	e.state = to
	s.count(e.slot, to.String())
	s.ledger.settle(e, time.Now())
	return true
}

func (s *Store) refuseLocked(e *entry, why execution.LeaseRefusal) bool {
	if !s.moveLocked(e, leaseRefused) {
		return false
	}
	e.why = why
	return true
}

// Ended takes what a node says became of a lease: that its key was sent, or why it wasn't. The first word counts. Ends of
// leases that this edge doesn't know (of an earlier process, or long ago) are counted; a lease that was used though it
// was void or expired, or is another node's, is a matter of security.
func (s *Store) Ended(nodeID, leaseID string, committed bool, why execution.LeaseRefusal) {
	s.mu.Lock()
	e := s.ledger.find(leaseID)
	if e == nil {
		s.counts.Unknown++
		s.mu.Unlock()
		return
	}
	var misuse string
	refused := false
	switch {
	case e.to.node != nodeID:
		misuse = "another_node"
	case committed && e.state == leaseVoid:
		misuse = "void_used"
	case committed && e.state == leaseExpired:
		misuse = "expired_used"
	case committed:
		e.told = true
		s.moveLocked(e, leaseCommitted)
	default:
		e.told = true
		refused = s.refuseLocked(e, why)
	}
	s.ledger.settle(e, time.Now())
	again := misuse != "" && e.wrong // a node may say so without end
	e.wrong = e.wrong || misuse != ""
	s.mu.Unlock()
	if misuse != "" && !again {
		s.misused(e, nodeID, misuse)
	}
	if refused {
		s.refusedThere(e, why)
	}
}
