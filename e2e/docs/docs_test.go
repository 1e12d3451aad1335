//go:build e2e

// Package docs runs what the documents tell people to run. Each fenced block says in its info string what becomes of it:
//
//	```sh run              runs, in order, in one shell for the whole document, in an empty directory; in README.md in a copy of the tree
//	```sh run background   is started beside it, as in a second terminal, and stopped at the end
//	```sh site             runs as `sh run` beside a running Edge with a node: see site_test.go
//	```sh synopsis         is a list of commands, whose names and flags are those of the programs
//	```sh systemd          is run by packaging/test/inside.sh (make test-packages)
//	```sh compose          is run by scripts/compose-smoke.sh (make test-compose)
//	```sh clients          and go, js: is what e2e/clients does (make test-clients)
//	```yaml edge           is, with what it doesn't say added, a configuration that iop-edge check accepts; node is iop-node's
//	```sh skip: REASON     and yaml: can't be run, and why
//	```text                is nothing to run
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
	if os.Getenv(ollamaVariable) != "" {
		fmt.Fprintln(os.Stderr, playOllama())
		os.Exit(1)
	}
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

// document is one file with its blocks.
type document struct {
	name   string
	text   string
	blocks []block
}

// documents are those that people read to use IOP.
func documents(t *testing.T) (all []document) {
	t.Helper()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../../README.md", "../../ARCHITECTURE.md", "../../CONTRIBUTING.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, document{filepath.Base(file), string(text), blocks(string(text))})
	}
	return all
}

// awaited is put behind a program that was started beside the others, as a reader waits until it says that it is ready.
func awaited(commands string) string {
	switch {
	case strings.Contains(commands, "iop-edge serve"), strings.Contains(commands, "make run-edge"):
		return "until iop-edge health >/dev/null 2>&1; do sleep 0.1; done\n"
	case strings.Contains(commands, "iop-node serve"), strings.Contains(commands, "make run-node"):
		return "until iop-edge ctl nodes 2>&1 | grep -q ' ready '; do sleep 0.1; done\n"
	}
	return ""
}

// script is a document's blocks as one program; "" if there is nothing to run.
func script(all []block) string {
	var s strings.Builder
	s.WriteString(preparation(all))
	for _, b := range all {
		switch b.info {
		case "sh run", "sh site":
			fmt.Fprintf(&s, "# line %d\n%s", b.line, b.text)
		case "sh run background":
			fmt.Fprintf(&s, "(\n# line %d\n%s) >&2 &\n", b.line, b.text)
			s.WriteString(awaited(b.text))
		case "yaml edge", "yaml node":
			fmt.Fprintf(&s, "# line %d\niop-%s check -c %s\n", b.line, b.info[5:], b.file())
		}
	}
	if s.Len() == 0 {
		return ""
	}
	const begin = `set -euo pipefail
ip link set lo up
trap 's=$?; trap "" TERM; kill -TERM 0; wait; exit $s' EXIT # what runs beside it, too
curl() { command curl -fsS "$@"; }                          # an error's status is a failure
iop-edge() { command iop-edge "$@" || permitted $? "$@"; }
iop-node() { command iop-node "$@" || permitted $? "$@"; }
bin/iop-edge() { command bin/iop-edge "$@" || permitted $? "$@"; }
bin/iop-node() { command bin/iop-node "$@" || permitted $? "$@"; }
make() { command make -o build "$@"; }                      # what is tested is built; TestDemo builds
permitted() { [[ $1 = 1 && $2 = doctor ]] || return "$1"; } # it may warn of the machine
`
	return begin + s.String()
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
	for _, d := range documents(t) {
		t.Run(d.name, func(t *testing.T) {
			program := script(d.blocks)
			if program == "" {
				return
			}
			for _, tool := range []string{"bash", "ip", "unshare", "curl", "openssl", "make"} {
				if _, err := exec.LookPath(tool); err != nil && strings.Contains(program, tool+" ") {
					t.Skipf("skipped: %s isn't installed", tool)
				}
			}
			dir := t.TempDir()
			if d.name == "README.md" {
				copyTree(t, dir)
			}
			for _, b := range d.blocks {
				if base, ok := bases[b.info]; ok {
					write(t, filepath.Join(dir, b.file()), overlay(base, b.text))
				}
			}
			run(t, dir, own(t), standIn(d.name, program))
		})
	}
}

func run(t *testing.T, dir string, argv []string, program string) {
	t.Helper()
	path, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*patience.Limit)
	defer cancel()
	argv = append(argv, "bash", "-c", program)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + path + ":" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C.UTF-8", "DOCS_TEST=" + os.Args[0]}, goEnv(t)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s\n---- it printed\n%s", err, program, out.String())
	}
}

func TestBlocks(t *testing.T) {
	const text = "a\n```\nno\n```\n```sh run\none\ntwo\n```\n```sh run background\nthree\n```\n```yaml edge\nx: 1\n```\n```sh compose\nno\n```\n"
	got := script(blocks(text))
	if _, commands, _ := strings.Cut(got, "machine\n"); !strings.HasSuffix(commands, "# line 6\none\ntwo\n(\n# line 10\nthree\n) >&2 &\n# line 13\niop-edge check -c block-13.yaml\n") {
		t.Errorf("%s", got)
	}
	if got := script(blocks("```\nno\n```\n")); got != "" {
		t.Errorf("%s", got)
	}
}
