package service

import (
	"container/list"
	"sync"
	"time"

	"iop/packages/go/execution"
)

// tails are the answers that are whole at the edge while their callers still read. They hold no place, so nothing else
// bounds them, and each may hold a full window of memory: beyond most, those go that have been read for longest.
type tails struct {
	most int

	mu  sync.Mutex
	all list.List // of *tail, the longest first
}

// tail is one of them.
type tail struct {
	run   *Run
	since time.Time
}

const (
	// tailGrace is what a caller has to itself to read what is left, however many others there are.
	tailGrace = 10 * time.Second
	// tailBurst is how many times most there may be for as long as that.
	tailBurst = 4
)

// add notes that a run's execution is over while its answer is read. It is called once a run.
func (t *tails) add(r *Run) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.decided() {
		return // it leaves the table without looking here, or has left
	}
	r.tail = t.all.PushBack(&tail{r, now})
	for over := t.all.Len() - t.most; over > 0; over-- {
		first := t.all.Front().Value.(*tail)
		if now.Sub(first.since) < tailGrace && t.all.Len() <= tailBurst*t.most {
			return
		}
		t.removeLocked(first.run)
		first.run.end(execution.CauseClientSlow)
	}
}

// remove forgets a run that has ended.
func (t *tails) remove(r *Run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(r)
}

func (t *tails) removeLocked(r *Run) {
	if r.tail != nil {
		t.all.Remove(r.tail)
		r.tail = nil
	}
}

// len returns how many there are.
func (t *tails) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.Len()
}
