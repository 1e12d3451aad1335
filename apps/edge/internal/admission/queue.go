package admission

import (
	"context"
	"errors"
	"time"

	"iop/packages/go/execution"
)

// waiter is one Acquire that waits. It is settled once, by whoever takes it out of the queue.
type waiter struct {
	req   *Request
	set   *candidateSet
	queue string // in which it is counted: a request may name another one before it is settled
	since time.Time
	limit time.Duration // from since
	done  chan struct{} // closed when settled

	// guarded by Scheduler.mu until done is closed
	line       *line
	prev, next *waiter // in the line
	grant      *Grant
	refusal    *execution.Failure
	recalled   bool
	settled    bool
}

// ErrRecalled is what Acquire returns to those who waited when [Scheduler.Recall] was called.
var ErrRecalled = errors.New("what is asked for is to be looked at again")

// Recall sends everybody who waits back to their callers with [ErrRecalled], since what they ask for may mean something
// else by now. Who asks again stands where it stood.
func (s *Scheduler) Recall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.waiting) > 0 {
		w := s.waiting[0].any()
		w.recalled = true
		s.settleLocked(w, nil, nil, now)
		s.dropUnusedLocked(w.set)
	}
}

// Acquire returns a place for r, at once or after waiting. The error is a *execution.Failure (queue_full,
// queue_timeout, no_node, edge_draining, each with RetryAfter; duplicate_run), [ErrRecalled] or ctx's cause. A request whose ctx ends
// leaves the queue at once and never holds a place afterwards.
func (s *Scheduler) Acquire(ctx context.Context, r *Request) (*Grant, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	g, w, refusal := s.enter(r)
	if g != nil {
		return g, nil
	}
	if refusal != nil {
		return nil, refusal
	}
	if r.OnWait != nil {
		r.OnWait(r.ticket.rank)
	}
	timer := time.NewTimer(w.limit)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
		s.expire(w)
	case <-ctx.Done():
		s.leave(w)
	}
	if ctx.Err() != nil { // also when both came at once: who is gone isn't served
		s.leave(w)
		return nil, context.Cause(ctx)
	}
	switch {
	case w.recalled:
		return nil, ErrRecalled
	case w.grant == nil:
		return nil, w.refusal
	}
	return w.grant, nil
}

// enter grants, refuses or enqueues: exactly one result isn't nil.
func (s *Scheduler) enter(r *Request) (*Grant, *waiter, *execution.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.draining {
		return nil, nil, s.sets[r.Set].refusal(execution.CodeEdgeDraining, 1, now)
	}
	first := r.ticket.number == 0
	if first {
		s.arrivals++
		r.ticket.number = s.arrivals
	}
	set := s.setLocked(r, now)
	if p := set.choose(r, now); p != nil {
		g, refusal := s.grantLocked(p, set, r, now)
		return g, nil, refusal
	}
	code := set.refuses(r, first, s.queued[r.queue()])
	if code == execution.CodeQueueFull && r.Depth > 0 && r.Wait > 0 && s.makeRoomLocked(r, s.accountLocked(r, now), set, now) {
		code = execution.CodeOK
	}
	if code != execution.CodeOK {
		f := set.refusal(code, set.queued+1, now)
		s.dropUnusedLocked(set)
		return nil, nil, f
	}
	w := &waiter{req: r, set: set, queue: r.queue(), since: now, limit: r.Wait - r.ticket.waited, done: make(chan struct{})}
	rank := s.joinLocked(w, s.accountLocked(r, now))
	s.countLocked(w, 1)
	if r.ticket.rank == 0 {
		r.ticket.rank = rank
	}
	return nil, w, nil
}

// refuses says why r, for which there is no place now, may not wait either; CodeOK = it may. queued is how many wait in
// its queue.
func (set *candidateSet) refuses(r *Request, first bool, queued int) execution.Code {
	switch {
	case (r.FailFast || r.Depth <= 0) && !set.hopeful(r):
		return execution.CodeNoNode
	case r.Depth <= 0 || first && queued >= r.Depth:
		return execution.CodeQueueFull
	case r.ticket.waited >= r.Wait:
		return set.timeout(r)
	}
	return execution.CodeOK
}

// timeout is the code for a request that has waited long enough.
func (set *candidateSet) timeout(r *Request) execution.Code {
	if set.hopeful(r) {
		return execution.CodeQueueTimeout
	}
	return execution.CodeNoNode
}

// grantLocked makes r a holder of p. A run that holds there already with this attempt is refused.
func (s *Scheduler) grantLocked(p *place, set *candidateSet, r *Request, now time.Time) (*Grant, *execution.Failure) {
	key := holderKey{r.RunID, r.Attempt}
	if p.conn.holder(key) != nil {
		return nil, execution.Failf(execution.CodeDuplicateRun, execution.OriginEdge,
			"run %s holds a place of attempt %d already", r.RunID, r.Attempt)
	}
	g := &Grant{
		Place:           Place{p.conn.key.node, p.name},
		Generation:      p.conn.key.generation,
		AdapterRevision: p.adapter.Revision,
		Kind:            p.adapter.Kind,
		AllowPaths:      p.adapter.AllowPaths,
		Queued:          r.ticket.waited,
		Position:        r.ticket.rank,
		s:               s, p: p, set: set, key: key, account: s.accountLocked(r, now), since: now,
	}
	g.account.take(now)
	p.holders[key] = g
	set.granted = true
	if p.saturated {
		s.saturateLocked(p, now)
	}
	if p.breaker.tripped() {
		p.breaker.trial, g.Trial = g, true
	}
	return g, nil
}

// offerLocked gives what is open at the places to those who wait, in the order of nextLocked; each takes the best that it
// can.
func (s *Scheduler) offerLocked(places []*place, now time.Time) {
	for len(s.waiting) > 0 {
		w := s.nextLocked(places, now)
		if w == nil {
			return
		}
		w.req.ticket.waited += now.Sub(w.since)
		w.since = now
		g, refusal := s.grantLocked(w.set.choose(w.req, now), w.set, w.req, now)
		s.settleLocked(w, g, refusal, now)
	}
}

// settleLocked takes w out of its queue and tells it what it got. Unless that is a grant, the caller sees to it that an
// unused set is dropped.
func (s *Scheduler) settleLocked(w *waiter, g *Grant, refusal *execution.Failure, now time.Time) {
	w.req.ticket.waited += now.Sub(w.since)
	w.grant, w.refusal, w.settled = g, refusal, true
	s.countLocked(w, -1)
	s.partLocked(w)
	close(w.done)
}

// leave takes a waiter out whose caller is gone. A place that it was granted at the same moment goes back.
func (s *Scheduler) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !w.settled {
		s.settleLocked(w, nil, nil, now)
		s.dropUnusedLocked(w.set)
	}
	if w.grant != nil && w.grant.state == heldUnsent {
		s.freeLocked(w.grant, now)
	}
}

// expire refuses a waiter whose time is over, unless it was settled at the same moment.
func (s *Scheduler) expire(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.settled {
		return
	}
	now := time.Now()
	s.settleLocked(w, nil, w.set.refusal(w.set.timeout(w.req), w.set.queued, now), now)
	s.dropUnusedLocked(w.set)
}

// refuseHopelessLocked refuses those who fail fast and have no candidate left, in every set whose candidates shrank.
func (s *Scheduler) refuseHopelessLocked() {
	now := time.Now()
	for i := len(s.waiting) - 1; i >= 0; i-- {
		set := s.waiting[i]
		s.refuseHopelessOfLocked(set, now)
		s.dropUnusedLocked(set)
	}
}

func (s *Scheduler) refuseHopelessOfLocked(set *candidateSet, now time.Time) {
	if !set.shrunk {
		return
	}
	set.shrunk = false
	for _, l := range set.lines {
		for w := l.head; w != nil; {
			next := w.next
			if w.req.FailFast && !set.hopeful(w.req) {
				s.settleLocked(w, nil, set.refusal(execution.CodeNoNode, set.queued, now), now)
			}
			w = next
		}
	}
}
