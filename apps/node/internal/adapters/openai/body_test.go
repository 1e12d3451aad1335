package openai

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
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

// everything is a request that uses all there is.
func everything() *execution.Request {
	return &execution.Request{
		RunID: "r", SessionID: "canary-session", Target: "org/m:latest",
		Messages: []execution.Message{
			{Role: execution.RoleSystem, Parts: []execution.Part{{Text: "be <kind> & \u2028 short"}}},
			{Role: execution.RoleUser, Name: "ann", Parts: []execution.Part{{Text: "what is it?"}, {Image: &execution.Image{MediaType: "image/png", Data: []byte{0, 255, 1}}}}},
			{Role: execution.RoleAssistant, Reasoning: "I \"look\"", ToolCalls: []execution.ToolCall{{ID: "c1", Name: "look", Arguments: `{"at":"it"}`}, {ID: "c2", Name: "now"}}},
			{Role: execution.RoleTool, ToolCallID: "c1", Parts: []execution.Part{{Text: "a \"cat\""}}},
			{Role: execution.RoleTool, ToolCallID: "c2", Failed: true}, // which this dialect has no word for
			{Role: execution.RoleUser, Parts: []execution.Part{{Text: "a"}, {Text: "b"}}},
		},
		Tools: []execution.Tool{
			{Name: "look", Description: "look at it", Parameters: json.RawMessage(`{"type":"object", "properties":{"at":{"type":"string"}}}`)},
			{Name: "now"},
		},
		ToolChoice: execution.ToolChoice{Mode: execution.ToolNamed, Name: "look"},
		Options: execution.Options{
			MaxTokens: ptr[int64](9), Temperature: ptr(0.5), TopP: ptr(1.0), TopK: ptr[int64](0), Stop: []string{"\n"}, Seed: ptr[int64](-7),
			FrequencyPenalty: ptr(-2.0), PresencePenalty: ptr(2.0), ParallelToolCalls: ptr(false), ReasoningEffort: "low",
			ResponseFormat: json.RawMessage(`{"type":"json_object"}`),
		},
	}
}

const everythingSent = `{"model":"org/m:latest","messages":[` +
	`{"role":"system","content":"be <kind> & \u2028 short"},` +
	`{"role":"user","name":"ann","content":[{"type":"text","text":"what is it?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AP8B"}}]},` +
	`{"role":"assistant","content":null,"reasoning_content":"I \"look\"","tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{\"at\":\"it\"}"}},{"id":"c2","type":"function","function":{"name":"now","arguments":""}}]},` +
	`{"role":"tool","tool_call_id":"c1","content":"a \"cat\""},` +
	`{"role":"tool","tool_call_id":"c2","content":""},` +
	`{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],` +
	`"stream":true,"stream_options":{"include_usage":true},` +
	`"tools":[{"type":"function","function":{"name":"look","description":"look at it","parameters":{"type":"object","properties":{"at":{"type":"string"}}}}},{"type":"function","function":{"name":"now"}}],` +
	`"tool_choice":{"type":"function","function":{"name":"look"}},` +
	`"max_tokens":9,"temperature":0.5,"top_p":1,"top_k":0,"stop":["\n"],"seed":-7,"frequency_penalty":-2,"presence_penalty":2,` +
	`"parallel_tool_calls":false,"reasoning_effort":"low","response_format":{"type":"json_object"}}`

// The request as it arrives: once, to the right path, with nothing of the run but its content.
func TestRequestOnTheWire(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/event-stream", say("ok")+end))
	a := build(t, p.URL()+"/v1/", zerolog.Nop()).(*Provider)
	t.Cleanup(a.Close)
	if _, _, err := adaptertest.Execute(t, t.Context(), a, everything()); err != nil {
		t.Fatal(err)
	}
	x := p.Exchanges()
	if len(x) != 1 || x[0].Method != "POST" || x[0].Target != "/v1/chat/completions" {
		t.Fatalf("%d requests", len(x))
	}
	if d := cmp.Diff(everythingSent, string(x[0].Received())); d != "" {
		t.Error(d)
	}
	for name, want := range map[string]string{"Content-Type": "application/json", "Accept-Encoding": "identity", "Accept": "text/event-stream, application/json"} {
		if got := x[0].Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if bytes.Contains(x[0].Head, []byte("canary")) || len(x[0].Header) != 4 { // those, and the length
		t.Errorf("head %q", x[0].Head)
	}
}

func TestWording(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/event-stream", say("ok")+end))
	a, err := New(Config{BaseURL: p.URL(), Options: map[string]string{"include_usage": "off", "max_tokens_field": "max_completion_tokens"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	req := adaptertest.Ask("m", "hi")
	req.Options.MaxTokens = ptr[int64](3)
	req.ToolChoice.Mode = execution.ToolAuto // without tools it is left out
	if _, _, err := adaptertest.Execute(t, t.Context(), a, req); err != nil {
		t.Fatal(err)
	}
	want := `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_completion_tokens":3}`
	if got := string(p.Exchanges()[0].Received()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, mode := range []execution.ToolMode{execution.ToolAuto, execution.ToolNone, execution.ToolRequired} {
		req.Tools, req.ToolChoice.Mode = []execution.Tool{{Name: "f"}}, mode
		text, err := chatBody(req, newWording())
		if err != nil || !strings.Contains(string(text), `"tool_choice":"`+string(mode)+`"`) {
			t.Errorf("%v: %s", err, text)
		}
	}
}

// Where an earlier answer's reasoning goes is the provider's choice; one that takes none isn't told.
func TestReasoningOfEarlierAnswers(t *testing.T) {
	for option, want := range map[string]string{
		"":                  `{"role":"assistant","content":"a","reasoning_content":"hm"}`,
		"reasoning_content": `{"role":"assistant","content":"a","reasoning_content":"hm"}`,
		"reasoning":         `{"role":"assistant","content":"a","reasoning":"hm"}`,
		"none":              `{"role":"assistant","content":"a"}`,
	} {
		how := newWording()
		if option != "" {
			if err := how.set("reasoning_field", option); err != nil {
				t.Fatal(err)
			}
		}
		req := adaptertest.Ask("m", "hi")
		req.Messages = append(req.Messages, execution.Message{Role: execution.RoleAssistant, Reasoning: "hm", Parts: []execution.Part{{Text: "a"}}})
		text, err := chatBody(req, how)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%q: %v, %s", option, err, text)
		}
	}
}

// A budget of tokens goes as the word that is nearest; a word that was given stands.
func TestReasoningBudget(t *testing.T) {
	for _, k := range []struct {
		effort string
		budget *int64
		want   string
	}{
		{"", nil, ""}, {"", ptr[int64](0), "none"}, {"", ptr[int64](1), "low"}, {"", ptr[int64](2047), "low"}, {"", ptr[int64](2048), "medium"},
		{"", ptr[int64](8191), "medium"}, {"", ptr[int64](8192), "high"}, {"minimal", ptr[int64](9000), "minimal"}, {"xhigh", nil, "xhigh"},
	} {
		req := adaptertest.Ask("m", "hi")
		req.Options.ReasoningEffort, req.Options.ReasoningBudget = k.effort, k.budget
		text, err := chatBody(req, newWording())
		var sent struct {
			Effort string `json:"reasoning_effort"`
		}
		if err != nil || json.Unmarshal(text, &sent) != nil || sent.Effort != k.want || strings.Contains(string(text), "reasoning_effort") != (k.want != "") {
			t.Errorf("%q %v: %v, %s", k.effort, k.budget, err, text)
		}
	}
}

// What the dialect can't be told is refused, and nothing is sent.
func TestImagesOfToolsAreRefused(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/event-stream", end))
	a := build(t, p.URL(), zerolog.Nop()).(*Provider)
	t.Cleanup(a.Close)
	req := everything()
	req.Messages[3].Parts = req.Messages[1].Parts
	_, _, err := adaptertest.Execute(t, t.Context(), a, req)
	f, ok := err.(*execution.Failure)
	if !ok || f.Code != execution.CodeBadRequest || !f.NothingSent || !strings.Contains(f.Text, "messages[3].parts[1]") || len(p.Exchanges()) != 0 {
		t.Errorf("%v", err)
	}
}

// A large picture is copied into the body once.
func TestBodyOfALargeImage(t *testing.T) {
	req := adaptertest.Ask("m", "hi")
	data := bytes.Repeat([]byte{1, 2, 3, 4, 5}, execution.MaxImage/5)
	req.Messages[0].Parts = append(req.Messages[0].Parts, execution.Part{Image: &execution.Image{MediaType: "image/jpeg", Data: data}})
	text, err := chatBody(req, newWording())
	if err != nil || !json.Valid(text) || !bytes.Contains(text, []byte(base64.StdEncoding.EncodeToString(data))) {
		t.Fatalf("%v, %d bytes", err, len(text))
	}
	if !racing {
		patience.Allocated(t, base64.StdEncoding.EncodedLen(len(data))*11/10, func() { _, _ = chatBody(req, newWording()) })
	}
}

// Whatever a request says: valid JSON that says the same.
func FuzzBody(f *testing.F) {
	f.Add("m", "text \x00 \u2028 <&>", "name", `{"type":"object"}`, "stop", 0.1)
	f.Add("a/b", "\xed\xa0\xbc", "x", ``, "\\", -1e9)
	f.Fuzz(func(t *testing.T, target, text, name, schema, stop string, temperature float64) {
		req := adaptertest.Ask(target, text)
		req.Messages[0].Name = name
		req.Tools = []execution.Tool{{Name: "f", Description: text, Parameters: json.RawMessage(schema)}}
		req.Options = execution.Options{Stop: []string{stop}, Temperature: &temperature}
		if req.Check() != nil {
			return
		}
		body, err := chatBody(req, newWording())
		if err != nil {
			t.Fatal(err)
		}
		var v struct {
			Model    string
			Messages []struct{ Role, Name, Content string }
			Stop     []string
			Tools    []struct {
				Function struct{ Description string }
			}
		}
		if err := json.Unmarshal(body, &v); err != nil || v.Model != target || v.Messages[0].Content != text || v.Messages[0].Name != name ||
			len(v.Stop) != 1 || strings.ToValidUTF8(stop, "\uFFFD") == stop && v.Stop[0] != stop || v.Tools[0].Function.Description != text {
			t.Fatalf("%v: %s", err, body)
		}
	})
}
