package admin

import (
	"strings"
	"testing"

	"iop/apps/edge/internal/service"
)

func TestRuns(t *testing.T) {
	g := newRig(t, here)
	if _, body := g.ask("GET", "/admin/v1/runs", here); body != `{"runs":[]}`+"\n" {
		t.Errorf("no runs: %s", body)
	}
	g.runs = []service.RunView{{RunID: "r1", State: service.StateDetached, Principal: "alice"}}
	if _, body := g.ask("GET", "/admin/v1/runs", here); !strings.Contains(body, `"run_id":"r1"`) || !strings.Contains(body, `"state":"detached"`) {
		t.Errorf("%s", body)
	}
}

func TestOneRun(t *testing.T) {
	g := newRig(t, here)
	g.runs = []service.RunView{{RunID: "r-1.2_3", State: service.StateRunning, Principal: "alice"}}
	if resp, body := g.ask("GET", "/admin/v1/runs/r-1.2_3", here); resp.StatusCode != 200 || !strings.HasPrefix(body, `{"run_id":"r-1.2_3",`) || !strings.Contains(body, `"principal":"alice"`) {
		t.Errorf("%s %s", resp.Status, body)
	}
	if resp, body := g.ask("GET", "/admin/v1/runs/r2", here); resp.StatusCode != 404 || !strings.Contains(body, "bad_request") {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// CA-07: a cancel names one run; what it answers says what became of it.
func TestCancelRun(t *testing.T) {
	g := newRig(t, here)
	g.runs = []service.RunView{{RunID: "r1"}, {RunID: "r2"}, {RunID: "ended", Code: "ok"}}
	for _, c := range []struct {
		id, body string
		status   int
		says     string
	}{
		{"r1", "", 202, `{"result":"cancelling","run_id":"r1"}` + "\n"},
		{"r2", "{}", 202, `{"result":"cancelling","run_id":"r2"}` + "\n"},
		{"ended", "", 409, "has ended already"},
		{"none", "", 404, "no such run"},
		{"r1", `{"run_id":"r2"}`, 400, `unknown member \"run_id\"`},
		{"r1", "[]", 400, "must be an object"},
		{"r1", "x", 400, "valid JSON"},
		{"r1", strings.Repeat(" ", maxBody+1), 413, "too large"},
	} {
		resp, body := g.post("/admin/v1/runs/"+c.id+"/cancel", c.body)
		if resp.StatusCode != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s %.20q: %s %s", c.id, c.body, resp.Status, body)
		}
	}
	if strings.Join(g.cancelled, " ") != "r1 r2" {
		t.Errorf("cancelled %v", g.cancelled)
	}
	if log := g.log.String(); strings.Count(log, "admin cancels a run") != 4 || !strings.Contains(log, `"run_id":"r1"`) {
		t.Errorf("log:\n%s", log)
	}
}
