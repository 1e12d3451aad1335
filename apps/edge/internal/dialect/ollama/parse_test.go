package ollama

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// png is enough of a picture to be known as one.
const png = "\x89PNG\r\n\x1a\n"

var png64 = base64.StdEncoding.EncodeToString([]byte(png))

func ptr[T any](v T) *T { return &v }

// parseOne parses a chat request whose body has one more member.
func parseOne(member string) (*dialect.Request, *dialect.Refusal) {
	return Chat().Parse([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],` + member + `}`))
}

func TestOptions(t *testing.T) {
	for member, want := range map[string]execution.Options{
		`"options":null`: {},
		`"options":{"num_predict":128,"temperature":0,"top_p":0.9,"top_k":40,"seed":7,"stop":["a","b"],"frequency_penalty":-1,"presence_penalty":1.5}`: {
			MaxTokens: ptr(int64(128)), Temperature: ptr(0.0), TopP: ptr(0.9), TopK: ptr(int64(40)), Seed: ptr(int64(7)),
			Stop: []string{"a", "b"}, FrequencyPenalty: ptr(-1.0), PresencePenalty: ptr(1.5)},
		`"options":{"num_predict":-1,"seed":-1}`:                              {},
		`"options":{"num_predict":-2,"num_ctx":null,"min_p":null}`:            {},
		`"options":{"num_predict":0,"seed":0}`:                                {Seed: ptr(int64(0))},
		`"options":{"num_predict":6.0,"top_k":1e1,"seed":123456789012345678}`: {MaxTokens: ptr(int64(6)), TopK: ptr(int64(10)), Seed: ptr(int64(123456789012345678))},
		`"think":true`:                 {ReasoningEffort: "medium"},
		`"think":false`:                {ReasoningEffort: "none"},
		`"think":"low"`:                {ReasoningEffort: "low"},
		`"think":"medium"`:             {ReasoningEffort: "medium"},
		`"think":"high"`:               {ReasoningEffort: "high"},
		`"think":null`:                 {},
		`"format":""`:                  {},
		`"format":null`:                {},
		`"format":"json"`:              {ResponseFormat: json.RawMessage(`{"type":"json_object"}`)},
		`"format":{"type":"object"}`:   {ResponseFormat: json.RawMessage(`{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"}}}`)},
		`"keep_alive":"5m"`:            {},
		`"keep_alive":-1`:              {},
		`"truncate":true,"shift":true`: {},
		`"logprobs":false,"top_logprobs":0,"_debug_render_only":false,"tools":null`: {},
	} {
		got, ref := parseOne(member)
		if ref != nil {
			t.Errorf("%s: %v", member, ref)
			continue
		}
		if diff := cmp.Diff(want, got.Input.Options); diff != "" {
			t.Errorf("%s: %s", member, diff)
		}
		got.Input.Target = "m"
		if err := got.Input.Check(); err != nil {
			t.Errorf("%s: %v", member, err)
		}
	}
}

// What a run can't carry is refused by the path of the member, and never dropped.
func TestRefusals(t *testing.T) {
	for member, want := range map[string]string{
		`"options":{"num_ctx":4096}`:               "options.num_ctx",
		`"options":{"repeat_penalty":1.1}`:         "options.repeat_penalty",
		`"options":{"min_p":0}`:                    "options.min_p",
		`"options":{"use_mmap":true}`:              "options.use_mmap",
		`"options":{"colour":"red"}`:               "options.colour",
		`"options":{"num_predict":"6"}`:            "options.num_predict",
		`"options":{"num_predict":1.5}`:            "options.num_predict",
		`"options":{"seed":1e300}`:                 "options.seed",
		`"options":{"stop":"a"}`:                   "options.stop",
		`"options":{"top_k":1,"top_k":1}`:          "options.top_k",
		`"options":[]`:                             "options",
		`"think":"max"`:                            "think",
		`"think":1`:                                "think",
		`"format":"xml"`:                           "format",
		`"format":true`:                            "format",
		`"keep_alive":"soon"`:                      "keep_alive",
		`"keep_alive":true`:                        "keep_alive",
		`"truncate":false`:                         "truncate",
		`"shift":false`:                            "shift",
		`"logprobs":true`:                          "logprobs",
		`"top_logprobs":3`:                         "top_logprobs",
		`"_debug_render_only":true`:                "_debug_render_only",
		`"stream":"yes"`:                           "stream",
		`"dimensions":8`:                           "dimensions",
		`"prompt":"hi"`:                            "prompt",
		`"tools":{}`:                               "tools",
		`"tools":[{"type":"web_search"}]`:          "tools[0].type",
		`"tools":[{"items":[1]}]`:                  "tools[0].items",
		`"tools":[{"function":{"strict":true}}]`:   "tools[0].function.strict",
		`"tools":[{"function":{"parameters":[]}}]`: "tools[0].function.parameters",
	} {
		_, ref := parseOne(member)
		checkRefused(t, member, ref, want)
	}
}

func checkRefused(t *testing.T, what string, ref *dialect.Refusal, field string) {
	t.Helper()
	switch {
	case ref == nil:
		t.Errorf("%s: not refused", what)
	case ref.Field != field || !strings.Contains(ref.Text, field[strings.LastIndexByte(field, '.')+1:]):
		t.Errorf("%s: %q of %q, want that of %q", what, ref.Text, ref.Field, field)
	}
}

func TestRefusedMessages(t *testing.T) {
	call := `{"role":"assistant","tool_calls":[{"function":{"name":"look","arguments":{}}}]}`
	for messages, want := range map[string]string{
		`{"role":"developer","content":"hi"}`:                                               "messages[0].role",
		`{"content":"hi"}`:                                                                  "messages[0].role",
		`{"role":"user"}`:                                                                   "messages[0].content",
		`{"role":"user","content":[]}`:                                                      "messages[0].content",
		`{"role":"user","content":"hi","name":"ann"}`:                                       "messages[0].name",
		`{"role":"user","content":"hi","thinking":"hm"}`:                                    "messages[0].thinking",
		`{"role":"user","content":"hi","tool_name":"look"}`:                                 "messages[0].tool_name",
		`{"role":"user","content":"hi","tool_call_id":"a"}`:                                 "messages[0].tool_call_id",
		`{"role":"user","content":"hi","images":["aGk="]}`:                                  "messages[0].images[0]",
		`{"role":"user","content":"hi","images":["data:image/png;base64,` + png64 + `"]}`:   "messages[0].images[0]",
		`{"role":"user","content":"hi","images":[[137,80,78,71,13,10,26,10]]}`:              "messages[0].images[0]",
		`{"role":"user","content":"hi","images":[null]}`:                                    "messages[0].images[0]",
		`{"role":"assistant","content":"hi","images":["` + png64 + `"]}`:                    "messages[0].images",
		strings.Replace(call, "assistant", "user", 1):                                       "messages[0].tool_calls",
		`{"role":"assistant","tool_calls":[{"function":{"arguments":{}}}]}`:                 "messages[0].tool_calls[0].function.name",
		`{"role":"assistant","tool_calls":[{"function":{"name":"look","arguments":"{}"}}]}`: "messages[0].tool_calls[0].function.arguments",
		`{"role":"assistant","tool_calls":[{"type":"code"}]}`:                               "messages[0].tool_calls[0].type",
		`{"role":"tool","content":"21"}`:                                                    "messages[0]",
		call + `,{"role":"tool","content":"21","tool_name":"now"}`:                          "messages[1]",
		call + `,{"role":"tool","content":"21"},{"role":"tool","content":"22"}`:             "messages[2]",
		`null`:                              "messages[0]",
		`{"role":"assistant","content":""}`: "messages",
	} {
		_, ref := Chat().Parse([]byte(`{"model":"m","messages":[` + messages + `]}`))
		checkRefused(t, messages, ref, want)
	}
	for body, want := range map[string]string{
		`{"model":"m","prompt":"hi","raw":true}`:               "raw",
		`{"model":"m","prompt":"hi","template":"{{.Prompt}}"}`: "template",
		`{"model":"m","prompt":"hi","context":[1,2]}`:          "context",
		`{"model":"m","prompt":"hi","suffix":"ho"}`:            "suffix",
		`{"model":"m","prompt":"hi","width":64}`:               "width",
		`{"model":"m","prompt":"hi","messages":[]}`:            "messages",
		`{"model":"m","prompt":"hi","images":["aGk="]}`:        "images[0]",
		`{"model":"m","prompt":"hi","images":["!"]}`:           "images[0]",
	} {
		_, ref := Generate().Parse([]byte(body))
		checkRefused(t, body, ref, want)
	}
}

func TestGenerate(t *testing.T) {
	// As the Go client writes it: members that say nothing, too.
	got, ref := Generate().Parse([]byte(`{"model":"m","prompt":"what is it?","suffix":"","system":"be kind","template":"","context":[],
		"raw":false,"stream":false,"options":null,"images":["` + png64 + `"],"width":0,"keep_alive":0}`))
	if ref != nil {
		t.Fatal(ref)
	}
	want := &dialect.Request{Model: "m", Input: execution.Request{Messages: []execution.Message{
		{Role: execution.RoleSystem, Parts: []execution.Part{{Text: "be kind"}}},
		{Role: execution.RoleUser, Parts: []execution.Part{{Image: &execution.Image{MediaType: "image/png", Data: []byte(png)}}, {Text: "what is it?"}}},
	}}}
	got.Names = dialect.Names{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A message is its pictures, then its text, whoever shows them; a role may be written as one likes; and an answer that
// was broken off before it began isn't there.
func TestMessages(t *testing.T) {
	got, ref := Chat().Parse([]byte(`{"model":"m","messages":[{"role":"System","content":"be kind"},{"role":"USER","images":["` + png64 + `"],"content":"what is it?"},
		{"role":"assistant","content":"wait","thinking":"hm","images":[],"tool_calls":[{"id":"a","function":{"name":"look","arguments":{ "at" : [1, 2.50] }}}]},
		{"role":"tool","tool_call_id":"a","images":["` + png64 + `"]},{"role":"assistant","content":"","thinking":"broken off"}]}`))
	if ref != nil {
		t.Fatal(ref)
	}
	picture := execution.Part{Image: &execution.Image{MediaType: "image/png", Data: []byte(png)}}
	want := []execution.Message{
		{Role: execution.RoleSystem, Parts: []execution.Part{{Text: "be kind"}}},
		{Role: execution.RoleUser, Parts: []execution.Part{picture, {Text: "what is it?"}}},
		{Role: execution.RoleAssistant, Parts: []execution.Part{{Text: "wait"}}, Reasoning: "hm",
			ToolCalls: []execution.ToolCall{{ID: "a", Name: "look", Arguments: `{"at":[1,2.50]}`}}},
		{Role: execution.RoleTool, Parts: []execution.Part{picture}, ToolCallID: "a"},
	}
	if diff := cmp.Diff(want, got.Input.Messages, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	got.Input.Target = "m"
	if err := got.Input.Check(); err != nil {
		t.Error(err)
	}
}

func TestImageType(t *testing.T) {
	for data, want := range map[string]string{
		png + "x": "image/png", "\xff\xd8\xff\xe0": "image/jpeg", "GIF89a": "image/gif", "GIF87a": "image/gif",
		"RIFF\x01\x02\x03\x04WEBPVP8 ": "image/webp", "RIFF\x01\x02\x03\x04WAVE": "", "RIFF": "", "<svg/>": "", "": "",
	} {
		if got := imageType([]byte(data)); got != want {
			t.Errorf("%q: %q, want %q", data, got, want)
		}
	}
}

// A request without anything to generate from loads the model, or unloads it: `ollama run` and `ollama stop` send it.
func TestLoadAndUnload(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","prompt":"","suffix":"","system":"","template":"","options":null,"think":true}`: "load",
		`{"model":"m","keep_alive":"10m"}`:                 "load",
		`{"model":"m","keep_alive":0}`:                     "unload",
		`{"model":"m","keep_alive":"0s","stream":false}`:   "unload",
		`{"model":"m","system":"be kind","keep_alive":-1}`: "load",
		`{"model":"m","prompt":"hi","keep_alive":0}`:       "",
	} {
		got, ref := Generate().Parse([]byte(body))
		if ref != nil || got.AtOnce != want || (want != "") != (len(got.Input.Messages) == 0) {
			t.Errorf("%s: %+v, %v, want %q", body, got, ref, want)
		}
		if diff := cmp.Diff(execution.Request{}, got.Input); want != "" && diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
	for body, want := range map[string]string{
		`{"model":"m"}`:                              "load",
		`{"model":"m","messages":[]}`:                "load",
		`{"model":"m","messages":[],"keep_alive":0}`: "unload",
	} {
		got, ref := Chat().Parse([]byte(body))
		if ref != nil || got.AtOnce != want {
			t.Errorf("%s: %+v, %v, want %q", body, got, ref, want)
		}
	}
}

func TestTools(t *testing.T) {
	got, ref := parseOne(`"tools":[
		{"type":"function","function":{"name":"a","description":"does","parameters":{ "type" : "object", "$defs":{"x":1}, "required":["c"], "properties":{"c":{"type":["string","null"]}} }}},
		{"type":"function","function":{"name":"b","parameters":{"type":"object","properties":null}}},
		{"type":"function","function":{"name":"c","parameters":{"type":"","properties":null}}},
		{"function":{"name":"d","type":"object"}},
		{"function":{"name":"e","parameters":{"properties":{}}}}]`)
	if ref != nil {
		t.Fatal(ref)
	}
	want := []execution.Tool{
		{Name: "a", Description: "does", Parameters: json.RawMessage(`{"type":"object","$defs":{"x":1},"required":["c"],"properties":{"c":{"type":["string","null"]}}}`)},
		{Name: "b", Parameters: json.RawMessage(`{"type":"object"}`)},
		{Name: "c"},
		{Name: "d"},
		{Name: "e", Parameters: json.RawMessage(`{"properties":{}}`)},
	}
	if diff := cmp.Diff(want, got.Input.Tools); diff != "" {
		t.Error(diff)
	}
}

// Places of the run are told where they stand in the body, also when it has fewer messages than the body.
func TestNamesOfPlaces(t *testing.T) {
	chat, ref := Chat().Parse([]byte(`{"model":"m","messages":[{"role":"assistant","content":""},{"role":"user","content":"hi"}]}`))
	if ref != nil {
		t.Fatal(ref)
	}
	generate, ref := Generate().Parse([]byte(`{"model":"m","system":"x","prompt":"hi"}`))
	if ref != nil {
		t.Fatal(ref)
	}
	for _, tt := range []struct {
		request     *dialect.Request
		place, want string
	}{
		{chat, "messages[0].parts[1]", "messages[1].images"}, {chat, "messages[0].tool_calls[2].arguments", "messages[1].tool_calls[2].function.arguments"},
		{chat, "max_tokens", "options.num_predict"}, {chat, "stop", "options.stop"}, {chat, "response_format.type", "format"}, {chat, "reasoning_effort", "think"},
		{chat, "tools[0].name", "tools[0].function.name"}, {chat, "tool_choice", "tool_choice"},
		{generate, "messages[0]", "system"}, {generate, "messages[1]", "prompt"}, {generate, "seed", "options.seed"},
	} {
		if got := tt.request.Names.Of(tt.place); got != tt.want {
			t.Errorf("%s is called %s, want %s", tt.place, got, tt.want)
		}
	}
}
