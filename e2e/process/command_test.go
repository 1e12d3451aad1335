//go:build e2e

package process

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// result is what a command that has ended left.
type result struct {
	code           int
	stdout, stderr string
}

// run runs one of the two programs to its end.
func run(t *testing.T, dir, name string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(name), args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// found returns the first group of a pattern in a text.
func found(t *testing.T, pattern, text string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in:\n%s", pattern, text)
	}
	return m[1]
}

const (
	goodEdge = `listen: {nodes: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0"}
nodes:
  - id: a
    token_hashes: [{sha256: 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824}]
    adapters: [{name: l, kind: loopback, max_concurrency: 4}]
routes: [{model: "*"}]
`
	// The mistakes of CF-05, and a few of each other sort.
	badEdge = `listen: {nodes: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0"}
nodes:
  - id: a
    token_hashes: [{sha256: 12ab}]
    adapters:
      - {name: l, kind: loopback, max_concurency: 4}
      - {name: m, kind: lopback}
routes:
- {model: x, adapter: nobody}
- {model: "*", nodes: [b]}
providers:
- {name: x}
log: {level: info}
log: {level: debug}
timers: {heartbeat: 30}
heartbeat: 5s
`
	badNode = `edges: [somewhere]
max_concurency: 4
timers:
idle: 5s
token: sk-not-a-reference-S3CR3T
data_dir: ./data
data_dir: ./other
`
)

// CF-05: a file with mistakes doesn't start, and all of them are said at once with file and line.
func TestCheckSaysEverything(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "good.yaml", goodEdge)
	write(t, dir, "edge.yaml", badEdge)
	write(t, dir, "node.yaml", badNode)
	if r := run(t, dir, "iop-edge", "check", "-c", "good.yaml"); r.code != 0 || !strings.HasPrefix(r.stdout, "good.yaml: ok") || r.stderr != "" {
		t.Errorf("a good file: %+v", r)
	}
	for _, tt := range []struct {
		program, file string
		want          []string // what each line has, in this order
	}{
		{"iop-edge", "edge.yaml", []string{
			"edge.yaml:4: nodes[0].token_hashes[0].sha256:",
			"edge.yaml:6: nodes[0].adapters[0].max_concurency: unknown key",
			"edge.yaml:7: nodes[0].adapters[1].kind:",
			"edge.yaml:9: routes[0].adapter:",
			"edge.yaml:10: routes[1].nodes[0]:",
			"edge.yaml:11: providers: unknown key",
			"edge.yaml:14: log: appears twice",
			"edge.yaml:15: timers.heartbeat:",
			"edge.yaml:16: heartbeat: unknown key here; it belongs under timers",
		}},
		{"iop-node", "node.yaml", []string{
			"node.yaml:1: edges[0]:",
			"node.yaml:2: max_concurency: unknown key",
			"node.yaml:4: idle: unknown key here; it belongs under timers",
			"node.yaml:5: token:",
			"node.yaml:7: data_dir: appears twice",
		}},
	} {
		checked := run(t, dir, tt.program, "check", "-c", tt.file)
		if served := run(t, dir, tt.program, "serve", "-c", tt.file); served != checked {
			t.Errorf("%s serve says %+v, check says %+v", tt.program, served, checked)
		}
		lines := strings.Split(strings.TrimSpace(checked.stderr), "\n")
		if checked.code != 1 || checked.stdout != "" || strings.Contains(checked.stderr, "S3CR3T") {
			t.Errorf("%s: %+v", tt.program, checked)
		}
		for i, want := range tt.want {
			if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
				t.Errorf("%s: line %d of\n%swant it to begin with %s", tt.program, i+1, checked.stderr, want)
				break
			}
		}
		if len(lines) > len(tt.want) {
			t.Errorf("%s says more than is wrong:\n%s", tt.program, checked.stderr)
		}
	}
}

// A command that isn't understood ends with 2, one that can't do its work with 1, and both say why on standard error.
func TestCommandsSayWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"iop-edge version", 0, ""},
		{"iop-node --help", 0, ""},
		{"iop-edge frobnicate", 2, "frobnicate"},
		{"iop-edge check --frob", 2, "--frob"},
		{"iop-node serve -c missing.yaml", 1, "missing.yaml"},
		{"iop-edge token new", 2, "NODE is missing"},
		{"iop-edge key new a/b", 2, "the name must be"},
	} {
		words := strings.Fields(tt.args)
		r := run(t, dir, words[0], words[1:]...)
		if r.code != tt.code || !strings.Contains(r.stderr, tt.want) || tt.code != 0 && r.stdout != "" {
			t.Errorf("%s: %+v", tt.args, r)
		}
	}
}
