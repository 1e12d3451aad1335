package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	batchRows = 500      // of one transaction: bounds how long it holds the connection
	pruneStep = 500      // rows that one transaction deletes at most beyond its share
	walGuard  = 16 << 20 // a longer log waits for its readers
)

// timing are the writer's periods; tests shorten some.
type timing struct {
	batch      time.Duration // from the first change to its commit: what one crash may lose
	retryStart time.Duration // the first wait after a failure; it doubles
	retryMax   time.Duration
	idle       time.Duration // without a write until the log is truncated
	pruneEvery time.Duration
	guardEvery time.Duration // between attempts to truncate a log that readers keep long
	closeLimit time.Duration // Close's wait for a writer that hangs in the disk
}

func defaultTiming() timing {
	return timing{
		batch: 20 * time.Millisecond, retryStart: 100 * time.Millisecond, retryMax: 30 * time.Second, idle: 5 * time.Second,
		pruneEvery: time.Minute, guardEvery: 2 * time.Second, closeLimit: 5 * time.Second,
	}
}

var errNotOpen = errors.New("the file isn't open")

// writer is the state of Run, owned by its goroutine: what is due when, and what it works with. A zero time is never.
type writer struct {
	j       *Journal
	batchAt time.Time
	retryAt time.Time // set = the store is failing, and nothing else is due
	pruneAt time.Time
	idleAt  time.Time
	guardAt time.Time

	delay     time.Duration // before the next retry
	reopen    bool          // the connection can't be trusted any more
	kept      bool          // retention by count found nothing that it may delete
	announced fault

	batch []*Entry
	rows  []Row
}

// Run writes what is recorded until ctx ends or Close is called; then it writes what is left and returns. It may be
// called once.
func (j *Journal) Run(ctx context.Context) error {
	j.mu.Lock()
	before := j.phase
	if before == phaseOpen {
		j.phase = phaseRunning
	}
	degraded, why := j.health.Degraded, j.health.Reason
	j.mu.Unlock()
	switch before {
	case phaseRunning:
		return fmt.Errorf("journal %s: Run was called twice", j.src.path)
	case phaseClosing, phaseClosed:
		return nil // the node ended before this goroutine came to run
	}
	defer close(j.stopped)

	w := &writer{j: j, pruneAt: time.Now(), batchAt: time.Now()}
	if degraded {
		j.cfg.Log.Warn().Str("reason", why).Msg("the journal starts degraded")
		j.cfg.OnState(true, why)
		w.announced, w.retryAt = faultFull, time.Now()
	}
	w.loop(ctx)
	w.finish()
	return nil
}

func (w *writer) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.j.closing:
			return
		case <-w.j.wake:
			if w.batchAt.IsZero() {
				w.batchAt = time.Now().Add(w.j.timing.batch)
			}
		case reply := <-w.j.flushes:
			reply <- w.flush()
		case <-timer.C:
			w.turn(time.Now())
		}
		timer.Reset(time.Until(w.next()))
	}
}

// next is when the next thing is due.
func (w *writer) next() time.Time {
	if !w.retryAt.IsZero() {
		return w.retryAt
	}
	next := w.pruneAt
	for _, at := range []time.Time{w.batchAt, w.idleAt} {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return next
}

// turn does one thing that is due.
func (w *writer) turn(now time.Time) {
	due := func(at time.Time) bool { return !at.IsZero() && !now.Before(at) }
	switch {
	case due(w.retryAt):
		w.settle(w.retry())
	case !w.retryAt.IsZero():
	case due(w.batchAt):
		w.settle(w.drain())
	case due(w.pruneAt):
		w.settle(w.prune(now))
	case due(w.idleAt):
		w.settle(w.truncate())
	}
}

// settle takes note of how an attempt ended.
func (w *writer) settle(err error) {
	if err == nil {
		w.recovered()
		return
	}
	kind := faultOf(err)
	w.reopen = w.reopen || kind.spoilsConnection()
	w.delay = min(max(2*w.delay, w.j.timing.retryStart), w.j.timing.retryMax)
	w.retryAt = time.Now().Add(w.delay)
	if kind == faultFull && w.j.ballast.free() {
		w.retryAt = time.Now()
	}
	w.degraded(kind, err)
}

func (w *writer) degraded(kind fault, err error) {
	why := reason(err)
	w.j.mu.Lock()
	news := !w.j.health.Degraded || w.announced != kind
	w.j.health.Degraded, w.j.health.Reason = true, why
	queued := w.j.queue.n
	w.j.mu.Unlock()
	if news {
		w.announced = kind
		w.j.cfg.Log.Warn().Err(err).Str("path", w.j.src.path).Int("queued", queued).
			Msg("the journal can't be written; rows wait in memory")
		w.j.cfg.OnState(true, why)
	}
}

func (w *writer) recovered() {
	w.retryAt, w.delay = time.Time{}, 0
	w.j.mu.Lock()
	news := w.j.health.Degraded
	w.j.health.Degraded, w.j.health.Reason = false, ""
	lost := w.j.queue.lost
	w.j.mu.Unlock()
	if news {
		w.j.cfg.Log.Info().Str("path", w.j.src.path).Uint64("lost", lost).Msg("the journal is written again")
		w.j.cfg.OnState(false, "")
	}
}

// retry tries everything that a healthy store can do: open if need be, write, and have space in reserve.
func (w *writer) retry() error {
	j := w.j
	if f := j.current(); f == nil || w.reopen {
		if f != nil {
			j.mu.Lock()
			j.file = nil
			j.mu.Unlock()
			_ = f.db.Close() // SQLite may fail to write the log back; it is still there for the next open
		}
		if err := j.open(context.Background()); err != nil {
			return err
		}
		w.reopen = false
	}
	if err := w.drain(); err != nil {
		return err
	}
	if err := j.current().probe(); err != nil {
		return err
	}
	return j.fillBallast()
}

func (j *Journal) current() *file {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.file
}

// drain writes all that waits.
func (w *writer) drain() error {
	w.batchAt = time.Time{}
	for {
		n, err := w.step()
		if err != nil {
			return err
		}
		if n < batchRows {
			return w.guard()
		}
	}
}

// step writes one batch and returns its size.
func (w *writer) step() (int, error) {
	j := w.j
	j.mu.Lock()
	w.batch, w.rows = j.queue.take(w.batch[:0], batchRows), w.rows[:0]
	fresh := int64(0)
	for _, e := range w.batch {
		w.rows = append(w.rows, e.row)
		if !e.stored {
			fresh++
		}
	}
	f := j.file
	j.mu.Unlock()
	n := len(w.batch)
	if n == 0 {
		return 0, nil
	}
	err := errNotOpen
	if f != nil {
		err = w.write(f, fresh)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.queue.restore(w.batch)
	} else {
		j.writtenLocked(w.batch)
		w.idleAt = time.Now().Add(j.timing.idle)
	}
	clear(w.batch) // or the last batch would keep its entries alive
	clear(w.rows)
	return n, err
}

// write stores w.rows, and deletes as many old rows as the file then has too many.
func (w *writer) write(f *file, fresh int64) error {
	excess := int64(0)
	if !w.kept {
		_, maxRows := w.j.retention()
		excess = min(f.rows+fresh-int64(maxRows), fresh+pruneStep)
	}
	pruned, err := f.write(w.rows, fresh, excess)
	if err == nil && excess > 0 {
		w.kept = pruned == 0
	}
	return err
}

func (j *Journal) writtenLocked(batch []*Entry) {
	j.health.Written += uint64(len(batch))
	for _, e := range batch {
		e.stored = true
		if e.class == queuedEnd { // it ended while its begin was being written
			j.queue.put(e)
		}
	}
}

// guard truncates a log that grows because some reader is always in it: it waits for them, a little.
func (w *writer) guard() error {
	f := w.j.current()
	if f == nil || time.Now().Before(w.guardAt) {
		return nil
	}
	if info, err := os.Stat(w.j.src.path + "-wal"); err != nil || info.Size() < walGuard {
		return nil
	}
	w.guardAt = time.Now().Add(w.j.timing.guardEvery)
	_, err := f.checkpoint()
	return err
}

// truncate empties the log of an idle journal.
func (w *writer) truncate() error {
	f := w.j.current()
	if f == nil {
		return errNotOpen
	}
	done, err := f.checkpoint()
	w.idleAt = time.Time{}
	if !done {
		w.idleAt = time.Now().Add(w.j.timing.idle)
	}
	return err
}

// prune deletes one step of what is too old or too many. It comes back soon while there is more.
func (w *writer) prune(now time.Time) error {
	w.pruneAt, w.kept = now.Add(w.j.timing.pruneEvery), false
	f := w.j.current()
	if f == nil {
		return errNotOpen
	}
	maxAge, maxRows := w.j.retention()
	cutoff := w.j.cfg.Now().Add(-maxAge)
	w.j.mu.Lock()
	w.j.outbox.expire(cutoff)
	w.j.mu.Unlock()
	pruned, err := f.prune(cutoff, pruneStep)
	if err != nil {
		return err
	}
	if excess := f.rows - int64(maxRows); excess > 0 {
		more, err := f.write(nil, 0, min(excess, pruneStep))
		if err != nil {
			return err
		}
		pruned += more
	}
	if pruned > 0 {
		w.idleAt = now.Add(w.j.timing.idle)
	}
	if pruned >= pruneStep {
		w.pruneAt = now.Add(w.j.timing.batch)
	}
	return nil
}

// flush writes all that waits, unless the store is failing.
func (w *writer) flush() error {
	if h := w.j.Health(); h.Degraded {
		return fmt.Errorf("journal %s: %s", w.j.src.path, h.Reason)
	}
	err := w.drain()
	w.settle(err)
	return err
}

// finish writes what is left, with the last reserve if need be. Nobody waits for a disk that doesn't work.
func (w *writer) finish() {
	err := w.drain()
	if err != nil && faultOf(err) == faultFull && w.j.ballast.free() {
		err = w.drain()
	}
	if err != nil {
		w.j.cfg.Log.Error().Err(err).Str("path", w.j.src.path).Int("rows", w.j.Health().Queued).
			Msg("the journal ends without its last rows")
	}
}

// Flush waits until everything recorded before it is in the file. It returns an error at once when the store is
// degraded, and when ctx or Run ends first.
func (j *Journal) Flush(ctx context.Context) error {
	if j == nil {
		return nil
	}
	reply := make(chan error, 1)
	select {
	case j.flushes <- reply:
	case <-j.stopped:
		return fmt.Errorf("journal %s: it is closed", j.src.path)
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends Run, writes what is left and closes the file. What is recorded later is thrown away. A writer that hangs
// in the disk is left behind after a while, with an error.
func (j *Journal) Close() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	before := j.phase
	j.phase = max(before, phaseClosing)
	j.mu.Unlock()
	switch before {
	case phaseClosing, phaseClosed:
		return nil
	case phaseOpen:
		close(j.stopped)
	case phaseRunning:
		close(j.closing)
		timer := time.NewTimer(j.timing.closeLimit)
		defer timer.Stop()
		select {
		case <-j.stopped:
		case <-timer.C:
			return fmt.Errorf("journal %s: its disk doesn't answer; the last rows may be missing", j.src.path)
		}
	}
	(&writer{j: j}).finish() // what was recorded since Run's end
	j.mu.Lock()
	j.phase = phaseClosed
	f := j.file
	j.file = nil
	j.mu.Unlock()
	var err error
	if f != nil {
		err = f.db.Close()
	}
	return errors.Join(err, j.lock.Close())
}
