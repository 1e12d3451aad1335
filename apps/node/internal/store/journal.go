// Package store is the node's own record: a row in SQLite for every run and tunnel that the node executed, with how it
// ended. A person finds in it what ran here; an Edge learns from it how background runs ended that it lost sight of.
//
// The package owns the file, its one connection and the goroutine that writes (Run). It must never stand in the way
// of an execution: what is recorded goes through a bounded queue in memory, and trouble with the disk makes the node
// degraded, not slower. It keeps no prompt, output, header, error text or secret, and it is no query API.
package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// The defaults of Config.
const (
	DefaultMaxAge  = 30 * 24 * time.Hour
	DefaultMaxRows = 100_000
)

// maxQueued bounds the executions whose rows wait to be written.
const maxQueued = 10_000

// Config says where the journal is and what it keeps.
type Config struct {
	Dir     string        // the node's data directory: a relative path in DSN lies in it. It is made when it is missing
	DSN     string        // file:PATH?OPTIONS; "" = DefaultDSN
	MaxAge  time.Duration // rows older than this are deleted; 0 = DefaultMaxAge
	MaxRows int           // more rows than this are deleted, oldest first; 0 = DefaultMaxRows
	Log     zerolog.Logger
	// OnState is called when the store becomes degraded, for which reason, and when it works again. Run calls it
	// from its own goroutine, with no lock held; also at its start, if the store is degraded then. nil = nobody
	// wants to know.
	OnState func(degraded bool, reason string)
	// OnSetAside is called when a damaged file was moved to path and a fresh one begun: by Open, or from Run. nil =
	// nobody wants to know.
	OnSetAside func(path string)
	Now        func() time.Time // the wall clock; nil = time.Now
}

// Journal is the node's record. A nil *Journal records nothing. Its methods may be called concurrently.
type Journal struct {
	// set once
	cfg     Config
	src     source
	lock    *os.File // held for as long as this process owns the file
	ballast ballast
	timing  timing
	wake    chan struct{} // something waits to be written; capacity 1
	flushes chan chan error
	closing chan struct{}
	stopped chan struct{} // closed when Run has returned

	mu     sync.Mutex
	phase  phase
	file   *file // nil while it can't be opened
	queue  queue
	outbox outbox
	nextID int64
	own    int64 // the first id of this process; rows below it belong to earlier ones
	health Health

	maxAge  time.Duration
	maxRows int
}

// phase is where in its life a Journal is.
type phase uint8

const (
	phaseOpen phase = iota
	phaseRunning
	phaseClosing
	phaseClosed // what is recorded now is thrown away
)

// Health is the journal's state for people and metrics.
type Health struct {
	Degraded bool
	Reason   string // why, when it is degraded
	Queued   int    // rows that wait to be written
	Written  uint64 // rows written, each state of a row counted
	Lost     uint64 // rows that the full queue dropped
}

// Open opens the journal, or begins it. Executions that an earlier process left running end as interrupted. A damaged
// file is set aside and a fresh one begun; a file that can't be opened or written is an error that names it; a full
// disk is not: the journal starts degraded. ctx bounds the checks of the file and is not kept.
//
// The caller must call Run, and Close at the end.
func Open(ctx context.Context, cfg Config) (*Journal, error) {
	cfg.applyDefaults()
	src, err := resolve(cfg.Dir, cfg.DSN)
	if err != nil {
		return nil, err
	}
	j := &Journal{
		cfg: cfg, src: src, ballast: ballast{src.path + ".ballast", ballastSize}, timing: defaultTiming(),
		wake: make(chan struct{}, 1), flushes: make(chan chan error),
		closing: make(chan struct{}), stopped: make(chan struct{}),
		queue: queue{limit: maxQueued}, outbox: newOutbox(), maxAge: cfg.MaxAge, maxRows: cfg.MaxRows,
	}
	if err := j.acquire(); err != nil {
		return nil, err
	}
	if err := j.start(ctx); err != nil {
		_ = j.lock.Close()
		return nil, j.explain(err)
	}
	return j, nil
}

func (c *Config) applyDefaults() {
	if c.MaxAge <= 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.MaxRows <= 0 {
		c.MaxRows = DefaultMaxRows
	}
	if c.OnState == nil {
		c.OnState = func(bool, string) {}
	}
	if c.OnSetAside == nil {
		c.OnSetAside = func(string) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

// acquire keeps a second node off the file: its sweep would end what runs here. The kernel drops the lock with the
// process. SQLite's own locks can't do this, they come and go with each transaction.
func (j *Journal) acquire() error {
	if err := os.MkdirAll(filepath.Dir(j.src.path), 0o700); err != nil {
		return j.explain(err)
	}
	f, err := os.OpenFile(j.src.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return j.explain(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return fmt.Errorf("journal %s: another iop-node uses it; give each node a data_dir of its own: %w", j.src.path, err)
	}
	j.lock = f
	return nil
}

// start opens the file. When the disk is full it gives the ballast away, and begins degraded if that doesn't help.
func (j *Journal) start(ctx context.Context) error {
	err := j.open(ctx)
	if faultOf(err) == faultFull && j.ballast.free() {
		err = j.open(ctx)
	}
	if err == nil {
		err = j.fillBallast()
	}
	if err != nil && faultOf(err) != faultFull {
		return err
	}
	if j.nextID == 0 { // no row of the file is known; no id of it is as high as this
		j.nextID = j.cfg.Now().UnixMicro()
		j.own = j.nextID
	}
	if err != nil {
		j.health.Degraded, j.health.Reason = true, reason(err)
	}
	return nil
}

// fillBallast returns an error only when the disk is full: a ballast that can't be made for another reason is no loss.
func (j *Journal) fillBallast() error {
	err := j.ballast.fill()
	if err != nil && faultOf(err) != faultFull {
		j.cfg.Log.Debug().Err(err).Msg("the journal does without its reserve of disk space")
		return nil
	}
	return err
}

// open opens the file; a damaged one is set aside first. At its first success it takes up what an earlier process left.
func (j *Journal) open(ctx context.Context) error {
	own := j.own
	if own == 0 {
		own = math.MaxInt64
	}
	now := j.cfg.Now()
	f, found, err := openFile(ctx, j.src, own, now)
	if faultOf(err) == faultDamaged {
		aside, moveErr := setAside(j.src.path, now)
		if moveErr != nil {
			return errors.Join(err, moveErr)
		}
		j.cfg.Log.Warn().Err(err).Str("path", j.src.path).Str("moved_to", aside).
			Msg("the journal was damaged; it was set aside and a fresh one begun")
		j.cfg.OnSetAside(aside)
		f, found, err = openFile(ctx, j.src, own, now)
	}
	if err != nil {
		return err
	}
	if found.interrupted > 0 {
		j.cfg.Log.Info().Int64("executions", found.interrupted).Msg("executions of an earlier process ended as interrupted")
	}
	j.adopt(f, found)
	return nil
}

func (j *Journal) adopt(f *file, found contents) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.file = f
	if j.nextID == 0 {
		j.nextID, j.own = found.lastID+1, found.lastID+1
	}
	for _, row := range found.unreported {
		if row.ID < j.own {
			j.outbox.add(&Entry{j: j, row: row, stored: true})
		}
	}
}

// explain says which file err is about and what to do.
func (j *Journal) explain(err error) error {
	advice := ""
	switch faultOf(err) {
	case faultLocked:
		advice = "; end the program that holds it"
	case faultReadOnly, faultIO:
		advice = "; data_dir must be a directory that this user can write"
	}
	return fmt.Errorf("journal %s: %w%s", j.src.path, err, advice)
}

// reason says why the store is degraded.
func reason(err error) string { return faultOf(err).String() + ": " + cut(err.Error()) }

// Health returns the journal's state.
func (j *Journal) Health() Health {
	if j == nil {
		return Health{}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	h := j.health
	h.Queued, h.Lost = j.queue.n, j.queue.lost
	return h
}

// List returns rows, the latest first. It may be some milliseconds behind what was recorded.
func (j *Journal) List(ctx context.Context, q Query) ([]Row, error) {
	if j == nil {
		return nil, nil
	}
	j.mu.Lock()
	f := j.file
	j.mu.Unlock()
	if f == nil {
		return nil, fmt.Errorf("journal %s isn't open: %s", j.src.path, j.Health().Reason)
	}
	rows, err := f.list(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("list journal %s: %w", j.src.path, err)
	}
	return rows, nil
}

// Unreported returns the background runs of edge that have ended and whose end it hasn't acknowledged, in the order in
// which they ended; those that the node's death interrupted are among them. It doesn't touch the disk.
func (j *Journal) Unreported(edge string) []Row {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.outbox.of(edge)
}

// Reported records that edge has acknowledged the ends of these background runs. Unknown ones are ignored. It never
// blocks.
func (j *Journal) Reported(edge string, runIDs ...string) {
	if j == nil {
		return
	}
	j.mu.Lock()
	for _, id := range runIDs {
		if e := j.outbox.take(runKey{edge, id}); e != nil {
			j.reportedLocked(e)
		}
	}
	j.mu.Unlock()
	j.signal()
}

func (j *Journal) reportedLocked(e *Entry) {
	e.row.Reported = true
	j.putLocked(e)
}

func (j *Journal) putLocked(e *Entry) {
	if j.phase != phaseClosed {
		j.queue.put(e)
	}
}

// signal wakes the writer.
func (j *Journal) signal() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}
