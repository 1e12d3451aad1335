package store

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// helperEnv makes the test binary a helper process: its value is the name of a function in helpers.
const helperEnv = "IOP_STORE_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		if err := helpers()[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// helpers are what another process does to a journal.
func helpers() map[string]func(args []string) error {
	return map[string]func([]string) error{
		"write":   helpWrite,
		"hold":    helpHold,
		"read":    helpRead,
		"limited": helpLimited,
	}
}

// process is a running helper. Its input is open until Stop.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	errs  *strings.Builder
}

func startHelper(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...), errs: &strings.Builder{}}
	p.cmd.Env = append(os.Environ(), helperEnv+"="+name)
	p.cmd.Stderr = p.errs
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.lines = in, bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	return p
}

// expect reads the helper's next line and fails the test if it is another one.
func (p *process) expect(t *testing.T, line string) {
	t.Helper()
	if !p.lines.Scan() || p.lines.Text() != line {
		t.Fatalf("the helper said %q, want %q (stderr: %s)", p.lines.Text(), line, p.errs)
	}
}

// stop closes the helper's input and waits for its end.
func (p *process) stop(t *testing.T) {
	t.Helper()
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("helper: %v: %s", err, p.errs)
	}
}

// states collects what a journal tells of its health.
type states struct {
	mu   sync.Mutex
	seen []string // the reason, "" = works again
}

func (s *states) add(degraded bool, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if degraded == (reason == "") {
		reason = fmt.Sprintf("contradiction: degraded=%v reason=%q", degraded, reason)
	}
	s.seen = append(s.seen, reason)
}

func (s *states) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// last is the latest of them; "never" before the first.
func (s *states) last() string {
	if all := s.all(); len(all) > 0 {
		return all[len(all)-1]
	}
	return "never"
}

// rig is a journal with its Run.
type rig struct {
	*Journal
	states states
	aside  []string
	log    *logBuffer
	ended  chan error
}

type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// open opens a journal for a test that drives it by hand; the test or its clean-up closes it.
func open(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := &rig{log: &logBuffer{}}
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.Log = zerolog.New(r.log)
	cfg.OnState = r.states.add
	cfg.OnSetAside = func(path string) { r.aside = append(r.aside, path) }
	j, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Journal = j
	r.timing.closeLimit = patience.Limit
	t.Cleanup(func() {
		r.close(t)
		if t.Failed() {
			t.Logf("told: %q; log:\n%s", r.states.all(), r.log)
		}
	})
	return r
}

// start opens a journal and runs it.
func start(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := open(t, cfg)
	r.run()
	return r
}

func (r *rig) run() {
	r.ended = make(chan error, 1)
	go func() { r.ended <- r.Run(context.Background()) }()
}

func (r *rig) close(t testing.TB) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if r.ended != nil {
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
		r.ended = nil
	}
}

// crash drops the journal as the kernel would: what wasn't written is gone. For journals that don't run.
func (r *rig) crash() {
	_ = r.file.db.Close()
	_ = r.lock.Close()
	r.Journal = nil
}

func (r *rig) flush(t testing.TB) {
	t.Helper()
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) rows(t testing.TB, q Query) []Row {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = MaxLimit
	}
	rows, err := r.List(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// memoryDir returns a directory for tests that open very many journals: in memory where there is one, since each of
// them waits for the disk a few times.
func memoryDir(t interface{ Fatal(args ...any) }) string {
	parent := "/dev/shm"
	if info, err := os.Stat(parent); err != nil || !info.IsDir() {
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, "journal")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// dbPath is where a journal of the default DSN lies.
func dbPath(dir string) string { return filepath.Join(dir, "iop.db") }

// other opens a further connection to a journal, as another program would: none of our rules hold it.
func other(t testing.TB, path string) *sql.DB {
	t.Helper()
	db := connect(fileURI(path, url.Values{"_busy_timeout": {"30000"}, "_txlock": {"immediate"}}))
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// hold takes the write lock of a journal until the returned function is called.
func hold(t testing.TB, path string) (release func()) {
	t.Helper()
	tx, err := other(t, path).Begin()
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
			t.Error(err)
		}
	}
}

// eventually waits until ok holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	patience.Until(t, what, ok)
}

// long skips a test that takes real minutes.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("IOP_LONG") == "" {
		t.Skip("set IOP_LONG=1: make test-long")
	}
}

func number(n int64) *int64 { return &n }

func runName(i int) string { return fmt.Sprintf("run-%06d", i) }

// tunnel is a whole Execution.
func tunnel(runID string) Execution {
	return Execution{Edge: "edge:7443", RunID: runID, Attempt: 2, Generation: 7, Kind: execution.KindTunnel, Adapter: "ollama",
		Target: "llama3.2:3b", SessionID: "session"}
}

func background(runID string) Execution {
	x := tunnel(runID)
	x.Kind, x.Background = execution.KindRun, true
	return x
}

func complete() Outcome { return Outcome{Status: StatusComplete} }

// same compares rows as they come back from a file: to the millisecond.
func same(t interface {
	Helper()
	Errorf(format string, args ...any)
}, got, want any) {
	t.Helper()
	times := cmp.Comparer(func(a, b time.Time) bool { return a.UnixMilli() == b.UnixMilli() })
	if diff := cmp.Diff(want, got, times); diff != "" {
		t.Errorf("rows differ (-want +got):\n%s", diff)
	}
}

// statuses counts rows by status.
func statuses(rows []Row) map[Status]int {
	counts := map[Status]int{}
	for _, r := range rows {
		counts[r.Status]++
	}
	return counts
}
