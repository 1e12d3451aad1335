package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"iop/e2e/harness"
	"iop/e2e/procs"
)

// runView is a run as GET /iop/v1/runs/{id} shows it, as far as these tests look.
type runView struct {
	RunID        string `json:"run_id"`
	State        string `json:"state"`
	Live         bool   `json:"live"`
	Node         string `json:"node"`
	Code         string `json:"code"`
	FinishReason string `json:"finish_reason"`
	SessionID    string `json:"session_id"`
}

// post sends JSON to the edge and returns status and body.
func post(t *testing.T, e *harness.Edge, path, body string) (int, string) {
	t.Helper()
	response, err := http.Post(e.URL(path), "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// view asks for a run; an unknown one has no state.
func view(t *testing.T, e *harness.Edge, id string) (v runView) {
	t.Helper()
	response, err := http.Get(e.URL("/iop/v1/runs/" + id))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		if err := json.NewDecoder(response.Body).Decode(&v); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// askRun asks the embedded provider for a run.
func askRun(text, extra string) string {
	return fmt.Sprintf(`{"adapter":"loopback","target":"loopback","messages":[{"role":"user","content":%q}]%s}`, text, extra)
}

func TestRunOverTheWholePath(t *testing.T) {
	edge, _ := harness.Pair(t, harness.Options{})
	status, body := post(t, edge, "/iop/v1/runs", askRun("hi loopback: reasoning=2", `,"session_id":"s-1"`))
	var whole struct {
		Text, Reasoning, Node string
		SessionID             string `json:"session_id"`
		FinishReason          string `json:"finish_reason"`
		Usage                 struct{ Input, Output *int64 }
	}
	if err := json.Unmarshal([]byte(body), &whole); err != nil || status != 200 {
		t.Fatalf("%d %s %v", status, body, err)
	}
	if whole.Text == "" || whole.Reasoning == "" || whole.Node != "box" || whole.SessionID != "s-1" || whole.FinishReason != "stop" || whole.Usage.Output == nil {
		t.Errorf("%s", body)
	}
	_, stream := post(t, edge, "/iop/v1/runs", askRun("hi loopback: reasoning=2", `,"stream":true`))
	var text strings.Builder
	last := ""
	for event := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		name, data, _ := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
		var e struct{ Text string }
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%q: %v", event, err)
		}
		if name == "delta" {
			text.WriteString(e.Text)
		}
		last = name
	}
	if text.String() != whole.Text || last != "complete" {
		t.Errorf("the stream says %q and ends in %q; whole it is %q", text.String(), last, whole.Text)
	}
	edge.AwaitIdle(limit)
}

// A provider that is cut is an error for a run, with one terminal (ST-17, ST-20).
func TestCutRunEndsInOneError(t *testing.T) {
	edge, _ := harness.Pair(t, harness.Options{})
	_, stream := post(t, edge, "/iop/v1/runs", askRun("hi loopback: tokens=20 cut=5", `,"stream":true`))
	if strings.Count(stream, "event: error\n") != 1 || strings.Contains(stream, "event: complete") || !strings.Contains(stream, `"upstream_truncated"`) {
		t.Errorf("%s", stream)
	}
	if status, body := post(t, edge, "/iop/v1/runs", askRun("hi loopback: tokens=20 cut=5", "")); status != 502 || !strings.Contains(body, "upstream_truncated") {
		t.Errorf("%d %s", status, body)
	}
	edge.AwaitIdle(limit)
}

// CA-07: one session_id twice at once; cancelling one run leaves the other alone.
func TestSameSessionTwiceAtOnce(t *testing.T) {
	edge, _ := harness.Pair(t, harness.Options{})
	for _, id := range []string{"one", "two"} {
		if status, body := post(t, edge, "/iop/v1/runs", askRun("hi loopback: tokens=150 delay=20ms", `,"session_id":"shared","background":true,"run_id":"`+id+`"`)); status != 202 {
			t.Fatalf("%d %s", status, body)
		}
	}
	harness.Until(t, limit, "both run", func() bool {
		return view(t, edge, "one").State == "running" && view(t, edge, "two").State == "running"
	})
	if status, body := post(t, edge, "/iop/v1/runs/one/cancel", ""); status != 202 {
		t.Fatalf("%d %s", status, body)
	}
	harness.Until(t, limit, "one is cancelled and two complete", func() bool {
		one, two := view(t, edge, "one"), view(t, edge, "two")
		return one.State == "cancelled" && two.State == "complete" && two.SessionID == "shared"
	})
	if status, _ := post(t, edge, "/iop/v1/runs/one/cancel", ""); status != 409 {
		t.Errorf("cancel of an ended run: %d, want 409", status)
	}
	edge.AwaitIdle(limit)
}

// A link that is cut ends the foreground run and not the background run: it is detached, adopted with its place by the
// next connection, and its end arrives once. (protocol: background runs and reconnect)
func TestBackgroundRunSurvivesACutLink(t *testing.T) {
	edge := harness.StartEdge(t, harness.Options{})
	relay := harness.NewRelay(t, edge.Addr.Nodes.String())
	node := harness.StartNode(t, relay.Addr(), "{backoff_start: 100ms, backoff_max: 200ms}")
	edge.AwaitReady("box")
	generation := edge.Node("box").Generation

	if status, body := post(t, edge, "/iop/v1/runs", askRun("hi loopback: tokens=100 delay=25ms", `,"background":true,"run_id":"back"`)); status != 202 {
		t.Fatalf("%d %s", status, body)
	}
	c := harness.Dial(t, edge.HTTP())
	c.Post("/iop/v1/runs", askRun("hi loopback: tokens=400 delay=25ms", `,"stream":true,"run_id":"front"`))
	lines := bufio.NewReader(c.Head(limit, http.MethodPost).Body)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	harness.Until(t, limit, "both run", func() bool { return edge.InFlight() == 2 && len(node.Status().Running) == 2 })
	relay.Reset()
	rest, err := io.ReadAll(lines)
	if err != nil || bytes.Count(rest, []byte("event: error\n")) != 1 || !bytes.Contains(rest, []byte(`"node_lost"`)) {
		t.Errorf("the foreground run's stream ends in %q, %v", rest, err)
	}
	harness.Until(t, limit, "the node is back", func() bool {
		n := edge.Node("box")
		return n.State == "ready" && n.Generation > generation
	})
	harness.Until(t, limit, "the background run is adopted", func() bool {
		v := view(t, edge, "back")
		return v.State == "running" || v.State == "complete"
	})
	if held := edge.InFlight(); held > 1 {
		t.Errorf("%d places are held, want the background run's only", held)
	}
	harness.Until(t, limit, "the background run completes", func() bool { return view(t, edge, "back").State == "complete" })
	edge.AwaitIdle(limit)
	edge.AwaitEnded(limit)
	if got := len(edge.Log.Entries("run ended")); got != 2 {
		t.Errorf("%d runs ended, want 2: each once", got)
	}
}

// An edge that comes back learns of the background run from its node, and how it ended.
func TestBackgroundRunSurvivesTheEdge(t *testing.T) {
	dir := t.TempDir()
	edge := harness.StartEdgeIn(t, dir, procs.OwnHost()+":0", harness.Options{}) // whose port stays free
	addr := edge.Addr.Nodes.String()
	node := harness.StartNode(t, addr, "{backoff_start: 100ms, backoff_max: 200ms}")
	edge.AwaitReady("box")
	if status, body := post(t, edge, "/iop/v1/runs", askRun("hi loopback: tokens=100 delay=25ms", `,"background":true,"run_id":"back"`)); status != 202 {
		t.Fatalf("%d %s", status, body)
	}
	harness.Until(t, limit, "it runs", func() bool {
		return view(t, edge, "back").State == "running" && len(node.Status().Running) == 1 // a placed run may be on its way
	})
	_ = edge.Kill() // as a second signal; what it returns is of no matter here
	again := harness.StartEdgeIn(t, dir, addr, harness.Options{})
	again.AwaitReady("box")
	harness.Until(t, limit, "the new edge knows of the run and that it ended", func() bool {
		v := view(t, again, "back")
		return v.RunID == "back" && !v.Live && v.Code == "ok"
	})
	again.AwaitIdle(limit)
}
