package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// smallDisk returns a directory on a file system of its own, with room for size bytes.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size))
	if errors.Is(err, syscall.EPERM) {
		t.Skip("mounting a small tmpfs needs root; TestNoPagesLeft covers a full database without it")
	} else if err != nil {
		t.Skipf("no tmpfs here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes up what is left of the disk; the returned function gives it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; size /= 2 {
		for {
			if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// quick shortens the waits of a journal that hasn't been run yet.
func quick(r *rig) {
	r.timing.retryStart, r.timing.retryMax, r.timing.idle = 5*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
}

// SQ-08, faults.md row 39: the disk fills during 20 runs and is freed later. Nothing waits, nothing crashes, the
// trouble is told, the reserve lets the ends of what ran through, and later runs are stored.
func TestDiskFull(t *testing.T) {
	for size, later := range map[int]int{8 << 20: 3000, 1 << 20: 300} {
		t.Run(fmt.Sprintf("%d MiB", size>>20), func(t *testing.T) {
			dir := smallDisk(t, size)
			r := open(t, Config{Dir: dir})
			quick(r)
			r.run()
			var running []*Entry
			for i := range 20 {
				running = append(running, r.Begin(tunnel(runName(i))))
			}
			r.flush(t)
			free := fill(t, dir)
			began := time.Now()
			for _, e := range running {
				e.End(complete())
			}
			for i := range later {
				r.Begin(tunnel(runName(1000 + i))).End(complete())
			}
			if took := time.Since(began); took > 10*time.Second { // with a try to write for each it would be minutes
				t.Errorf("recording on a full disk took %v", took)
			}
			eventually(t, "the journal says that it is degraded", func() bool { return r.states.last() != "never" })
			if reason := r.states.last(); !strings.HasPrefix(reason, faultFull.String()) {
				t.Errorf("degraded: %s", reason)
			}
			eventually(t, "the reserve is given away", func() bool { return !exists(r.ballast.path) })
			eventually(t, "the ends of what ran are stored", func() bool { return r.stored(running) })
			if !r.Health().Degraded {
				t.Error("the journal counts as healthy without its reserve")
			}
			free()
			eventually(t, "the journal works again", func() bool { return !r.Health().Degraded })
			r.Begin(tunnel("after")).End(complete())
			r.flush(t)
			if got := statuses(r.rows(t, Query{})); got[StatusComplete] != later+21 || len(got) != 1 || r.Health().Lost != 0 {
				t.Errorf("%v, %+v; want %d complete", got, r.Health(), later+21)
			}
			if info, err := os.Stat(r.ballast.path); err != nil || info.Size() != ballastSize {
				t.Errorf("the reserve isn't back: %v, %v", info, err)
			}
			eventually(t, "the journal says that it works", func() bool { return r.states.last() == "" })
			r.close(t)
		})
	}
}

// stored reports whether all entries are in the file as they are.
func (r *rig) stored(entries []*Entry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range entries {
		if !e.stored || e.class != unqueued {
			return false
		}
	}
	return true
}

// A disk that is full when the node starts doesn't keep it from starting: rows wait until there is space.
func TestDiskFullAtStart(t *testing.T) {
	for _, seeded := range []bool{false, true} {
		t.Run(fmt.Sprintf("seeded=%v", seeded), func(t *testing.T) {
			dir := smallDisk(t, 2<<20)
			if seeded {
				r := open(t, Config{Dir: dir})
				r.Begin(background("interrupted"))
				if err := (&writer{j: r.Journal}).drain(); err != nil {
					t.Fatal(err)
				}
				r.crash()
			}
			// Whatever could be given away is gone, too.
			_ = os.Remove(dbPath(dir) + ".ballast")
			free := fill(t, dir)
			r := open(t, Config{Dir: dir})
			if h := r.Health(); !h.Degraded || !strings.HasPrefix(h.Reason, faultFull.String()) {
				t.Errorf("health at the start: %+v", h)
			}
			quick(r)
			r.run()
			r.Begin(background("new")).End(complete())
			eventually(t, "the state is told", func() bool { return r.states.last() != "never" })
			free()
			eventually(t, "the journal works", func() bool { return !r.Health().Degraded })
			r.flush(t)
			want := []string{"new"}
			if seeded {
				want = append(want, "interrupted")
			}
			if got := runIDs(r.rows(t, Query{})); strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("rows %v, want %v", got, want)
			}
			if left := r.Unreported("edge:7443"); len(left) != len(want) {
				t.Errorf("unreported: %v, want %v", runIDs(left), want)
			}
			if len(r.aside) > 0 {
				t.Errorf("set aside: %v", r.aside)
			}
			r.close(t)
		})
	}
}

// SQ-08 without root: SQLite's own limit says "full", too.
func TestNoPagesLeft(t *testing.T) {
	r := open(t, Config{})
	quick(r)
	e := r.Begin(tunnel("before"))
	if err := (&writer{j: r.Journal}).drain(); err != nil {
		t.Fatal(err)
	}
	execute := func(statement string) {
		if _, err := r.file.db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	execute(`PRAGMA max_page_count = 1`) // SQLite makes it what the file has
	r.run()
	for i := range 1000 {
		r.Begin(tunnel(runName(i))).End(complete())
	}
	e.End(complete())
	eventually(t, "the journal says that it is degraded", func() bool { return r.states.last() != "never" })
	if reason := r.states.last(); !strings.HasPrefix(reason, faultFull.String()) {
		t.Errorf("degraded: %s", reason)
	}
	execute(`PRAGMA max_page_count = 1000000`)
	eventually(t, "the journal works again", func() bool { return !r.Health().Degraded })
	r.flush(t)
	if got := statuses(r.rows(t, Query{})); got[StatusComplete] != 1001 {
		t.Errorf("%v, want 1001 complete", got)
	}
}

// faults.md row 40: writes that fail with an I/O error while the node runs.
func TestIOError(t *testing.T) {
	p := startHelper(t, "limited", t.TempDir())
	for _, want := range []string{"failing: " + faultIO.String(), "then: "} {
		if !p.lines.Scan() || !strings.HasPrefix(p.lines.Text(), want) {
			t.Fatalf("the helper said %q, want %q (stderr: %s)", p.lines.Text(), want, p.errs)
		}
	}
	p.stop(t)
}

// SQ-09, faults.md row 40: a directory that can't be written is an error that names it; a reader can still list a
// journal there that was closed properly.
func TestReadOnlyDirectory(t *testing.T) {
	for name, closed := range map[string]bool{"closed": true, "crashed": false} {
		t.Run(name, func(t *testing.T) {
			dir := readOnly(t, func(dir string) {
				r := open(t, Config{Dir: dir})
				r.Begin(tunnel("run")).End(complete())
				if err := (&writer{j: r.Journal}).drain(); err != nil {
					t.Fatal(err)
				}
				if closed {
					r.close(t)
				} else {
					r.crash()
				}
			})
			_, err := Open(t.Context(), Config{Dir: dir})
			if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "can write") {
				t.Errorf("%v, want an error that names %s and what it needs", err, dir)
			}
			reader, err := OpenReader(t.Context(), dbPath(dir))
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			if rows, err := reader.List(t.Context(), Query{}); err != nil || len(rows) != 1 {
				t.Errorf("a reader finds %d rows, %v", len(rows), err)
			}
		})
	}
}

// readOnly returns a directory that make has filled and that can't be written any more.
func readOnly(t *testing.T, make func(dir string)) string {
	t.Helper()
	if os.Geteuid() == 0 { // whom no mode stops
		dir := smallDisk(t, 8<<20)
		make(dir)
		if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dir := t.TempDir()
	make(dir)
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
	return dir
}
