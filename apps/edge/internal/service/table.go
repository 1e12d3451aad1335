package service

import (
	"sync"

	"iop/packages/go/execution"
)

// table knows the runs by id: those that are live, and the ids of a bounded number of those that ended last.
type table struct {
	mu       sync.Mutex
	live     map[string]*Run
	draining bool
	ended    map[string]struct{}
	order    []string // ring of what is in ended
	next     int

	busy sync.WaitGroup // counts live; nothing is added once draining
}

func newTable(recent int) *table {
	return &table{live: map[string]*Run{}, ended: map[string]struct{}{}, order: make([]string, recent)}
}

// enter makes a run live, or says why not.
func (t *table) enter(id string, r *Run) *execution.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ended := t.ended[id]
	switch {
	case t.draining:
		return cancelled(execution.CauseEdgeDraining)
	case ended || t.live[id] != nil:
		return execution.Failf(execution.CodeDuplicateRun, execution.OriginCaller, "a run with this id is known already")
	}
	t.live[id] = r
	t.busy.Add(1)
	return nil
}

// leave ends a run's life. Its id is remembered until as many others as the ring holds have ended.
func (t *table) leave(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.busy.Done()
	delete(t.live, id)
	delete(t.ended, t.order[t.next])
	t.ended[id], t.order[t.next] = struct{}{}, id
	t.next = (t.next + 1) % len(t.order)
}

// find returns a live run, or whether one with this id ended not long ago.
func (t *table) find(id string) (r *Run, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ended = t.ended[id]
	return t.live[id], ended
}

// drain lets nobody in any more.
func (t *table) drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = true
}

// all returns the live runs.
func (t *table) all() []*Run {
	t.mu.Lock()
	defer t.mu.Unlock()
	runs := make([]*Run, 0, len(t.live))
	for _, r := range t.live {
		runs = append(runs, r)
	}
	return runs
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.live)
}
