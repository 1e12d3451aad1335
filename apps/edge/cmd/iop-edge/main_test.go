package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"iop/packages/go/config"
)

const asProgram = "IOP_TEST_AS_PROGRAM"

// The test binary is also the program: that is what the tests run.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

func command(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// run runs the program to its end.
func run(t *testing.T, cmd *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	deadline := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer deadline.Stop()
	_ = cmd.Run() // the exit code says it
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// workDir holds a copy of the shipped configuration.
func workDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "configs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"edge.yaml", "node.yaml"} {
		b, err := os.ReadFile("../../../../configs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "configs", name), string(b))
	}
	return dir
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEveryCommandIsExplained(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.HasParent() && !cmd.HasSubCommands() && cmd.Name() != "version" && (cmd.Example == "" || cmd.Long == "") {
			t.Errorf("%s lacks help or an example", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand())
}

// What the help says to do first works, with the files as they are shipped.
func TestFirstSteps(t *testing.T) {
	dir := workDir(t)
	if code, _, stderr := run(t, command(dir, "check", "-c", "configs/edge.yaml")); code != 1 ||
		!strings.Contains(stderr, "local.token.sha256 doesn't exist; iop-edge token new NODE --hash-file writes such a file") {
		t.Errorf("before a token exists: %d %s", code, stderr)
	}
	first := regexp.MustCompile(`(?m)^  iop-edge (token new .*)$`).FindStringSubmatch(rootCommand().Long)
	if first == nil {
		t.Fatal("the help doesn't say how to make the first token")
	}
	code, stdout, stderr := run(t, command(dir, strings.Fields(first[1])...))
	if code != 0 || stderr != "" || strings.Contains(stdout, "iop1.") {
		t.Fatalf("%d %s %s", code, stdout, stderr)
	}
	code, stdout, stderr = run(t, command(dir, "check", "-c", "configs/edge.yaml"))
	if code != 0 || !strings.HasPrefix(stdout, "configs/edge.yaml: ok: 1 node, 1 adapter, 1 route, 0 principals, callers need no key (loopback only)\nmemory bound: ") {
		t.Fatalf("%d %s %s", code, stdout, stderr)
	}
	n, err := config.LoadNode(filepath.Join(dir, "configs/node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// Once more, as `make run-edge` and `make run-node` do at the same time: the token stays.
	for _, c := range []struct {
		more []string
		code int
		part string
	}{{nil, 1, "configs/node.token exists already; keep its token with --keep, or choose another file"}, {[]string{"--keep"}, 0, "is kept"}} {
		code, stdout, stderr = run(t, command(dir, append(strings.Fields(first[1]), c.more...)...))
		if code != c.code || !strings.Contains(stdout+stderr, c.part) {
			t.Errorf("%v: %d %s %s", c.more, code, stdout, stderr)
		}
	}
	again, err := config.LoadNode(filepath.Join(dir, "configs/node.yaml"))
	if err != nil || again.Token.Reveal() != n.Token.Reveal() {
		t.Errorf("another token: %v", err)
	}
}

// CF-05
func TestCheckNamesKeyAndLine(t *testing.T) {
	dir := workDir(t)
	path := filepath.Join(dir, "bad.yaml")
	write(t, path, "log: {level: info}\nroutes:\n- {model: m, fail_fats: true}\nproviders:\nname: x\nlog: {}\n")
	for _, name := range []string{"check", "serve"} {
		code, stdout, stderr := run(t, command(dir, name, "-c", "bad.yaml"))
		want := `bad.yaml:3: routes[0].fail_fats: unknown key; did you mean "fail_fast"?
bad.yaml:4: providers: unknown key; known here: mode, listen, tls, insecure_plaintext, state_dir, nodes, principals, routes, profiles, slots, lease, cors, admin_key_hashes, limits, timers, log
bad.yaml:5: name: unknown key here; it belongs under nodes[].adapters[]
bad.yaml:6: log: appears twice, first on line 1; remove one
`
		if code != 1 || stdout != "" || stderr != want {
			t.Errorf("%s: %d %s\n%s", name, code, stdout, stderr)
		}
	}
}

func TestSecretsAreShownOnceWithTheirHash(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ args, secret, hash string }{
		{"token new gpu-1", `(?m)^  (iop1\.\S+)$`, `(?m)^        - sha256: ([0-9a-f]{64})$`},
		{"key new alice", `(?m)^  (sk-iop-\S+)$`, `(?m)^      key_hashes: \[([0-9a-f]{64})\]$`},
	} {
		code, stdout, stderr := run(t, command(dir, strings.Fields(c.args)...))
		secret := regexp.MustCompile(c.secret).FindStringSubmatch(stdout)
		hash := regexp.MustCompile(c.hash).FindStringSubmatch(stdout)
		if code != 0 || stderr != "" || secret == nil || hash == nil {
			t.Fatalf("%s: %d %s %s", c.args, code, stdout, stderr)
		}
		bare, err := config.ParseToken(secret[1])
		if err != nil {
			t.Fatal(err)
		}
		if sum := config.HashSecret(bare.Reveal()); hex.EncodeToString(sum[:]) != hash[1] {
			t.Errorf("%s: the hash isn't that of the secret", c.args)
		}
	}
	for args, part := range map[string]string{
		"token new":                         "NODE is missing",
		"token new a/b":                     "the name must be",
		"key new a b":                       "unexpected argument",
		"key new a --keep":                  "--keep needs the --key-file to keep",
		"key new a --key-file /dev/null/x":  "/dev/null: not a directory",
		"key new a --hash-file /dev/null/x": "/dev/null: not a directory",
	} {
		if code, _, stderr := run(t, command(dir, strings.Fields(args)...)); code == 0 || !strings.Contains(stderr, part) {
			t.Errorf("%s: %d %s", args, code, stderr)
		}
	}
	// A secret whose hash couldn't be written doesn't stay.
	if code, _, _ := run(t, command(dir, "key", "new", "a", "--key-file", "k", "--hash-file", "/dev/null/x")); code != 1 {
		t.Error("a hash below a device was written")
	}
	if _, err := os.Stat(filepath.Join(dir, "k")); err == nil {
		t.Error("a key without a hash was left behind")
	}
}

func TestMemoryBoundAgainstTheLimit(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "edge.yaml"), "listen: {nodes: '127.0.0.1:0', http: '127.0.0.1:0', admin: ''}\n")
	withLimit := func(args ...string) *exec.Cmd {
		cmd := command(dir, args...)
		cmd.Env = append(cmd.Env, "GOMEMLIMIT=600MiB")
		return cmd
	}
	const text = "the limits permit 1254 MiB, more than half of GOMEMLIMIT (600 MiB)"
	if code, stdout, _ := run(t, withLimit("check", "-c", "edge.yaml")); code != 0 || !strings.Contains(stdout, "warning: "+text) {
		t.Errorf("check: %d %s", code, stdout)
	}
	if code, _, stderr := run(t, withLimit("serve", "-c", "edge.yaml")); code != 1 ||
		stderr != "iop-edge: "+text+"; lower them, raise GOMEMLIMIT, or start with --ignore-memory-bound\n" {
		t.Errorf("serve: %d %s", code, stderr)
	}
}

func TestServeSaysWhyItCannotStart(t *testing.T) {
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	write(t, filepath.Join(dir, "edge.yaml"), "listen: {nodes: '127.0.0.1:0', admin: '', http: '"+taken.Addr().String()+"'}\n")
	code, _, stderr := run(t, command(dir, "serve", "-c", "edge.yaml"))
	last := strings.Split(strings.TrimSpace(stderr), "\n")
	if code != 1 || !strings.HasPrefix(last[len(last)-1], "iop-edge: ") || !strings.Contains(last[len(last)-1], "address already in use") ||
		strings.Contains(stderr, "goroutine") {
		t.Errorf("%d %s", code, stderr)
	}
}

// What the environment says of traces and can't be done is said at the start, and not found out by who looks for them.
func TestServeRefusesAnExportThatItCannotDo(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "edge.yaml"), "listen: {nodes: '127.0.0.1:0', admin: '', http: '127.0.0.1:0'}\n")
	cmd := command(dir, "serve", "-c", "edge.yaml")
	cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
	code, _, stderr := run(t, cmd)
	if code != 1 || !strings.HasPrefix(stderr, "iop-edge: OTEL_EXPORTER_OTLP_PROTOCOL: ") || !strings.Contains(stderr, "http/protobuf") {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestServeStopsOnSIGTERM(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "edge.yaml"), "listen: {nodes: '127.0.0.1:0', http: '127.0.0.1:0', admin: '127.0.0.1:0'}\n")
	cmd := command(dir, "serve", "-c", "edge.yaml")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer deadline.Stop()
	listening := false
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		var line struct{ Message, HTTP string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Errorf("a line of the log isn't JSON: %s", lines.Text())
		}
		if line.HTTP != "" && !listening {
			listening = true
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !listening {
		t.Errorf("listening: %v, ended: %v", listening, err)
	}
}
