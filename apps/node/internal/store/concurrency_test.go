package store

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sqlite3 "github.com/mattn/go-sqlite3"

	"iop/packages/go/execution"
)

// SQ-01
func TestParallelRunsAndReaders(t *testing.T) { parallelRuns(t, 2*time.Second) }

// SQ-01, in its own time.
func TestLongParallelRunsAndReaders(t *testing.T) {
	long(t)
	parallelRuns(t, time.Minute)
}

// parallelRuns has 100 runs at a time write start, 20 updates and end, while this process and another one list.
func parallelRuns(t *testing.T, length time.Duration) {
	r := start(t, Config{MaxRows: 1 << 30})
	other := startHelper(t, "read", dbPath(r.cfg.Dir))
	other.expect(t, "reading")
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var runs atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			pace := time.NewTicker(5 * time.Millisecond) // a run takes a tenth of a second, so it spans several batches
			defer pace.Stop()
			for ctx.Err() == nil {
				e := r.Begin(tunnel(runName(int(runs.Add(1)))))
				for n := range 20 {
					e.Update(Progress{BytesOut: int64(n + 1)})
					<-pace.C
				}
				e.End(complete())
			}
		})
	}
	for ctx.Err() == nil {
		if _, err := r.List(t.Context(), Query{Limit: 50}); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	r.flush(t)
	other.stop(t)
	if seen := r.states.all(); len(seen) > 0 {
		t.Errorf("the store was in trouble: %v", seen)
	}
	var rows, sound int64
	const sums = `SELECT count(DISTINCT run_id), sum(status = 'complete' AND bytes_out = 20) FROM executions`
	if err := r.file.db.QueryRow(sums).Scan(&rows, &sound); err != nil || rows != runs.Load() || sound != rows {
		t.Errorf("%d rows, %d of them sound, of %d runs (%v)", rows, sound, runs.Load(), err)
	}
}

// SQ-02: another connection reads a row and updates it in one transaction, again and again, while the journal writes.
// Neither fails, since both begin IMMEDIATE.
func TestReadThenWriteBesideTheJournal(t *testing.T) {
	r := start(t, Config{DSN: DefaultDSN + "&_busy_timeout=30000"}) // SQLite's waiters aren't served in order
	e := r.Begin(tunnel("shared"))
	r.flush(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		db := other(t, dbPath(r.cfg.Dir))
		for range 1000 {
			tx, err := db.Begin()
			if err != nil {
				t.Error(err)
				return
			}
			var n int64
			if err := tx.QueryRow(`SELECT bytes_in FROM executions WHERE run_id = 'shared'`).Scan(&n); err != nil {
				t.Error(err)
			}
			if _, err := tx.Exec(`UPDATE executions SET bytes_in = ? WHERE run_id = 'shared'`, n+1); err != nil {
				t.Error(err)
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		}
	}()
	for n := int64(1); ; n++ {
		e.Update(Progress{BytesOut: n})
		r.flush(t)
		select {
		case <-done:
			if seen := r.states.all(); len(seen) > 0 {
				t.Errorf("the store was in trouble: %v", seen)
			}
			return
		default:
		}
	}
}

// SQ-02: the journal's transactions ask for the write lock when they begin, not at their first write.
func TestTransactionsAreImmediate(t *testing.T) {
	r := open(t, Config{DSN: "file:iop.db?_busy_timeout=1"})
	defer hold(t, dbPath(r.cfg.Dir))()
	_, err := r.file.db.Begin()
	if own, ok := err.(sqlite3.Error); !ok || own.Code != sqlite3.ErrBusy {
		t.Errorf("beginning beside a writer: %v, want busy", err)
	}
}

// SQ-04: one connection, whatever asks for it, and it stays the same.
func TestOneConnection(t *testing.T) {
	r := start(t, Config{})
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			e := r.Begin(tunnel(runName(i)))
			for range 20 {
				if _, err := r.List(t.Context(), Query{}); err != nil {
					t.Error(err)
				}
			}
			e.End(complete())
		})
	}
	all.Wait()
	r.flush(t)
	if stats := r.file.db.Stats(); stats.OpenConnections != 1 || stats.InUse != 0 {
		t.Errorf("%+v, want one connection, at rest", stats)
	}
	if got := statuses(r.rows(t, Query{})); got[StatusComplete] != 50 {
		t.Errorf("%v, want 50 complete", got)
	}
}

// SQ-06: contexts that end at any moment reach neither the runs' rows nor the connection that all share.
func TestCancelledContexts(t *testing.T) {
	r := start(t, Config{})
	var all sync.WaitGroup
	for i := range 2000 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
			defer cancel()
			x := tunnel("cancelled")
			x.RunID = runName(i)
			e := r.Begin(x)
			_, err := r.List(ctx, Query{Limit: 5})
			if err != nil && ctx.Err() == nil {
				t.Errorf("list: %v", err)
			}
			<-ctx.Done()
			e.End(Outcome{Status: StatusCancelled, Code: execution.CodeClientGone})
			e.End(complete())
		})
	}
	for i := range 200 {
		all.Go(func() {
			e := r.Begin(tunnel(runName(10_000 + i)))
			if _, err := r.List(t.Context(), Query{Limit: 5}); err != nil {
				t.Errorf("an innocent list: %v", err)
			}
			e.End(complete())
		})
	}
	all.Wait()
	r.flush(t)
	if seen := r.states.all(); len(seen) > 0 {
		t.Errorf("the store was in trouble: %v", seen)
	}
	if got := statuses(r.rows(t, Query{})); got[StatusCancelled] != 2000 || got[StatusComplete] != 200 || len(got) != 2 {
		t.Errorf("%v, want 2000 cancelled and 200 complete", got)
	}
}

// CP-04, protocol.md 3.4 row 8: a store of which every write takes 200 ms delays nobody, and loses nothing.
func TestSlowStoreDelaysNobody(t *testing.T) {
	r := start(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	var slowing, all sync.WaitGroup
	db := other(t, dbPath(r.cfg.Dir))
	slowing.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			tx, err := db.Begin()
			if err != nil {
				t.Error(err)
				return
			}
			<-tick.C
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
	})
	const runs = 400
	places := make(chan struct{}, 4)
	var slow atomic.Int64 // how many took long: each would, if it waited for the file
	for i := range runs {
		all.Go(func() {
			leave := time.NewTimer(rand.N(300 * time.Millisecond))
			defer leave.Stop()
			places <- struct{}{}
			began := time.Now()
			e := r.Begin(tunnel(runName(i)))
			took := time.Since(began)
			if i%20 == 0 {
				<-leave.C
			}
			began = time.Now()
			e.End(Outcome{Status: StatusCancelled, Code: execution.CodeClientGone})
			took += time.Since(began)
			<-places
			if took > 50*time.Millisecond {
				slow.Add(1)
			}
		})
	}
	all.Wait()
	if n := slow.Load(); n > runs/4 { // a machine that stands still delays the four that are under way
		t.Errorf("recording took long beside writes of 200 ms for %d of %d runs", n, runs)
	}
	cancel()
	slowing.Wait()
	eventually(t, "every row is written", func() bool { return r.Health().Queued == 0 && !r.Health().Degraded })
	r.flush(t)
	if got := statuses(r.rows(t, Query{})); got[StatusCancelled] != runs || len(got) != 1 {
		t.Errorf("%v, want %d cancelled", got, runs)
	}
	for _, reason := range r.states.all() {
		if reason != "" && !strings.HasPrefix(reason, faultLocked.String()) {
			t.Errorf("degraded: %s", reason)
		}
	}
}
