package store

import (
	"context"
	"os"
	"testing"
	"time"

	"iop/packages/go/patience"
)

// SQ-05, ten times as fast: some reader is always in the file while it is written. The log stays small, and is empty
// when the journal has been idle. Without a guard it would have 300 MiB here.
func TestLogStaysSmall(t *testing.T) {
	r := open(t, Config{})
	r.timing.batch, r.timing.guardEvery, r.timing.idle = time.Microsecond, 200*time.Millisecond, 100*time.Millisecond
	r.run()
	logStaysSmall(t, r, 4*time.Second, func() {
		r.Begin(tunnel("run")).End(complete())
		r.flush(t)
	})
}

// SQ-05, in its own time: 200 rows a second for two minutes.
func TestLongLogStaysSmall(t *testing.T) {
	long(t)
	r := start(t, Config{})
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	logStaysSmall(t, r, 2*time.Minute, func() {
		r.Begin(tunnel("run")).End(complete())
		<-pace.C
	})
}

func logStaysSmall(t *testing.T, r *rig, length time.Duration, record func()) {
	reader := startHelper(t, "read", dbPath(r.cfg.Dir))
	reader.expect(t, "reading")
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	biggest := int64(0)
	for ctx.Err() == nil {
		record()
		biggest = max(biggest, r.logSize())
	}
	if biggest > 64<<20 {
		t.Errorf("the log grew to %d MiB", biggest>>20)
	}
	t.Logf("the log was %d KiB at most, with %d writes", biggest>>10, r.Health().Written)
	eventually(t, "the log of an idle journal is empty", func() bool { return r.logSize() == 0 })
	eventually(t, "no connection is in use at rest", func() bool { return r.file.db.Stats().InUse == 0 })
	if seen := r.states.all(); len(seen) > 0 || r.Health().Lost > 0 {
		t.Errorf("the store was in trouble: %v, %+v", seen, r.Health())
	}
	reader.stop(t)
}

func (r *rig) logSize() int64 {
	info, err := os.Stat(r.src.path + "-wal")
	if err != nil {
		return 0
	}
	return info.Size()
}

// A reader that never leaves lets the log grow, but once it has gone the next batch makes it small again, though the
// journal is never idle.
func TestLogShrinksUnderLoad(t *testing.T) {
	r := open(t, Config{DSN: DefaultDSN + "&_busy_timeout=1"})
	w := &writer{j: r.Journal}
	r.timing.guardEvery = time.Millisecond
	work := func(until func() bool) {
		deadline := time.Now().Add(4 * patience.Limit)
		for !until() && time.Now().Before(deadline) {
			for range batchRows {
				r.Begin(tunnel("run")).End(complete())
			}
			if err := w.drain(); err != nil {
				t.Fatal(err)
			}
		}
	}
	rows, err := other(t, dbPath(r.cfg.Dir)).Query(`SELECT 1 FROM sqlite_schema`)
	if err != nil {
		t.Fatal(err)
	}
	rows.Next()
	work(func() bool { return r.logSize() > walGuard+walGuard/4 })
	if err := rows.Close(); err != nil {
		t.Fatal(err)
	}
	work(func() bool { return r.logSize() < walGuard })
	if size := r.logSize(); size >= walGuard {
		t.Errorf("the log has %d MiB", size>>20)
	}
}
