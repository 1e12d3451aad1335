package anthropic

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

func ptr[T any](v T) *T { return &v }

func picture() execution.Part {
	return execution.Part{Image: &execution.Image{MediaType: "image/png", Data: []byte{0, 255, 1}}}
}

// everything is a request that uses all there is in this dialect.
func everything() *execution.Request {
	text := func(s string) execution.Part { return execution.Part{Text: s} }
	return &execution.Request{
		RunID: "r", SessionID: "canary-session", Target: "org/m:latest",
		Messages: []execution.Message{
			{Role: execution.RoleSystem, Parts: []execution.Part{text("be <kind> & \u2028 "), text("short")}},
			{Role: execution.RoleUser, Parts: []execution.Part{text("what is it?"), text(""), picture()}},
			{Role: execution.RoleAssistant, Reasoning: "canary-reasoning", Parts: []execution.Part{text("let me see")},
				ToolCalls: []execution.ToolCall{{ID: "c1", Name: "look", Arguments: ` {"at":"it", "n":1.50}`}, {ID: "c2", Name: "now"}}},
			{Role: execution.RoleTool, ToolCallID: "c1", Name: "look", Parts: []execution.Part{text("a \"cat\""), picture()}},
			{Role: execution.RoleTool, ToolCallID: "c2", Failed: true},
			{Role: execution.RoleUser, Parts: []execution.Part{text("a"), text("b")}},
			{Role: execution.RoleSystem, Parts: []execution.Part{text("be quick")}},
			{Role: execution.RoleAssistant, Reasoning: "canary-reasoning"}, // that answer's length ended there
			{Role: execution.RoleUser, Parts: []execution.Part{text("c")}},
			{Role: execution.RoleAssistant, ToolCalls: []execution.ToolCall{{ID: "c3", Name: "now", Arguments: "null"}}},
			{Role: execution.RoleAssistant, Reasoning: "canary-reasoning", Parts: []execution.Part{text("")}},
			{Role: execution.RoleAssistant, Parts: []execution.Part{text("d")}},
		},
		Tools: []execution.Tool{
			{Name: "look", Description: "look at it", Parameters: json.RawMessage(`{"type":"object", "properties":{"at":{"type":"string"}}}`)},
			{Name: "now"},
			{Name: "then", Parameters: json.RawMessage(` {"properties":{"z":{},"a":{}}}`)},
			{Name: "ever", Parameters: json.RawMessage(`{}`)},
		},
		ToolChoice: execution.ToolChoice{Mode: execution.ToolNamed, Name: "look"},
		Options: execution.Options{
			MaxTokens: ptr[int64](9), Temperature: ptr(0.5), TopP: ptr(1.0), TopK: ptr[int64](0), Stop: []string{"\n"},
			ParallelToolCalls: ptr(false), ReasoningEffort: "low",
			ResponseFormat: json.RawMessage(`{"type":"json_schema","json_schema":{"name":"n","strict":true,"description":"a \"thing\"","schema":{"type":"object","properties":{"b":{},"a":{}}}}}`),
		},
	}
}

const everythingSent = `{"model":"org/m:latest","max_tokens":2057,"system":"be <kind> & \u2028 short\n\nbe quick","messages":[` +
	`{"role":"user","content":[{"type":"text","text":"what is it?"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AP8B"}}]},` +
	`{"role":"assistant","content":[{"type":"text","text":"let me see"},{"type":"tool_use","id":"c1","name":"look","input":{"at":"it","n":1.50}},{"type":"tool_use","id":"c2","name":"now","input":{}}]},` +
	`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"a \"cat\""},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AP8B"}}]},` +
	`{"type":"tool_result","tool_use_id":"c2","is_error":true},{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"text","text":"c"}]},` +
	`{"role":"assistant","content":[{"type":"tool_use","id":"c3","name":"now","input":{}},{"type":"text","text":"d"}]}],"stream":true,` +
	`"tools":[{"name":"look","description":"look at it","input_schema":{"type":"object","properties":{"at":{"type":"string"}}}},{"name":"now","input_schema":{"type":"object"}},` +
	`{"name":"then","input_schema":{"type":"object","properties":{"z":{},"a":{}}}},{"name":"ever","input_schema":{"type":"object"}}],` +
	`"tool_choice":{"type":"tool","name":"look","disable_parallel_tool_use":true},` +
	`"temperature":0.5,"top_p":1,"top_k":0,"stop_sequences":["\n"],"thinking":{"type":"enabled","budget_tokens":2048},` +
	`"output_config":{"format":{"type":"json_schema","schema":{"description":"a \"thing\"","type":"object","properties":{"b":{},"a":{}}}}}}`

// The request as it arrives: once, to the right path, with nothing of the run but its content.
func TestRequestOnTheWire(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/event-stream", say("ok")+end))
	a := build(t, p.URL()+"/v1/", zerolog.Nop()).(*Provider)
	t.Cleanup(a.Close)
	if _, _, err := adaptertest.Execute(t, t.Context(), a, everything()); err != nil {
		t.Fatal(err)
	}
	x := p.Exchanges()
	if len(x) != 1 || x[0].Method != "POST" || x[0].Target != "/v1/messages" {
		t.Fatalf("%d requests", len(x))
	}
	if d := cmp.Diff(everythingSent, string(x[0].Received())); d != "" {
		t.Error(d)
	}
	for name, want := range map[string]string{"Content-Type": "application/json", "Accept-Encoding": "identity",
		"Accept": "text/event-stream, application/json", "Anthropic-Version": "2023-06-01"} {
		if got := x[0].Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if bytes.Contains(x[0].Head, []byte("canary")) || len(x[0].Header) != 5 { // those, and the length
		t.Errorf("head %q", x[0].Head)
	}
}

func TestOptionsOfTheAdapter(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/event-stream", say("ok")+end))
	a, err := New(Config{BaseURL: p.URL(), Options: map[string]string{"version": "2099-12-31", "max_tokens": "77", "thinking": "budget"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	if _, _, err := adaptertest.Execute(t, t.Context(), a, adaptertest.Ask("m", "hi")); err != nil {
		t.Fatal(err)
	}
	x := p.Exchanges()[0]
	want := `{"model":"m","max_tokens":77,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"stream":true}`
	if got := string(x.Received()); got != want || x.Header.Get("Anthropic-Version") != "2099-12-31" {
		t.Errorf("%s, want %s", got, want)
	}
}

// sent returns one member of the body that a request is sent with, "" if it hasn't got it.
func sent(t *testing.T, req *execution.Request, how wording, member string) string {
	t.Helper()
	if err := req.Check(); err != nil {
		t.Fatal(err)
	}
	text, err := messageBody(req, how)
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return string(members[member])
}

func TestToolChoice(t *testing.T) {
	no, yes := ptr(false), ptr(true)
	for _, k := range []struct {
		mode     execution.ToolMode
		parallel *bool
		want     string
	}{
		{"", nil, ""},
		{"", yes, ""},
		{"", no, `{"type":"auto","disable_parallel_tool_use":true}`},
		{execution.ToolAuto, nil, `{"type":"auto"}`},
		{execution.ToolAuto, no, `{"type":"auto","disable_parallel_tool_use":true}`},
		{execution.ToolRequired, nil, `{"type":"any"}`},
		{execution.ToolRequired, no, `{"type":"any","disable_parallel_tool_use":true}`},
		{execution.ToolNamed, yes, `{"type":"tool","name":"f"}`},
		{execution.ToolNone, nil, `{"type":"none"}`},
		{execution.ToolNone, no, `{"type":"none"}`},
	} {
		req := adaptertest.Ask("m", "hi")
		req.Tools = []execution.Tool{{Name: "f"}}
		req.ToolChoice.Mode = k.mode
		if k.mode == execution.ToolNamed {
			req.ToolChoice.Name = "f"
		}
		req.Options.ParallelToolCalls = k.parallel
		if got := sent(t, req, newWording(), "tool_choice"); got != k.want {
			t.Errorf("%+v: %s", k, got)
		}
		if req.Tools = nil; k.mode == execution.ToolAuto || k.mode == "" {
			if got := sent(t, req, newWording(), "tool_choice"); got != "" {
				t.Errorf("%+v: without tools %s", k, got)
			}
		}
	}
}

// How much to think, and how long the answer may be with it.
func TestThinking(t *testing.T) {
	budget := func(n int) string { return `{"type":"enabled","budget_tokens":` + itoa(int64(n)) + `}` }
	const disabled, adaptive = `{"type":"disabled"}`, `{"type":"adaptive","display":"summarized"}`
	for _, k := range []struct {
		effort   string
		budget   *int64
		max      int64 // 0 = the run tells none
		adaptive bool
		thinking string
		output   string
		sentMax  int64
	}{
		{"", nil, 0, false, "", "", 4096},
		{"none", nil, 5, false, disabled, "", 5},
		{"none", ptr[int64](2000), 5, true, disabled, "", 5},
		{"minimal", nil, 0, false, budget(1024), "", 4096},
		{"low", nil, 2049, false, budget(2048), "", 2049},
		{"low", nil, 2048, false, budget(2048), "", 4096},
		{"medium", nil, 0, false, budget(8192), "", 12288},
		{"high", nil, 100, false, budget(16384), "", 16484},
		{"max", nil, 100, false, adaptive, `{"effort":"max"}`, 100},
		{"", ptr[int64](0), 0, false, disabled, "", 4096},
		{"", ptr[int64](5000), 6000, false, budget(5000), "", 6000},
		{"high", ptr[int64](5000), 5000, false, budget(5000), "", 10000},
		{"high", ptr[int64](0), 5, false, disabled, "", 5},
		{"", ptr[int64](math.MaxInt64 - 1), 9, false, budget(math.MaxInt64 - 1), "", math.MaxInt64},
		{"", nil, 0, true, "", "", 4096},
		{"minimal", nil, 0, true, adaptive, `{"effort":"low"}`, 4096},
		{"high", nil, 100, true, adaptive, `{"effort":"high"}`, 100},
		{"xhigh", nil, 0, true, adaptive, `{"effort":"xhigh"}`, 4096},
		{"", ptr[int64](1), 0, true, adaptive, `{"effort":"low"}`, 4096},
		{"low", ptr[int64](8192), 0, true, adaptive, `{"effort":"medium"}`, 4096},
		{"", ptr[int64](16384), 0, true, adaptive, `{"effort":"high"}`, 4096},
	} {
		req := adaptertest.Ask("m", "hi")
		req.Options.ReasoningEffort, req.Options.ReasoningBudget = k.effort, k.budget
		if k.max > 0 {
			req.Options.MaxTokens = &k.max
		}
		how := newWording()
		how.adaptive = k.adaptive
		for member, want := range map[string]string{"thinking": k.thinking, "output_config": k.output, "max_tokens": itoa(k.sentMax)} {
			if got := sent(t, req, how, member); got != want {
				t.Errorf("%q %v of %d, adaptive %v: %s %s, want %s", k.effort, k.budget, k.max, k.adaptive, member, got, want)
			}
		}
	}
}

func itoa(n int64) string { text, _ := json.Marshal(n); return string(text) }

// A form of the answer and an effort share a member.
func TestFormatBesideEffort(t *testing.T) {
	req := adaptertest.Ask("m", "hi")
	req.Options.ReasoningEffort = "max"
	req.Options.ResponseFormat = json.RawMessage(`{"type":"json_schema","json_schema":{"name":"n","schema":{"description":"own"},"description":"other"}}`)
	if got := sent(t, req, newWording(), "output_config"); got != `{"effort":"max","format":{"type":"json_schema","schema":{"description":"own"}}}` {
		t.Error(got)
	}
	req.Options.ReasoningEffort, req.Options.ResponseFormat = "", json.RawMessage(`{"type":"text"}`)
	if got := sent(t, req, newWording(), "output_config"); got != "" {
		t.Error(got)
	}
}

// What the dialect can't be told is refused with the name of the place, and nothing is sent.
func TestRefusesWhatCannotBeTold(t *testing.T) {
	format := func(s string) func(*execution.Request) {
		return func(r *execution.Request) { r.Options.ResponseFormat = json.RawMessage(s) }
	}
	arguments := func(s string) func(*execution.Request) {
		return func(r *execution.Request) { r.Messages[2].ToolCalls[1].Arguments = s }
	}
	const where = "messages[2].tool_calls[1]: arguments"
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/event-stream", end))
	a := build(t, p.URL(), zerolog.Nop()).(*Provider)
	t.Cleanup(a.Close)
	for _, k := range []struct {
		names string
		spoil func(*execution.Request)
	}{
		{"options: seed", func(r *execution.Request) { r.Options.Seed = ptr[int64](0) }},
		{"options: frequency_penalty", func(r *execution.Request) { r.Options.FrequencyPenalty = ptr(0.0) }},
		{"options: presence_penalty", func(r *execution.Request) { r.Options.PresencePenalty = ptr(1.0) }},
		{"options: temperature", func(r *execution.Request) { r.Options.Temperature = ptr(1.01) }},
		{"options: response_format: type", format(`{"type":"json_object"}`)},
		{"options: response_format", format(`{"type":"json_schema","json_schema":7}`)},
		{"options: response_format: json_schema: schema", format(`{"type":"json_schema"}`)},
		{"options: response_format: json_schema: schema", format(`{"type":"json_schema","json_schema":{"schema":[]}}`)},
		{where, arguments("city=Seoul")},
		{where, arguments(`{"city":`)},
		{where, arguments(`[1]`)},
		{where, arguments(`"a"`)},
		{"messages[1]: name", func(r *execution.Request) { r.Messages[1].Name = "ann" }},
		{"messages[0]: name", func(r *execution.Request) { r.Messages[0].Name = "ann" }},
		{"messages", func(r *execution.Request) { r.Messages = r.Messages[:1] }},
	} {
		req := everything()
		k.spoil(req)
		_, _, err := adaptertest.Execute(t, t.Context(), a, req)
		f, ok := errors.AsType[*execution.Failure](err)
		if !ok || f.Code != execution.CodeBadRequest || f.Origin != execution.OriginCaller || !f.NothingSent || !strings.HasPrefix(f.Text, k.names+": ") {
			t.Errorf("%s: %v", k.names, err)
		}
	}
	if n := len(p.Exchanges()); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

// A large picture is copied into the body once.
func TestBodyOfALargeImage(t *testing.T) {
	req := adaptertest.Ask("m", "hi")
	data := bytes.Repeat([]byte{1, 2, 3, 4, 5}, execution.MaxImage/5)
	req.Messages[0].Parts = append(req.Messages[0].Parts, execution.Part{Image: &execution.Image{MediaType: "image/jpeg", Data: data}})
	text, err := messageBody(req, newWording())
	if err != nil || !json.Valid(text) || !bytes.Contains(text, []byte(base64.StdEncoding.EncodeToString(data))) {
		t.Fatalf("%v, %d bytes", err, len(text))
	}
	if !racing {
		patience.Allocated(t, base64.StdEncoding.EncodedLen(len(data))*11/10, func() { _, _ = messageBody(req, newWording()) })
	}
}

// Whatever a request says: valid JSON that says the same, in turns.
func FuzzBody(f *testing.F) {
	f.Add("m", "text \x00 \u2028 <&>", `{"a":1}`, `{"type":"object"}`, "stop", 0.1, uint(0b1101))
	f.Add("a/b", "\xed\xa0\xbc", "", ` { "x" : 1 }`, "\\", 0.0, uint(0b11))
	f.Fuzz(func(t *testing.T, target, text, arguments, schema, stop string, temperature float64, order uint) {
		req := adaptertest.Ask(target, text)
		for range 8 {
			switch order & 3 {
			case 1:
				req.Messages = append(req.Messages, execution.Message{Role: execution.RoleAssistant, ToolCalls: []execution.ToolCall{{ID: "c", Name: "f", Arguments: arguments}}})
			case 2:
				req.Messages = append(req.Messages, execution.Message{Role: execution.RoleTool, ToolCallID: "c", Parts: []execution.Part{{Text: text}}})
			case 3:
				req.Messages = append(req.Messages, execution.Message{Role: execution.RoleSystem, Parts: []execution.Part{{Text: text}}})
			}
			order >>= 2
		}
		req.Tools = []execution.Tool{{Name: "f", Description: text, Parameters: json.RawMessage(schema)}}
		req.Options = execution.Options{Stop: []string{stop}, Temperature: &temperature}
		if req.Check() != nil {
			return
		}
		body, err := messageBody(req, newWording())
		if err != nil {
			if f, ok := errors.AsType[*execution.Failure](err); !ok || f.Code != execution.CodeBadRequest || !f.NothingSent {
				t.Fatal(err)
			}
			return
		}
		checkBody(t, body, target, text)
	})
}

func checkBody(t *testing.T, body []byte, target, text string) {
	t.Helper()
	var v struct {
		Model    string
		Messages []struct {
			Role    string
			Content []map[string]json.RawMessage
		}
		Tools []struct {
			Schema map[string]json.RawMessage `json:"input_schema"`
		}
	}
	if err := json.Unmarshal(body, &v); err != nil || v.Model != target || len(v.Tools) != 1 || len(v.Tools[0].Schema["type"]) == 0 {
		t.Fatalf("%v: %s", err, body)
	}
	var said string
	if json.Unmarshal(v.Messages[0].Content[0]["text"], &said) != nil || said != text {
		t.Fatalf("%q, want %q", said, text)
	}
	for i, m := range v.Messages {
		if want := []string{"user", "assistant"}[i%2]; m.Role != want || len(m.Content) == 0 {
			t.Fatalf("message %d: %s", i, body)
		}
	}
}
