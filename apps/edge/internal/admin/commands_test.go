package admin

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// The names of the command API are settled (design, "Admin API").
func TestCommandAnswers(t *testing.T) {
	g := newRig(t, here)
	result := service.CommandResult{CommandID: "cmd-1", NodeID: "gpu-1", Generation: 7, Queued: time.Millisecond, Duration: 2 * time.Millisecond}
	g.answer = func(_ context.Context, c *service.Command) *service.CommandResult {
		r := result
		r.Adapter, r.SessionID = c.Adapter, c.SessionID
		return &r
	}
	const head = `{"command_id":"cmd-1","node":"gpu-1","connection_generation":7,"type":`
	want := func(body, answer string) {
		t.Helper()
		if resp, got := g.post("/admin/v1/nodes/gpu-1/commands", body); resp.StatusCode != 200 || got != answer+"\n" || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s:\n got %s %s\nwant %s", body, resp.Status, got, answer)
		}
	}
	result.Capabilities = []service.AdapterCapabilities{{Name: "ollama", Available: true, Version: "0.13.5", InFlight: 1, Capacity: 2,
		Models: []service.ModelCapabilities{{Name: "m", Loaded: true, Context: 4096}}}}
	want(`{"type":"CAPABILITIES","session_id":"s-1"}`, head+`"CAPABILITIES","adapter":"","session_id":"s-1","queue_ms":1,"duration_ms":2,"capabilities":{"adapters":[`+
		`{"name":"ollama","available":true,"reason":"","version":"0.13.5","in_flight":1,"capacity":2,"models":[{"name":"m","loaded":true,"context":4096}]}]}}`)
	result.Transport = &service.TransportStatus{Generation: 7, LinkAgeMS: 1000, OpenStreams: 2, InFlight: 1}
	want(`{"type":"TRANSPORT_STATUS"}`, head+`"TRANSPORT_STATUS","adapter":"","session_id":"","queue_ms":1,"duration_ms":2,`+
		`"transport_status":{"connection_generation":7,"link_age_ms":1000,"open_streams":2,"in_flight":1}}`)
	result.Status, result.Header, result.Body = 200, http.Header{"Content-Type": {"application/json"}}, []byte(`{ "n": 12345678901234567890, "models": [] }`)
	want(`{"type":"OLLAMA_API","adapter":"ollama","method":"POST","path":"/api/show","body":{ "model":"m" }}`, head+
		`"OLLAMA_API","adapter":"ollama","session_id":"","queue_ms":1,"duration_ms":2,"status":200,"content_type":"application/json","body":{"n":12345678901234567890,"models":[]}}`)
	if c := g.asked[2]; c.NodeID != "gpu-1" || c.Type != service.CommandOllamaAPI || c.Method != "POST" || c.Path != "/api/show" || string(c.Body) != `{ "model":"m" }` || c.Sink != nil {
		t.Errorf("asked %+v", c)
	}
	result.Status, result.Header, result.Body = 404, http.Header{"Content-Type": {"text/plain"}}, []byte("not \xff found")
	want(`{"type":"OLLAMA_API","adapter":"ollama","method":"GET","path":"/api/ps"}`, head+
		`"OLLAMA_API","adapter":"ollama","session_id":"","queue_ms":1,"duration_ms":2,"status":404,"content_type":"text/plain","body":"not � found"}`)
	if log := g.log.String(); strings.Count(log, "admin asks a node") != 4 || !strings.Contains(log, `"node_id":"gpu-1","type":"OLLAMA_API"`) {
		t.Errorf("log:\n%s", log)
	}
}

// HT-15: a refused Ollama path is a 403, whatever its spelling; a strict body; no node is asked.
func TestCommandsRefused(t *testing.T) {
	g := newRig(t, here)
	refused := func(node, body string, status int, says string) {
		t.Helper()
		resp, got := g.post("/admin/v1/nodes/"+node+"/commands", body)
		var e struct {
			Error struct{ Message, Code, Origin string }
		}
		if err := json.Unmarshal([]byte(got), &e); err != nil || resp.StatusCode != status || !strings.Contains(e.Error.Message, says) || e.Error.Code == "" || e.Error.Origin != "caller" {
			t.Errorf("%.60s: %s %s", body, resp.Status, got)
		}
	}
	for _, path := range []string{"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete", "/api%2fdelete", "/api/chat%2f..%2fdelete",
		"/API/delete", "/api/delete?", "/api/\\delete", "/api/pull", "/api/tags?x", "/v1/models", ""} {
		for _, method := range []string{"GET", "POST", "DELETE", ""} {
			body, _ := json.Marshal(map[string]string{"type": "OLLAMA_API", "adapter": "ollama", "method": method, "path": path})
			refused("gpu-1", string(body), 403, "and nothing else")
		}
	}
	refused("zz", `{"type":"CAPABILITIES"}`, 404, "no node of that id")
	for body, says := range map[string]string{
		``: "valid JSON", `x`: "valid JSON", `[]`: "object", `{}`: "type must be", `{"type":""}`: "type must be", `{"type":"USAGE_STATUS"}`: "type must be",
		`{"type":"SESSION_LIST"}`: "type must be", `{"type":2}`: "type: is of the wrong type", `{"type":"capabilities"}`: "type must be",
		`{"type":"CAPABILITIES","S3CR3T":1}`: `unknown member "S3CR3T"`, `{"type":"CAPABILITIES","type":"CAPABILITIES"}`: "twice",
		`{"type":"CAPABILITIES"} {}`: "valid JSON",
	} {
		refused("gpu-1", body, 400, says)
	}
	refused("gpu-1", `{"type":"OLLAMA_API","body":"`+strings.Repeat("x", maxBody)+`"}`, 413, "too large")
	if len(g.asked) != 0 {
		t.Errorf("a node was asked: %+v", g.asked)
	}
	if strings.Contains(g.log.String(), "S3CR3T") {
		t.Error("what came with the request is in the log")
	}
}

// Every failure has a status, and says what it is and where it came from.
func TestCommandFailures(t *testing.T) {
	g := newRig(t, here)
	var code execution.Code
	g.answer = func(context.Context, *service.Command) *service.CommandResult {
		return &service.CommandResult{CommandID: "cmd-1", NodeID: "gpu-1", Failure: execution.Failf(code, execution.OriginNode, "why")}
	}
	for _, code = range execution.Codes() {
		resp, body := g.post("/admin/v1/nodes/gpu-1/commands", `{"type":"TRANSPORT_STATUS"}`)
		want := `{"error":{"message":"why","code":"` + code.String() + `","origin":"node"},"command_id":"cmd-1","node":"gpu-1"}` + "\n"
		if body != want || resp.StatusCode == 500 && code != execution.CodeInternal || resp.StatusCode < 400 {
			t.Errorf("%s: %s %s", code, resp.Status, body)
		}
	}
	for code, status := range map[execution.Code]int{execution.CodeBadRequest: 400, execution.CodeUnknownAdapter: 404, execution.CodeOverloaded: 503,
		execution.CodeNoNode: 503, execution.CodeNodeLost: 502, execution.CodeDeadline: 504, execution.CodeInternal: 500, execution.Code(200): 500} {
		if got := statusOf(code); got != status {
			t.Errorf("%s: %d, want %d", code, got, status)
		}
	}
}

// A command may take longer than a request may take to arrive, and ends when whoever asked has left.
func TestCommandOutlivesTheReadLimit(t *testing.T) {
	g := newRig(t, "127.0.0.1:0")
	left := make(chan error, 1)
	let := make(chan struct{})
	g.answer = func(ctx context.Context, c *service.Command) *service.CommandResult {
		if c.SessionID == "leaves" {
			let <- struct{}{}
			<-ctx.Done()
			left <- ctx.Err()
			return &service.CommandResult{Failure: execution.Failf(execution.CodeClientGone, execution.OriginCaller, "gone")}
		}
		select {
		case <-ctx.Done():
			return &service.CommandResult{Failure: execution.Failf(execution.CodeClientGone, execution.OriginCaller, "gone")}
		case <-time.After(1500 * time.Millisecond):
			return &service.CommandResult{Transport: &service.TransportStatus{}}
		}
	}
	server := httptest.NewUnstartedServer(g.h)
	server.Config = NewServer(g.h)
	server.Config.ReadTimeout = time.Second
	server.Start()
	defer server.Close()
	url := server.URL + "/admin/v1/nodes/gpu-1/commands"
	resp, err := http.Post(url, "application/json", strings.NewReader(`{"type":"TRANSPORT_STATUS"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 {
		t.Errorf("%s %s", resp.Status, body)
	}
	ctx, leave := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(`{"type":"TRANSPORT_STATUS","session_id":"leaves"}`))
	if err != nil {
		t.Fatal(err)
	}
	go func() { <-let; leave() }()
	if resp, err := http.DefaultClient.Do(r); err == nil {
		resp.Body.Close()
		t.Error("an answer for who has left")
	}
	select {
	case <-left:
	case <-time.After(patience.Limit):
		t.Error("the command doesn't notice that its caller has left")
	}
}
