package credential

import (
	"time"

	"iop/packages/go/execution"
)

// leaseState is what the edge knows of a lease.
type leaseState uint8

const (
	leaseIssued    leaseState = iota + 1 // made, and perhaps sent
	leaseCommitted                       // the key was sent to the provider, or must be assumed to be
	leaseRefused                         // the node said no; the key wasn't sent
	leaseVoid                            // the node never got it
	leaseExpired                         // nothing was heard of it while it could be used: maybe it was
)

// String is the state's name in counts and logs.
func (s leaseState) String() string {
	return [...]string{leaseIssued: "issued", leaseCommitted: "committed", leaseRefused: "refused", leaseVoid: "void", leaseExpired: "expired"}[s]
}

const (
	lateBy    = 5 * time.Second  // after a lease's end, until it counts as expired
	keptEnds  = 65536            // ends that are remembered at most
	keptEnded = 10 * time.Minute // and for how long after the lease's end: nodes tell late
)

// peer is one connection of a node.
type peer struct {
	node       string
	generation uint64
}

// entry is one lease in the ledger, guarded by the store's lock; what stands first never changes.
type entry struct {
	id, run, slot string
	to            peer
	revision      uint64 // of the slot
	attempt       uint32
	ends          time.Time // the lease's end and lateBy

	state leaseState
	why   execution.LeaseRefusal // of a refused one
	open  bool                   // its attempt is on
	gone  bool                   // its connection is over
	told  bool                   // the node said how it ended
	wrong bool                   // and somebody said what can't be true
}

// over reports whether nothing more is to come of it: its key is in no node's hand any more.
func (e *entry) over(now time.Time) bool {
	switch e.state {
	case leaseIssued:
		return false
	case leaseCommitted:
		return e.told || !e.open && now.After(e.ends)
	}
	return true
}

// ledger has every lease that may be in use, and the last ones that ended. Those in use are bounded by the runs that
// there are.
type ledger struct {
	live  map[string]*entry
	ended map[string]*entry
	order []*entry // of ended, the oldest first
	most  int
}

func newLedger() ledger {
	return ledger{live: map[string]*entry{}, ended: map[string]*entry{}, most: keptEnds}
}

func (l *ledger) add(e *entry) { l.live[e.id] = e }

func (l *ledger) find(id string) *entry {
	if e := l.live[id]; e != nil {
		return e
	}
	return l.ended[id]
}

// settle files an entry under those that ended, if it did.
func (l *ledger) settle(e *entry, now time.Time) {
	if _, there := l.live[e.id]; !there || !e.over(now) {
		return
	}
	delete(l.live, e.id)
	l.ended[e.id] = e
	l.order = append(l.order, e)
	l.forget(now)
}

// forget drops what ended long ago, and the oldest of too many.
func (l *ledger) forget(now time.Time) {
	n := 0
	for n < len(l.order) && (len(l.order)-n > l.most || now.Sub(l.order[n].ends) > keptEnded) {
		delete(l.ended, l.order[n].id)
		l.order[n] = nil
		n++
	}
	l.order = l.order[n:]
}

// lapsed are the leases that time has ended: those of which nothing was heard until they were worthless, though their
// attempts are over. An attempt that is still on is word enough: its answer may take hours.
func (l *ledger) lapsed(now time.Time) (expired []*entry) {
	for _, e := range l.live {
		if e.state == leaseIssued && !e.open && now.After(e.ends) {
			expired = append(expired, e)
		} else {
			l.settle(e, now)
		}
	}
	l.forget(now)
	return expired
}
