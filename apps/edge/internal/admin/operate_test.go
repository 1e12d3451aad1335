package admin

import (
	"strings"
	"testing"

	"iop/apps/edge/internal/admission"
)

func TestDrainANode(t *testing.T) {
	g := newRig(t, here)
	for _, c := range []struct {
		id, body string
		status   int
		says     string
	}{
		{"gpu-1", "", 200, `{"drained":true,"node":"gpu-1"}` + "\n"},
		{"gpu-1", "{}", 200, `{"drained":true,"node":"gpu-1"}` + "\n"},
		{"gpu-1", `{"undo":false}`, 200, `{"drained":true,"node":"gpu-1"}` + "\n"},
		{"gpu-1", `{"undo":true}`, 200, `{"drained":false,"node":"gpu-1"}` + "\n"},
		{"nobody", "", 404, "no node of that id"},
		{"gpu-1", `{"undo":1}`, 400, "undo"},
		{"gpu-1", `{"undo":true,"undo":false}`, 400, "twice"},
		{"gpu-1", `{"force":true}`, 400, `unknown member \"force\"`},
		{"gpu-1", "true", 400, "must be an object"},
	} {
		if resp, body := g.post("/admin/v1/nodes/"+c.id+"/drain", c.body); resp.StatusCode != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s %s: %s %s", c.id, c.body, resp.Status, body)
		}
	}
	if got := strings.Join(g.drained, ", "); got != "gpu-1 true, gpu-1 true, gpu-1 true, gpu-1 false, nobody true" {
		t.Errorf("done: %s", got)
	}
	if log := g.log.String(); strings.Count(log, "admin drains a node") != 4 || !strings.Contains(log, `"node_id":"gpu-1","undo":true,"remote":`) {
		t.Errorf("log:\n%s", log)
	}
}

// Who releases what is recorded, whatever comes of it.
func TestReleaseAPlace(t *testing.T) {
	const ask = `{"node":"n","adapter":"a","run_id":"r"}`
	for _, c := range []struct {
		name, body string
		holds      admission.Released
		status     int
		says       string
		asked      string
	}{
		{"unconfirmed", ask, admission.Released{Places: 1}, 200, `{"node":"n","adapter":"a","run_id":"r","released":1}` + "\n", "n a r false"},
		{"at work", ask, admission.Released{Held: 1}, 409, "release it with force", "n a r false"},
		{"by force", `{"node":"n","adapter":"a","run_id":"r","force":true}`, admission.Released{Places: 2}, 200, `"released":2`, "n a r true"},
		{"none", ask, admission.Released{}, 404, "holds no place", "n a r false"},
		{"no run", `{"node":"n","adapter":"a"}`, admission.Released{Places: 1}, 400, "must be names", ""},
		{"not names", `{"node":"n\n","adapter":"a","run_id":"r"}`, admission.Released{Places: 1}, 400, "must be names", ""},
		{"no body", ``, admission.Released{Places: 1}, 400, "", ""},
		{"unknown member", `{"node":"n","adapter":"a","run_id":"r","all":true}`, admission.Released{Places: 1}, 400, `unknown member \"all\"`, ""},
	} {
		g := newRig(t, here)
		g.holds = c.holds
		if resp, body := g.post("/admin/v1/places/release", c.body); resp.StatusCode != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s: %s %s", c.name, resp.Status, body)
		}
		if got := strings.Join(g.released, ", "); got != c.asked {
			t.Errorf("%s: done %q, want %q", c.name, got, c.asked)
		}
		recorded := strings.Contains(g.log.String(), `"node_id":"n","adapter":"a","run_id":"r","force":`) && strings.Contains(g.log.String(), "admin releases a place")
		if recorded != (c.asked != "") {
			t.Errorf("%s: log %s", c.name, g.log.String())
		}
	}
}
