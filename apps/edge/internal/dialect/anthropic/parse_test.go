package anthropic

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

func parse(t *testing.T, body string) *dialect.Request {
	t.Helper()
	r, ref := Messages().Parse([]byte(body))
	if ref != nil {
		t.Fatalf("%s: refused: %s (%s)", body, ref.Text, ref.Field)
	}
	return r
}

// with is a request with the given members beside those that it must have.
func with(members string) string {
	if !strings.Contains(members, `"messages"`) {
		members += `,"messages":[{"role":"user","content":"hi"}]`
	}
	return `{"model":"m","max_tokens":64,` + strings.TrimPrefix(members, ",") + `}`
}

// turns is a request with the given messages.
func turns(messages ...string) string {
	return with(`"messages":[` + strings.Join(messages, ",") + `]`)
}

func text(role execution.Role, texts ...string) execution.Message {
	m := execution.Message{Role: role}
	for _, t := range texts {
		m.Parts = append(m.Parts, execution.Part{Text: t})
	}
	return m
}

const (
	png     = `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AQID"}}`
	weather = `{"name":"get_weather","description":"Weather of a city","input_schema":{"type":"object"}}`
)

func manyTools() string {
	var list []string
	for i := range execution.MaxTools + 1 {
		list = append(list, fmt.Sprintf(`{"name":"t%d"}`, i))
	}
	return strings.Join(list, ",")
}

func TestParseMessages(t *testing.T) {
	user, assistant, tool := execution.RoleUser, execution.RoleAssistant, execution.RoleTool
	image := execution.Part{Image: &execution.Image{MediaType: "image/png", Data: []byte{1, 2, 3}}}
	for name, tt := range map[string]struct {
		body string
		want []execution.Message
	}{
		"a text": {turns(`{"role":"user","content":"hi"}`), []execution.Message{text(user, "hi")}},
		"system": {with(`"system":"be kind"`), []execution.Message{text(execution.RoleSystem, "be kind"), text(user, "hi")}},
		"system in blocks": {
			with(`"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":""},{"type":"text","text":"b"}]`),
			[]execution.Message{text(execution.RoleSystem, "a", "b"), text(user, "hi")}},
		"system in between": {
			turns(`{"role":"user","content":"hi"}`, `{"role":"system","content":[{"type":"text","text":"be brief"}],"clear_at":"never"}`),
			[]execution.Message{text(user, "hi"), text(execution.RoleSystem, "be brief")}},
		"no system": {with(`"system":""`), []execution.Message{text(user, "hi")}},
		"text and image": {turns(`{"role":"user","content":[{"type":"text","text":"what?","citations":null},` + png + `]}`),
			[]execution.Message{{Role: user, Parts: []execution.Part{{Text: "what?"}, image}}}},
		"a media type that isn't registered": {turns(`{"role":"user","content":[` + strings.Replace(png, "image/png", "image/JPG", 1) + `]}`),
			[]execution.Message{{Role: user, Parts: []execution.Part{{Image: &execution.Image{MediaType: "image/jpeg", Data: []byte{1, 2, 3}}}}}}},
		"calls and what was thought": {
			turns(`{"role":"user","content":"hi"}`, `{"role":"assistant","content":[{"type":"thinking","thinking":"let me ","signature":"c2ln"},
				{"type":"redacted_thinking","data":"AAAA"},{"type":"text","text":"I look."},{"type":"thinking","thinking":"see","signature":""},
				{"type":"tool_use","id":"toolu_1","name":"get_weather","input":{ "city" : "Seoul" },"caller":{"type":"direct"}},
				{"type":"tool_use","id":"toolu_2","name":"now","input":{}}]}`),
			[]execution.Message{text(user, "hi"), {Role: assistant, Parts: []execution.Part{{Text: "I look."}}, Reasoning: "let me see",
				ToolCalls: []execution.ToolCall{{ID: "toolu_1", Name: "get_weather", Arguments: `{"city":"Seoul"}`}, {ID: "toolu_2", Name: "now", Arguments: "{}"}}}}},
		"results first": {
			turns(`{"role":"user","content":[{"type":"text","text":"so?"},{"type":"tool_result","tool_use_id":"a","content":"20 C"},
				{"type":"tool_result","tool_use_id":"b","is_error":true,"content":[{"type":"text","text":"no"},` + png + `]},
				{"type":"tool_result","tool_use_id":"c"},{"type":"text","text":"and now?"}]}`),
			[]execution.Message{
				{Role: tool, ToolCallID: "a", Parts: []execution.Part{{Text: "20 C"}}},
				{Role: tool, ToolCallID: "b", Failed: true, Parts: []execution.Part{{Text: "no"}, image}},
				{Role: tool, ToolCallID: "c"},
				text(user, "so?", "and now?")}},
		"results only": {turns(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":""}]}`),
			[]execution.Message{{Role: tool, ToolCallID: "a"}}},
		"only thought": { // an answer whose length ended there comes back so
			turns(`{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"iop-unsigned"}]}`, `{"role":"user","content":"go on"}`),
			[]execution.Message{{Role: assistant, Reasoning: "hm"}, text(user, "go on")}},
		"only redacted": {turns(`{"role":"user","content":"hi"}`, `{"role":"assistant","content":[{"type":"redacted_thinking","data":"A"}]}`, `{"role":"user","content":"?"}`),
			[]execution.Message{text(user, "hi"), text(user, "?")}},
		"begun answer":       {turns(`{"role":"user","content":"hi"}`, `{"role":"assistant","content":"Once"}`), []execution.Message{text(user, "hi"), text(assistant, "Once")}},
		"empty begun answer": {turns(`{"role":"user","content":"hi"}`, `{"role":"assistant","content":[]}`), []execution.Message{text(user, "hi")}},
		"empty answer": {turns(`{"role":"user","content":"hi"}`, `{"role":"assistant","content":[]}`, `{"role":"user","content":"hey"}`),
			[]execution.Message{text(user, "hi"), text(user, "hey")}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, parse(t, tt.body).Input.Messages); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseOptions(t *testing.T) {
	type want struct {
		Options execution.Options
		Choice  execution.ToolChoice
		Hide    bool
	}
	number := func(n int64) *int64 { return &n }
	float := func(n float64) *float64 { return &n }
	for members, tt := range map[string]want{
		`"stream":false`: {},
		`"temperature":0.5,"top_p":0.9,"top_k":40,"stop_sequences":["\n\nHuman:","END"]`: {
			Options: execution.Options{Temperature: float(0.5), TopP: float(0.9), TopK: number(40), Stop: []string{"\n\nHuman:", "END"}}},
		`"temperature":null,"stop_sequences":[],"thinking":null,"tools":null,"output_config":null,"container":null`:          {},
		`"metadata":{"user_id":"x"},"service_tier":"auto","cache_control":{"type":"ephemeral"},"betas":["x"],"speed":"fast"`: {},
		`"diagnostics":{"previous_message_id":null},"mcp_servers":[],"inference_geo":null,"context_management":{"edits":[]}`: {},
		`"thinking":{"type":"enabled","budget_tokens":1024}`:                                                                 {Options: execution.Options{ReasoningBudget: number(1024)}},
		`"thinking":{"type":"disabled"}`:                                               {Options: execution.Options{ReasoningEffort: "none"}},
		`"thinking":{"type":"disabled"},"output_config":{"effort":"high"}`:             {Options: execution.Options{ReasoningEffort: "none"}},
		`"thinking":{"type":"adaptive"}`:                                               {},
		`"thinking":{"type":"adaptive","display":"summarized"}`:                        {},
		`"thinking":{"type":"adaptive","display":"omitted"}`:                           {Hide: true},
		`"thinking":{"type":"adaptive"},"output_config":{"effort":"xhigh"}`:            {Options: execution.Options{ReasoningEffort: "xhigh"}},
		`"output_config":{"effort":"low","format":null}`:                               {Options: execution.Options{ReasoningEffort: "low"}},
		`"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}`: {Options: execution.Options{ResponseFormat: json.RawMessage(`{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":{"type":"object"}}}`)}},
		`"output_format":{"type":"json_schema","schema":{}}`:                           {Options: execution.Options{ResponseFormat: json.RawMessage(`{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":{}}}`)}},
		`"tool_choice":{"type":"auto"}`:                                                {Choice: execution.ToolChoice{Mode: execution.ToolAuto}},
		`"tool_choice":{"type":"auto","disable_parallel_tool_use":false}`:              {Choice: execution.ToolChoice{Mode: execution.ToolAuto}},
		`"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`: {Choice: execution.ToolChoice{Mode: execution.ToolAuto},
			Options: execution.Options{ParallelToolCalls: new(bool)}},
		`"tool_choice":{"type":"none"}`:                                                {Choice: execution.ToolChoice{Mode: execution.ToolNone}},
		`"tools":[` + weather + `],"tool_choice":{"type":"any"}`:                       {Choice: execution.ToolChoice{Mode: execution.ToolRequired}},
		`"tools":[` + weather + `],"tool_choice":{"type":"tool","name":"get_weather"}`: {Choice: execution.ToolChoice{Mode: execution.ToolNamed, Name: "get_weather"}},
	} {
		r := parse(t, with(members))
		tt.Options.MaxTokens = number(64)
		if diff := cmp.Diff(tt, want{r.Input.Options, r.Input.ToolChoice, r.HideReasoning}); diff != "" {
			t.Errorf("%s: %s", members, diff)
		}
	}
	r := parse(t, with(`"stream":true`))
	if r.Model != "m" || !r.Stream || r.Input.Target != "" {
		t.Errorf("model %q, stream %v, target %q", r.Model, r.Stream, r.Input.Target)
	}
}

func TestParseTools(t *testing.T) {
	name := strings.Repeat("x", 128) // as long as agents' names of foreign tools get
	body := with(`"tools":[` + weather + `,{"type":"custom","name":"` + name + `","input_schema":{"type":"object","properties":{"q":{"enum":["<a>"]}}},` +
		`"cache_control":{"type":"ephemeral"},"eager_input_streaming":true,"strict":false,"defer_loading":false,"allowed_callers":["direct"],"input_examples":[]},` +
		`{"type":null,"name":"now"}]`)
	want := []execution.Tool{
		{Name: "get_weather", Description: "Weather of a city", Parameters: json.RawMessage(`{"type":"object"}`)},
		{Name: name, Parameters: json.RawMessage(`{"type":"object","properties":{"q":{"enum":["<a>"]}}}`)},
		{Name: "now"},
	}
	raw := []byte(body)
	r, ref := Messages().Parse(raw)
	if ref != nil {
		t.Fatal(ref)
	}
	clear(raw) // nothing that is kept may be a piece of the body
	if diff := cmp.Diff(want, r.Input.Tools); diff != "" {
		t.Error(diff)
	}
}

// What was thought in old turns is left out when the caller says so, and a turn is one as long as tools answer.
func TestParseClearThinking(t *testing.T) {
	messages := `"messages":[{"role":"user","content":"1"},{"role":"assistant","content":[{"type":"thinking","thinking":"a"}]},
		{"role":"user","content":"2"},{"role":"assistant","content":[{"type":"thinking","thinking":"b"},{"type":"text","text":"B"}]},
		{"role":"user","content":"3"},{"role":"assistant","content":[{"type":"thinking","thinking":"c"},{"type":"tool_use","id":"x","name":"now","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"x"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"d"},{"type":"text","text":"D"}]},
		{"role":"user","content":"4"}]`
	for edits, want := range map[string]string{
		``: "a b c d 9",
		`{"type":"clear_thinking_20251015","keep":"all"}`:                               "a b c d 9",
		`{"type":"clear_thinking_20251015","keep":{"type":"all"}}`:                      "a b c d 9",
		`{"type":"clear_thinking_20251015"}`:                                            "c d 8",
		`{"type":"clear_thinking_20251015","keep":{"type":"thinking_turns","value":1}}`: "c d 8",
		`{"type":"clear_thinking_20251015","keep":{"type":"thinking_turns","value":2}}`: "b c d 8",
		`{"type":"clear_thinking_20251015","keep":{"type":"thinking_turns","value":9}}`: "a b c d 9",
	} {
		r := parse(t, with(`"context_management":{"edits":[`+edits+`]},`+messages))
		got := ""
		for _, m := range r.Input.Messages {
			if m.Reasoning != "" {
				got += m.Reasoning + " "
			}
		}
		if got += string(rune('0' + len(r.Input.Messages))); got != want {
			t.Errorf("%s: kept %s, want %s", edits, got, want)
		}
	}
}

// refuses checks that bodies are refused for a field, by a text that names it.
func refuses(t *testing.T, bodies map[string]string) {
	t.Helper()
	for body, field := range bodies {
		r, ref := Messages().Parse([]byte(body))
		switch {
		case ref == nil:
			t.Errorf("%s: taken as %+v", body, r)
		case ref.Field != field:
			t.Errorf("%s: refused for %q, want %q: %s", body, ref.Field, field, ref.Text)
		case !strings.Contains(ref.Text, field[strings.LastIndexByte(field, '.')+1:]):
			t.Errorf("%s: the refusal %q doesn't name %s", body, ref.Text, field)
		}
	}
}

// What a run can't carry is refused with its path, and what makes no sense too.
func TestParseRefusesContent(t *testing.T) {
	user := func(block string) string { return turns(`{"role":"user","content":[` + block + `]}`) }
	assistant := func(block string) string {
		return turns(`{"role":"user","content":"hi"}`, `{"role":"assistant","content":[{"type":"text","text":"x"},`+block+`]}`)
	}
	image := func(source string) string { return user(`{"type":"image","source":` + source + `}`) }
	refuses(t, map[string]string{
		turns(`{"role":"assistant","content":""}`):                                "messages",
		turns(`{"role":"user","content":"hi"}`, `{"role":"tool","content":"x"}`):  "messages[1].role",
		turns(`{"role":"user"}`):                                                  "messages[0].content",
		turns(`{"role":"user","content":null}`):                                   "messages[0].content",
		turns(`{"role":"user","content":7}`):                                      "messages[0].content",
		turns(`{"role":"user","content":""}`):                                     "messages[0].content",
		turns(`{"role":"user","content":"hi","name":"ann"}`):                      "messages[0].name",
		turns(`{"role":"system","content":"x","clear_at":"next_user_message"}`):   "messages[0].clear_at",
		turns(`{"role":"system","content":[` + png + `]}`):                        "messages[0].content[0].type",
		user(`{"type":"text","text":7}`):                                          "messages[0].content[0].text",
		user(`{"type":"text","text":"x","citations":[{"type":"char_location"}]}`): "messages[0].content[0].citations",
		user(`{"type":"text","text":"x"},{"type":"document","source":{}}`):        "messages[0].content[1].type",
		user(`{"type":"search_result"}`):                                          "messages[0].content[0].type",
		user(`{"type":"container_upload","file_id":"x"}`):                         "messages[0].content[0].type",
		user(`{"type":"tool_use","id":"a","name":"now","input":{}}`):              "messages[0].content[0].type",
		user(`{"type":"thinking","thinking":"x"}`):                                "messages[0].content[0].type",
		user(`"hi"`):                                                                           "messages[0].content[0]",
		user(`{"type":"image"}`):                                                               "messages[0].content[0].source",
		image(`{"type":"url","url":"http://x"}`):                                               "messages[0].content[0].source.type",
		image(`{"type":"file","file_id":"x"}`):                                                 "messages[0].content[0].source.type",
		image(`{"type":"base64","media_type":"image/png","data":"%"}`):                         "messages[0].content[0].source.data",
		image(`{"type":"base64","media_type":"image/png","data":""}`):                          "messages[0].content[0].source.data",
		image(`{"type":"base64","media_type":"application/pdf","data":"AQID"}`):                "messages[0].content[0].source.media_type",
		user(`{"type":"tool_result","content":"x"}`):                                           "messages[0].content[0].tool_use_id",
		user(`{"type":"tool_result","tool_use_id":"a","content":7}`):                           "messages[0].content[0].content",
		user(`{"type":"tool_result","tool_use_id":"a","content":[{"type":"document"}]}`):       "messages[0].content[0].content[0].type",
		user(`{"type":"tool_result","tool_use_id":"a","content":[{"type":"tool_reference"}]}`): "messages[0].content[0].content[0].type",
		assistant(png): "messages[1].content[1].type",
		assistant(`{"type":"server_tool_use","id":"a","name":"web_search","input":{}}`):                  "messages[1].content[1].type",
		assistant(`{"type":"tool_use","name":"now","input":{}}`):                                         "messages[1].content[1].id",
		assistant(`{"type":"tool_use","id":"a","input":{}}`):                                             "messages[1].content[1].name",
		assistant(`{"type":"tool_use","id":"a","name":"what is it","input":{}}`):                         "messages[1].content[1].name",
		assistant(`{"type":"tool_use","id":"a","name":"now","input":"{}"}`):                              "messages[1].content[1].input",
		assistant(`{"type":"tool_use","id":"a","name":"now","input":{},"caller":{"type":"code"}}`):       "messages[1].content[1].caller.type",
		assistant(`{"type":"tool_use","id":"a","name":"now"},{"type":"tool_use","id":"a","name":"now"}`): "messages[1].content[2].id",
	})
}

func TestParseRefusesMembers(t *testing.T) {
	refuses(t, map[string]string{
		`{`:  "",
		`[]`: "",
		"{\"model\":\"m\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}": "",
		`{"max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`:                               "model",
		`{"model":"m","messages":[{"role":"user","content":"hi"}]}`:                                  "max_tokens",
		`{"model":"m","max_tokens":0,"messages":[{"role":"user","content":"hi"}]}`:                   "max_tokens",
		`{"model":"m","max_tokens":"9","messages":[{"role":"user","content":"hi"}]}`:                 "max_tokens",
		`{"model":"m","max_tokens":1}`:                                                               "messages",
		`{"model":"m","max_tokens":1,"messages":[]}`:                                                 "messages",
		with(`"system":[` + png + `]`):                                                               "system[0].type",
		with(`"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":5}]`):            "tools[0].type",
		with(`"tools":[` + weather + `,{"name":"bash","type":"bash_20250124"}]`):                     "tools[1].type",
		with(`"tools":[{"name":"a b","input_schema":{}}]`):                                           "tools[0].name",
		with(`"tools":[` + weather + `,` + weather + `]`):                                            "tools[1].name",
		with(`"tools":[{"name":"a","input_schema":[]}]`):                                             "tools[0].input_schema",
		with(`"tools":[{"name":"a","strict":true}]`):                                                 "tools[0].strict",
		with(`"tools":[{"name":"a","defer_loading":true}]`):                                          "tools[0].defer_loading",
		with(`"tools":[{"name":"a","input_examples":[{}]}]`):                                         "tools[0].input_examples",
		with(`"tools":[` + manyTools() + `]`):                                                        "tools",
		with(`"tool_choice":"auto"`):                                                                 "tool_choice",
		with(`"tool_choice":{"type":"required"}`):                                                    "tool_choice.type",
		with(`"tool_choice":{"type":"any"}`):                                                         "tool_choice.type",
		with(`"tool_choice":{"type":"tool"}`):                                                        "tool_choice.name",
		with(`"tool_choice":{"type":"auto","name":"x"}`):                                             "tool_choice.name",
		with(`"tools":[` + weather + `],"tool_choice":{"type":"tool","name":"now"}`):                 "tool_choice.name",
		with(`"thinking":{"type":"between_tools"}`):                                                  "thinking.type",
		with(`"thinking":{"type":"enabled"}`):                                                        "thinking.budget_tokens",
		with(`"thinking":{"type":"enabled","budget_tokens":0}`):                                      "thinking.budget_tokens",
		with(`"thinking":{"type":"adaptive","budget_tokens":9}`):                                     "thinking.budget_tokens",
		with(`"thinking":{"type":"adaptive","display":"full"}`):                                      "thinking.display",
		with(`"output_config":{"effort":"huge"}`):                                                    "output_config.effort",
		with(`"output_config":{"task_budget":{"type":"tokens","total":9}}`):                          "output_config.task_budget",
		with(`"output_config":{"format":{"type":"text"}}`):                                           "output_config.format.type",
		with(`"output_config":{"format":{"type":"json_schema"}}`):                                    "output_config.format.schema",
		with(`"stop_sequences":"x"`):                                                                 "stop_sequences",
		with(`"stop_sequences":["x",""]`):                                                            "stop_sequences[1]",
		with(`"stop_sequences":["` + strings.Repeat(`x","`, 16) + `x"]`):                             "stop_sequences",
		with(`"temperature":"hot"`):                                                                  "temperature",
		with(`"temperature":2.5`):                                                                    "temperature",
		with(`"top_p":1.5`):                                                                          "top_p",
		with(`"top_k":-1`):                                                                           "top_k",
		with(`"top_k":1.5`):                                                                          "top_k",
		with(`"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]}`):                 "context_management.edits[0].type",
		with(`"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":3}]}`):         "context_management.edits[0].keep",
		with(`"mcp_servers":[{"type":"url"}]`):                                                       "mcp_servers",
		with(`"container":"x"`):                                                                      "container",
		with(`"inference_geo":"us"`):                                                                 "inference_geo",
		with(`"fallbacks":[]`):                                                                       "fallbacks",
		with(`"n":2`):                                                                                "n",
		with(`"stream":true,"stream":false`):                                                         "stream",
	})
}

// FuzzParse: what is taken makes sense to a provider, and what is refused is refused with a reason.
func FuzzParse(f *testing.F) {
	for _, body := range []string{
		with(`"stream":true`), with(`"system":[{"type":"text","text":"a"}],"tools":[` + weather + `],"tool_choice":{"type":"any"}`),
		turns(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","is_error":true,"content":[{"type":"text","text":"no"},` + png + `]}]}`),
		turns(`{"role":"user","content":"hi"}`, `{"role":"assistant","content":[{"type":"thinking","thinking":"x","signature":""},`+
			`{"type":"tool_use","id":"a","name":"now","input":{"a":[1,"]"]}}]}`, `{"role":"user","content":[`+png+`]}`),
		with(`"thinking":{"type":"enabled","budget_tokens":9},"output_config":{"effort":"max"},"context_management":{"edits":[{"type":"clear_thinking_20251015"}]}`),
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, ref := Messages().Parse(body)
		if ref != nil {
			if ref.Text == "" || r != nil {
				t.Fatalf("refused for %q without a reason, or not at all", ref.Field)
			}
			return
		}
		in := r.Input
		in.Target = r.Model
		if err := in.Check(); err != nil {
			t.Fatalf("%s was taken: %v", body, err)
		}
	})
}

// Places of the run are told where they stand in the body, also when it has other messages than the body.
func TestNamesOfPlaces(t *testing.T) {
	r := parse(t, `{"model":"m","max_tokens":9,"system":"x","stop_sequences":["a"],"context_management":{"edits":[{"type":"clear_thinking_20251015"}]},"messages":[
		{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"only","signature":""}]},
		{"role":"user","content":"again"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"tool_use","id":"a","name":"f","input":{}}]},
		{"role":"user","content":[{"type":"text","text":"so"},{"type":"tool_result","tool_use_id":"a","content":"1"}]}]}`)
	if n := len(r.Input.Messages); n != 6 || len(r.Names.Messages) != n {
		t.Fatalf("%d messages stand at %v", n, r.Names.Messages)
	}
	for place, want := range map[string]string{"messages[0]": "system", "messages[1].parts[0]": "messages[0].content", "messages[2].parts[0]": "messages[2].content",
		"messages[3].tool_calls[0].arguments": "messages[3].content.input", "messages[4].parts[0]": "messages[4].content", "messages[5]": "messages[4]",
		"stop": "stop_sequences", "max_tokens": "max_tokens", "reasoning_effort": "output_config.effort", "tools[1].parameters": "tools[1].input_schema"} {
		if got := r.Names.Of(place); got != want {
			t.Errorf("%s is called %s, want %s", place, got, want)
		}
	}
	if got := parse(t, `{"model":"m","max_tokens":9,"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"hi"}]}`).Names.Of("reasoning_effort"); got != "thinking" {
		t.Errorf("reasoning_effort is called %s", got)
	}
}
