package admission

import "time"

const (
	// minSweep is the number of candidate sets below which idle ones are simply kept.
	minSweep = 128
	// mostSets is the number above which those are forgotten, too, that were used a moment ago: all that is lost is how
	// fast they were. Where a provider takes any name for a model, callers make the sets.
	mostSets = 2048
)

// candidateSet is all requests with one Request.Set: where they may execute and who of them waits. Everything here is
// guarded by Scheduler.mu.
type candidateSet struct {
	name     string
	revision uint64 // of match and target
	match    func(*Node, *Adapter) bool
	target   string

	candidates []candidate
	turn       int  // where the next search begins, so that ties rotate
	shrunk     bool // lost a candidate since the hopeless were last looked for

	lines  map[*account]*line // those who wait, by principal
	queued int

	granted  bool // somebody of it was granted a place at some time
	lastUsed time.Time
	endings  endings
}

type candidate struct {
	p      *place
	loaded bool // has the target in memory
}

// setLocked returns r's candidate set: a new one when it is the first of its name, brought up to date when r comes from
// a later configuration.
func (s *Scheduler) setLocked(r *Request, now time.Time) *candidateSet {
	set := s.sets[r.Set]
	fresh := set == nil
	if fresh {
		if len(s.sets) >= s.sweepAt {
			s.sweepLocked(now)
		}
		set = &candidateSet{name: r.Set, lines: make(map[*account]*line), endings: endings{began: now}}
		s.sets[r.Set] = set
	}
	if fresh || r.SetRevision > set.revision {
		set.revision, set.match, set.target = r.SetRevision, r.Match, r.Target
		var places []*place
		for _, e := range s.entries {
			if e.current != nil {
				set.relink(e.current)
				places = append(places, e.current.places...)
			}
		}
		s.refuseHopelessOfLocked(set, now)
		s.offerLocked(places, now)
	}
	set.lastUsed = now
	return set
}

// relinkLocked brings the candidates of every set up to date with a connection that changed.
func (s *Scheduler) relinkLocked(c *conn) {
	for _, set := range s.sets {
		set.relink(c)
	}
	kept := c.places[:0:0]
	for _, p := range c.places {
		if p.adapter != nil || len(p.holders) > 0 {
			kept = append(kept, p)
		}
	}
	c.places = kept
}

func (set *candidateSet) relink(c *conn) {
	kept := set.candidates[:0]
	for _, cand := range set.candidates {
		if cand.p.conn != c {
			kept = append(kept, cand)
		} else if set.wants(cand.p) {
			kept = append(kept, candidate{cand.p, cand.p.adapter.loaded(set.target)})
		} else {
			delete(cand.p.sets, set)
			set.shrunk = true
		}
	}
	clear(set.candidates[len(kept):])
	set.candidates = kept
	for _, p := range c.places {
		if _, ok := p.sets[set]; !ok && set.wants(p) {
			p.sets[set] = struct{}{}
			set.candidates = append(set.candidates, candidate{p, p.adapter.loaded(set.target)})
		}
	}
}

func (set *candidateSet) wants(p *place) bool {
	if !p.candidate() {
		return false
	}
	if set.match == nil {
		return p.adapter.Offers(set.target)
	}
	return set.match(&p.conn.node, p.adapter)
}

// choose returns the best open candidate for r, nil when there is none: one that isn't saturated, then one that has the
// target loaded, then the least loaded; ties rotate.
func (set *candidateSet) choose(r *Request, now time.Time) *place {
	var best *candidate
	n, at := len(set.candidates), 0
	for i := range n {
		j := (set.turn + i) % n
		cand := &set.candidates[j]
		if !cand.p.open(now) || r.excludes(cand.p) {
			continue
		}
		if best == nil || cand.better(best) {
			best, at = cand, j
		}
	}
	if best == nil {
		return nil
	}
	set.turn = (at + 1) % n
	return best.p
}

func (c *candidate) better(o *candidate) bool {
	if c.p.saturated != o.p.saturated {
		return !c.p.saturated
	}
	if c.loaded != o.loaded {
		return c.loaded
	}
	return len(c.p.holders)*o.p.capacity() < len(o.p.holders)*c.p.capacity()
}

// hopeful says that r has a candidate, free or not.
func (set *candidateSet) hopeful(r *Request) bool {
	for i := range set.candidates {
		if !r.excludes(set.candidates[i].p) {
			return true
		}
	}
	return false
}

// any returns one of those who wait.
func (set *candidateSet) any() *waiter {
	for _, l := range set.lines {
		return l.head
	}
	return nil
}

// dropUnusedLocked forgets a set that was never granted anything once nobody waits in it: names that match nothing must
// not pile up.
func (s *Scheduler) dropUnusedLocked(set *candidateSet) {
	if !set.granted && set.queued == 0 {
		s.dropSetLocked(set)
	}
}

// sweepLocked forgets the sets that nobody waits in or holds a place of, and of whose endings nothing is left to know.
func (s *Scheduler) sweepLocked(now time.Time) {
	held := make(map[*candidateSet]bool)
	for _, c := range s.conns {
		for _, p := range c.places {
			for _, g := range p.holders {
				held[g.set] = true
			}
		}
	}
	for _, set := range s.sets {
		idle := set.queued == 0 && !held[set]
		if idle && (len(s.sets) > mostSets || now.Sub(set.lastUsed) > endingsWindow && set.endings.count(now) == 0) {
			s.dropSetLocked(set)
		}
	}
	s.sweepAt = max(minSweep, 2*len(s.sets))
}

func (s *Scheduler) dropSetLocked(set *candidateSet) {
	delete(s.sets, set.name)
	for i := range set.candidates {
		delete(set.candidates[i].p.sets, set)
	}
	set.candidates = nil
}
