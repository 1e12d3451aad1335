package credential

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"iop/packages/go/config"
)

// ErrUnknownSlot is returned for a slot that the configuration doesn't have.
var ErrUnknownSlot = errors.New("there is no such slot in the configuration")

// ErrState is returned for what can't be done to a slot in its state; the text says what to do instead.
var ErrState = errors.New("not in this state")

// wait is a change that nodes are asked to take in.
type wait struct {
	since   time.Time
	same    bool // nothing has changed, and nodes are only asked again
	push    Push
	nodes   []string
	pending map[peer]bool            // who has leases and is still to answer
	heard   map[peer]map[string]bool // which runs of those who did had the key on the wire
	done    chan struct{}            // closed when nobody is pending
}

// OnChange sets who tells nodes of a change. f must not block. Set it once, before Run.
func (s *Store) OnChange(f func(nodes []string, p Push)) { s.change = f }

// edit is what a change does to a record; an error leaves it as it is. same means that there is nothing to change, and that
// nodes are only asked again.
type edit func(sl *slot, r *record) (same bool, err error)

// amend changes a slot: on disk first, then in force. What is written can't be issued by any more when it returns.
// anyway is for what closes a slot by itself: it is in force also when it can't be written, and written later.
func (s *Store) amend(id string, anyway bool, change edit, apply func(sl *slot)) (*wait, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	sl, next := s.slots[id], maps.Clone(s.records)
	if sl == nil {
		s.mu.Unlock()
		return nil, ErrUnknownSlot
	}
	r := next[id]
	same, err := change(sl, &r)
	owed := s.dirty
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !same {
		next[id] = r.raised(time.Now())
	}
	if !same || owed { // what is in force may not be what the file says
		err = s.disk.writeBook(s.bookPath(), s.install, next)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.dirty = true // the file may have the new state all the same
		if !anyway {
			return nil, fmt.Errorf("nothing was changed: %w", err)
		}
		s.cfg.Log.Error().Err(err).Str("slot", id).Msg("slot states can't be written; will be tried again")
	} else {
		s.dirty = false
	}
	s.records = next
	if apply != nil {
		apply(sl)
	}
	w := s.askLocked(sl)
	w.same = same
	return w, nil
}

// askLocked notes who has to take in the slot as it is now.
func (s *Store) askLocked(sl *slot) *wait {
	s.epoch++
	w := &wait{
		since: time.Now(),
		push:  Push{Slot: sl.id, MinRevision: s.records[sl.id].Revision, Disabled: s.stateLocked(sl.id) != StateActive, Epoch: s.epoch},
		nodes: slices.Clone(sl.cfg.Nodes), pending: map[peer]bool{}, heard: map[peer]map[string]bool{}, done: make(chan struct{}),
	}
	for _, e := range s.ledger.live {
		if e.slot != sl.id || e.revision >= w.push.MinRevision {
			continue
		}
		if !slices.Contains(w.nodes, e.to.node) {
			w.nodes = append(w.nodes, e.to.node)
		}
		if !e.gone {
			w.pending[e.to] = true
		}
	}
	s.waits[s.epoch] = w
	s.answeredLocked(w)
	return w
}

// answeredLocked ends a wait for which nobody is pending.
func (s *Store) answeredLocked(w *wait) {
	if _, on := s.waits[w.push.Epoch]; on && len(w.pending) == 0 {
		delete(s.waits, w.push.Epoch)
		close(w.done)
	}
}

// tell sends a change to the nodes. No lock is held.
func (s *Store) tell(w *wait) {
	if s.change != nil && len(w.nodes) > 0 {
		s.change(w.nodes, w.push)
	}
}

// Acked takes a connection's word that it has taken in a change, and which runs had the key on the wire by then. Runs that
// it wasn't given that key for are ignored.
func (s *Store) Acked(nodeID string, generation, epoch uint64, committed []string) {
	named := make(map[string]bool, len(committed)) // a node may name many, and everybody waits for the lock
	for _, run := range committed {
		named[run] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w, from := s.waits[epoch], peer{nodeID, generation}
	if w == nil || !w.pending[from] {
		return
	}
	heard := map[string]bool{}
	for _, e := range s.ledger.live {
		if e.to == from && e.slot == w.push.Slot && named[e.run] {
			heard[e.run] = true
			s.moveLocked(e, leaseCommitted)
		}
	}
	w.heard[from] = heard
	delete(w.pending, from)
	s.answeredLocked(w)
}

// Gone says that this connection of the node is over: nobody waits for it any more.
func (s *Store) Gone(nodeID string, generation uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	over := peer{nodeID, generation}
	for _, e := range s.ledger.live {
		if e.to == over {
			e.gone = true
		}
	}
	for _, w := range s.waits {
		delete(w.pending, over)
		s.answeredLocked(w)
	}
}

// await tells the nodes and waits until they have answered, within reason. The change is in force, whatever comes of it.
func (s *Store) await(ctx context.Context, w *wait) Change {
	s.tell(w)
	limit := time.NewTimer(s.cfg.AckWait)
	defer limit.Stop()
	select {
	case <-w.done:
	case <-limit.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waits, w.push.Epoch)
	c := Change{Slot: w.push.Slot, Revision: s.records[w.push.Slot].Revision, State: s.stateLocked(w.push.Slot)}
	for p := range w.pending {
		c.Unanswered = append(c.Unanswered, p.node)
	}
	for _, e := range s.ledger.live {
		if e.slot != w.push.Slot || e.revision >= w.push.MinRevision {
			continue
		}
		answering := e.open && e.state == leaseCommitted // this edge has seen it, whatever the node says
		if heard, answered := w.heard[e.to]; !answered || heard[e.run] || answering {
			c.Running = append(c.Running, e.run)
		}
	}
	c.Running, c.Unanswered = union(nil, c.Running), union(nil, c.Unanswered)
	return c
}

// command is amend for an operator, who is told what came of it.
func (s *Store) command(ctx context.Context, id, what string, change edit) (Change, error) {
	w, err := s.begin(id, what, change)
	if err != nil {
		return Change{}, err
	}
	return s.await(ctx, w), nil
}

// begin is the part of a command that is done at once; await tells nodes of it.
func (s *Store) begin(id, what string, change edit) (*wait, error) {
	w, err := s.amend(id, false, change, nil)
	if err != nil {
		s.cfg.Log.Warn().Err(err).Str("slot", id).Str("what", what).Msg("slot not changed")
		return nil, fmt.Errorf("slot %s: %w", id, err)
	}
	if !w.same {
		s.slotChanged(id, what, w.push)
	}
	return w, nil
}

// Disable stops leases of a slot until it is enabled: none is issued once it is in force, which it is when it returns, and
// after a restart. A slot whose key is revoked can't be disabled: it is that already.
func (s *Store) Disable(ctx context.Context, id string) (Change, error) {
	return s.command(ctx, id, string(StateDisabled), func(_ *slot, r *record) (bool, error) {
		if r.revoked() {
			return false, fmt.Errorf("%w: its key is revoked, which is more than disabled", ErrState)
		}
		was := r.Disabled
		r.Disabled = true
		return was, nil
	})
}

// Enable makes a disabled slot active. It can't make a revoked key good again, nor a source readable.
func (s *Store) Enable(ctx context.Context, id string) (Change, error) {
	return s.command(ctx, id, string(StateActive), func(sl *slot, r *record) (bool, error) {
		switch {
		case r.revoked():
			return false, fmt.Errorf("%w: its key is revoked and stays so: put a new key into its source, then refresh", ErrState)
		case sl.key == nil:
			return false, fmt.Errorf("%w: its source %s: mend that, then refresh", ErrState, sl.fault)
		}
		was := !r.Disabled
		r.Disabled = false
		return was, nil
	})
}

// Revoke makes the slot's key worthless for good: no lease is issued for it once that is in force, which it is when it
// returns, and after a restart. The slot is active again when its source has another key.
//
// Other slots with the same key are revoked with it; what Change lists is of all of them. An error means that at least one
// of them isn't.
func (s *Store) Revoke(ctx context.Context, id string) (Change, error) {
	var mark string // of the key; while nodes are waited for, the slot may get another one, which isn't meant
	first, err := s.begin(id, string(StateRevoked), func(_ *slot, r *record) (bool, error) {
		mark = r.Key
		was := r.revoked()
		r.revoke()
		return was, nil
	})
	if err != nil {
		return Change{}, err
	}
	changes := []<-chan Change{s.awaiting(ctx, first)}
	for _, other := range s.sharing(id, mark) {
		w, also := s.begin(other, string(StateRevoked), func(_ *slot, r *record) (bool, error) {
			if r.Key != mark || r.revoked() {
				return true, nil
			}
			r.revoke()
			return false, nil
		})
		switch {
		case also == nil:
			changes = append(changes, s.awaiting(ctx, w))
		case errors.Is(also, ErrUnknownSlot): // removed meanwhile, and so revoked
		default:
			err = errors.Join(err, fmt.Errorf("it has the key of slot %s, which is revoked: %w", id, also))
		}
	}
	c := <-changes[0]
	for _, ch := range changes[1:] {
		also := <-ch
		c.Running, c.Unanswered = union(c.Running, also.Running), union(c.Unanswered, also.Unanswered)
	}
	return c, err
}

// awaiting is await without waiting for it: nodes are told at once, whatever else is to be done.
func (s *Store) awaiting(ctx context.Context, w *wait) <-chan Change {
	c := make(chan Change, 1)
	go func() { c <- s.await(ctx, w) }() // ends with ctx or the wait's limit
	return c
}

// sharing returns the other slots that have this key, and may have runs with it.
func (s *Store) sharing(id, mark string) (others []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other := range s.slots {
		if r := s.records[other]; other != id && mark != "" && r.Key == mark {
			others = append(others, other)
		}
	}
	slices.Sort(others)
	return others
}

func union(a, b []string) []string {
	a = append(a, b...)
	slices.Sort(a)
	return slices.Compact(a)
}

// Refresh reads the slot's source now, and takes a new key up.
func (s *Store) Refresh(ctx context.Context, id string) (Change, error) {
	w, err := s.refresh(ctx, id)
	if err != nil {
		return Change{}, err
	}
	if w != nil {
		return s.await(ctx, w), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return Change{Slot: id, Revision: s.records[id].Revision, State: s.stateLocked(id)}, nil
}

// stateLocked is the state of a slot; one that is removed counts as disabled.
func (s *Store) stateLocked(id string) State {
	sl := s.slots[id]
	if sl == nil {
		return StateDisabled
	}
	state, _ := sl.stateOf(s.records[id])
	return state
}

func (s *Store) stateOf(id string) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stateLocked(id)
}

// refresh reads a source and takes up what it yields. The wait is nil when nothing has changed; else the caller tells the
// nodes.
func (s *Store) refresh(ctx context.Context, id string) (*wait, error) {
	s.mu.Lock()
	sl := s.slots[id]
	s.mu.Unlock()
	if sl == nil {
		return nil, fmt.Errorf("slot %s: %w", id, ErrUnknownSlot)
	}
	select {
	case sl.reading <- struct{}{}:
		defer func() { <-sl.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	src := sl.cfg.Source
	s.mu.Unlock()
	k, err := s.readKey(ctx, src, false)
	if ctx.Err() != nil { // nobody wants to know any more; it says nothing of the source
		k.release()
		return nil, ctx.Err()
	}
	var w *wait
	if err == nil {
		w, err = s.takeUp(sl, src, k)
	}
	switch {
	case err == nil:
		return w, nil
	case errors.Is(err, errMeanwhile), errors.Is(err, ErrUnknownSlot): // which says nothing of the source
		return nil, fmt.Errorf("slot %s: %w", id, err)
	}
	s.unreadable(sl, err)
	return nil, sourceError(&config.Slot{ID: id, Source: src}, err)
}

var errMeanwhile = errors.New("was configured anew while its source was read")

// takeUp makes k the slot's key, or releases it. The wait is nil when the slot is as it was.
func (s *Store) takeUp(sl *slot, src config.SecretSource, k *key) (*wait, error) {
	defer k.release()
	id, rotated := sl.id, false
	s.mu.Lock()
	unchanged := s.slots[id] == sl && sameSource(sl.cfg.Source, src) && s.records[id].Key == k.mark && sl.key != nil
	if unchanged {
		sl.took(sl.key, time.Now())
	}
	s.mu.Unlock()
	if unchanged {
		return nil, nil
	}
	w, err := s.amend(id, false, func(now *slot, r *record) (bool, error) {
		if now != sl || !sameSource(now.cfg.Source, src) {
			return false, errMeanwhile
		}
		rotated = r.Key != "" && r.Key != k.mark
		r.take(k.mark, s.records)
		rotated = rotated && !r.revoked()
		return false, nil
	}, func(sl *slot) { sl.took(k.hold(), time.Now()) })
	if err != nil {
		return nil, fmt.Errorf("has a key that can't be taken up: %w", err)
	}
	what := rotatedCode
	if !rotated { // the first key, or the source is back with the same one
		what = string(s.stateOf(id))
	}
	s.slotChanged(id, what, w.push)
	return w, nil
}

// unreadable notes that a slot's source has failed. The last good key is used for a while.
func (s *Store) unreadable(sl *slot, err error) {
	s.mu.Lock()
	news := s.failed(sl, err, time.Now()) && s.slots[sl.id] == sl // it may be gone meanwhile
	s.mu.Unlock()
	if news {
		s.slotStale(sl.id, err)
	}
}
