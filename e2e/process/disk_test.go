//go:build e2e

package process

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"iop/e2e/procs"
)

// disk is where the node of a site keeps its record: a file system of its own, in the node's own mount namespace, so
// that nothing of it is left when the node ends, however that is.
type disk struct {
	*site
	dir string // as the node sees it
}

// ownDisk starts a program behind it on a tmpfs in the place of data_dir; the program's arguments are serve -c FILE.
func ownDisk(t *testing.T, options string) []string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	for _, tool := range []string{"unshare", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("a file system of the node's own needs %s (util-linux), which isn't installed", tool)
		}
	}
	if text, err := output("unshare", "-m", "mount", "-t", "tmpfs", "none", t.TempDir()); err != nil {
		t.Skipf("mounting isn't possible here: %v: %s", err, text)
	}
	script := `d="${4%/*}/data"; mkdir -p "$d" && mount -t tmpfs -o "` + options + `" none "$d" && exec "$@"`
	return []string{"unshare", "-m", "sh", "-c", script, "sh"}
}

func newDisk(t *testing.T, options string) *disk {
	t.Helper()
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 8}]", NodePrefix: ownDisk(t, options)})
	return &disk{site: s, dir: s.Path("data")}
}

// seen is a file of the disk as this process reaches it.
func (d *disk) seen(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", d.Node.Pid()), d.dir, name)
}

// fill leaves no byte free.
func (d *disk) fill() {
	d.t.Helper()
	f, err := os.OpenFile(d.seen("filler"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; { // by and by smaller pieces, to the last byte
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

// record is what the node says of its record.
func (s *site) record() (r struct {
	State, Reason         string
	Queued, Written, Lost int
}) {
	s.t.Helper()
	var status struct{ Store json.RawMessage }
	addr := said(s.t, s.Node, "admin listens", 1).Str("address")
	if err := json.Unmarshal(get(s.t, s.nodeSide, addr, "/admin/v1/status"), &status); err != nil {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(status.Store, &r); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// serves asks n times; each answer is whole.
func (s *site) serves(n int) {
	s.t.Helper()
	for range n {
		if c := s.ask(chat("loopback", "loopback: tokens=3 delay=0s")); c.status != 200 || c.err != nil || !strings.Contains(c.text(), "[DONE]") {
			s.t.Fatalf("%s", c)
		}
	}
}

// degrades serves callers until the node says that it can't write its record, then some more, and looks whether the edge
// was told.
func (s *site) degrades() {
	s.t.Helper()
	eventually(s.t, limit, "the node says that its record can't be written", func() bool {
		s.serves(1)
		return s.record().State == "degraded"
	})
	s.serves(40)
	if r := s.record(); r.Lost > 0 || r.Reason == "" {
		s.t.Errorf("the record that can't be written: %+v", r)
	}
	eventually(s.t, limit, "the edge knows", func() bool { return strings.Contains(s.Edge.Log(), "store_degraded") })
	s.settled()
}

// recovers waits until all is written that waited.
func (s *site) recovers() {
	s.t.Helper()
	eventually(s.t, 2*limit, "the record is written again", func() bool { r := s.record(); return r.State == "ok" && r.Queued == 0 })
	s.serves(1)
	s.settled()
	if r := s.record(); r.Lost > 0 || r.Written < 42 {
		s.t.Errorf("the record after the trouble: %+v", r)
	}
}

// Row 39, SQ-08: the node's disk is full. Callers don't notice, the edge is told, and nothing is lost when there is
// space again.
func TestFullDisk(t *testing.T) {
	d := newDisk(t, "size=6m,mode=700")
	d.serves(3)
	eventually(t, limit, "the disk is full, and the reserve used up", func() bool {
		d.fill()
		d.serves(5)
		return d.record().State == "degraded"
	})
	d.fill()
	d.degrades()
	if err := os.Remove(d.seen("filler")); err != nil {
		t.Fatal(err)
	}
	d.recovers()
}

// Row 40: a disk that can't be written ends the start, and the message names the place.
func TestUnusableDisk(t *testing.T) {
	prefix := ownDisk(t, "ro,size=1m")
	m := newMember("other", "[]")
	s := newSite(t, procs.SiteConfig{Adapters: embedded, MoreNodes: []string{m.record}})
	dir := filepath.Join(s.Dir, "other")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "node.token", m.token)
	write(t, dir, "node.yaml", fmt.Sprintf("edges: [%q]\ntoken: file:./node.token\ndata_dir: ./data\n", s.Nodes))
	p := start(t, "other", prefix, program("iop-node"), "serve", "-c", filepath.Join(dir, "node.yaml"))
	select {
	case <-p.Done():
	case <-time.After(limit):
		t.Fatal("a node without a disk that it can write doesn't end")
	}
	if code := p.ExitCode(); code == 0 || !strings.Contains(p.Log(), filepath.Join(dir, "data")) {
		t.Errorf("exit code %d, and it said:\n%s", code, p.Log())
	}
}

// faultyDisk is a library that makes writes of the record fail while a file is there, with the error number that stands
// in it.
const faultyDisk = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static int failing(void) {
	const char *name = getenv("IOP_E2E_DISK");
	FILE *f = name ? fopen(name, "r") : NULL;
	int code = 0;
	if (f) { if (fscanf(f, "%d", &code) != 1) code = 0; fclose(f); }
	if (code) errno = code;
	return code;
}

ssize_t pwrite64(int fd, const void *b, size_t n, off64_t at) {
	static ssize_t (*real)(int, const void *, size_t, off64_t);
	if (failing()) return -1;
	if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
	return real(fd, b, n, at);
}
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) { return pwrite64(fd, b, n, at); }
int fsync(int fd) {
	static int (*real)(int);
	if (failing()) return -1;
	if (!real) real = dlsym(RTLD_NEXT, "fsync");
	return real(fd);
}
int fdatasync(int fd) { return fsync(fd); }
int ftruncate64(int fd, off64_t size) {
	static int (*real)(int, off64_t);
	if (failing()) return -1;
	if (!real) real = dlsym(RTLD_NEXT, "ftruncate64");
	return real(fd, size);
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
`

// Row 40: every write of the record fails for a while, with an I/O error, and because the disk has turned read-only.
// SQLite writes through libc, so that a library in front of it is a disk that fails; what Go writes (sockets, the log)
// doesn't go that way.
func TestDiskWithErrors(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "disk.c", faultyDisk)
	library, broken := filepath.Join(dir, "disk.so"), filepath.Join(dir, "broken")
	if text, err := output("gcc", "-shared", "-fPIC", "-O1", "-o", library, filepath.Join(dir, "disk.c"), "-ldl"); err != nil {
		t.Skipf("a faulty disk needs gcc: %v: %s", err, text)
	}
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 8}]",
		NodePrefix: []string{"env", "LD_PRELOAD=" + library, "IOP_E2E_DISK=" + broken}})
	s.serves(3)
	for _, code := range []syscall.Errno{syscall.EIO, syscall.EROFS} {
		write(t, dir, "broken", fmt.Sprint(int(code)))
		s.degrades()
		if s.record().Queued == 0 { // on a full disk SQLite may still find room in its log
			t.Errorf("%v, and nothing waits to be written", code)
		}
		if err := os.Remove(broken); err != nil {
			t.Fatal(err)
		}
		s.recovers()
	}
}

// Row 41, SQ-09: whatever happened to the record of a node that was down, the node comes up, the bad file is set aside,
// and the edge is told.
func TestDamagedRecord(t *testing.T) {
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 8}]"})
	s.serves(200) // some pages
	for name, damage := range map[string]func(b []byte) []byte{
		"its header": func(b []byte) []byte { return append(bytes.Repeat([]byte("?"), 100), b[100:]...) },
		"its middle": func(b []byte) []byte {
			copy(b[len(b)/2/4096*4096:], bytes.Repeat([]byte{0xff}, 4096))
			return b
		},
		"its end": func(b []byte) []byte { return b[:100] },
		"a text":  func([]byte) []byte { return []byte("this is no database\n") },
	} {
		if err := s.Node.Stop(limit); err != nil { // in order, so that all is in the file
			t.Fatal(err)
		}
		file := s.Path("data/iop.db")
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, damage(b), 0o600); err != nil {
			t.Fatal(err)
		}
		told := strings.Count(s.Edge.Log(), "store_set_aside")
		from := time.Now()
		s.restartNode()
		t.Logf("%s: ready after %v", name, time.Since(from).Round(time.Millisecond))
		eventually(t, limit, "the edge is told of "+name, func() bool { return strings.Count(s.Edge.Log(), "store_set_aside") > told })
		if s.Node.Count("the journal was damaged; it was set aside and a fresh one begun") != 1 {
			t.Errorf("%s: the node's log:\n%s", name, tail(s.Node.Log()))
		}
		s.serves(200)
		s.settled()
		eventually(t, limit, "the fresh record has what ran since", func() bool { return len(s.journal()) > 0 })
	}
}

// Row 42: a node that is killed again and again, in the middle of whatever it writes, has a final status for every run
// that it ever began, once it is back.
func TestNodeKilledAgainAndAgain(t *testing.T) {
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 32}]"})
	for round := range 6 {
		var calls []*call
		for i := range 12 {
			calls = append(calls, s.begin(fmt.Sprintf("run %d of round %d", i, round), "loopback", fmt.Sprintf("loopback: tokens=%d delay=5ms", 5+20*i)))
		}
		calls[2*round%12].await(t, limit)
		if err := s.Node.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-s.Node.Done()
		for _, c := range calls {
			c.await(t, limit)
		}
		s.restartNode()
		eventually(t, limit, "nothing counts as running", func() bool {
			for _, row := range s.journal() {
				if row.Status == "running" {
					return false
				}
			}
			return true
		})
		s.settled()
	}
	ended := map[string]int{}
	for _, row := range s.journal() {
		ended[row.Status]++
	}
	t.Logf("the record after 6 kills: %v", ended)
	if ended["interrupted"] == 0 || ended["complete"] == 0 {
		t.Errorf("the record after 6 kills: %v", ended)
	}
}
