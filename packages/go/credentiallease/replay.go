package credentiallease

import "container/heap"

// graceMS is how long after its end a lease, and a recipient key that was replaced, is remembered.
const graceMS = 5000

// replaySet remembers the ids of leases that were accepted, each until nobody would accept it again. Not safe for
// concurrent use.
type replaySet struct {
	max  int
	seen map[[leaseIDSize]byte]struct{}
	ends endHeap
	// horizon is the latest time by which something was forgotten. What ended before it may have been here, so it is
	// refused even if the clock stepped back since.
	horizon int64
}

// reserve takes an id. It is called for leases with a good signature only, so that junk can't fill the set.
func (s *replaySet) reserve(id [leaseIDSize]byte, expiresAt int64, now Time) error {
	s.forget(now)
	until := expiresAt
	if until < maxInt64-graceMS {
		until += graceMS
	}
	if _, ok := s.seen[id]; ok {
		return refuse(Replayed, FieldNone)
	}
	switch {
	case until <= s.horizon:
		return refuse(Expired, FieldNone)
	case len(s.seen) >= s.max:
		return refuse(ReplayCacheFull, FieldNone)
	}
	if s.seen == nil {
		s.seen = make(map[[leaseIDSize]byte]struct{})
	}
	s.seen[id] = struct{}{}
	heap.Push(&s.ends, end{until, id})
	return nil
}

// forget drops what ended before the earliest time that it may be.
func (s *replaySet) forget(now Time) {
	if !now.Synced {
		return
	}
	s.horizon = max(s.horizon, now.Earliest)
	for len(s.ends) > 0 && s.ends[0].until <= s.horizon {
		delete(s.seen, s.ends[0].id)
		heap.Pop(&s.ends)
	}
}

// end is when an id may be forgotten.
type end struct {
	until int64
	id    [leaseIDSize]byte
}

// endHeap implements heap.Interface: the first to be forgotten is on top.
type endHeap []end

func (h endHeap) Len() int           { return len(h) }
func (h endHeap) Less(i, j int) bool { return h[i].until < h[j].until }
func (h endHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *endHeap) Push(x any)        { *h = append(*h, x.(end)) }
func (h *endHeap) Pop() any {
	last := len(*h) - 1
	*h = (*h)[:last]
	return nil
}
