package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const asProgram = "IOP_TEST_AS_PROGRAM"

// The test binary is also the program: that is what the tests run.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

func command(t *testing.T, content string, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "node.yaml"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), asProgram+"=1", "IOP_TEST_TOKEN=0123456789abcdef")
	return cmd
}

func TestEveryCommandIsExplained(t *testing.T) {
	for _, cmd := range rootCommand().Commands() {
		if cmd.Short == "" || cmd.Name() != "version" && (cmd.Example == "" || cmd.Long == "") {
			t.Errorf("%s lacks help or an example", cmd.CommandPath())
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		file           string
		code           int
		stdout, stderr string
	}{
		{"edges: ['127.0.0.1:7443', 'e:1']\ntoken: env:IOP_TEST_TOKEN\n", 0, "node.yaml: ok: dials 127.0.0.1:7443, e:1\n", ""},
		// CF-05
		{"edges: [e:1]\ntoken: env:IOP_TEST_TOKEN\nmax_concurency: 4\ntimers:\nidle: 5s\nedges: []\n", 1, "",
			"node.yaml:3: max_concurency: unknown key; known here: edges, token, tls, data_dir, admin, proxy, proxy_credentials, timers, log\n" +
				"node.yaml:5: idle: unknown key here; it belongs under timers\n" +
				"node.yaml:6: edges: appears twice, first on line 1; remove one\n"},
		{"edges: [e:1]\ntoken: file:node.yaml\n", 1, "", ""},
	} {
		cmd := command(t, c.file, "check", "-c", "node.yaml")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // the exit code says it
		if code := cmd.ProcessState.ExitCode(); code != c.code || stdout.String() != c.stdout ||
			c.stderr != "" && stderr.String() != c.stderr {
			t.Errorf("%s: %d %s\n%s", c.file, code, stdout.String(), stderr.String())
		}
	}
}

// What the environment says of traces and can't be done is said at the start.
func TestServeRefusesAnExportThatItCannotDo(t *testing.T) {
	cmd := command(t, "edges: ['127.0.0.1:1']\ntoken: env:IOP_TEST_TOKEN\n", "serve", "-c", "node.yaml")
	cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
	text, _ := cmd.CombinedOutput() // the exit code says it
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.HasPrefix(string(text), "iop-node: OTEL_EXPORTER_OTLP_PROTOCOL: ") {
		t.Errorf("%d %s", code, text)
	}
}

// A node whose Edge isn't there keeps dialing, and ends when it is told to.
func TestServeStopsOnSIGTERM(t *testing.T) {
	cmd := command(t, "edges: ['127.0.0.1:1']\ntoken: env:IOP_TEST_TOKEN\nadmin: {listen: '127.0.0.1:0'}\n", "serve", "-c", "node.yaml")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer deadline.Stop()
	told := false
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		var line struct{ Message string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Errorf("a line of the log isn't JSON: %s", lines.Text())
		}
		if strings.Contains(lines.Text(), "0123456789") {
			t.Errorf("the token is in the log: %s", lines.Text())
		}
		if !told && strings.Contains(line.Message, "listens") {
			told = true
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !told {
		t.Errorf("told: %v, ended: %v", told, err)
	}
}
