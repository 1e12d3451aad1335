package credential

import (
	"context"
	"errors"
	"sync"
	"time"

	"iop/packages/go/config"
)

// Run reads sources again, disables slots whose sources stay away, and ends leases of which nothing was heard, until ctx
// ends.
func (s *Store) Run(ctx context.Context) {
	var reads sync.WaitGroup
	defer reads.Wait()
	places := make(chan struct{}, readers)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s.lapse(now)
			s.rewrite()
			s.disableStale(now)
			s.readDue(ctx, now, &reads, places)
		}
	}
}

// lapse ends leases of which nothing was heard.
func (s *Store) lapse(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.ledger.lapsed(now) {
		s.moveLocked(e, leaseExpired)
	}
	for epoch, w := range s.waits { // for which nobody waits, or not any more
		if now.Sub(w.since) > s.cfg.AckWait+waitLinger {
			delete(s.waits, epoch)
		}
	}
}

// waitLinger is how long an answer that is late is still of interest.
const waitLinger = time.Minute

// rewrite writes slot states that couldn't be written.
func (s *Store) rewrite() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	dirty, records := s.dirty, s.records
	s.mu.Unlock()
	if !dirty || s.disk.writeBook(s.bookPath(), s.install, records) != nil {
		return // said when it began
	}
	s.mu.Lock()
	s.dirty = false
	s.mu.Unlock()
}

var errReadable = errors.New("its source is back")

// disableStale disables slots whose sources couldn't be read for too long. Their keys are dropped.
func (s *Store) disableStale(now time.Time) {
	var stale []string
	s.mu.Lock()
	for id, sl := range s.slots {
		if sl.tooLong(now) {
			stale = append(stale, id)
		}
	}
	s.mu.Unlock()
	for _, id := range stale {
		w, err := s.amend(id, true, func(sl *slot, _ *record) (bool, error) {
			if !sl.tooLong(now) {
				return false, errReadable
			}
			return false, nil
		}, func(sl *slot) {
			sl.key.release()
			sl.key = nil
		})
		if err == nil {
			s.slotChanged(id, string(StateDisabled), w.push)
			s.tell(w)
		}
	}
}

// tooLong reports whether the slot's source has failed for so long that its key isn't used any more. A key that came from
// another source than the one that is configured now has no time at all: it may be the key of somebody else.
func (sl *slot) tooLong(now time.Time) bool {
	return sl.key != nil && !sl.failing.IsZero() && (!sameSource(sl.from, sl.cfg.Source) || now.Sub(sl.failing) >= sl.cfg.StaleMax)
}

// readDue starts reading the sources whose time has come, a few at a time.
func (s *Store) readDue(ctx context.Context, now time.Time, reads *sync.WaitGroup, places chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, sl := range s.slots {
		if now.Before(sl.next) {
			continue
		}
		select {
		case places <- struct{}{}:
		default:
			return
		}
		sl.next = now.Add(sl.cfg.Refresh)
		reads.Go(func() { // ends with ctx, or its source's own limit
			defer func() { <-places }()
			s.readAgain(ctx, id)
		})
	}
}

// readAgain reads a source; what is wrong is noted there.
func (s *Store) readAgain(ctx context.Context, id string) {
	if w, err := s.refresh(ctx, id); err == nil && w != nil {
		s.tell(w)
	}
}

// Reconfigured takes in that another configuration is in force. New slots are read, and lend nothing if that fails; of
// removed ones all leases are revoked. It returns when that is done; the caller sends projections after it.
func (s *Store) Reconfigured() {
	s.configuring.Lock()
	defer s.configuring.Unlock()
	state := s.cfg.State()
	removed, unread := s.compare(state)
	for _, id := range removed {
		w, err := s.amend(id, true, func(*slot, *record) (bool, error) { return false, nil }, func(sl *slot) {
			sl.key.release()
			sl.key = nil
			delete(s.slots, id)
		})
		if err == nil {
			s.slotChanged(id, removedCode, w.push)
			s.tell(w)
		}
	}
	var reads sync.WaitGroup
	places := make(chan struct{}, readers)
	for _, id := range unread {
		reads.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			s.readAgain(context.Background(), id)
		})
	}
	reads.Wait()
	s.disableStale(time.Now())
}

// compare takes over what slots are now configured like, and returns those that are gone, and those whose source is to be read.
func (s *Store) compare(state *config.State) (removed, unread []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.slots {
		if state.Slot(id) == nil {
			removed = append(removed, id)
		}
	}
	for _, c := range state.Slots() {
		sl := s.slots[c.ID]
		if sl == nil {
			sl = newSlot(c, state)
			sl.fault = "wasn't read yet"
			s.slots[c.ID] = sl
			unread = append(unread, c.ID)
		} else if !sameSource(sl.cfg.Source, c.Source) {
			unread = append(unread, c.ID)
			if sl.origin != originOf(state, &c) { // the key that there is was never meant to go there
				sl.key.release()
				sl.key, sl.fault = nil, "wasn't read yet"
			}
		}
		sl.cfg, sl.origin = c, originOf(state, &c)
		sl.next = time.Now().Add(c.Refresh)
	}
	return removed, unread
}
