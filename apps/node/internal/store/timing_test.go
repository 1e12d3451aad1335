package store

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// inBubble runs a test of a running journal on fake time.
func inBubble(t *testing.T, cfg Config, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, cfg)
		synctest.Wait()
		f(t, r)
		r.close(t)
	})
}

func (r *rig) execute(t *testing.T, statement string) {
	t.Helper()
	if _, err := r.file.db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

// A change is in the file 20 ms after it at the latest, with all others of these 20 ms.
func TestBatches(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, r *rig) {
		time.Sleep(time.Second)
		for i := range 20 {
			r.Begin(tunnel(runName(i))).End(complete())
			time.Sleep(time.Millisecond - time.Microsecond)
		}
		if n := r.Health().Written; n != 0 {
			t.Errorf("%d rows were written early", n)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if h := r.Health(); h.Written != 20 || h.Queued != 0 {
			t.Errorf("%+v, want 20 rows in one batch", h)
		}
	})
}

// A failing store is tried again after 0.1 s, 0.2 s, … 30 s; the trouble is told once, and so is its end. What
// happens meanwhile doesn't hasten it.
func TestRetries(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, r *rig) {
		r.execute(t, `PRAGMA query_only = ON`)
		began := time.Now()
		e := r.Begin(tunnel("run"))
		time.Sleep(time.Minute)
		for range 1000 {
			e.Update(Progress{BytesOut: int64(time.Since(began))})
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if h := r.Health(); !h.Degraded || h.Queued != 1 || !strings.HasPrefix(h.Reason, faultReadOnly.String()) {
			t.Errorf("%+v", h)
		}
		r.execute(t, `PRAGMA query_only = OFF`)
		healed := time.Now()
		for r.Health().Degraded && time.Since(healed) < time.Hour {
			time.Sleep(10 * time.Millisecond)
		}
		// 20 ms, then the sum of the waits, which is at 25.5+0.02 s after nine, and at 30 s more for each further one.
		want := 20*time.Millisecond + 100*time.Millisecond*(1<<9-1)
		for want < healed.Sub(began) {
			want += 30 * time.Second
		}
		if got := time.Since(began); got < want || got > want+20*time.Millisecond {
			t.Errorf("healthy again %v after the first failure, want %v", got, want)
		}
		if seen := r.states.all(); len(seen) != 2 || seen[1] != "" {
			t.Errorf("announced %q", seen)
		}
		if n := strings.Count(r.log.String(), "\n"); n != 2 {
			t.Errorf("%d lines in the log: %s", n, r.log)
		}
		r.flush(t)
		if rows := r.rows(t, Query{}); len(rows) != 1 || rows[0].BytesOut == 0 {
			t.Errorf("%+v", rows)
		}
	})
}

// The log is emptied when nothing was written for 5 s.
func TestIdle(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, r *rig) {
		for i := range 30 {
			r.Begin(tunnel(runName(i))).End(complete())
			time.Sleep(time.Second)
			synctest.Wait()
			if r.logSize() == 0 {
				t.Fatal("the log of a busy journal was emptied")
			}
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if size := r.logSize(); size != 0 {
			t.Errorf("the log has %d bytes", size)
		}
	})
}

// Rows leave a minute after they have become too old, without a write having to come.
func TestRowsAgeOut(t *testing.T) {
	inBubble(t, Config{MaxAge: time.Hour}, func(t *testing.T, r *rig) {
		for i := range 2 * pruneStep {
			r.Begin(tunnel(runName(i))).End(complete())
		}
		time.Sleep(time.Hour - time.Minute)
		synctest.Wait()
		if n := len(r.rows(t, Query{})); n != 2*pruneStep {
			t.Fatalf("%d rows before their time", n)
		}
		time.Sleep(2*time.Minute + time.Second)
		synctest.Wait()
		if n := len(r.rows(t, Query{})); n != 0 {
			t.Errorf("%d rows after it", n)
		}
	})
}

// A log that can't be moved into the database is trouble, too, even if nothing waits to be written.
func TestTroubleOfAnIdleJournal(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, r *rig) {
		r.Begin(tunnel("run")).End(complete())
		running := r.Begin(tunnel("running"))
		time.Sleep(time.Second)
		synctest.Wait()
		_ = r.file.db.Close() // every use of it fails from now on
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if seen := fmt.Sprint(r.states.all()); r.Health().Degraded || len(r.states.all()) != 2 {
			t.Errorf("announced %s, %+v; want trouble, and the file opened again", seen, r.Health())
		}
		if rows := r.rows(t, Query{}); len(rows) != 2 || rows[0].Status != StatusRunning {
			t.Errorf("%+v, want one that ended, and one that runs: this process lives", rows)
		}
		running.End(complete())
		r.flush(t)
		if got := statuses(r.rows(t, Query{})); got[StatusComplete] != 2 {
			t.Errorf("%v, want 2 complete", got)
		}
	})
}
