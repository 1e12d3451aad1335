package ollama

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

func ptr[T any](v T) *T { return &v }

func text(s string) execution.Part { return execution.Part{Text: s} }

func picture(data ...byte) execution.Part {
	return execution.Part{Image: &execution.Image{MediaType: "image/png", Data: data}}
}

// everything is a request that uses all that this dialect can be told.
func everything() *execution.Request {
	return &execution.Request{
		RunID: "r", SessionID: "canary-session", Target: "org/m:latest",
		Messages: []execution.Message{
			{Role: execution.RoleSystem, Parts: []execution.Part{text("be <kind> & \u2028 short")}},
			{Role: execution.RoleUser, Parts: []execution.Part{text("what is it?"), picture(0, 255, 1), picture(7)}},
			{Role: execution.RoleAssistant, Reasoning: "hm", ToolCalls: []execution.ToolCall{{ID: "c1", Name: "look", Arguments: " {\"at\": \"it\"}\n"}, {ID: "c2", Name: "now"}, {ID: "c3", Name: "now", Arguments: "null"}}},
			{Role: execution.RoleTool, ToolCallID: "c1", Parts: []execution.Part{text("a \"cat\""), picture(9)}},
			{Role: execution.RoleTool, ToolCallID: "c2", Failed: true},
			{Role: execution.RoleTool, ToolCallID: "c3", Name: "clock"},
			{Role: execution.RoleTool, ToolCallID: "c4"},
			{Role: execution.RoleUser, Parts: []execution.Part{text("a"), text("b")}},
		},
		Tools: []execution.Tool{
			{Name: "look", Description: "look at it", Parameters: json.RawMessage(`{"type":"object", "properties":{"at":{"type":"string"}}}`)},
			{Name: "now"},
		},
		ToolChoice: execution.ToolChoice{Mode: execution.ToolAuto},
		Options: execution.Options{
			MaxTokens: ptr[int64](9), Temperature: ptr(0.5), TopP: ptr(1.0), TopK: ptr[int64](0), Stop: []string{"\n"}, Seed: ptr[int64](-7),
			FrequencyPenalty: ptr(-2.0), PresencePenalty: ptr(2.0), ParallelToolCalls: ptr(true), ReasoningEffort: "low",
			ResponseFormat: json.RawMessage(`{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"type":"object"}}}`),
		},
	}
}

const everythingSent = `{"model":"org/m:latest","messages":[` +
	`{"role":"system","content":"be <kind> & \u2028 short"},` +
	`{"role":"user","content":"what is it?","images":["AP8B","Bw=="]},` +
	`{"role":"assistant","content":"","thinking":"hm","tool_calls":[{"id":"c1","function":{"index":0,"name":"look","arguments":{"at":"it"}}},` +
	`{"id":"c2","function":{"index":1,"name":"now","arguments":{}}},{"id":"c3","function":{"index":2,"name":"now","arguments":{}}}]},` +
	`{"role":"tool","content":"a \"cat\"","images":["CQ=="],"tool_name":"look","tool_call_id":"c1"},` +
	`{"role":"tool","content":"","tool_name":"now","tool_call_id":"c2"},` +
	`{"role":"tool","content":"","tool_name":"clock","tool_call_id":"c3"},` +
	`{"role":"tool","content":"","tool_call_id":"c4"},` +
	`{"role":"user","content":"a\nb"}],"stream":true,` +
	`"tools":[{"type":"function","function":{"name":"look","description":"look at it","parameters":{"type":"object","properties":{"at":{"type":"string"}}}}},` +
	`{"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}}],` +
	`"format":{"type":"object"},` +
	`"options":{"num_predict":9,"temperature":0.5,"top_p":1,"top_k":0,"seed":-7,"stop":["\n"],"frequency_penalty":-2,"presence_penalty":2},` +
	`"think":"low","keep_alive":"10m0s"}`

// The request as it arrives: once, to the right path, with nothing of the run but its content.
func TestRequestOnTheWire(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "application/x-ndjson", say("ok")+end))
	a, err := New(Config{BaseURL: p.URL() + "/v1/", Options: map[string]string{"keep_alive": "10m"}, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	if _, _, err := adaptertest.Execute(t, t.Context(), a, everything()); err != nil {
		t.Fatal(err)
	}
	x := p.Exchanges()
	if len(x) != 1 || x[0].Method != "POST" || x[0].Target != "/api/chat" {
		t.Fatalf("%d requests", len(x))
	}
	if d := cmp.Diff(everythingSent, string(x[0].Received())); d != "" {
		t.Error(d)
	}
	for name, want := range map[string]string{"Content-Type": "application/json", "Accept-Encoding": "identity", "Accept": "application/x-ndjson, application/json"} {
		if got := x[0].Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if bytes.Contains(x[0].Head, []byte("canary")) || len(x[0].Header) != 4 { // those, and the length
		t.Errorf("head %q", x[0].Head)
	}
}

// What a request asks for and what is sent for it, member by member.
func TestWording(t *testing.T) {
	plain := `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true`
	tools := []execution.Tool{{Name: "f"}}
	const toolsSent = `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}]`
	for name, k := range map[string]struct {
		ask  func(*execution.Request)
		how  wording
		sent string
	}{
		"nothing":               {func(*execution.Request) {}, wording{}, ``},
		"keep_alive in seconds": {func(*execution.Request) {}, wording{keepAlive: "-1"}, `,"keep_alive":-1`},
		"effort none":           {func(r *execution.Request) { r.Options.ReasoningEffort = "none" }, wording{}, `,"think":false`},
		"effort minimal":        {func(r *execution.Request) { r.Options.ReasoningEffort = "minimal" }, wording{}, `,"think":true`},
		"effort high":           {func(r *execution.Request) { r.Options.ReasoningEffort = "high" }, wording{}, `,"think":"high"`},
		"a word nobody knows":   {func(r *execution.Request) { r.Options.ReasoningEffort = "much" }, wording{}, `,"think":true`},
		"a budget":              {func(r *execution.Request) { r.Options.ReasoningBudget = ptr[int64](5000) }, wording{}, `,"think":true`},
		"no budget":             {func(r *execution.Request) { r.Options.ReasoningBudget = ptr[int64](0) }, wording{}, `,"think":false`},
		"an effort and a budget": {func(r *execution.Request) {
			r.Options.ReasoningEffort, r.Options.ReasoningBudget = "low", ptr[int64](9)
		}, wording{}, `,"think":"low"`},
		"an effort, no budget": {func(r *execution.Request) {
			r.Options.ReasoningEffort, r.Options.ReasoningBudget = "low", ptr[int64](0)
		}, wording{}, `,"think":"low"`},
		"text":  {func(r *execution.Request) { r.Options.ResponseFormat = json.RawMessage(`{"type":"text"}`) }, wording{}, ``},
		"json":  {func(r *execution.Request) { r.Options.ResponseFormat = json.RawMessage(`{"type":"json_object"}`) }, wording{}, `,"format":"json"`},
		"tools": {func(r *execution.Request) { r.Tools = tools }, wording{}, toolsSent},
		"tools that none is of": {func(r *execution.Request) {
			r.Tools, r.ToolChoice.Mode, r.Options.ParallelToolCalls = tools, execution.ToolNone, ptr(false)
		}, wording{}, ``},
		"no tools, one at a time": {func(r *execution.Request) { r.Options.ParallelToolCalls = ptr(false) }, wording{}, ``},
	} {
		req := adaptertest.Ask("m", "hi")
		k.ask(req)
		got, err := chatBody(req, k.how)
		if d := cmp.Diff(plain+k.sent+"}", string(got)); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, d)
		}
	}
}

// keep_alive is a number of seconds or a time, in the forms that Ollama takes.
func TestKeepAlive(t *testing.T) {
	for value, want := range map[string]string{"0": "0", "-1": "-1", "300": "300", "10m": `"10m0s"`, "1.5h": `"1h30m0s"`, "-1s": `"-1s"`} {
		var w wording
		if err := w.set("keep_alive", value); err != nil || w.keepAlive != want {
			t.Errorf("%q: %v, %s", value, err, w.keepAlive)
		}
	}
}

// Pictures stand before the text of their message; where text stands between them, their order is told.
func TestPicturesInOrder(t *testing.T) {
	for name, k := range map[string]struct {
		parts []execution.Part
		sent  string
	}{
		"a text, a picture":     {[]execution.Part{text("x"), picture(1)}, `{"role":"user","content":"x","images":["AQ=="]}`},
		"a picture, a text":     {[]execution.Part{picture(1), text("x")}, `{"role":"user","content":"x","images":["AQ=="]}`},
		"two pictures":          {[]execution.Part{text("x"), picture(1), picture(2), text("y")}, `{"role":"user","content":"x\ny","images":["AQ==","Ag=="]}`},
		"a picture alone":       {[]execution.Part{picture(1)}, `{"role":"user","content":"","images":["AQ=="]}`},
		"text between pictures": {[]execution.Part{picture(1), text("x"), picture(2)}, `{"role":"user","content":"","images":["AQ=="]},{"role":"user","content":"x"},{"role":"user","content":"","images":["Ag=="]}`},
	} {
		req := adaptertest.Ask("m", "")
		req.Messages[0].Parts = k.parts
		got, err := chatBody(req, wording{})
		if want := `{"model":"m","messages":[` + k.sent + `],"stream":true}`; err != nil || string(got) != want {
			t.Errorf("%s: %v, %s", name, err, got)
		}
	}
}

// What the dialect can't be told is refused by its name, and nothing is sent.
func TestWhatCantBeTold(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "application/x-ndjson", end))
	a := at(t, p)
	format := func(f string) func(*execution.Request) {
		return func(r *execution.Request) { r.Options.ResponseFormat = json.RawMessage(f) }
	}
	for want, ask := range map[string]func(*execution.Request){
		"tool_choice: ": func(r *execution.Request) { r.ToolChoice.Mode = execution.ToolRequired },
		"tool_choice: a provider": func(r *execution.Request) {
			r.ToolChoice = execution.ToolChoice{Mode: execution.ToolNamed, Name: "now"}
		},
		"options: parallel_tool_calls: ":  func(r *execution.Request) { r.Options.ParallelToolCalls = ptr(false) },
		"messages[1]: name: ":             func(r *execution.Request) { r.Messages[1].Name = "ann" },
		"messages[2].tool_calls[1]: ":     func(r *execution.Request) { r.Messages[2].ToolCalls[1].Arguments = "[1]" },
		"tool_calls[1]: arguments: ":      func(r *execution.Request) { r.Messages[2].ToolCalls[1].Arguments = `{"a":` },
		"response_format: type: ":         format(`{"type":"grammar"}`),
		"response_format: json_schema: ":  format(`{"type":"json_schema"}`),
		"json_schema: schema: ":           format(`{"type":"json_schema","json_schema":{"schema":null}}`),
		"options: response_format: isn't": format(`{"type":"json_schema","json_schema":7}`),
	} {
		req := everything()
		ask(req)
		_, r, err := adaptertest.Execute(t, t.Context(), a, req)
		f, ok := err.(*execution.Failure)
		if !ok || f.Code != execution.CodeBadRequest || !f.NothingSent || !strings.Contains(f.Text, want) || len(r.Events()) != 0 {
			t.Errorf("%s: %v", want, err)
		}
	}
	if n := len(p.Exchanges()); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

// Whatever a request says: valid JSON that says the same.
func FuzzBody(f *testing.F) {
	f.Add("m", "text \x00 \u2028 <&>", `{"at":"it"}`, `{"type":"object"}`, "stop", 0.1)
	f.Add("a/b", "\xed\xa0\xbc", `null`, ``, "\\", -1e9)
	f.Add("a/b", "x", ` {"a":1}x`, `{"a":1} `, "\xff", 2.0)
	f.Fuzz(func(t *testing.T, target, text, arguments, schema, stop string, temperature float64) {
		req := adaptertest.Ask(target, text)
		req.Messages = append(req.Messages, execution.Message{Role: execution.RoleAssistant, Reasoning: text, ToolCalls: []execution.ToolCall{{ID: "c", Name: "f", Arguments: arguments}}})
		req.Tools = []execution.Tool{{Name: "f", Description: text, Parameters: json.RawMessage(schema)}}
		req.Options = execution.Options{Stop: []string{stop}, Temperature: &temperature}
		if req.Check() != nil {
			return
		}
		body, err := chatBody(req, wording{})
		if err != nil {
			if _, ok := object(arguments); ok {
				t.Fatal(err)
			}
			return
		}
		var v struct {
			Model    string
			Messages []struct {
				Content   string
				Thinking  string
				ToolCalls []struct {
					Function struct{ Arguments map[string]any }
				} `json:"tool_calls"`
			}
			Options struct{ Stop []string }
			Tools   []struct{ Function struct{ Description string } }
		}
		if err := json.Unmarshal(body, &v); err != nil || v.Model != target || v.Messages[0].Content != text || v.Messages[1].Thinking != text ||
			v.Messages[1].ToolCalls[0].Function.Arguments == nil || len(v.Options.Stop) != 1 || utf8.ValidString(stop) && v.Options.Stop[0] != stop ||
			v.Tools[0].Function.Description != text {
			t.Fatalf("%v: %s", err, body)
		}
	})
}
