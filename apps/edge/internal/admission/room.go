package admission

import (
	"time"

	"iop/packages/go/execution"
)

// A queue has room for so many, and whoever asks fastest would have all of it: the shares of those who wait say nothing
// for somebody who isn't let in. So a full queue is shared, too: who has less of it than its share takes a place in it
// from who has most.

// waits returns how much of a queue an account has, over its weight, when it had so many more.
func (a *account) waits(queue string, more int) float64 {
	return float64(a.queued[queue]+more) / a.weight
}

// makeRoomLocked refuses somebody else who waits in the queue of r, whose account that is: the last that came, of the
// principal that has most of the queue. False = none has more of it than r's would then have.
func (s *Scheduler) makeRoomLocked(r *Request, a *account, into *candidateSet, now time.Time) bool {
	queue := r.queue()
	most, by := a, a.waits(queue, 1)
	for _, o := range s.contending {
		if has := o.waits(queue, 0); has > by && o.queued[queue] > 1 { // nobody loses the only one
			most, by = o, has
		}
	}
	w := most.lastIn(queue)
	if most == a || w == nil {
		return false
	}
	set := w.set
	s.settleLocked(w, nil, set.refusal(execution.CodeQueueFull, set.queued, now), now)
	if set != into {
		s.dropUnusedLocked(set)
	}
	return true
}

// lastIn returns who of the account came last into a queue.
func (a *account) lastIn(queue string) *waiter {
	var last *waiter
	for _, l := range a.lines {
		w := l.tail
		for w != nil && w.queue != queue {
			w = w.prev
		}
		if w != nil && (last == nil || w.req.ticket.number > last.req.ticket.number) {
			last = w
		}
	}
	return last
}

// countLocked notes that so many more wait in w's queue, or fewer.
func (s *Scheduler) countLocked(w *waiter, more int) {
	for _, counts := range []map[string]int{s.queued, w.line.account.queued} {
		if counts[w.queue] += more; counts[w.queue] == 0 {
			delete(counts, w.queue)
		}
	}
}
