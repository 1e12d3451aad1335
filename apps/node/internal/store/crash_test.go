package store

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// history is what a helper wrote, one commit after the other: run i began, run i ended, run i+1 began, …
type history struct{ dir string }

// record lets a helper write runs and die without closing anything.
func record(t *testing.T, runs int) history {
	t.Helper()
	dir := t.TempDir()
	p := startHelper(t, "write", dir, fmt.Sprint(runs), "0")
	p.expect(t, "opened")
	for i := range runs {
		p.expect(t, fmt.Sprint("began ", i))
		p.expect(t, fmt.Sprint("ended ", i))
	}
	p.stop(t)
	return history{dir}
}

// reopen starts a node on files as a crash may have left them and checks what it finds: a prefix of the history, no row open, at most
// one interrupted, and that one the last. It returns the number of rows.
func reopen(t *testing.T, what string, database, log []byte) int {
	t.Helper()
	dir := memoryDir(t)
	defer os.RemoveAll(dir)
	write(t, dbPath(dir), database)
	write(t, dbPath(dir)+"-wal", log)
	r := open(t, Config{Dir: dir})
	if len(r.aside) > 0 {
		t.Fatalf("%s: the file was set aside: %s", what, r.log)
	}
	rows := r.rows(t, Query{})
	for i, row := range rows {
		want := StatusComplete
		if i == 0 && row.Status == StatusInterrupted {
			want = StatusInterrupted
		}
		if n := len(rows) - i; row.ID != int64(n) || row.RunID != runName(n-1) || row.Status != want || row.Ended.IsZero() {
			t.Fatalf("%s: row %d of %d is %+v", what, n, len(rows), row)
		}
	}
	r.close(t)
	return len(rows)
}

// faults.md row 42: the process dies at any byte of any write to the log.
func TestCrashAtAnyWrite(t *testing.T) { crashAtAnyWrite(t, 120) }

// faults.md row 42, with as many cuts as it has writes.
func TestLongCrashAtAnyWrite(t *testing.T) {
	long(t)
	crashAtAnyWrite(t, 2000)
}

func crashAtAnyWrite(t *testing.T, cuts int) {
	const runs = 150
	h := record(t, runs)
	database, log := readFile(t, dbPath(h.dir)), readFile(t, dbPath(h.dir)+"-wal")
	before := -1
	for i := range cuts + 1 {
		at := len(log) * i / cuts
		if i > 0 && i < cuts {
			at = max(0, at-rand.IntN(len(log)/cuts))
		}
		n := reopen(t, fmt.Sprintf("log cut at %d of %d", at, len(log)), database, log[:at])
		if n < before {
			t.Fatalf("a longer log has fewer rows: %d after %d", n, before)
		}
		before = n
	}
	if before != runs {
		t.Errorf("the whole log has %d rows, want %d", before, runs)
	}
}

// faults.md row 42: the process dies while the log is moved into the database, at any byte of that.
func TestCrashInCheckpoint(t *testing.T) {
	const runs = 100
	h := record(t, runs)
	database, log := readFile(t, dbPath(h.dir)), readFile(t, dbPath(h.dir)+"-wal")
	r := open(t, Config{Dir: h.dir})
	r.close(t) // which moves all of it
	moved := readFile(t, dbPath(h.dir))
	for i := range 41 {
		at := len(moved) * i / 40
		torn := slices.Concat(moved[:at], database[min(at, len(database)):])
		if n := reopen(t, fmt.Sprintf("database torn at %d of %d", at, len(moved)), torn, log); n != runs {
			t.Fatalf("%d rows, want %d", n, runs)
		}
	}
}

// A page of the log that the disk damaged ends the log there; what was written before it stands.
func TestDamagedLog(t *testing.T) {
	h := record(t, 60)
	database, log := readFile(t, dbPath(h.dir)), readFile(t, dbPath(h.dir)+"-wal")
	for range 20 {
		bad := bytes.Clone(log)
		bad[rand.IntN(len(bad))] ^= 0x55
		reopen(t, "log with a flipped byte", database, bad)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// faults.md row 42: SIGKILL, again and again on the same directory. What was committed is there; nothing stays open.
func TestKill(t *testing.T) { kill(t, 8) }

// faults.md row 42, for longer.
func TestLongKill(t *testing.T) {
	long(t)
	kill(t, 200)
}

func kill(t *testing.T, times int) {
	dir := t.TempDir()
	ended, next := map[string]bool{}, 0
	for range times {
		p := startHelper(t, "write", dir, "0", fmt.Sprint(next))
		p.expect(t, "opened")
		for lines := rand.IntN(300); lines >= 0 && p.lines.Scan(); lines-- {
			next = note(ended, p.lines.Text(), next)
		}
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for p.lines.Scan() { // said before the kill, read after it
			next = note(ended, p.lines.Text(), next)
		}
		_ = p.cmd.Wait()
		next += 2 // what ran at the kill may have been said or not
	}
	r := open(t, Config{Dir: dir})
	if len(r.aside) > 0 {
		t.Fatalf("set aside: %v", r.aside)
	}
	rows, err := query(t.Context(), r.file.db, listRows, "", math.MinInt64, -1)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Status{}
	for _, row := range rows {
		found[row.RunID] = row.Status
	}
	for run := range ended {
		if found[run] != StatusComplete {
			t.Errorf("%s had ended and is %q", run, found[run])
		}
	}
	counts := map[Status]int{}
	for _, status := range found {
		counts[status]++
	}
	if open := counts[StatusRunning]; open > 0 || counts[StatusInterrupted] > times {
		t.Errorf("%v after %d kills", counts, times)
	}
	t.Logf("%v after %d kills", counts, times)
}

// note takes a line of a writing helper down.
func note(ended map[string]bool, line string, next int) int {
	var word string
	var i int
	if _, err := fmt.Sscan(line, &word, &i); err != nil {
		return next // cut by the kill
	}
	if word == "ended" {
		ended[runName(i)] = true
	}
	return max(next, i)
}

// The directory of a node that was killed has no file that a next start trips over.
func TestFilesOfANode(t *testing.T) {
	r := start(t, Config{})
	r.Begin(tunnel("run")).End(complete())
	r.flush(t)
	r.close(t)
	found, err := filepath.Glob(filepath.Join(r.cfg.Dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	if want := []string{"iop.db", "iop.db.ballast", "iop.db.lock"}; !slices.Equal(found, want) {
		t.Errorf("after a proper end: %v, want %v", found, want)
	}
}
