package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// asOllama is a provider that answers as an Ollama does; script gets what it has no answer for, and chat requests.
func asOllama(loaded *atomic.Bool, script fakeprovider.Script) fakeprovider.Script {
	const model = `{"name":"qwen3:8b","model":"qwen3:8b","digest":"abc","size":5,"details":{"family":"qwen3"}}`
	list := func(models string) fakeprovider.Script {
		return fakeprovider.Answer(200, "application/json; charset=utf-8", `{"models":[`+models+`]}`)
	}
	known := fakeprovider.Routes(map[string]fakeprovider.Script{
		"GET /api/version": fakeprovider.Answer(200, "application/json; charset=utf-8", `{"version":"0.17.4"}`),
		"GET /api/tags":    list(model),
		"GET /api/ps": func(x *fakeprovider.Exchange) {
			if loaded.Load() {
				list(strings.Replace(model, `"size"`, `"context_length":4096,"size"`, 1))(x)
				return
			}
			list("")(x)
		},
		"POST /api/show": func(x *fakeprovider.Exchange) {
			x.Reply(200, "application/json; charset=utf-8", `{"asked":`+string(x.Body())+`,"model_info":{"qwen3.context_length":40960}}`)
		},
	})
	return func(x *fakeprovider.Exchange) {
		switch path, _, _ := strings.Cut(x.Target, "?"); path {
		case "/api/version", "/api/tags", "/api/ps", "/api/show":
			known(x)
		default:
			script(x)
		}
	}
}

// ollamaAdapter is one entry of a node's adapters.
func ollamaAdapter(url string, places int) string {
	return fmt.Sprintf("{name: ollama, kind: ollama, base_url: %q, max_concurrency: %d}", url, places)
}

// newOllamaRig is an edge and a node with an Ollama.
func newOllamaRig(t *testing.T, places int, loaded *atomic.Bool, script fakeprovider.Script) *rig {
	t.Helper()
	provider := fakeprovider.New(t, asOllama(loaded, script))
	return newRigWith(t, provider, setup{Options: harness.Options{Adapters: "[" + ollamaAdapter(provider.URL(), places) + "]"}})
}

// commandAnswer is the answer to a command, as far as these tests look.
type commandAnswer struct {
	CommandID    string `json:"command_id"`
	Node         string
	Generation   uint64 `json:"connection_generation"`
	SessionID    string `json:"session_id"`
	Capabilities struct {
		Adapters []struct {
			Name, Version, Reason string
			Available             bool
			InFlight              int `json:"in_flight"`
			Models                []struct {
				Name    string
				Loaded  bool
				Context int64
			}
		}
	}
	TransportStatus struct {
		Generation  uint64 `json:"connection_generation"`
		OpenStreams int    `json:"open_streams"`
		InFlight    int    `json:"in_flight"`
	} `json:"transport_status"`
	Status      int
	ContentType string `json:"content_type"`
	Body        json.RawMessage
	Error       struct{ Code, Message, Origin string }
}

// adminPost sends JSON to the admin listener and reads the answer.
func adminPost(ctx context.Context, e *harness.Edge, path, body string) (int, commandAnswer, error) {
	var a commandAnswer
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.Addr.Admin.String()+path, strings.NewReader(body))
	if err != nil {
		return 0, a, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * limit}
	response, err := client.Do(request)
	if err != nil {
		return 0, a, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	return response.StatusCode, a, err
}

// command asks the node "box".
func command(t *testing.T, e *harness.Edge, body string) (int, commandAnswer) {
	t.Helper()
	status, a, err := adminPost(context.Background(), e, "/admin/v1/nodes/box/commands", body)
	if err != nil {
		t.Fatal(err)
	}
	return status, a
}

func ollamaCommand(method, path, more string) string {
	return fmt.Sprintf(`{"type":"OLLAMA_API","adapter":"ollama","method":%q,"path":%q,"session_id":"s-1"%s}`, method, path, more)
}

// R8: every command over a real link, on a node whose only place is taken: none of them takes one.
func TestCommandsOverTheWholePath(t *testing.T) {
	t.Parallel()
	var loaded atomic.Bool
	h := newHold()
	r := newOllamaRig(t, 1, &loaded, h.script)
	caller := r.dial()
	caller.Send(harness.Post(chatPath, strings.Replace(chatBody, `"m"`, `"qwen3:8b"`, 1)))
	await(t, h.arrived, "the chat at the provider")

	loaded.Store(true) // the node was last told otherwise
	status, a := command(t, r.Edge, `{"type":"CAPABILITIES","session_id":"s-1"}`)
	ad := a.Capabilities.Adapters
	if status != 200 || a.Node != "box" || a.CommandID == "" || a.SessionID != "s-1" || len(ad) != 1 || ad[0].Name != "ollama" || !ad[0].Available ||
		ad[0].Version != "ollama 0.17.4" || ad[0].InFlight != 1 || len(ad[0].Models) != 1 || ad[0].Models[0].Name != "qwen3:8b" || !ad[0].Models[0].Loaded || ad[0].Models[0].Context != 4096 {
		t.Errorf("capabilities: %d %+v", status, a)
	}
	status, a = command(t, r.Edge, `{"type":"TRANSPORT_STATUS","session_id":"s-1"}`)
	if s := a.TransportStatus; status != 200 || a.SessionID != "s-1" || s.Generation != a.Generation || s.Generation != r.Node("box").Generation || s.InFlight != 1 || s.OpenStreams < 2 {
		t.Errorf("status: %d %+v", status, a)
	}
	for _, c := range []struct{ method, path, more, body string }{
		{"GET", "/api/version", "", `{"version":"0.17.4"}`},
		{"GET", "/api/tags", "", `{"models":[{"name":"qwen3:8b","model":"qwen3:8b","digest":"abc","size":5,"details":{"family":"qwen3"}}]}`},
		{"GET", "/api/ps", "", `{"models":[{"name":"qwen3:8b","model":"qwen3:8b","digest":"abc","context_length":4096,"size":5,"details":{"family":"qwen3"}}]}`},
		{"POST", "/api/show", `,"body":{"model":"qwen3:8b"}`, `{"asked":{"model":"qwen3:8b"},"model_info":{"qwen3.context_length":40960}}`},
	} {
		status, a = command(t, r.Edge, ollamaCommand(c.method, c.path, c.more))
		if status != 200 || a.Status != 200 || string(a.Body) != c.body || a.SessionID != "s-1" || a.ContentType != "application/json; charset=utf-8" {
			t.Errorf("%s %s: %d %+v %s", c.method, c.path, status, a.Error, a.Body)
		}
	}
	if n := r.InFlight(); n != 1 {
		t.Errorf("%d places are held", n)
	}
	h.let(t, 1)
	if response, _, err := caller.Response(limit); err != nil || response.StatusCode != 200 {
		t.Errorf("the chat beside them: %v %v", response, err)
	}
}

// HT-15, E43: no spelling of another path reaches the provider by a command: neither by the admin API, nor by an edge
// that sends whatever it is told.
func TestCommandPaths(t *testing.T) {
	t.Parallel()
	paths := []string{"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete", "/api%2fdelete", "/api/chat%2f..%2fdelete", "/API/delete",
		"/api/delete?", "/api/\\delete", "/api/delete", "/api/pull", "/api/chat", "/api/tags?x", "/api/show/../delete", "/v1/models", "http://127.0.0.1:1/api/tags"}
	var reached atomic.Int64
	var loaded atomic.Bool
	script := func(x *fakeprovider.Exchange) {
		reached.Add(1)
		x.Reply(200, "application/json", `{}`)
	}
	r := newOllamaRig(t, 1, &loaded, script)
	before := len(r.provider.Exchanges())
	for _, path := range paths {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			if status, a := command(t, r.Edge, ollamaCommand(method, path, "")); status != 403 || a.Error.Code != "bad_request" {
				t.Errorf("%s %s: %d %+v", method, path, status, a.Error)
			}
		}
	}
	for _, kind := range []string{"USAGE_STATUS", "SESSION_LIST", "TERMINATE_SESSION", "COMMAND_TYPE_CAPABILITIES", ""} {
		if status, a := command(t, r.Edge, fmt.Sprintf(`{"type":%q}`, kind)); status != 400 || a.Error.Code != "bad_request" || a.Error.Message == "" {
			t.Errorf("%s: %d %+v", kind, status, a.Error)
		}
	}
	if n := len(r.provider.Exchanges()); n != before || reached.Load() != 0 {
		t.Errorf("%d requests reached the provider", n-before)
	}

	provider := fakeprovider.New(t, asOllama(&loaded, script))
	edge := harness.NewFakeEdge(t)
	harness.StartNode(t, edge.Addr(), "{probe_interval: 1h}")
	resp := harness.Accepted(7, 1)
	resp.Features = []pb.Feature{pb.Feature_FEATURE_OLLAMA_COMMAND}
	resp.Config.Adapters = []*pb.AdapterConfig{{Name: "ollama", Kind: "ollama", BaseUrl: provider.URL(), MaxConcurrency: 1, AdapterRevision: 1}}
	side := edge.Serve(edge.Register(limit, resp), 7)
	side.AwaitReady(limit)
	before = len(provider.Exchanges())
	for i, path := range paths {
		f := nodeAnswers(t, side, &pb.NodeCommandRequest{CommandId: fmt.Sprintf("c%d", i), Type: pb.CommandType_COMMAND_TYPE_OLLAMA_API,
			Adapter: "ollama", Method: "GET", Path: path})
		if r := f.Msg.GetRejected(); r.GetFailure().GetCode() != pb.FailureCode_FAILURE_CODE_BAD_REQUEST || !r.GetNeverStarted() {
			t.Errorf("the node, %s: %v", path, f.Msg)
		}
	}
	if n := len(provider.Exchanges()); n != before || reached.Load() != 0 {
		t.Errorf("%d requests reached the provider", n-before)
	}
}

// nodeAnswers sends a command on a link of the test's own and returns the first frame of the answer.
func nodeAnswers(t *testing.T, side *harness.EdgeSide, q *pb.NodeCommandRequest) transport.Frame {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s, err := side.Link.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer context.AfterFunc(ctx, s.Cancel)()
	if err := s.Write(&pb.WorkOpen{ConnectionGeneration: side.Generation, Attempt: 1, Work: &pb.WorkOpen_Command{Command: q}}); err != nil {
		t.Fatal(err)
	}
	f, err := s.ReadTunnel()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// CAPABILITIES are fresh: a provider that went away is told of at once, not at the next look at it; and an adapter
// without an Ollama API says so.
func TestCapabilitiesAreFresh(t *testing.T) {
	t.Parallel()
	var gone, loaded atomic.Bool
	whole := asOllama(&loaded, func(x *fakeprovider.Exchange) { x.Reply(404, "text/plain", "") })
	provider := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
		if gone.Load() {
			x.Close()
			return
		}
		whole(x)
	})
	r := newRigWith(t, provider, setup{Options: harness.Options{Adapters: "[" + ollamaAdapter(provider.URL(), 1) + ", {name: loopback, kind: loopback, max_concurrency: 1}]"}})
	ask := func() map[string]string {
		_, a := command(t, r.Edge, `{"type":"CAPABILITIES"}`)
		got := map[string]string{}
		for _, ad := range a.Capabilities.Adapters {
			got[ad.Name] = fmt.Sprint(ad.Available)
			if !ad.Available && ad.Reason == "" {
				t.Errorf("%s lacks a reason", ad.Name)
			}
		}
		return got
	}
	if got := ask(); got["ollama"] != "true" || got["loopback"] != "true" {
		t.Errorf("%v", got)
	}
	gone.Store(true)
	if got := ask(); got["ollama"] != "false" || got["loopback"] != "true" {
		t.Errorf("%v", got)
	}
	if status, a := command(t, r.Edge, ollamaCommand("GET", "/api/tags", "")); status != 502 || a.Error.Origin != "provider" {
		t.Errorf("a provider that hangs up: %d %+v", status, a.Error)
	}
	if status, a := command(t, r.Edge, strings.Replace(ollamaCommand("GET", "/api/tags", ""), `"ollama"`, `"loopback"`, 1)); status != 400 || a.Error.Code != "bad_request" {
		t.Errorf("no Ollama API: %d %+v", status, a.Error)
	}
	if status, a := command(t, r.Edge, strings.Replace(ollamaCommand("GET", "/api/tags", ""), `"ollama"`, `"zz"`, 1)); status != 404 || a.Error.Code != "unknown_adapter" {
		t.Errorf("no such adapter: %d %+v", status, a.Error)
	}
}

// slowShow is a provider whose POST /api/show is never answered.
func slowShow(h *hold) fakeprovider.Script {
	var loaded atomic.Bool
	ollama := asOllama(&loaded, h.script)
	return func(x *fakeprovider.Exchange) {
		if x.Target != "/api/show" {
			ollama(x)
			return
		}
		if body := string(x.Body()); strings.Contains(body, "qwen3") { // the node's own question
			x.Reply(200, "application/json", `{}`)
			return
		}
		h.arrived <- x
		<-x.Gone()
		x.Close()
		h.release <- struct{}{}
	}
}

// CA-01 for commands: whoever asked leaves, and the provider's connection is closed. OL-10 for commands: the link is
// cut, whoever asked is told, and so is the provider; the node is back and answers.
func TestCommandsEnd(t *testing.T) {
	t.Parallel()
	h := newHold()
	provider := fakeprovider.New(t, slowShow(h))
	l := newLinked(t, 1, h.script, setup{Options: harness.Options{Adapters: "[" + ollamaAdapter(provider.URL(), 1) + "]"}})
	show := ollamaCommand("POST", "/api/show", `,"body":{"model":"big"}`)
	type result struct {
		status int
		answer commandAnswer
		err    error
	}
	ask := func(ctx context.Context) <-chan result {
		done := make(chan result, 1)
		go func() {
			status, a, err := adminPost(ctx, l.Edge, "/admin/v1/nodes/box/commands", show)
			done <- result{status, a, err}
		}()
		await(t, h.arrived, "the command at the provider")
		return done
	}
	ctx, leave := context.WithCancel(context.Background())
	done := ask(ctx)
	leave()
	await(t, h.release, "the end at the provider after the caller left")
	if r := await(t, done, "the caller's own end"); r.err == nil {
		t.Errorf("%+v", r)
	}

	done = ask(context.Background())
	l.relay.Reset()
	if r := await(t, done, "the end after the link was cut"); r.err != nil || r.status != 502 || r.answer.Error.Code != "node_lost" {
		t.Errorf("%+v", r)
	}
	await(t, h.release, "the end at the provider after the link was cut")
	l.AwaitReady("box")
	harness.Until(t, limit, "the node answers again", func() bool {
		status, a, err := adminPost(context.Background(), l.Edge, "/admin/v1/nodes/box/commands", `{"type":"TRANSPORT_STATUS"}`)
		return err == nil && status == 200 && a.TransportStatus.InFlight == 0
	})
}

// CA-07, and the admin API's runs: an operator finds a tunnel, cancels that one and no other, and its provider is left
// alone from then on.
func TestAdminCancelsARun(t *testing.T) {
	t.Parallel()
	script, gone := endless(20 * time.Millisecond)
	r := newRig(t, script, setup{})
	one, two := follow(t, r.HTTP(), chatBody, delta("tick")), follow(t, r.HTTP(), chatBody, delta("tick"))
	var v runView
	if err := json.Unmarshal(r.Admin("/admin/v1/runs/"+one.runID()), &v); err != nil || v.State != "running" || v.Node != "box" || !v.Live {
		t.Errorf("%+v %v", v, err)
	}
	if status, _, err := adminPost(context.Background(), r.Edge, "/admin/v1/runs/"+one.runID()+"/cancel", ""); status != 202 || err != nil {
		t.Errorf("cancel: %d %v", status, err)
	}
	one.cut(t, limit)
	await(t, gone, "the end at the provider")
	wantLog(t, r.Log.Ended(t, one.runID()), map[string]any{"code": "cancelled"})
	if status, a, err := adminPost(context.Background(), r.Edge, "/admin/v1/runs/"+one.runID()+"/cancel", ""); status != 409 || err != nil || a.Error.Code == "" {
		t.Errorf("again: %d %+v %v", status, a, err)
	}
	if status, _, _ := adminPost(context.Background(), r.Edge, "/admin/v1/runs/none/cancel", ""); status != 404 {
		t.Errorf("nobody's: %d", status)
	}
	if err := json.Unmarshal(r.Admin("/admin/v1/runs/"+two.runID()), &v); err != nil || !v.Live {
		t.Errorf("the other one: %+v %v", v, err)
	}
	adminPost(context.Background(), r.Edge, "/admin/v1/runs/"+two.runID()+"/cancel", "{}")
	two.cut(t, limit)
	await(t, gone, "the end at the provider")
}
