package credential

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"iop/packages/go/config"
)

const (
	defaultAckWait = 30 * time.Second
	tick           = time.Second
	readers        = 4 // sources that are read at once
)

// Store has the slots, keys and leases of one edge. Safe for concurrent use.
type Store struct {
	cfg     Config
	disk    disk
	sources *resolver
	install []byte        // of fingerprints
	quiet   time.Duration // see quiet

	// Set once before Run.
	change  func(nodes []string, p Push)
	publish func(ctx context.Context)

	// rotating is held by whoever rotates the signing key, configuring by whoever takes in a configuration.
	rotating    chan struct{}
	configuring sync.Mutex
	// writing is held by whoever changes records or signing keys, also over the write of their files: what is on disk
	// comes in the order of what is in force. It is taken before mu, and not by those who issue.
	writing sync.Mutex

	mu        sync.Mutex
	records   map[string]record // of every slot that there ever was; replaced as a whole
	slots     map[string]*slot  // of the configuration
	ring      keyring
	ledger    ledger
	waits     map[uint64]*wait
	epoch     uint64
	counts    Counts
	published map[often]time.Time // when events of leases were told last
	dirty     bool                // records has what the file doesn't have, or the file what records hasn't
}

// slot is a slot of the configuration.
type slot struct {
	id      string
	reading chan struct{} // held by whoever reads the source, so that an old read can't overtake a new one

	// Guarded by the store's lock.
	cfg      config.Slot
	origin   string              // where the configuration sends the key
	key      *key                // nil = its source yielded none, or none for too long
	from     config.SecretSource // of the key
	fault    string              // what is wrong with the source, "" = nothing
	failing  time.Time           // since when
	lastRead time.Time
	next     time.Time // when it is read again
}

func newSlot(cfg config.Slot, state *config.State) *slot {
	return &slot{id: cfg.ID, cfg: cfg, origin: originOf(state, &cfg), reading: make(chan struct{}, 1)}
}

func originOf(state *config.State, c *config.Slot) string {
	if p := state.Profile(c.Profile); p != nil {
		return p.Origin
	}
	return ""
}

// stateOf is what the slot may be used for, and why it isn't active.
func (sl *slot) stateOf(r record) (State, string) {
	switch {
	case r.revoked():
		return StateRevoked, "this key was revoked; put a new one into its source"
	case r.Disabled:
		return StateDisabled, "disabled by an operator"
	case sl.key == nil:
		return StateDisabled, "its source " + sl.fault
	}
	return StateActive, ""
}

// Open makes the store of an edge. Every slot's source must yield a key, except that of a slot that an operator disabled or
// whose key is revoked. Its errors name the slot and the kind of source, or the file, and nothing of a key.
func Open(cfg Config) (*Store, error) {
	if cfg.SigningKey == "" {
		cfg.SigningKey = filepath.Join(cfg.Dir, signingFile)
	}
	if cfg.AckWait == 0 {
		cfg.AckWait = defaultAckWait
	}
	return open(cfg, disk{}, newResolver())
}

func open(cfg Config, d disk, sources *resolver) (*Store, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Store{
		cfg: cfg, disk: d, sources: sources,
		rotating: make(chan struct{}, 1), quiet: quiet, published: map[often]time.Time{},
		records: map[string]record{}, slots: map[string]*slot{}, ledger: newLedger(), waits: map[uint64]*wait{},
		counts: newCounts(),
	}
	state := cfg.State()
	if !state.Edge.Managed() && len(state.Slots()) == 0 {
		return s, nil // nothing to lend, and nothing that would be written
	}
	if err := makeDir(cfg.Dir); err != nil {
		return nil, err
	}
	if err := s.openBook(); err != nil {
		return nil, err
	}
	if err := s.openRing(); err != nil {
		return nil, err
	}
	if err := s.openSlots(state.Slots()); err != nil {
		return nil, err
	}
	return s, nil
}

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("state_dir %s can't be made: %w", dir, plain(err))
	}
	return nil
}

func (s *Store) openBook() error {
	install, records, err := readBook(s.bookPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.install = make([]byte, installSize)
		_, _ = rand.Read(s.install) // never fails
		return s.disk.writeBook(s.bookPath(), s.install, s.records)
	case err != nil:
		return err
	}
	s.install, s.records = install, records
	return nil
}

func (s *Store) bookPath() string { return filepath.Join(s.cfg.Dir, bookFile) }

// openSlots reads every source, and writes what is new about the slots.
func (s *Store) openSlots(slots []config.Slot) error {
	records, changed, now := maps.Clone(s.records), false, time.Now()
	var faults []error
	for i, read := range s.readAll(slots, false) {
		sl := newSlot(slots[i], s.cfg.State())
		r, known := records[sl.id]
		s.slots[sl.id] = sl
		if read.err != nil && known && (r.Disabled || r.revoked()) {
			s.failed(sl, read.err, now)
			continue
		}
		if read.err != nil {
			faults = append(faults, sourceError(&slots[i], read.err))
			continue
		}
		sl.took(read.key, now)
		if r.take(read.key.mark, records) {
			records[sl.id], changed = r.raised(now), true
		}
	}
	err := errors.Join(faults...)
	if err == nil && changed {
		err = s.disk.writeBook(s.bookPath(), s.install, records)
	}
	if err != nil {
		for _, sl := range s.slots {
			sl.key.release()
		}
		return err
	}
	s.records = records
	return nil
}

// sourceError says which slot it is, and not which file, variable or program: the key itself may stand in its place.
func sourceError(c *config.Slot, err error) error {
	return fmt.Errorf("slot %s: its source (%s) %w", c.ID, c.Source.Kind, err)
}

// raised is the record with a new revision, which is higher whatever the clock says.
func (r record) raised(now time.Time) record {
	r.Revision = max(r.Revision+1, uint64(max(now.UnixMilli(), 0)))
	r.SinceMS = now.UnixMilli()
	return r
}

type reading struct {
	key *key
	err error
}

// readAll reads the sources of slots, a few at a time.
func (s *Store) readAll(slots []config.Slot, peek bool) []reading {
	read := make([]reading, len(slots))
	var group sync.WaitGroup
	places := make(chan struct{}, readers)
	for i := range slots {
		group.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			read[i].key, read[i].err = s.readKey(context.Background(), slots[i].Source, peek)
		})
	}
	group.Wait()
	return read
}

func (s *Store) readKey(ctx context.Context, src config.SecretSource, peek bool) (*key, error) {
	value, err := s.sources.read(ctx, src, peek)
	if err != nil {
		return nil, err
	}
	return newKey(s.install, value)
}

// took notes that the source was read. k is the slot's from now on.
func (sl *slot) took(k *key, now time.Time) {
	if sl.key != k {
		sl.key.release()
		sl.key = k
	}
	sl.from, sl.fault, sl.failing = sl.cfg.Source, "", time.Time{}
	sl.lastRead, sl.next = now, now.Add(sl.cfg.Refresh)
}

// failed notes that it couldn't be, and reports whether that is news.
func (s *Store) failed(sl *slot, err error, now time.Time) (news bool) {
	news = sl.fault != err.Error()
	sl.fault = err.Error()
	if sl.failing.IsZero() {
		sl.failing = now
	}
	sl.lastRead, sl.next = now, now.Add(sl.cfg.Refresh)
	s.counts.RefreshFailures[sl.id]++
	return news
}

// Check reports whether the sources of slots that next adds or changes yield keys. It changes nothing.
func (s *Store) Check(next *config.State) error {
	var slots []config.Slot
	s.mu.Lock()
	for _, c := range next.Slots() {
		if sl := s.slots[c.ID]; sl == nil || !sameSource(sl.cfg.Source, c.Source) {
			slots = append(slots, c)
		}
	}
	s.mu.Unlock()
	var faults []error
	for i, read := range s.readAll(slots, true) {
		read.key.release()
		if read.err != nil {
			faults = append(faults, sourceError(&slots[i], read.err))
		}
	}
	return errors.Join(faults...)
}

func sameSource(a, b config.SecretSource) bool {
	return a.Kind == b.Kind && a.Name == b.Name && slices.Equal(a.Argv, b.Argv)
}

// Slots returns what a node is to be told of these slots. One that isn't there counts as disabled.
func (s *Store) Slots(ids []string) []SlotState {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]SlotState, len(ids))
	for i, id := range ids {
		states[i] = SlotState{ID: id, MinRevision: s.records[id].Revision, Disabled: s.stateLocked(id) != StateActive}
	}
	return states
}

// Status returns what operators see of the slots, in the order of the configuration.
func (s *Store) Status() []SlotStatus {
	state := s.cfg.State()
	all := make([]SlotStatus, 0, len(state.Slots()))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range state.Slots() {
		sl := s.slots[c.ID]
		if sl == nil {
			continue // it is being taken up
		}
		r := s.records[c.ID]
		status := statusOf(&c, state.Profile(c.Profile))
		status.Revision, status.Since = r.Revision, time.UnixMilli(r.SinceMS)
		status.Fingerprint, status.LastRefresh = fingerprint(r.Key), sl.lastRead
		status.State, status.Reason = sl.stateOf(r)
		if status.Reason == "" && sl.fault != "" {
			status.Reason = "the last key is still used; its source " + sl.fault
		}
		if sl.key != nil {
			status.Length = sl.key.length
		}
		all = append(all, status)
	}
	return all
}

func statusOf(c *config.Slot, p *config.Profile) SlotStatus {
	status := SlotStatus{ID: c.ID, SourceKind: c.Source.Kind, Profile: c.Profile, Nodes: slices.Clone(c.Nodes)}
	if p != nil {
		status.Header, status.Origin = p.Header, p.Origin
	}
	return status
}

// Inspect reads every slot's source and says what it found, without changing anything; the error names what is wrong.
// State is that of the slot when an edge starts now; fingerprints are those of the edge whose state directory it is, and
// empty before its first start.
func Inspect(cfg *config.Edge) ([]SlotStatus, error) {
	s := &Store{sources: newResolver()}
	var faults []error
	install, records, err := readBook(filepath.Join(cfg.StateDir, bookFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		faults = append(faults, err)
	}
	s.install = install
	all := make([]SlotStatus, len(cfg.Slots))
	for i, read := range s.readAll(cfg.Slots, true) {
		c := &cfg.Slots[i]
		at := slices.IndexFunc(cfg.Profiles, func(p config.Profile) bool { return p.ID == c.Profile })
		var profile *config.Profile
		if at >= 0 {
			profile = &cfg.Profiles[at]
		}
		all[i] = statusOf(c, profile)
		sl, r := &slot{id: c.ID, cfg: *c}, records[c.ID]
		if read.err != nil {
			faults = append(faults, sourceError(c, read.err))
			sl.fault = read.err.Error()
		} else {
			sl.key = read.key
			r.take(read.key.mark, records)
			all[i].Length, all[i].LastRefresh = read.key.length, time.Now()
		}
		if install != nil {
			all[i].Fingerprint = fingerprint(r.Key)
		}
		all[i].State, all[i].Reason = sl.stateOf(r)
		all[i].Revision, all[i].Since = r.Revision, time.UnixMilli(r.SinceMS)
		read.key.release()
	}
	return all, errors.Join(faults...)
}
