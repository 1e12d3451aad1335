package store

import (
	"context"
	"os"
	"testing"
	"time"
)

// SQ-05: some reader is always in the file while it is written fast. The log stays small, and is empty when the
// journal has been idle.
func TestLogStaysSmall(t *testing.T) {
	// As much log as the case's 200 rows a second make in 120 s, and more.
	logStaysSmall(t, 50*time.Microsecond, 4*time.Second, 100*time.Millisecond)
}

// SQ-05, in its own time.
func TestLongLogStaysSmall(t *testing.T) {
	long(t)
	logStaysSmall(t, 5*time.Millisecond, 2*time.Minute, 5*time.Second)
}

func logStaysSmall(t *testing.T, pace, length, idle time.Duration) {
	r := open(t, Config{})
	r.timing.idle = idle
	r.run()
	reader := startHelper(t, "read", dbPath(r.cfg.Dir))
	reader.expect(t, "reading")
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	biggest := int64(0)
	for ctx.Err() == nil {
		for range 20 * time.Millisecond / pace {
			r.Begin(tunnel("run")).End(complete())
		}
		<-tick.C
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
		deadline := time.Now().Add(20 * time.Second)
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
