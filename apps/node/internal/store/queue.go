package store

// class orders what the queue holds by what its loss would cost, cheapest first.
type class uint8

const (
	unqueued     class = iota
	queuedBegin        // it runs: its row comes again, whole, with its end
	queuedEnd          // it has ended and the file doesn't know it: its loss loses a row
	queuedUpdate       // the file has it in an older state, running as a rule: a restart would call it interrupted
)

// queue holds the entries whose rows differ from the file's: each at most once, so that whatever happens to one
// execution meanwhile is merged into one write. It is guarded by Journal.mu; every operation is O(1), take aside.
type queue struct {
	limit int
	n     int
	lost  uint64 // rows that were dropped and don't come again
	lists [queuedUpdate + 1]entries
}

// put queues e, or moves it to where its state belongs now. A full queue drops its cheapest, oldest entry.
func (q *queue) put(e *Entry) {
	c := e.classify()
	if e.class == c {
		return
	}
	q.remove(e)
	e.class = c
	q.lists[c].pushBack(e)
	q.n++
	q.shed()
}

// restore puts back what was taken and couldn't be written, as the oldest of its class.
func (q *queue) restore(batch []*Entry) {
	for i := len(batch) - 1; i >= 0; i-- {
		e := batch[i]
		if e.class != unqueued {
			continue // it has changed since and is queued again
		}
		e.class = e.classify()
		q.lists[e.class].pushFront(e)
		q.n++
	}
	q.shed()
}

// take appends up to limit entries to batch, the costliest first, and removes them from the queue.
func (q *queue) take(batch []*Entry, limit int) []*Entry {
	for c := queuedUpdate; c > unqueued; c-- {
		for e := q.lists[c].first; e != nil && len(batch) < limit; e = q.lists[c].first {
			q.remove(e)
			batch = append(batch, e)
		}
	}
	return batch
}

func (q *queue) shed() {
	for c := queuedBegin; c <= queuedUpdate && q.n > q.limit; c++ {
		for e := q.lists[c].first; e != nil && q.n > q.limit; e = q.lists[c].first {
			q.remove(e)
			if c != queuedBegin {
				q.lost++
			}
		}
	}
}

func (q *queue) remove(e *Entry) {
	if e.class == unqueued {
		return
	}
	q.lists[e.class].remove(e)
	e.class = unqueued
	q.n--
}

// entries is a list of entries, oldest first, linked through the entries themselves.
type entries struct{ first, last *Entry }

func (l *entries) pushBack(e *Entry) {
	if e.prev = l.last; e.prev == nil {
		l.first = e
	} else {
		e.prev.next = e
	}
	l.last = e
}

func (l *entries) pushFront(e *Entry) {
	if e.next = l.first; e.next == nil {
		l.last = e
	} else {
		e.next.prev = e
	}
	l.first = e
}

func (l *entries) remove(e *Entry) {
	if e.prev == nil {
		l.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
}
