package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// fakeRuns plays the service: it keeps the specs and lets a script run them.
type fakeRuns struct {
	specs  []service.RunSpec
	do     func(ctx context.Context, spec *service.RunSpec, sink service.EventSink) *service.Outcome
	views  map[string]service.RunView
	cancel service.CancelResult
	caused []execution.CancelCause
}

func (f *fakeRuns) SubmitRun(ctx context.Context, spec *service.RunSpec, sink service.EventSink) *service.Outcome {
	if spec.RunID == "" {
		spec.RunID = "run-drawn"
	}
	f.specs = append(f.specs, *spec)
	o := f.do(ctx, spec, sink)
	if o != nil {
		o.RunID, o.SessionID, o.Adapter, o.Target, o.NodeID = spec.RunID, spec.SessionID, spec.Adapter, spec.Target, "box"
	}
	return o
}

func (f *fakeRuns) Run(id string) (service.RunView, bool) { v, ok := f.views[id]; return v, ok }

func (f *fakeRuns) Cancel(_ string, cause execution.CancelCause) service.CancelResult {
	f.caused = append(f.caused, cause)
	return f.cancel
}

func startRuns(t *testing.T, edge *config.Edge, f *fakeRuns) *rig {
	return start(t, edge, func(cfg *Config) { cfg.Runs = f })
}

func (g *rig) run(key, body string) (*http.Response, string) {
	g.t.Helper()
	return g.do2("POST", "/iop/v1/runs", key, body)
}

func (g *rig) do2(method, path, key, body string) (*http.Response, string) {
	g.t.Helper()
	req, err := http.NewRequest(method, "http://"+g.addr+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience.Limit}
	resp, err := client.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	_, _ = text.ReadFrom(resp.Body)
	return resp, text.String()
}

// talk emits one of everything.
func talk(t *testing.T, failure *execution.Failure) func(context.Context, *service.RunSpec, service.EventSink) *service.Outcome {
	return func(_ context.Context, _ *service.RunSpec, sink service.EventSink) *service.Outcome {
		sink.Placed(service.Placement{Node: "box", Queued: 7 * time.Millisecond})
		n := int64(3)
		for i, e := range []execution.Event{
			{Kind: execution.EventStart, Model: "m-1"},
			{Kind: execution.EventReasoning, Text: "hm"},
			{Kind: execution.EventDelta, Text: "안녕 "},
			{Kind: execution.EventDelta, Text: "<b>"},
			{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: 1, ID: "c2", Name: "b", Arguments: `{"x"`}},
			{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: 0, ID: "c1", Name: "a", Arguments: `{}`}},
			{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: 1, Arguments: `:1}`}},
			{Kind: execution.EventUsage, Usage: execution.Usage{Input: &n}},
		} {
			if err := sink.Event(uint64(i+1), e); err != nil {
				t.Errorf("event %d: %v", i, err)
			}
		}
		o := &service.Outcome{Kind: execution.KindRun, Attempts: 1, Failure: failure, FinishReason: "tool_calls", Usage: execution.Usage{Input: &n}}
		if failure != nil {
			o.FinishReason = ""
		}
		return o
	}
}

const minimal = `{"adapter":"a","target":"m","messages":[{"role":"user","content":"hi"}]`

func TestRunStream(t *testing.T) {
	f := &fakeRuns{do: talk(t, nil)}
	g := startRuns(t, open(), f)
	resp, body := g.run("", minimal+`,"stream":true,"session_id":"s-1","run_id":"mine"}`)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" ||
		resp.Header.Get("X-IOP-Node") != "box" || resp.Header.Get("X-IOP-Queue-Ms") != "7" || resp.Header.Get("X-IOP-Run-Id") != "mine" {
		t.Fatalf("%v %v", resp.Status, resp.Header)
	}
	var names []string
	for i, event := range strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(event, "\ndata: ")
		var fields struct {
			RunID     string `json:"run_id"`
			SessionID string `json:"session_id"`
			Seq       int
		}
		if !ok || json.Unmarshal([]byte(data), &fields) != nil || fields.Seq != i+1 || fields.RunID != "mine" || fields.SessionID != "s-1" {
			t.Errorf("event %d: %q", i, event)
		}
		names = append(names, strings.TrimPrefix(name, "event: "))
	}
	want := "start reasoning_delta delta delta tool_call tool_call tool_call usage complete"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
	if !strings.Contains(body, `"finish_reason":"tool_calls","`) && !strings.Contains(body, `"finish_reason":"tool_calls"}`) {
		t.Errorf("no finish reason in %s", body)
	}
}

// A stream that has begun says how it failed in its last event, and only there.
func TestRunStreamFails(t *testing.T) {
	for _, tt := range []struct {
		failure *execution.Failure
		last    string
	}{
		{execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "cut"), "event: error\n"},
		{execution.Failf(execution.CodeCancelled, execution.OriginCaller, "api"), "event: cancelled\n"},
	} {
		f := &fakeRuns{do: talk(t, tt.failure)}
		resp, body := startRuns(t, open(), f).run("", minimal+`,"stream":true}`)
		if resp.StatusCode != 200 || strings.Count(body, tt.last) != 1 || strings.Contains(body, "event: complete") ||
			!strings.Contains(body[strings.LastIndex(body, "event: "):], tt.last) {
			t.Errorf("%v: %s", tt.failure, body)
		}
	}
	f := &fakeRuns{do: func(context.Context, *service.RunSpec, service.EventSink) *service.Outcome {
		return &service.Outcome{Failure: execution.Failf(execution.CodeNoNode, execution.OriginEdge, "nobody")}
	}}
	resp, body := startRuns(t, open(), f).run("", minimal+`,"stream":true}`)
	if resp.StatusCode != 503 || !strings.Contains(body, `"code":"no_node"`) || !strings.Contains(body, `"origin":"edge"`) {
		t.Errorf("before the first event: %s %s", resp.Status, body)
	}
}

func TestRunWhole(t *testing.T) {
	f := &fakeRuns{do: talk(t, nil)}
	g := startRuns(t, open(), f)
	resp, body := g.run("", minimal+`,"deadline_ms":1500,"node":"box","metadata":{"k":"v"},"options":{"max_tokens":5,"temperature":0.5},
	  "tools":[{"name":"a","description":"d","parameters":{"type":"object"}}],"tool_choice":"required"}`)
	var got struct {
		Text, Reasoning, Node, Model string
		FinishReason                 string                                 `json:"finish_reason"`
		ToolCalls                    []struct{ ID, Name, Arguments string } `json:"tool_calls"`
		Usage                        struct{ Input, Output *int64 }
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s %s %v", resp.Status, body, err)
	}
	if got.Text != "안녕 <b>" || got.Reasoning != "hm" || got.Model != "m-1" || got.FinishReason != "tool_calls" || got.Node != "box" ||
		got.Usage.Input == nil || got.Usage.Output != nil || len(got.ToolCalls) != 2 || got.ToolCalls[1].Arguments != `{"x":1}` || got.ToolCalls[0].ID != "c1" {
		t.Errorf("%s", body)
	}
	spec := f.specs[0]
	if spec.Deadline != 1500*time.Millisecond || spec.Node != "box" || spec.Metadata["k"] != "v" || spec.Principal != "anonymous" ||
		*spec.Input.Options.MaxTokens != 5 || spec.Input.Tools[0].Name != "a" || spec.Input.ToolChoice.Mode != execution.ToolRequired {
		t.Errorf("%+v", spec)
	}
}

func TestRunBackground(t *testing.T) {
	f := &fakeRuns{do: func(ctx context.Context, spec *service.RunSpec, _ service.EventSink) *service.Outcome {
		if ctx.Err() == nil || !spec.Background {
			t.Error("a launch must not wait for its run")
		}
		return nil
	}}
	g := startRuns(t, open(), f)
	resp, body := g.run("", minimal+`,"background":true}`)
	if resp.StatusCode != 202 || resp.Header.Get("Location") != "/iop/v1/runs/run-drawn" || !strings.Contains(body, `"run_id":"run-drawn"`) {
		t.Errorf("%s %v %s", resp.Status, resp.Header, body)
	}
	f.do = func(context.Context, *service.RunSpec, service.EventSink) *service.Outcome {
		return &service.Outcome{Failure: execution.Failf(execution.CodeDuplicateRun, execution.OriginCaller, "known")}
	}
	if resp, body = g.run("", minimal+`,"background":true,"run_id":"x"}`); resp.StatusCode != 409 || !strings.Contains(body, "duplicate_run") {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestRunRequestsAreReadStrictly(t *testing.T) {
	f := &fakeRuns{do: talk(t, nil)}
	g := startRuns(t, open(), f)
	message := func(m string) string { return `{"adapter":"a","target":"m","messages":[` + m + `]}` }
	for body, param := range map[string]string{
		``:   "",
		`[]`: "",
		`{"adapter":"a","target":"m","messages":[{"role":"user","content":"hi"}]`:                   "",
		`{"target":"m","messages":[{"role":"user","content":"hi"}]}`:                                "adapter",
		`{"adapter":"a","messages":[{"role":"user","content":"hi"}]}`:                               "target",
		minimal + `,"adaptor":"b"}`:                                                                 "adaptor",
		minimal + `,"adapter":"b"}`:                                                                 "adapter", // twice
		minimal + `,"node":"a b"}`:                                                                  "node",
		minimal + `,"run_id":7}`:                                                                    "run_id",
		minimal + `,"deadline_ms":-1}`:                                                              "deadline_ms",
		minimal + `,"metadata":{"k":1}}`:                                                            "metadata",
		minimal + `,"options":{"temprature":1}}`:                                                    "options",
		minimal + `,"tool_choice":"maybe"}`:                                                         "tool_choice",
		minimal + `,"tools":[{"name":"a","type":"function"}]}`:                                      "tools[0].type",
		message(`{"role":"user","content":7}`):                                                      "messages[0].content",
		message(`{"role":"user","content":"x","extra":1}`):                                          "messages[0].extra",
		message(`{"role":"user","content":[{"type":"audio"}]}`):                                     "messages[0].content[0].type",
		message(`{"role":"user","content":[{"type":"image","media_type":"image/png","data":"%"}]}`): "messages[0].content[0].data",
	} {
		resp, text := g.run("", body)
		var got struct {
			Error struct{ Code, Param, Message string }
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || resp.StatusCode != 400 || got.Error.Code != "bad_request" ||
			got.Error.Param != param || got.Error.Message == "" {
			t.Errorf("%s: %s %s, want param %q", body, resp.Status, text, param)
		}
	}
	if len(f.specs) != 0 {
		t.Errorf("%d bad requests were run", len(f.specs))
	}
}

// A run without a route is no way past a principal's allow-list.
func TestRunsKeepToTheRoutes(t *testing.T) {
	edge := keyed()
	edge.Nodes = []config.NodeRecord{{ID: "gpu", Enabled: true, Labels: map[string]string{"zone": "a"}}, {ID: "cpu", Enabled: true}}
	edge.Routes = append(edge.Routes,
		config.Route{Model: "bound", Adapter: "b", Target: "inner", Nodes: []string{"gpu"}},
		config.Route{Model: "labelled", Adapter: "l", Target: "inner", Labels: map[string]string{"zone": "a"}})
	edge.Principals[1].Routes = []string{"small", "bound", "labelled"}
	f := &fakeRuns{do: talk(t, nil)}
	g := startRuns(t, edge, f)
	for _, tt := range []struct {
		key, adapter, target, node string
		status                     int
	}{
		{aliceKey, "any", "thing", "", 200},
		{bobKey, "any", "small", "", 200}, // the route names no adapter
		{bobKey, "any", "large", "", 404},
		{bobKey, "b", "inner", "gpu", 200},
		{bobKey, "b", "inner", "", 404},
		{bobKey, "b", "inner", "cpu", 404},
		{bobKey, "b", "other", "gpu", 404},
		{bobKey, "l", "inner", "gpu", 200},
		{bobKey, "l", "inner", "cpu", 404},
		{bobKey, "l", "inner", "nowhere", 404},
	} {
		body, _ := json.Marshal(map[string]any{"adapter": tt.adapter, "target": tt.target, "node": tt.node,
			"messages": []map[string]string{{"role": "user", "content": "hi"}}})
		if tt.node == "" {
			body = bytes.Replace(body, []byte(`"node":"",`), nil, 1)
		}
		if resp, text := g.run(tt.key, string(body)); resp.StatusCode != tt.status || tt.status == 404 && !strings.Contains(text, "unknown_adapter") {
			t.Errorf("%+v: %s %s", tt, resp.Status, text)
		}
	}
	if resp, _ := g.run("", minimal+`}`); resp.StatusCode != 401 {
		t.Errorf("without a key: %s", resp.Status)
	}
}

func TestRunIsShownToItsPrincipal(t *testing.T) {
	f := &fakeRuns{views: map[string]service.RunView{"r1": {RunID: "r1", Principal: "bob", State: service.StateRunning}}, cancel: service.Cancelling}
	g := startRuns(t, keyed(), f)
	for _, tt := range []struct {
		method, path, key string
		cancel            service.CancelResult
		status            int
	}{
		{"GET", "/iop/v1/runs/r1", bobKey, 0, 200},
		{"GET", "/iop/v1/runs/r1", aliceKey, 0, 404},
		{"GET", "/iop/v1/runs/r2", bobKey, 0, 404},
		{"GET", "/iop/v1/runs/", bobKey, 0, 404},
		{"GET", "/iop/v1/runs/r1/cancel", bobKey, 0, 405},
		{"POST", "/iop/v1/runs/r1", bobKey, 0, 405},
		{"POST", "/iop/v1/runs/r1/cancel", aliceKey, service.Cancelling, 404},
		{"POST", "/iop/v1/runs/r1/cancel", bobKey, service.Cancelling, 202},
		{"POST", "/iop/v1/runs/r1/cancel", bobKey, service.AlreadyEnded, 409},
		{"POST", "/iop/v1/runs/r1/cancel", bobKey, service.NotFound, 404},
	} {
		f.cancel = tt.cancel
		resp, body := g.do2(tt.method, tt.path, tt.key, "")
		if resp.StatusCode != tt.status {
			t.Errorf("%s %s: %s %s, want %d", tt.method, tt.path, resp.Status, body, tt.status)
		}
	}
	if len(f.caused) != 3 || f.caused[0] != execution.CauseAPI {
		t.Errorf("cancelled %v", f.caused)
	}
}

// What the caller leaves is told to a foreground run, and a background run goes on.
func TestRunCallerLeaves(t *testing.T) {
	gone := make(chan error, 1)
	f := &fakeRuns{do: func(ctx context.Context, _ *service.RunSpec, sink service.EventSink) *service.Outcome {
		_ = sink.Event(1, execution.Event{Kind: execution.EventDelta, Text: "x"})
		<-ctx.Done()
		gone <- context.Cause(ctx)
		return &service.Outcome{Failure: execution.Failf(execution.CodeClientGone, execution.OriginCaller, "left")}
	}}
	g := startRuns(t, open(), f)
	c := g.dial()
	body := minimal + `,"stream":true}`
	c.send("POST /iop/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	if _, err := c.r.ReadString('x'); err != nil {
		t.Fatal(err)
	}
	c.Close()
	select {
	case cause := <-gone:
		if cause != execution.CauseClientGone {
			t.Errorf("the run was told %v", cause)
		}
	case <-time.After(patience.Limit):
		t.Error("nobody told the run that its caller left")
	}
}
