package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/apps/node/internal/nodetest"
	"iop/packages/go/config"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

func recordingConfig(t *testing.T, edges ...string) *config.Node {
	t.Helper()
	cfg := nodeConfig(edges...)
	cfg.DataDir = filepath.Join(t.TempDir(), "data")
	cfg.Admin.Listen = "127.0.0.1:0"
	return cfg
}

// finish drains a node and waits for its end.
func finish(t *testing.T, drain func(), done <-chan error) {
	t.Helper()
	drain()
	if err := nodetest.Receive(t, "Run", done); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// listed waits until the record shows these statuses, the latest first.
func listed(t *testing.T, cfg *config.Node, want ...string) []Execution {
	t.Helper()
	var runs []Execution
	nodetest.Eventually(t, strings.Join(want, ", "), func() bool {
		var err error
		if runs, err = Runs(context.Background(), cfg, RunsQuery{}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range runs {
			got = append(got, r.Status)
		}
		return strings.Join(got, ", ") == strings.Join(want, ", ")
	})
	return runs
}

// A node keeps its record while it runs and lists it to others; it shows how the record is; a background run's end is
// told again by the next process, until it is acknowledged.
func TestRecordSurvivesTheProcess(t *testing.T) {
	e := nodetest.Listen(t)
	cfg := recordingConfig(t, e.Addr())
	admin := make(chan net.Addr, 1)
	drain, _, done := start(t, cfg, Options{OnAdmin: func(a net.Addr) { admin <- a }})
	side, req, _ := e.Accept()
	if f := req.GetFeatures(); !slices.Contains(f, pb.Feature_FEATURE_BACKGROUND) {
		t.Errorf("features = %v", f)
	}
	side.StartRun("fg").Collect()
	side.StartRun("bg", nodetest.Background, func(q *pb.RunRequest) { q.SessionId = "s-1" }).Collect()
	side.RunEnd("bg")
	stalled := side.Ask("stalled", "loopback: stall=1")
	stalled.Accepted()
	runs := listed(t, cfg, "running", "complete", "complete")
	bg := runs[1]
	if bg.RunID != "bg" || bg.Kind != "run" || bg.SessionID != "s-1" || !bg.Background || bg.Reported == nil || *bg.Reported || bg.Edge != e.Addr() ||
		bg.Output == nil || bg.Ended == nil || bg.Started == nil || bg.Code != "" || runs[2].Reported != nil {
		t.Errorf("run = %+v", bg)
	}
	base := "http://" + nodetest.Receive(t, "OnAdmin", admin).String()
	for path, want := range map[string]string{"/metrics": "iop_node_store_degraded 0", "/admin/v1/status": `"store":{"state":"ok"`} {
		if body := fetch(t, base+path); !strings.Contains(body, want) {
			t.Errorf("%s lacks %s:\n%s", path, want, body)
		}
	}
	if body := fetch(t, base+"/admin/v1/status"); !strings.Contains(body, `"kind":"run"`) {
		t.Errorf("no kind: %s", body)
	}
	side.Link.SendCancel("stalled", 3)
	stalled.Collect()
	finish(t, drain, done)
	listed(t, cfg, "cancelled", "complete", "complete")

	drain, _, done = start(t, cfg, Options{})
	side, _, _ = e.Accept()
	if end := side.RunEnd("bg"); end.GetStatus() != pb.RunStatus_RUN_STATUS_COMPLETE || !end.GetBackground() {
		t.Errorf("RunEnd = %v", end)
	}
	side.Link.SendRunEndedAck("bg")
	nodetest.Eventually(t, "the end is acknowledged", func() bool {
		runs, err := Runs(context.Background(), cfg, RunsQuery{Status: "complete", Limit: 1})
		return err == nil && len(runs) == 1 && *runs[0].Reported
	})
	finish(t, drain, done)
}

// A background run goes on across links of the real program, and a node that is told to stop while it has no link
// gives it the drain's time: it finishes in it, or is cancelled when it is over.
func TestDrainOfADetachedRun(t *testing.T) {
	drainDetached(t, "loopback: stall=1", 200*time.Millisecond, nodetest.Limit, "cancelled", "node_draining")
	patience.Widen(t, 300*time.Millisecond, func(life time.Duration) (keptUp bool) {
		return drainDetached(t, fmt.Sprintf("loopback: tokens=3 delay=%v", life/3), 2*nodetest.Limit, life*2/3, "complete", "")
	})
}

// drainDetached stops a node whose background run has lost its second link, too. It reports whether that link was there
// within a time, after which the run may have ended before.
func drainDetached(t *testing.T, prompt string, limit, within time.Duration, status, code string) (keptUp bool) {
	t.Helper()
	e := nodetest.Listen(t)
	cfg := recordingConfig(t, e.Addr())
	cfg.Timers.Drain = limit
	drain, _, done := start(t, cfg, Options{})
	side, _, _ := e.Accept()
	began := time.Now()
	run := side.Ask("bg", prompt, nodetest.Background)
	run.Accepted()
	if _, err := run.Next(); err != nil {
		t.Fatal(err)
	}
	side.Link.Close(transport.ReasonLost)
	side, _, ready := e.Accept()
	keptUp = time.Since(began) < within
	if keptUp && len(ready.GetRunning()) != 1 {
		t.Errorf("running = %v", ready.GetRunning())
	}
	e.Close()
	side.Link.Close(transport.ReasonLost)
	side.Ended()
	finish(t, drain, done)
	if runs := listed(t, cfg, status); runs[0].Code != code || keptUp && *runs[0].Reported {
		t.Errorf("run = %+v", runs[0])
	}
	return keptUp
}

// SQ-09, faults row 40: a record that can't be opened ends the start with the file's name.
func TestRunNeedsItsRecord(t *testing.T) {
	cfg := recordingConfig(t, "127.0.0.1:1")
	if err := os.WriteFile(cfg.DataDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Run(context.Background(), cfg, Options{})
	if err == nil || !strings.Contains(err.Error(), filepath.Join(cfg.DataDir, "iop.db")) {
		t.Errorf("Run = %v", err)
	}
	if _, err := Runs(context.Background(), cfg, RunsQuery{}); err == nil {
		t.Error("a record that isn't there was listed")
	}
}

// SQ-09, faults row 41: a damaged record doesn't keep the node from coming up; the edge is told.
func TestRunWithADamagedRecord(t *testing.T) {
	e := nodetest.Listen(t)
	cfg := recordingConfig(t, e.Addr())
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cfg.DataDir, "iop.db"), []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	drain, _, done := start(t, cfg, Options{})
	side, _, _ := e.Accept()
	event := side.Await("an event", func(m *pb.NodeControl) bool { return m.GetEvent() != nil }).GetEvent()
	if event.GetCode() != "store_set_aside" || strings.Contains(event.GetText(), cfg.DataDir) || event.GetText() == "" {
		t.Errorf("event = %v", event)
	}
	side.StartRun("r1").Collect()
	side.RunEnd("r1")
	listed(t, cfg, "complete")
	finish(t, drain, done)
}

// What several Edges want kept is kept.
func TestTheMostPatientEdgeCounts(t *testing.T) {
	j := &journal{policies: map[string]retention{}}
	for _, c := range []struct {
		edge       string
		want, keep retention
	}{
		{"a", retention{time.Hour, 10}, retention{time.Hour, 10}},
		{"b", retention{time.Minute, 20}, retention{time.Hour, 20}},
		{"a", retention{time.Second, 10}, retention{time.Minute, 20}},
	} {
		if keep := j.widest(c.edge, c.want); keep != c.keep {
			t.Errorf("%s wants %v: %v is kept, want %v", c.edge, c.want, keep, c.keep)
		}
	}
}
