//go:build e2e

// Package docs runs what the documents tell people to run. A fenced block whose first line is
//
//	```sh run              runs, in order, in one shell for the whole document, in an empty directory
//	```sh run background   is started beside it, as in a second terminal, and stopped at the end
//	```sh systemd          is run by packaging/test/inside.sh (make test-packages)
//	```sh compose          is run by scripts/compose-smoke.sh (make test-compose)
//
// and a line of a block that fails, fails the document. Each document has a network of its own, so that the addresses in
// it are free. IOP_BIN is the directory of the programs; they are on the PATH.
package docs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"iop/packages/go/patience"
)

var bin = os.Getenv("IOP_BIN")

func TestMain(m *testing.M) {
	if bin == "" {
		fmt.Println("skipped: IOP_BIN isn't set; run `make test-e2e`")
		if os.Getenv("CI") == "true" {
			fmt.Println("FAIL: in CI these tests must run")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// block is one fenced block.
type block struct {
	info string
	line int // of its first line of text
	text string
}

func blocks(text string) (all []block) {
	var open *block
	n := 0
	for line := range strings.Lines(text) {
		n++
		fence, ok := strings.CutPrefix(line, "```")
		switch {
		case ok && open == nil:
			open = &block{info: strings.TrimSpace(fence), line: n + 1}
		case ok:
			all, open = append(all, *open), nil
		case open != nil:
			open.text += line
		}
	}
	return all
}

// script is a document's blocks as one program; "" if there is nothing to run.
func script(t *testing.T, all []block) string {
	t.Helper()
	var s strings.Builder
	for _, b := range all {
		switch {
		case b.info == "sh run":
			fmt.Fprintf(&s, "# line %d\n%s", b.line, b.text)
		case b.info == "sh run background":
			fmt.Fprintf(&s, "(\n# line %d\n%s) >&2 &\n", b.line, b.text)
		case strings.HasPrefix(b.info, "sh ") && b.info != "sh systemd" && b.info != "sh compose":
			t.Errorf("line %d: nothing runs a block of %q", b.line, b.info)
		}
	}
	if s.Len() == 0 {
		return ""
	}
	const stop = `trap 's=$?; trap "" TERM; kill -TERM 0; wait; exit $s' EXIT` // what runs beside it, too
	return "set -euo pipefail\nip link set lo up\n" + stop + "\n" + s.String()
}

// own has a program run in a network of its own.
func own(t *testing.T) []string {
	t.Helper()
	argv := []string{"unshare", "--net"}
	if os.Geteuid() != 0 {
		argv = []string{"unshare", "--user", "--map-root-user", "--net"}
	}
	if out, err := exec.Command(argv[0], append(argv[1:], "ip", "link", "set", "lo", "up")...).CombinedOutput(); err != nil {
		t.Skipf("no network of its own can be had here: %v: %s", err, out)
	}
	return argv
}

func TestWhatDocumentsRun(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			if program := script(t, blocks(string(text))); program != "" {
				run(t, own(t), program)
			}
		})
	}
}

func run(t *testing.T, argv []string, program string) {
	t.Helper()
	dir := t.TempDir()
	path, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience.Limit)
	defer cancel()
	argv = append(argv, "bash", "-c", program)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + path + ":" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s\n---- it printed\n%s", err, program, out.String())
	}
}

func TestBlocks(t *testing.T) {
	const text = "a\n```\nno\n```\n```sh run\none\ntwo\n```\n```sh run background\nthree\n```\n```yaml\nx: 1\n```\n```sh compose\nno\n```\n"
	got := script(t, blocks(text))
	if _, commands, _ := strings.Cut(got, "EXIT\n"); commands != "# line 6\none\ntwo\n(\n# line 10\nthree\n) >&2 &\n" {
		t.Errorf("%s", got)
	}
	if got := script(t, blocks("```\nno\n```\n")); got != "" {
		t.Errorf("%s", got)
	}
}
