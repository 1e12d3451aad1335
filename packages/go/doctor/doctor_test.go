package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
	"iop/packages/go/patience"
	"iop/packages/go/program"
)

// A check that hangs costs its limit and no more, and those after it are still made.
func TestEachCheckHasItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		start := time.Now()
		all := Run(t.Context(), []Check{
			{Name: "stuck", Limit: 3 * time.Second, Run: func(context.Context) []Finding { <-stuck; return nil }},
			{Name: "polite", Run: func(ctx context.Context) []Finding {
				<-ctx.Done()
				return []Finding{Failed("polite", "wait", "its time was over")}
			}},
			{Name: "quick", Run: func(context.Context) []Finding { return []Finding{Well("quick", "fine")} }},
		}, func(Finding) {})
		if took := time.Since(start); took != 3*time.Second+grace+defaultLimit {
			t.Errorf("it took %v", took)
		}
		if len(all) != 3 || all[0].Check != "stuck" || all[0].Level != Fail || !strings.Contains(all[0].Text, "3s") ||
			all[1].Text != "its time was over" || all[2].Level != OK {
			t.Errorf("found %+v", all)
		}
		close(stuck)
	})
}

// An interrupt ends it where it is.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	_, err := Examine(ctx, &out, "p", "v", []Check{
		{Name: "a", Run: func(context.Context) []Finding { cancel(); return []Finding{Well("a", "fine")} }},
		{Name: "b", Run: func(context.Context) []Finding { t.Error("it went on"); return nil }},
	}, false)
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("%v", err)
	}
}

// What others say can't do anything to a terminal, and no finding is longer than a line.
func TestFindingsAreOneLine(t *testing.T) {
	var out bytes.Buffer
	level, err := Examine(t.Context(), &out, "p", "v", []Check{{Name: "a", Run: func(context.Context) []Finding {
		return []Finding{Failed("a", "do this\nand that", "it said \x1b[31mred\x1b[0m\n%s", strings.Repeat("x", 5000))}
	}}}, false)
	text := out.String()
	if err != nil || level != Fail || strings.Contains(text, "\x1b") || strings.Count(text, "\n") != 3 || len(text) > 2*maxText {
		t.Errorf("%v %v %q", level, err, text)
	}
}

func TestLevels(t *testing.T) {
	for _, c := range []struct {
		all  []Finding
		want Level
		code int
	}{
		{nil, OK, ExitOK},
		{[]Finding{Well("a", ""), Skip("b", "", "")}, OK, ExitOK},
		{[]Finding{Warn("a", "", ""), Well("b", "")}, Warning, ExitWarning},
		{[]Finding{Failed("a", "", ""), Warn("b", "", "")}, Fail, ExitFail},
		{[]Finding{Warn("b", "", ""), Failed("a", "", "")}, Fail, ExitFail},
	} {
		if got := Worst(c.all); got != c.want || got.ExitCode() != c.code {
			t.Errorf("%+v: %v, code %d", c.all, got, got.ExitCode())
		}
	}
}

func TestJSON(t *testing.T) {
	var out bytes.Buffer
	checks := []Check{{Name: "a", Run: func(context.Context) []Finding { return []Finding{Warn("a", "do <this>", "it isn't well")} }}}
	if level, err := Examine(t.Context(), &out, "iop-x", "v1", checks, true); err != nil || level != Warning {
		t.Errorf("%v %v", level, err)
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Program != "iop-x" || r.Version != "v1" || r.Level != Warning ||
		len(r.Findings) != 1 || r.Findings[0].Remedy != "do <this>" {
		t.Errorf("%v %s", err, out.String())
	}
}

func wantOne(t *testing.T, found []Finding, level Level, words ...string) {
	t.Helper()
	if len(found) != 1 || found[0].Level != level || level == Fail && found[0].Remedy == "" {
		t.Fatalf("found %+v, want one %s", found, level)
	}
	for _, w := range words {
		if !strings.Contains(found[0].Text+" "+found[0].Remedy, w) {
			t.Errorf("%q isn't in %+v", w, found[0])
		}
	}
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	wantRoom := func(found []Finding) Level { // the machine that runs the tests may be short of room itself
		if strings.Contains(found[0].Text, "nearly full") {
			return Warning
		}
		return OK
	}
	found := Directory("d", "data_dir", dir)
	wantOne(t, found, wantRoom(found), dir)
	found = Directory("d", "data_dir", filepath.Join(dir, "a", "b"))
	wantOne(t, found, wantRoom(found), dir)
	if _, err := os.Stat(filepath.Join(dir, "a")); err == nil {
		t.Error("it was made")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantOne(t, Directory("d", "data_dir", file), Fail, "is a file", "data_dir")
	wantOne(t, Directory("d", "data_dir", filepath.Join(file, "a")), Fail, "file", "data_dir")
}

// An unwritable directory; root may write everywhere, so that as root a file system stands in that can't be written.
func TestUnwritableDirectory(t *testing.T) {
	dir := t.TempDir()
	if os.Geteuid() != 0 {
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		wantOne(t, Directory("d", "state_dir", dir), Fail, "can't be written", "chown")
		return
	}
	mount(t, dir, unix.MS_RDONLY, "size=64k")
	wantOne(t, Directory("d", "state_dir", dir), Fail, "can't be written", "read-only")
	wantOne(t, Directory("d", "state_dir", filepath.Join(dir, "new")), Fail, "read-only")
}

// A full disk, and one without an inode left.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	mount(t, dir, 0, "size=64m")
	wantOne(t, Directory("d", "state_dir", dir), Warning, "nearly full", "MiB free")
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 60<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	wantOne(t, Directory("d", "state_dir", dir), Fail, "is full", "make room")
	few := t.TempDir()
	mount(t, few, 0, "size=64m,nr_inodes=2")
	if err := os.WriteFile(filepath.Join(few, "last"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantOne(t, Directory("d", "state_dir", few), Fail, "inode")
}

// mount puts a file system of its own onto dir for the test.
func mount(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount the small file system that this needs")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestLimitsOfTheMachine(t *testing.T) {
	wantOne(t, []Finding{Files("it", 100, 4000, "callers")}, Warning, "100", "4000", "LimitNOFILE")
	wantOne(t, []Finding{Files("it", 4000, 4000, "callers")}, OK)
	wantOne(t, []Finding{OwnFiles(1<<40, "callers")}, Warning, "ulimit")
	wantOne(t, []Finding{Memory(program.Memory{Limit: 64 << 20, Source: "memory.max"}, 128<<20, "the limits")}, Warning, "64 MiB", "128 MiB", "memory.max", "MemoryMax")
	wantOne(t, []Finding{Memory(program.Memory{Limit: 128 << 20, Source: "memory.max"}, 128<<20, "the limits")}, OK)
	wantOne(t, []Finding{Memory(program.Memory{}, 1, "the limits")}, Skipped)
}

func TestDial(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Limit)
	defer cancel()
	conn, f := Dial(ctx, "d", "edges", addr)
	if conn == nil || f.Level != OK {
		t.Fatalf("%+v", f)
	}
	conn.Close()
	ln.Close()
	conn, f = Dial(ctx, "d", "edges", "127.0.0.1:1") // what was left may be another's by now
	wantOne(t, []Finding{f}, Fail, "nothing listens", "edges", "firewall")
	if conn != nil {
		t.Error("a connection to nobody")
	}
	over, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	_, f = Dial(over, "d", "edges", addr)
	wantOne(t, []Finding{f}, Fail, "doesn't answer", "firewalls")
}

// How long certificates last, and each file that can't be used.
func TestIdentity(t *testing.T) {
	now := time.Now()
	ca := identitytest.NewCA(t, "ours")
	ending := identitytest.NewCA(t, "ending", func(c *cert) { c.NotBefore, c.NotAfter = now.Add(-48*time.Hour), now.Add(12*time.Hour) })
	life := func(left time.Duration) func(*cert) {
		return func(c *cert) { c.NotBefore, c.NotAfter = now.Add(-left*9), now.Add(left) }
	}
	for name, c := range map[string]struct {
		leaf  identitytest.Leaf
		cas   []*identitytest.CA
		level Level
		words []string
	}{
		"fresh":     {ca.Node(t, "a"), []*identitytest.CA{ca}, OK, []string{"node/a", "lasts another"}},
		"ends soon": {ca.Node(t, "a", life(20*time.Minute)), []*identitytest.CA{ca}, Warning, []string{"ends in", "renew it"}},
		"CA ends":   {ending.Node(t, "a"), []*identitytest.CA{ending}, Warning, []string{"the CA CN=ending", "rotate"}},
		"expired":   {ca.Node(t, "a", life(-time.Minute), func(c *cert) { c.NotBefore = now.Add(-time.Hour) }), []*identitytest.CA{ca}, Fail, []string{"expired", "clock"}},
		"to come":   {ca.Node(t, "a", func(c *cert) { c.NotBefore = now.Add(time.Hour) }), []*identitytest.CA{ca}, Fail, []string{"isn't valid before", "clock"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := identitytest.Write(t, t.TempDir(), c.leaf, c.cas...)
			s, found := Identity(identity.Config{Files: files, TrustDomain: identitytest.TrustDomain}, "", now)
			if (s == nil) != (c.level == Fail) || Worst(found) != c.level {
				t.Fatalf("%+v", found)
			}
			text := ""
			for _, f := range found {
				if f.Level == c.level {
					text += f.Text + " " + f.Remedy + "\n"
				}
			}
			for _, w := range c.words {
				if !strings.Contains(text, w) {
					t.Errorf("%q isn't in %s", w, text)
				}
			}
		})
	}
	files := identitytest.Write(t, t.TempDir(), ca.Node(t, "a"), ca)
	if _, found := Identity(identity.Config{Files: files, TrustDomain: identitytest.TrustDomain}, strings.Repeat("0", 64), now); Worst(found) != Fail {
		t.Errorf("a CA that the token doesn't name: %+v", found)
	}
	wantOne(t, []Finding{Certificate("h", files.Cert, now)}, OK)
	wantOne(t, []Finding{Certificate("h", files.Cert+".missing", now)}, Fail, "doesn't exist")
	wantOne(t, []Finding{Certificate("h", files.Cert, now.Add(-2*time.Hour))}, Fail, "clock")
	wantOne(t, []Finding{Certificate("h", files.Cert, now.Add(2*time.Hour))}, Fail, "expired", "restart")
}
