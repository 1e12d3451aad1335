package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"iop/apps/node/internal/nodetest"
	pb "iop/proto/iop"
)

// serving starts the program in cmd's directory and ends it with the test.
func serving(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := command(t, "", "serve", "-c", "node.yaml")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.AfterFunc(60*time.Second, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		deadline.Stop()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// output runs the program in dir and returns what it printed.
func output(t *testing.T, dir string, code int, args ...string) string {
	t.Helper()
	cmd := command(t, "", args...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run() // the exit code says it
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("%v: exit code %d, want %d\n%s", args, got, code, out.String())
	}
	return out.String()
}

// Faults row 42, "kill -9 of the node in mid-run and its row afterwards": what ran is interrupted, what had ended is
// as it was, and the next process tells the edge of its background run. `iop-node runs` lists it all, also while the
// node runs.
func TestKilledInMidRun(t *testing.T) {
	e := nodetest.Listen(t)
	dir := command(t, fmt.Sprintf("edges: ['%s']\ntoken: env:IOP_TEST_TOKEN\n", e.Addr())).Dir
	if text := output(t, dir, 1, "runs", "-c", "node.yaml"); !strings.Contains(text, "iop.db: there is none") {
		t.Errorf("before the first start: %s", text)
	}
	first := serving(t, dir)
	side, _, _ := e.Accept()
	if text := output(t, dir, 0, "runs", "-c", "node.yaml"); text != "nothing was executed\n" {
		t.Errorf("before the first run: %s", text)
	}
	side.StartRun("whole").Collect()
	side.RunEnd("whole")
	for _, id := range []string{"fg", "bg"} {
		run := side.Ask(id, "loopback: stall=1", func(q *pb.RunRequest) { q.Background = id == "bg" })
		run.Accepted()
		if _, err := run.Next(); err != nil {
			t.Fatal(err)
		}
	}
	status := func() string {
		var answer struct {
			Runs []struct {
				RunID  string `json:"run_id"`
				Status string `json:"status"`
			}
		}
		if err := json.Unmarshal([]byte(output(t, dir, 0, "runs", "-c", "node.yaml", "--json")), &answer); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, r := range answer.Runs {
			all = append(all, r.RunID+" "+r.Status)
		}
		return strings.Join(all, ", ")
	}
	nodetest.Eventually(t, "the rows are written", func() bool { return status() == "bg running, fg running, whole complete" })
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait() // it was killed
	if got := status(); got != "bg running, fg running, whole complete" {
		t.Errorf("after the kill: %s", got)
	}

	serving(t, dir)
	side, _, ready := e.Accept()
	if len(ready.GetRunning()) != 0 {
		t.Errorf("running = %v", ready.GetRunning())
	}
	if end := side.RunEnd("bg"); end.GetCode() != pb.FailureCode_FAILURE_CODE_NODE_LOST || !end.GetBackground() {
		t.Errorf("RunEnd = %v", end)
	}
	if got := status(); got != "bg interrupted, fg interrupted, whole complete" {
		t.Errorf("after the restart: %s", got)
	}
	table := output(t, dir, 0, "runs", "-c", "node.yaml", "--status", "interrupted", "--limit", "1")
	for _, want := range []string{"RUN ", "bg", "run (bg)", "interrupted, unreported", e.Addr()} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if strings.Contains(table, "fg") || strings.Contains(table, "whole") {
		t.Errorf("the table:\n%s", table)
	}
}

func TestRunsRefusesWhatItCannotDo(t *testing.T) {
	dir := command(t, "edges: ['127.0.0.1:1']\ntoken: env:IOP_TEST_TOKEN\n").Dir
	for _, args := range [][]string{{"--limit", "0"}, {"--limit", "x"}, {"--status", "happy"}, {"more"}} {
		text := output(t, dir, 2, append([]string{"runs", "-c", "node.yaml"}, args...)...)
		if !strings.Contains(text, "See: iop-node runs --help") {
			t.Errorf("%v: %s", args, text)
		}
	}
}

func TestShownIsHarmless(t *testing.T) {
	if got := shown("a\x1b[31m\nü"); got != "a?[31m?ü" {
		t.Errorf("shown = %q", got)
	}
}
