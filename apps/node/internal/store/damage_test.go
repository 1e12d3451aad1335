package store

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/packages/go/patience"
)

// seed makes a journal of 500 rows in dir, closed.
func seed(t *testing.T, dir string) {
	t.Helper()
	r := open(t, Config{Dir: dir})
	for i := range 500 {
		r.Begin(tunnel(runName(i))).End(complete())
	}
	r.close(t)
}

// overwrite changes a file in place.
func overwrite(t *testing.T, path string, at int64, p []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(p, at); err != nil {
		t.Fatal(err)
	}
}

// damages are what may have happened to a file.
func damages() map[string]func(t *testing.T, path string, size int64) {
	noise := make([]byte, 4096)
	_, _ = rand.Read(noise)
	return map[string]func(t *testing.T, path string, size int64){
		"middle": func(t *testing.T, path string, size int64) { overwrite(t, path, size/2/4096*4096, noise) },
		"zeroes": func(t *testing.T, path string, size int64) { overwrite(t, path, size/2/4096*4096, make([]byte, 4096)) },
		"twice":  pageTwice,
		"header": func(t *testing.T, path string, _ int64) { overwrite(t, path, 0, noise[:100]) },
		"page 1": func(t *testing.T, path string, _ int64) { overwrite(t, path, 0, noise) },
		"100":    func(t *testing.T, path string, _ int64) { truncate(t, path, 100) },
		"half":   func(t *testing.T, path string, size int64) { truncate(t, path, size/2+17) },
		"empty":  func(t *testing.T, path string, _ int64) { truncate(t, path, 0) },
		"zeroed": func(t *testing.T, path string, size int64) { write(t, path, make([]byte, size)) },
		"text": func(t *testing.T, path string, _ int64) {
			write(t, path, bytes.Repeat([]byte("not a database\n"), 1000))
		},
		"short":   func(t *testing.T, path string, _ int64) { write(t, path, []byte("hello\n")) },
		"dropped": func(t *testing.T, path string, _ int64) { execute(t, path, `DROP TABLE executions`) },
		"columns": func(t *testing.T, path string, _ int64) {
			execute(t, path, `ALTER TABLE executions DROP COLUMN target`)
		},
	}
}

// SQ-09, faults.md row 41: whatever happened to the file, the node starts: the bad file is set aside under a time stamp, said once,
// and a fresh one works.
func TestDamagedFileIsSetAside(t *testing.T) {
	for name, damage := range damages() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			seed(t, dir)
			path := dbPath(dir)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			damage(t, path, info.Size())
			bad, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path+"-wal", []byte("no log"))

			began := time.Now()
			r := start(t, Config{Dir: dir})
			if took := time.Since(began); took > patience.Limit {
				t.Errorf("starting took %v", took)
			}
			if len(r.aside) != 1 || !strings.HasPrefix(r.aside[0], path+".bad-2") || strings.Count(r.log.String(), `"warn"`) != 1 {
				t.Fatalf("set aside: %v; log: %s", r.aside, r.log)
			}
			if kept, err := os.ReadFile(r.aside[0]); err != nil || !bytes.Equal(kept, bad) {
				t.Errorf("the file set aside isn't the bad one: %d bytes, %v", len(kept), err)
			}
			if name == "empty" && !exists(r.aside[0]+"-wal") { // SQLite drops a log that it can't use, when it gets to see it
				t.Error("the log wasn't set aside with its database")
			}
			r.Begin(tunnel("new")).End(complete())
			r.flush(t)
			if rows := r.rows(t, Query{}); len(rows) != 1 || r.Health().Degraded {
				t.Errorf("%d rows in the fresh journal, %+v", len(rows), r.Health())
			}
			r.close(t)
			if again := open(t, Config{Dir: dir}); len(again.aside) > 0 {
				t.Errorf("the next start sets aside %v", again.aside)
			}
		})
	}
}

// pageTwice puts one page of rows in the place of another. Every row can still be read; only quick_check sees it.
func pageTwice(t *testing.T, path string, size int64) {
	at := size / 2 / 4096 * 4096
	overwrite(t, path, at, readFile(t, path)[at+4096:at+8192])
}

func write(t *testing.T, path string, p []byte) {
	t.Helper()
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// execute changes a closed database.
func execute(t *testing.T, path, statement string) {
	t.Helper()
	db := other(t, path)
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// Everything that belongs to a database is moved with it.
func TestSetAsideMovesTheWholeDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "odd [name]*.db")
	for _, suffix := range fileSuffixes() {
		write(t, path+suffix, []byte("content of "+suffix))
	}
	aside, err := setAside(path, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, suffix := range fileSuffixes() {
		if p, err := os.ReadFile(aside + suffix); err != nil || string(p) != "content of "+suffix || exists(path+suffix) {
			t.Errorf("%q: %q, %v", suffix, p, err)
		}
	}
}

// A disk that damages file after file isn't filled by what was set aside.
func TestFewBadFilesAreKept(t *testing.T) {
	dir := t.TempDir()
	var last []string
	for i := range keptAside + 3 {
		write(t, dbPath(dir), bytes.Repeat([]byte{byte('a' + i)}, 5000))
		r := open(t, Config{Dir: dir, Now: func() time.Time { return time.Now().Add(time.Duration(i) * time.Second) }})
		last = append(last, r.aside...)
		r.close(t)
	}
	found, err := filepath.Glob(dbPath(dir) + ".bad-*")
	if err != nil || !slices.Equal(found, last[len(last)-keptAside:]) {
		t.Errorf("kept %v of %v (%v)", found, last, err)
	}
}

// Damage that shows while the node runs: the file is set aside then, and what is recorded from then on is kept.
func TestDamageWhileRunning(t *testing.T) {
	dir := t.TempDir()
	seed(t, dir)
	r := start(t, Config{Dir: dir})
	running := r.Begin(background("running"))
	r.flush(t)
	if err := r.truncateLog(t); err != nil {
		t.Fatal(err)
	}
	// SQLite keeps pages in memory; another program's commit makes it read them again.
	noise := make([]byte, 40<<10)
	_, _ = rand.Read(noise)
	execute(t, dbPath(dir), `UPDATE executions SET bytes_in = bytes_in + 1`)
	overwrite(t, dbPath(dir), 4096, noise)
	running.End(complete())
	eventually(t, "the file is set aside and the journal works again", func() bool { return len(r.states.all()) >= 2 && r.states.last() == "" })
	r.Begin(tunnel("after")).End(complete())
	r.flush(t)
	if rows := r.rows(t, Query{}); len(r.aside) != 1 || statuses(rows)[StatusComplete] < 2 {
		t.Errorf("set aside %v, rows %v", r.aside, statuses(rows))
	}
	if left := r.Unreported("edge:7443"); len(left) != 1 || left[0].RunID != "running" {
		t.Errorf("unreported: %v", runIDs(left))
	}
}

func (r *rig) truncateLog(t *testing.T) error {
	t.Helper()
	_, err := r.file.checkpoint()
	return err
}

// A schema of a later version and another program's database are refused, and left as they are.
func TestForeignFilesAreLeftAlone(t *testing.T) {
	for name, tt := range map[string]struct{ statement, want string }{
		"newer": {`PRAGMA user_version = 7`, "newer iop-node (schema 7, this one knows 1)"},
		"foreign": {`CREATE TABLE bookmarks (url TEXT); DROP TABLE executions; PRAGMA user_version = 0; PRAGMA application_id = 42`,
			"another program"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			seed(t, dir)
			execute(t, dbPath(dir), tt.statement)
			before, err := os.ReadFile(dbPath(dir))
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(t.Context(), Config{Dir: dir})
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dbPath(dir)) {
				t.Errorf("%v, want an error with the path and %q", err, tt.want)
			}
			if after, err := os.ReadFile(dbPath(dir)); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the file was changed (%v)", err)
			}
			if _, err = OpenReader(t.Context(), dbPath(dir)); err == nil {
				t.Error("a reader takes it")
			}
		})
	}
}

// faults.md row 40: what can't be opened or written ends the start, naming the path.
func TestUnusablePlaces(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), nil)
	if err := os.MkdirAll(filepath.Join(dir, "folder", "iop.db"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{filepath.Join(dir, "file"), filepath.Join(dir, "folder"), "/proc/self"} {
		_, err := Open(t.Context(), Config{Dir: place})
		if err == nil || !strings.Contains(err.Error(), place) {
			t.Errorf("%s: %v, want an error that names it", place, err)
		}
	}
}

// faults.md row 40: a file that another program keeps locked, and a data_dir that another node uses.
func TestLockedAtStart(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Dir: dir})
	if _, err := Open(t.Context(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "another iop-node") ||
		!strings.Contains(err.Error(), dbPath(dir)) {
		t.Errorf("a second node: %v", err)
	}
	r.close(t)
	p := startHelper(t, "hold", dbPath(dir))
	p.expect(t, "held")
	_, err := Open(t.Context(), Config{Dir: dir, DSN: DefaultDSN + "&_busy_timeout=10"})
	if err == nil || !strings.Contains(err.Error(), faultLockedAdvice) || !strings.Contains(err.Error(), dbPath(dir)) {
		t.Errorf("a locked file: %v", err)
	}
	p.stop(t)
	open(t, Config{Dir: dir})
}

const faultLockedAdvice = "end the program that holds it"

// faults.md row 40: a file that another program locks while the node runs.
func TestLockedWhileRunning(t *testing.T) {
	r := start(t, Config{DSN: DefaultDSN + "&_busy_timeout=10"})
	e := r.Begin(tunnel("before"))
	r.flush(t)
	p := startHelper(t, "hold", dbPath(r.cfg.Dir))
	p.expect(t, "held")
	e.End(complete())
	r.Begin(tunnel("while")).End(complete())
	eventually(t, "the journal says that it is degraded", func() bool { return r.states.last() != "never" })
	if reason := r.states.last(); !strings.HasPrefix(reason, faultLocked.String()) {
		t.Errorf("degraded: %s", reason)
	}
	if err := r.Flush(t.Context()); err == nil {
		t.Error("a flush of a degraded journal succeeds")
	}
	p.stop(t)
	eventually(t, "the journal works again", func() bool { return !r.Health().Degraded })
	r.flush(t)
	if got := statuses(r.rows(t, Query{})); got[StatusComplete] != 2 || len(got) != 1 {
		t.Errorf("%v, want 2 complete", got)
	}
	eventually(t, "it says so", func() bool { return r.states.last() == "" })
	if seen := r.states.all(); len(seen) != 2 {
		t.Errorf("announced: %q, want the trouble once and its end", seen)
	}
}
