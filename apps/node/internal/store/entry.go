package store

import "iop/packages/go/execution"

// Entry is the row of one execution in the making. A nil *Entry takes everything and keeps nothing. Its methods never
// block and never fail; they may be called concurrently.
type Entry struct {
	j *Journal // set once

	// guarded by Journal.mu
	row        Row
	stored     bool // the file has the row in some state
	class      class
	prev, next *Entry // in the queue's list of that class
}

// Begin records that an execution began. It never blocks and never fails.
func (j *Journal) Begin(x Execution) *Entry {
	if j == nil {
		return nil
	}
	e := &Entry{j: j, row: Row{Execution: x.bounded(), Outcome: Outcome{Status: StatusRunning}}}
	if x.Created.IsZero() {
		e.row.Created = j.cfg.Now()
	}
	j.mu.Lock()
	e.row.ID = j.nextID
	j.nextID++
	j.putLocked(e)
	j.mu.Unlock()
	j.signal()
	return e
}

// Update records how far the execution has come. After its end it does nothing.
func (e *Entry) Update(p Progress) {
	if e == nil {
		return
	}
	e.j.mu.Lock()
	defer e.j.signal()
	defer e.j.mu.Unlock()
	if e.row.Status == StatusRunning {
		e.row.Progress.merge(p)
		e.j.putLocked(e)
	}
}

// End records how the execution ended. The first end stands; what comes later is ignored. What o's Progress doesn't
// say stays as Update said it.
func (e *Entry) End(o Outcome) {
	if e == nil {
		return
	}
	if !o.Status.final() { // a caller's mistake, but no reason to leave the row running
		o.Status, o.Code = StatusError, execution.CodeInternal
	}
	if o.Ended.IsZero() {
		o.Ended = e.j.cfg.Now()
	}
	e.j.mu.Lock()
	defer e.j.signal()
	defer e.j.mu.Unlock()
	if e.row.Status != StatusRunning {
		return
	}
	e.row.Progress.merge(o.Progress)
	e.row.Status, e.row.Code, e.row.Ended = o.Status, o.Code, o.Ended
	e.j.putLocked(e)
	if e.row.Background {
		for _, dropped := range e.j.outbox.add(e) {
			e.j.reportedLocked(dropped)
		}
	}
}

// classify says where in the queue e belongs.
func (e *Entry) classify() class {
	switch {
	case e.row.Status == StatusRunning:
		return queuedBegin
	case e.stored:
		return queuedUpdate
	}
	return queuedEnd
}
