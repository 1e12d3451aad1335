package service

import (
	"sync"

	"iop/packages/go/execution"
)

// table knows the runs by id: those that are live, and a bounded number of those that ended last.
type table struct {
	most int // of recent

	mu        sync.Mutex
	live      map[string]*Run
	recovered int // of live: runs of an earlier edge process
	draining  bool
	recent    []entry        // a ring once it has its full length
	next      int            // where the ring's next entry goes
	index     map[string]int // of recent, by id
	hearsay   int            // of recent: never live here, known by a node's word only

	busy        sync.WaitGroup // counts the live foreground runs; nothing is added once draining
	backgrounds sync.WaitGroup // counts the goroutines of background runs; the same
}

// entry is a run that ended.
type entry struct {
	RunView
	hearsay  bool                  // see table
	unwanted execution.CancelCause // 0, or why its node is to end it if it has it still
	steps    []step                // not to be changed
	leftOut  int
}

func newTable(recent int) *table {
	return &table{most: recent, live: map[string]*Run{}, index: map[string]int{}}
}

// enter makes a run live, or says why not.
func (t *table) enter(r *Run) *execution.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.enterLocked(r)
}

func (t *table) enterLocked(r *Run) *execution.Failure {
	_, ended := t.index[r.id]
	switch {
	case t.draining:
		return cancelled(execution.CauseEdgeDraining)
	case ended || t.live[r.id] != nil:
		return execution.Failf(execution.CodeDuplicateRun, execution.OriginCaller, "a run with this id is known already")
	}
	t.live[r.id] = r
	if r.out.Background {
		t.backgrounds.Add(1)
	} else {
		t.busy.Add(1)
	}
	return nil
}

// enterRecovered makes a run of an earlier edge process live, or says why not.
func (t *table) enterRecovered(r *Run) *execution.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.recovered >= maxRecovered {
		return execution.Failf(execution.CodeOverloaded, execution.OriginEdge, "%d runs of earlier edge processes are live", t.recovered)
	}
	f := t.enterLocked(r)
	if f == nil {
		t.recovered++
	}
	return f
}

// leave ends a run's life. It is remembered until as many others as the table holds have ended.
func (t *table) leave(r *Run) {
	e := entry{RunView: r.endedView()}
	e.steps, e.leftOut = r.line.load(false)
	if cause, stop := r.unwanted(); stop && e.Background {
		e.unwanted = cause
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, r.id)
	t.rememberLocked(e)
	if r.job == nil {
		t.recovered--
	}
	if !e.Background {
		t.busy.Done()
	}
}

// hearsayShare is the part of what is remembered that may be known by nodes' words only: one that invents runs must not
// push out what happened.
const hearsayShare = 4

// recover remembers a run that ended and was never live here. False: it is known, or there are too many such.
func (t *table) recover(v RunView) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.index[v.RunID]; known || t.live[v.RunID] != nil || t.hearsay >= max(t.most/hearsayShare, 1) {
		return false
	}
	t.hearsay++
	t.rememberLocked(entry{RunView: v, hearsay: true})
	return true
}

func (t *table) rememberLocked(e entry) {
	if len(t.recent) < t.most {
		t.index[e.RunID] = len(t.recent)
		t.recent = append(t.recent, e)
		return
	}
	delete(t.index, t.recent[t.next].RunID)
	if t.recent[t.next].hearsay {
		t.hearsay--
	}
	t.index[e.RunID], t.recent[t.next] = t.next, e
	t.next = (t.next + 1) % t.most
}

// find returns a live run, and whether one with this id is live or ended not long ago.
func (t *table) find(id string) (r *Run, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ended := t.index[id]
	r = t.live[id]
	return r, r != nil || ended
}

// lookup returns a run that is live, or a copy of what is remembered of it; both are nil when it isn't known.
func (t *table) lookup(id string) (*Run, *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.live[id]; r != nil {
		return r, nil
	}
	i, ok := t.index[id]
	if !ok {
		return nil, nil
	}
	e := t.recent[i]
	return nil, &e
}

// recentViews returns what is remembered, the newest first.
func (t *table) recentViews() []RunView {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.recent)
	views := make([]RunView, n)
	for i := range t.recent {
		// The newest stands before next, or at the end while the ring isn't full.
		views[i] = t.recent[(t.next+n-1-i)%n].RunView
	}
	return views
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
