//go:build e2e

// Package process tests the two built programs as what they are: processes, beside a real llama-server and a fake
// provider that is a process too, so that each of them can be killed, stopped and cut off. It owns nothing of the
// product and must reach it only as a stranger does: by command line, signals, sockets, HTTP and logs.
//
// `make test-e2e` runs it. IOP_BIN is the directory of the programs, IOP_PROVIDER that of llama-server and its models,
// IOP_OLLAMA that of an Ollama, without which its tests are skipped.
package process

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"iop/e2e/procs"
	"iop/packages/go/patience"
)

// limit bounds every wait that should take no time. It says nothing about speed: a loaded machine must not fail a test.
const limit = patience.Limit

// promise is when everybody knows of a killed process and of a caller that leaves: within a second, on a machine that has
// time. What a test measured is in its log; on one that stands still it fails only when something else told them, later.
const promise = 10 * time.Second

var bin, llamaDir = os.Getenv("IOP_BIN"), os.Getenv("IOP_PROVIDER")

// roleVariable makes the test binary play a part instead of running tests.
const roleVariable = "IOP_E2E_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	if bin == "" || llamaDir == "" {
		fmt.Println("skipped: IOP_BIN and IOP_PROVIDER aren't set; run `make test-e2e`")
		if os.Getenv("CI") == "true" {
			fmt.Println("FAIL: in CI these tests must run")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func play(role string) int {
	switch role {
	case roleProvider:
		return playProvider()
	case roleBusy:
		return playBusy()
	}
	fmt.Fprintf(os.Stderr, "unknown role %q\n", role)
	return 2
}

// start starts a command behind a prefix and kills it at the test's end if it is still there.
func start(t *testing.T, name string, prefix []string, path string, args ...string) *procs.Process {
	t.Helper()
	argv := append(append([]string{}, prefix...), append([]string{path}, args...)...)
	p, err := procs.Start(background(t), name, argv[0], argv[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// startRole starts this binary in a role. It ends when its standard input does, so that it can't outlive the tests.
func startRole(t *testing.T, role string, prefix []string, env ...string) *procs.Process {
	t.Helper()
	argv := append(append([]string{}, prefix...), os.Args[0])
	cmd := exec.CommandContext(background(t), argv[0], argv[1:]...)
	cmd.Env = append(append(os.Environ(), roleVariable+"="+role), env...)
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := procs.StartCmd(background(t), role, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		lifeline.Close()
		p.Kill()
	})
	return p
}

// background is the context of processes: the test's own would end them before its clean-up looks at them.
func background(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

func program(name string) string { return filepath.Join(bin, name) }

// eventually polls cond and fails the test when it isn't true within the limit. It returns how long it took.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
	if took := time.Since(began); took > time.Second {
		t.Logf("after %v: %s", took.Round(time.Millisecond), what) // what makes the suite slow should show
	}
	return time.Since(began)
}

func unbase64(t *testing.T, text string) []byte {
	t.Helper()
	out, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tail is the end of a log, for a test that failed.
func tail(text string) string {
	const most = 12000
	if len(text) > most {
		text = "…" + text[len(text)-most:]
	}
	return text
}
