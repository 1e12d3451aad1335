package store

import (
	"container/list"
	"time"
)

// outbox remembers the background runs whose end their edge hasn't acknowledged. It lives in memory, so that telling
// an edge what ended needs no disk; the file repeats it after a restart. It is bounded: an edge that never
// acknowledges costs no more than maxUnreported rows. Guarded by Journal.mu.
type outbox struct {
	byRun map[runKey]*list.Element
	order *list.List // of *Entry, in the order in which they ended
}

type runKey struct{ edge, runID string }

// maxUnreported bounds the outbox. An edge forgets its runs long before ten thousand more have ended.
const maxUnreported = 10_000

func newOutbox() outbox { return outbox{map[runKey]*list.Element{}, list.New()} }

// add remembers e. It returns the entries that stop waiting for it: an older execution of the same run, and the
// oldest of all when there are too many.
func (o *outbox) add(e *Entry) (dropped []*Entry) {
	key := runKey{e.row.Edge, e.row.RunID}
	if older := o.take(key); older != nil {
		dropped = append(dropped, older)
	}
	o.byRun[key] = o.order.PushBack(e)
	if o.order.Len() > maxUnreported {
		dropped = append(dropped, o.oldest())
	}
	return dropped
}

// take forgets a run and returns its entry, nil if it isn't there.
func (o *outbox) take(key runKey) *Entry {
	element, ok := o.byRun[key]
	if !ok {
		return nil
	}
	delete(o.byRun, key)
	return o.order.Remove(element).(*Entry)
}

func (o *outbox) oldest() *Entry {
	e := o.order.Front().Value.(*Entry)
	return o.take(runKey{e.row.Edge, e.row.RunID})
}

// expire forgets what was created before cutoff; retention deletes these rows.
func (o *outbox) expire(cutoff time.Time) {
	for key, element := range o.byRun {
		if element.Value.(*Entry).row.Created.Before(cutoff) {
			o.take(key)
		}
	}
}

// of returns the rows that edge hasn't acknowledged, in the order in which they ended.
func (o *outbox) of(edge string) []Row {
	var rows []Row
	for element := o.order.Front(); element != nil; element = element.Next() {
		if e := element.Value.(*Entry); e.row.Edge == edge {
			rows = append(rows, e.row)
		}
	}
	return rows
}
