package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"iop/e2e/harness"
)

// admin asks an edge's admin listener, and returns the status and the answer.
func admin(t *testing.T, e *harness.Edge, method, path, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(method, "http://"+e.Addr.Admin.String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true // no connection outlives the edge
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

func (r *rig) admin(method, path, body string) (int, string) {
	r.t.Helper()
	return admin(r.t, r.Edge, method, path, body)
}

// events follows what happens until the test is over; each event is its kind, its node and its code.
func (r *rig) events(query string) <-chan string {
	r.t.Helper()
	response, err := http.Get("http://" + r.Addr.Admin.String() + "/admin/v1/events" + query)
	if err != nil || response.StatusCode != 200 {
		r.t.Fatal(err)
	}
	happened := make(chan string, 1000)
	done := make(chan struct{})
	r.t.Cleanup(func() { response.Body.Close(); <-done })
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(response.Body); lines.Scan(); {
			var e struct{ Kind, Node, Code string }
			data, is := strings.CutPrefix(lines.Text(), "data: ")
			if is && json.Unmarshal([]byte(data), &e) == nil {
				happened <- strings.TrimSpace(e.Kind + " " + e.Node + " " + e.Code)
			}
		}
	}()
	return happened
}

// why asks why a model isn't served, and returns the reasons of the one adapter that there is.
func (r *rig) why(model string) (reasons []string) {
	r.t.Helper()
	_, answer := r.admin("GET", "/admin/v1/why?model="+url.QueryEscape(model), "")
	var v struct {
		Candidates []struct {
			TakesWork bool `json:"takes_work"`
			Reasons   []struct{ Code string }
		}
	}
	if err := json.Unmarshal([]byte(answer), &v); err != nil || len(v.Candidates) != 1 {
		r.t.Fatalf("%v %s", err, answer)
	}
	for _, reason := range v.Candidates[0].Reasons {
		reasons = append(reasons, reason.Code)
	}
	if v.Candidates[0].TakesWork != (len(reasons) == 0) {
		r.t.Errorf("%s", answer)
	}
	return reasons
}

// explained are the steps of a run.
func (r *rig) explained(id string) string {
	r.t.Helper()
	_, answer := r.admin("GET", "/admin/v1/runs/"+id, "")
	var x struct{ Timeline []struct{ Event string } }
	if err := json.Unmarshal([]byte(answer), &x); err != nil {
		r.t.Fatalf("%v %s", err, answer)
	}
	var steps []string
	for _, s := range x.Timeline {
		steps = append(steps, s.Event)
	}
	return strings.Join(steps, " ")
}

// An operator follows a request, keeps work from the node while it runs, sees why the next one waits, and lets it in. EV-02:
// what the bus carries is steps, never what was asked or answered.
func TestOperatorsSeeAndSteer(t *testing.T) {
	h := newHold()
	r := newRig(t, h.script, setup{places: 1, Options: harness.Options{Routes: `[{model: "*", queue: {wait: 30s}}]`}})
	// Each in its own order: a run may be placed before the node's event of that moment is out.
	nodes, runs := r.events("?kind=node&last=100"), r.events("?kind=run&last=100")
	want := func(happened <-chan string, events ...string) {
		t.Helper()
		for _, event := range events {
			if got := await(t, happened, event); got != event {
				t.Errorf("%q happened, want %q", got, event)
			}
		}
	}
	why := func(reasons ...string) {
		t.Helper()
		harness.Until(t, limit, fmt.Sprint("the reasons are ", reasons), func() bool { return slices.Equal(r.why("m"), reasons) })
	}
	want(nodes, "registered box registered", "ready box ready")
	answers := make(chan *harness.Answer, 2)
	ask := func() {
		a, err := harness.Ask(r.HTTP(), chat(), limit)
		if err != nil {
			t.Error(err)
		}
		answers <- a
	}
	why() // there is a free place
	go ask()
	want(runs, "run_submitted", "run_placed box", "run_accepted box")
	why("full")
	if status, answer := r.admin("POST", "/admin/v1/nodes/box/drain", ""); status != 200 || answer != `{"drained":true,"node":"box"}`+"\n" {
		t.Errorf("%d %s", status, answer)
	}
	want(nodes, "drained box drained", "draining box draining")
	h.let(t, 1) // what runs there goes on
	want(runs, "run_first_byte box", "run_ended box ok")
	if a := await(t, answers, "the first answer"); a.StatusCode != 200 {
		t.Errorf("%d %s", a.StatusCode, a.Bytes)
	}
	go ask()
	want(runs, "run_submitted", "run_queued")
	why("drained")
	r.admin("POST", "/admin/v1/nodes/box/drain", `{"undo":true}`)
	want(nodes, "undrained box undrained", "ready box ready")
	want(runs, "run_placed box", "run_accepted box")
	h.let(t, 1)
	want(runs, "run_first_byte box", "run_ended box ok")
	id := await(t, answers, "the second answer").Header.Get("X-IOP-Run-Id")
	if got := r.explained(id); got != "run_submitted run_queued run_placed run_accepted run_first_byte run_ended" {
		t.Errorf("%s explained as %s", id, got)
	}
	if n := r.Metric("iop_events_dropped_total"); n != 0 {
		t.Errorf("%v events were dropped", n)
	}
}

// Healthy is who answers, ready is who takes callers: an edge without nodes does (callers wait for one), one that drains
// doesn't.
func TestHealthAndReadiness(t *testing.T) {
	const healthy, ready = `{"status":"ok"}`, `{"ready":true,"reasons":[]}`
	want := func(when string, e *harness.Edge, path string, status int, body string) {
		t.Helper()
		if got, answer := admin(t, e, "GET", path, ""); got != status || answer != body+"\n" {
			t.Errorf("%s: %s: %d %s", when, path, got, answer)
		}
	}
	lonely := harness.StartEdge(t, harness.Options{})
	want("without a node", lonely, "/healthz", 200, healthy)
	want("without a node", lonely, "/readyz", 200, ready)
	d := newDraining(t, 1, "edge", 0) // they end when the test says so
	want("at work", d.Edge, "/readyz", 200, ready)
	d.Term()
	harness.Until(t, late, "the edge drains", func() bool { return d.Log.Contains("edge is draining") })
	want("draining", d.Edge, "/healthz", 200, healthy)
	harness.Until(t, limit, "the edge isn't ready", func() bool { // a moment after the line
		status, _ := admin(t, d.Edge, "GET", "/readyz", "")
		return status == 503
	})
	want("draining", d.Edge, "/readyz", 503, `{"ready":false,"reasons":["the edge is draining"]}`)
	for _, c := range d.callers {
		c.Close()
	}
	if err := d.Stop(limit); err != nil {
		t.Error(err)
	}
}
