package credential

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/patience"
)

func fileSource(path string) config.SecretSource {
	return config.SecretSource{Kind: config.SourceFile, Name: path}
}

// E45: what isn't a key, or isn't kept like one, is refused; the text has neither a byte of it nor the path.
func TestFilesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	check(t, os.Chmod(dir, 0o777)) // no directory that protects its files
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		check(t, os.WriteFile(path, []byte(content), 0o600))
		check(t, os.Chmod(path, mode))
		return path
	}
	link := func(name, to string) string {
		check(t, os.Symlink(to, filepath.Join(dir, name)))
		return filepath.Join(dir, name)
	}
	pipe := filepath.Join(dir, "pipe")
	check(t, syscall.Mkfifo(pipe, 0o600))
	for _, c := range []struct{ name, path, want string }{
		{"open to others", file("world", keyA, 0o644), "mode 0644"},
		{"open to the group", file("group", keyA, 0o640), "mode 0640"},
		{"a device behind a link", link("zero", "/dev/zero"), "isn't a regular file"},
		{"a pipe", pipe, "isn't a regular file"},
		{"a directory", dir, "isn't a regular file"},
		{"empty", file("empty", "", 0o600), "is empty"},
		{"a line end only", file("lf", "\n", 0o600), "is empty"},
		{"too long", file("long", strings.Repeat("k", 5<<10), 0o600), "more than 40"},
		{"one byte too long", file("longer", strings.Repeat("k", 4097)+"\n", 0o600), "more than 40"},
		{"too short", file("short", "sk-1234\n", 0o600), "less than 8"},
		{"two lines", file("two", keyA+"\n"+keyB+"\n", 0o600), "second line"},
		{"two line ends", file("ends", keyA+"\n\n", 0o600), "second line"},
		{"CR alone", file("cr", keyA+"\r", 0o600), "second line"},
		{"a blank before", file("blank", " "+keyA, 0o600), "a blank"},
		{"NUL", file("nul", keyA+"\x00", 0o600), "visible ASCII"},
		{"not ASCII", file("utf8", "sk-canary-Ä0123456", 0o600), "visible ASCII"},
		{"absent", filepath.Join(dir, "sk-live-0123456789"), "doesn't exist"},
		{"a dangling link", link("dangling", filepath.Join(dir, "nowhere")), "doesn't exist"},
	} {
		_, err := newResolver().read(t.Context(), fileSource(c.path), false)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
			continue
		}
		without(t, c.name, err.Error(), keyA, keyB, dir, "sk-live-0123456789")
	}
}

func TestFilesThatAreRead(t *testing.T) {
	dir := t.TempDir()
	longest := strings.Repeat("k", 4096)
	for name, content := range map[string]string{
		"bare": keyA, "lf": keyA + "\n", "crlf": keyA + "\r\n", "shortest": "12345678", "longest": longest, "longest crlf": longest + "\r\n",
	} {
		path := filepath.Join(dir, name)
		check(t, os.WriteFile(path, []byte(content), 0o400))
		check(t, os.Symlink(name, path+" link"))
		for _, p := range []string{path, path + " link"} {
			got, err := newResolver().read(t.Context(), fileSource(p), false)
			if err != nil || string(got) != strings.TrimSpace(content) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
		}
	}
}

func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "openai"), []byte(keyA), 0o400))
	cred := func(name string) config.SecretSource {
		return config.SecretSource{Kind: config.SourceCred, Name: name}
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	if _, err := newResolver().read(t.Context(), cred("openai"), false); err == nil || !strings.Contains(err.Error(), "LoadCredential=") {
		t.Error(err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	if got, err := newResolver().read(t.Context(), cred("openai"), false); err != nil || string(got) != keyA {
		t.Error(err)
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/openai"} {
		if _, err := newResolver().read(t.Context(), cred(name), false); err == nil {
			t.Errorf("%q is read", name)
		}
	}
	if _, err := newResolver().read(t.Context(), config.SecretSource{Kind: "vault", Name: keyA}, false); err == nil || strings.Contains(err.Error(), keyA) {
		t.Error(err)
	}
}

// A variable is read once: then it isn't in the environment any more, and the key stays.
func TestVariables(t *testing.T) {
	src := config.SecretSource{Kind: config.SourceEnv, Name: "IOP_TEST_PROVIDER_KEY"}
	t.Setenv(src.Name, keyA)
	r := newResolver()
	for i, peek := range []bool{true, false, false, true} {
		got, err := r.read(t.Context(), src, peek)
		if err != nil || string(got) != keyA {
			t.Fatal(err)
		}
		clear(got) // the caller's copy
		if _, there := os.LookupEnv(src.Name); there != (i == 0) {
			t.Errorf("read %d: in the environment: %v", i, there)
		}
	}
	_, err := newResolver().read(t.Context(), src, false)
	if err == nil || err.Error() != "isn't set" {
		t.Error(err)
	}
	t.Setenv(src.Name, "two words")
	if _, err = newResolver().read(t.Context(), src, false); err == nil || strings.Contains(err.Error(), "two words") {
		t.Error(err)
	}
}

func program(argv ...string) config.SecretSource {
	return config.SecretSource{Kind: config.SourceExec, Argv: argv}
}

func TestPrograms(t *testing.T) {
	t.Setenv("IOP_TEST_SECRET", keyB)
	t.Setenv("HOME", "/home/somebody")
	r := opened(t).store.sources // patient
	for _, c := range []struct {
		name string
		argv []string
		want string
	}{
		{"a key", []string{"/bin/echo", keyA}, keyA},
		{"no shell", []string{"/bin/echo", "$HOME;echo"}, "$HOME;echo"},
		{"what it is given", []string{"/bin/sh", "-c", `echo "home=$HOME,$(env | grep -c IOP_)"`}, "home=/home/somebody,0"},
		{"by name", []string{"echo", keyA}, keyA},
		{"complaints aren't in it", []string{"/bin/sh", "-c", "echo " + keyB + " >&2; echo " + keyA}, keyA},
	} {
		if got, err := r.read(t.Context(), program(c.argv...), false); err != nil || string(got) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, c := range []struct {
		name string
		argv []string
		want string
	}{
		{"fails", []string{"/bin/sh", "-c", "echo " + keyA + "; echo " + keyB + " >&2; exit 3"}, "ended with exit code 3 and wrote 30 bytes to its standard error"},
		{"floods", []string{"/bin/sh", "-c", "while :; do echo " + strings.Repeat(keyA, 20) + "; done"}, "wrote more than 64 KiB"},
		{"isn't there", []string{"/nonexistent/" + keyA}, "can't be started: no such file or directory"},
		{"isn't in PATH", []string{"iop-" + keyA[:9]}, "can't be started: executable file not found in $PATH"},
		{"is killed", []string{"/bin/sh", "-c", "kill -9 $$"}, "was killed, and wrote 0 bytes to its standard error"},
		{"says nothing", []string{"/bin/true"}, "is empty"},
		{"says two lines", []string{"/bin/sh", "-c", "echo " + keyA + "; echo " + keyB}, "second line"},
		{"nothing", nil, "names no program"},
	} {
		_, err := r.read(t.Context(), program(c.argv...), false)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
			continue
		}
		without(t, c.name, err.Error(), keyA, keyB)
	}
}

// A program that hangs is killed with all that it started, and one that leaves something behind isn't waited for.
func TestProgramsThatHang(t *testing.T) {
	dir := t.TempDir()
	r := newResolver()
	r.limit = 200 * time.Millisecond
	pids := filepath.Join(dir, "pid")
	_, err := r.read(t.Context(), program("/bin/sh", "-c", "sleep 1000 & echo $! >"+pids+"; wait"), false)
	if err == nil || err.Error() != "didn't finish within 200ms and was killed" {
		t.Errorf("%v", err)
	}
	isGone(t, pids)

	// What it leaves behind is killed, too.
	r.limit = patience.Limit
	got, err := r.read(t.Context(), program("/bin/sh", "-c", "sleep 1000 & echo $! >"+pids+"; echo "+keyA), false)
	if err != nil || string(got) != keyA {
		t.Errorf("%v", err)
	}
	isGone(t, pids)

	// What got away isn't waited for.
	if _, err := exec.LookPath("setsid"); err == nil {
		r.limit = time.Second
		away := pids + ".away"
		t.Cleanup(func() {
			if text, err := os.ReadFile(away); err == nil {
				if pid, err := strconv.Atoi(string(bytes.TrimSpace(text))); err == nil {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		})
		_, err := r.read(t.Context(), program("/bin/sh", "-c",
			"setsid sh -c 'echo $$ >"+away+"; exec sleep 100' & while [ ! -s "+away+" ]; do sleep 0.01; done; echo "+keyA), false)
		if err == nil || !strings.Contains(err.Error(), "left a process behind") && !strings.Contains(err.Error(), "didn't finish") {
			t.Errorf("%v", err)
		}
	}
}

// A program that writes without end and doesn't mind that nobody reads it is killed, whatever time it has.
func TestProgramThatFloods(t *testing.T) {
	r := newResolver()
	r.limit = time.Hour
	done := make(chan error, 1)
	go func() { // ends with the program
		_, err := r.read(context.Background(), program("/bin/sh", "-c", "trap '' PIPE; while :; do echo "+strings.Repeat(keyA, 20)+"; done 2>/dev/null"), false)
		done <- err
	}()
	if err := patience.Receive(t, "the program is killed", done); err == nil || err.Error() != "wrote more than 64 KiB" {
		t.Errorf("%v", err)
	}
}

// isGone waits until a process has ended, if it was started at all.
func isGone(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return // killed before it could say
	}
	until(t, "the process is gone", func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", string(bytes.TrimSpace(text)), "stat"))
		return err != nil || bytes.Contains(stat, []byte(") Z "))
	})
}
