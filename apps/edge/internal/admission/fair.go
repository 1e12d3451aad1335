package admission

import "time"

// A principal's share of what is contended is measured in place-seconds over its weight: who has had least of it is
// served next. Idle time earns nothing: who comes back starts where those stand who are being served.

// The bounds of what an execution is expected to take, before it is known.
const (
	holdFirst = time.Second
	holdLeast = 10 * time.Millisecond
	holdMost  = time.Minute
	// holdParts is how much of the expectation each ending replaces.
	holdParts = 16
)

// account is what one principal has had and what it waits for. Guarded by Scheduler.mu.
type account struct {
	principal string
	weight    float64
	held      int           // places, of all connections
	used      time.Duration // place-time over weight until at
	at        time.Time
	lines     []*line        // in which somebody waits
	queued    map[string]int // who waits, by Request.queue
}

// line is those of one principal who wait in one set, by arrival.
type line struct {
	account    *account
	set        *candidateSet
	head, tail *waiter
}

// accountLocked returns r's account. One that was idle joins those who are served, wherever it stood.
func (s *Scheduler) accountLocked(r *Request, now time.Time) *account {
	a := s.accounts[r.Principal]
	if a == nil {
		a = &account{principal: r.Principal, at: now, queued: make(map[string]int)}
		s.accounts[r.Principal] = a
	}
	a.settle(now)
	if a.held == 0 && len(a.lines) == 0 {
		if floor, served := s.floorLocked(now); served {
			a.used = max(a.used, floor)
		}
	}
	a.weight = r.Weight
	if a.weight <= 0 {
		a.weight = 1
	}
	return a
}

// floorLocked is what the least served of those has had who hold a place. It is good enough for a while.
func (s *Scheduler) floorLocked(now time.Time) (floor time.Duration, served bool) {
	if !s.floorAt.IsZero() && now.Sub(s.floorAt) < holdLeast {
		return s.floor, s.floorServed
	}
	for _, a := range s.accounts {
		if a.held == 0 {
			continue
		}
		if used := a.usedBy(now); !served || used < floor {
			floor, served = used, true
		}
	}
	s.floor, s.floorServed, s.floorAt = floor, served, now
	return floor, served
}

func (a *account) usedBy(now time.Time) time.Duration {
	return a.used + a.over(time.Duration(a.held)*now.Sub(a.at))
}

func (a *account) over(d time.Duration) time.Duration { return time.Duration(float64(d) / a.weight) }

func (a *account) settle(now time.Time) { a.used, a.at = a.usedBy(now), now }

// claim orders those who wait: what an account has had, and what the places that it holds are expected to cost yet.
// Without the latter, places that become free at one moment would all go to one account.
func (a *account) claim(now time.Time, hold time.Duration) time.Duration {
	return a.usedBy(now) + a.over(time.Duration(a.held)*hold)
}

// take and giveBack count the places that an account holds. Both are no-ops for adopted executions, of which nobody
// knows whose they are.
func (a *account) take(now time.Time) {
	if a != nil {
		a.settle(now)
		a.held++
	}
}

func (a *account) giveBack(now time.Time) {
	if a != nil {
		a.settle(now)
		a.held--
	}
}

// learnLocked takes an execution's time into what the next ones are expected to take.
func (s *Scheduler) learnLocked(took time.Duration) {
	s.hold += (min(max(took, holdLeast), holdMost) - s.hold) / holdParts
}

// nextLocked returns who is to be served by one of the open places: of those with the least claim the earliest arrival.
func (s *Scheduler) nextLocked(places []*place, now time.Time) *waiter {
	var (
		best  *waiter
		claim time.Duration
	)
	for _, a := range s.contending {
		c := a.claim(now, s.hold)
		if best != nil && c > claim {
			continue
		}
		w := a.first(places, now)
		if w != nil && (best == nil || c < claim || w.req.ticket.number < best.req.ticket.number) {
			best, claim = w, c
		}
	}
	return best
}

// first returns the earliest arrival of the account that one of the open places can serve.
func (a *account) first(places []*place, now time.Time) *waiter {
	var first *waiter
	for _, p := range places {
		if !p.open(now) {
			continue
		}
		if len(p.sets) < len(a.lines) {
			for set := range p.sets {
				first = set.lines[a].earlier(first, p)
			}
			continue
		}
		for _, l := range a.lines {
			if _, ok := p.sets[l.set]; ok {
				first = l.earlier(first, p)
			}
		}
	}
	return first
}

// earlier returns the first in the line who doesn't exclude p, unless w arrived before.
func (l *line) earlier(w *waiter, p *place) *waiter {
	if l == nil {
		return w
	}
	o := l.head
	for o != nil && o.req.excludes(p) {
		o = o.next
	}
	if o == nil || w != nil && w.req.ticket.number < o.req.ticket.number {
		return w
	}
	return o
}

// joinLocked puts w where its arrival belongs in its principal's line, and returns its position in the set from 1: as if
// the other principals came first.
func (s *Scheduler) joinLocked(w *waiter, a *account) (rank int) {
	l := w.set.lines[a]
	if l == nil {
		l = &line{account: a, set: w.set}
		w.set.lines[a] = l
		if len(a.lines) == 0 {
			s.contending = append(s.contending, a)
		}
		a.lines = append(a.lines, l)
	}
	w.line = l
	behind := l.insert(w)
	if w.set.queued++; w.set.queued == 1 {
		s.waiting = append(s.waiting, w.set)
	}
	return w.set.queued - behind
}

// insert returns how many stand behind w. Newcomers belong at the end; who comes back belongs near the front.
func (l *line) insert(w *waiter) (behind int) {
	after := l.tail
	if after != nil && after.req.ticket.number > w.req.ticket.number {
		after = nil
		for o := l.head; o.req.ticket.number < w.req.ticket.number; o = o.next {
			after = o
		}
	}
	w.prev = after
	if after == nil {
		w.next, l.head = l.head, w
	} else {
		w.next, after.next = after.next, w
	}
	if w.next == nil {
		l.tail = w
		return 0
	}
	w.next.prev = w
	for o := w.next; o != nil; o = o.next {
		behind++
	}
	return behind
}

// partLocked takes w out of its line.
func (s *Scheduler) partLocked(w *waiter) {
	l := w.line
	if w.prev == nil {
		l.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	if l.head == nil {
		a := l.account
		delete(l.set.lines, a)
		a.lines = without(a.lines, l)
		if len(a.lines) == 0 {
			s.contending = without(s.contending, a)
		}
	}
	if l.set.queued--; l.set.queued == 0 {
		s.waiting = without(s.waiting, l.set)
	}
}

// without takes one element out of a list whose order means nothing.
func without[T comparable](list []T, gone T) []T {
	for i, o := range list {
		if o == gone {
			last := len(list) - 1
			list[i] = list[last]
			clear(list[last:])
			return list[:last]
		}
	}
	return list
}
