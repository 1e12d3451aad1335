package usage

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

func opened(t *testing.T, dir string) *Ledger {
	t.Helper()
	l, err := Open(dir, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func query(t *testing.T, l *Ledger, f Filter) []Row {
	t.Helper()
	rows, err := l.Query(context.Background(), f)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// What was counted is there at once, on disk after Close, and in sums of every kind; nothing is counted twice on the way.
// On fake time, so that no day begins meanwhile.
func TestLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := opened(t, dir)
		now := time.Now()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 50 {
					l.Add(Entry{At: now, Principal: "alice", Model: "m", Node: "a", Input: 10, Output: 5, Cached: 3, Reasoning: 2})
					l.Add(Entry{At: now, Principal: "bob", Model: "n", Node: "b", Input: 1, Output: 1, Estimated: true, Failed: true})
					_ = l.flush()
				}
			})
		}
		all.Wait()
		l.Add(Entry{At: now.AddDate(0, 0, -1), Principal: "alice", Model: "m", Node: "a", Input: 7})
		if got := l.Today("alice"); got != 400*15 {
			t.Errorf("today %d", got)
		}
		alice := Counts{Requests: 400, Input: 4000, Output: 2000, Cached: 1200, Reasoning: 800}
		bob := Counts{Requests: 400, Failed: 400, Estimated: 400, Input: 400, Output: 400}
		check := func() {
			t.Helper()
			rows := query(t, l, Filter{From: dayOf(now), By: []string{"principal"}})
			if len(rows) != 2 || rows[0] != (Row{Principal: "alice", Counts: alice}) || rows[1] != (Row{Principal: "bob", Counts: bob}) {
				t.Errorf("%+v", rows)
			}
			if rows := query(t, l, Filter{To: dayOf(now.AddDate(0, 0, -1)), By: Columns()}); len(rows) != 1 || rows[0].Input != 7 || rows[0].Node != "a" {
				t.Errorf("%+v", rows)
			}
			if rows := query(t, l, Filter{}); len(rows) != 1 || rows[0].Requests != 801 {
				t.Errorf("%+v", rows)
			}
		}
		check()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = opened(t, dir)
		defer l.Close()
		check()
		if got := l.Today("alice"); got != 400*15 {
			t.Errorf("today after a restart %d", got)
		}
	})
}

// A disk that can't be written costs no count: it is kept and written later.
func TestLedgerOnAFullDisk(t *testing.T) {
	l := opened(t, t.TempDir())
	defer l.Close()
	if _, err := l.db.Exec(`PRAGMA query_only = 1`); err != nil { // any write fails
		t.Fatal(err)
	}
	l.Add(Entry{At: time.Now(), Principal: "p", Model: "m", Node: "n", Input: 3})
	if err := l.flush(); err == nil || l.Failures() != 1 {
		t.Fatalf("%v, %d failures", err, l.Failures())
	}
	l.Add(Entry{At: time.Now(), Principal: "p", Model: "m", Node: "n", Input: 4})
	if rows := query(t, l, Filter{}); len(rows) != 1 || rows[0].Input != 7 {
		t.Errorf("%+v", rows)
	}
	if _, err := l.db.Exec(`PRAGMA query_only = 0`); err != nil {
		t.Fatal(err)
	}
	if err := l.flush(); err != nil {
		t.Fatal(err)
	}
	if rows := query(t, l, Filter{}); len(rows) != 1 || rows[0].Input != 7 || len(l.pending) != 0 {
		t.Errorf("%+v, %d wait", rows, len(l.pending))
	}
}

// While nothing can be written, memory is bounded; the sums stay right.
func TestPendingIsBounded(t *testing.T) {
	l := opened(t, t.TempDir())
	defer l.Close()
	at := time.Now()
	for i := range maxPending + 100 {
		l.Add(Entry{At: at, Principal: "p", Model: strings.Repeat("m", i%200) + time.Duration(i).String(), Node: "n", Input: 1})
	}
	if len(l.pending) > maxPending+1 {
		t.Errorf("%d wait", len(l.pending))
	}
	if rows := query(t, l, Filter{}); rows[0].Input != maxPending+100 {
		t.Errorf("%+v", rows)
	}
}

func TestFilesThatAreNoLedger(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"text": func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("not a database\n", 100)), 0o600)
		},
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"another database": func(path string) error {
			l, err := Open(filepath.Dir(path), zerolog.Nop())
			if err == nil {
				_, err = l.db.Exec(`PRAGMA application_id = 7`)
				l.Close()
			}
			return err
		},
		"a newer schema": func(path string) error {
			l, err := Open(filepath.Dir(path), zerolog.Nop())
			if err == nil {
				_, err = l.db.Exec(`PRAGMA user_version = 2`)
				l.Close()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "usage.db")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			if l, err := Open(dir, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, %v", l, err)
			}
		})
	}
}
