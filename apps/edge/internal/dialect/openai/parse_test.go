package openai

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

const hi = `"messages":[{"role":"user","content":"hi"}]`

// asking returns a request for one answer with further members.
func asking(members string) string { return `{"model":"tiny",` + hi + members + `}` }

// talking returns a request with these messages.
func talking(messages string) string { return `{"model":"tiny","messages":[` + messages + `]}` }

func parsed(t *testing.T, body string) *dialect.Request {
	t.Helper()
	q, ref := Chat().Parse([]byte(body))
	if ref != nil {
		t.Fatalf("%s: %v", body, ref)
	}
	return q
}

func text(s string) []execution.Part { return []execution.Part{{Text: s}} }

func TestParseCarriesEachMember(t *testing.T) {
	got := parsed(t, asking(`,"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false},
		"max_completion_tokens":9,"temperature":0.5,"top_p":1,"top_k":40,"stop":["a","b"],"seed":-7,"frequency_penalty":-2,
		"presence_penalty":2,"parallel_tool_calls":false,"reasoning_effort":"xhigh",
		"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"description":"d","schema":{"type":"object"}}},
		"tools":[{"type":"function","function":{"name":"look","description":"around","parameters":{"type":"object"},"strict":false}},
			{"type":"function","function":{"name":"now"}}],
		"tool_choice":{"type":"function","function":{"name":"look"}}`))
	off := false
	number := func(n float64) *float64 { return &n }
	want := &dialect.Request{Model: "tiny", Stream: true, IncludeUsage: true, Input: execution.Request{
		Messages:   []execution.Message{{Role: execution.RoleUser, Parts: text("hi")}},
		Tools:      []execution.Tool{{Name: "look", Description: "around", Parameters: json.RawMessage(`{"type":"object"}`)}, {Name: "now"}},
		ToolChoice: execution.ToolChoice{Mode: execution.ToolNamed, Name: "look"},
		Options: execution.Options{MaxTokens: count(9), Temperature: number(0.5), TopP: number(1), TopK: count(40), Stop: []string{"a", "b"},
			Seed: count(-7), FrequencyPenalty: number(-2), PresencePenalty: number(2), ParallelToolCalls: &off, ReasoningEffort: "xhigh",
			ResponseFormat: json.RawMessage(`{"type":"json_schema","json_schema":{"name":"x","strict":true,"description":"d","schema":{"type":"object"}}}`)},
	}}
	got.Names = dialect.Names{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseConversation(t *testing.T) {
	got := parsed(t, talking(`
		{"role":"system","content":"be brief","name":"boss"},
		{"role":"developer","content":[{"type":"text","text":"and kind","cache_control":{"type":"ephemeral"}}]},
		{"role":"user","content":[{"type":"text","text":"what is"},{"type":"text","text":""},
			{"type":"image_url","image_url":{"url":"data:image/png;base64,AAEC","detail":"high"}},{"text":"this?","type":"text"}]},
		{"content":"","role":"assistant","refusal":null,"annotations":[],"audio":null,"function_call":null,"reasoning_content":"hm",
			"tool_calls":[{"id":"c1","index":0,"type":"function","function":{"name":"look","arguments":"{}"}},{"id":"c2","function":{"name":"now","arguments":""}}]},
		{"role":"tool","tool_call_id":"c1","content":"a cat"},
		{"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"noon"},{"type":"image_url","image_url":{"url":"DATA:image/JPG;charset=x;BASE64,/w=="}}]},
		{"role":"tool","tool_call_id":"c3","content":""},
		{"role":"assistant","content":null,"refusal":"no","reasoning":"so","reasoning_content":"so"},
		{"role":"assistant","content":""},
		{"role":"assistant","content":[{"type":"refusal","refusal":"never"}],"tool_calls":[],"reasoning":"so"},
		{"role":"assistant","content":null,"reasoning_content":"cut off"}`)).Input.Messages
	want := []execution.Message{
		{Role: execution.RoleSystem, Parts: text("be brief"), Name: "boss"},
		{Role: execution.RoleSystem, Parts: text("and kind")},
		{Role: execution.RoleUser, Parts: []execution.Part{{Text: "what is"}, {Image: &execution.Image{MediaType: "image/png", Data: []byte{0, 1, 2}}}, {Text: "this?"}}},
		{Role: execution.RoleAssistant, Reasoning: "hm", ToolCalls: []execution.ToolCall{{ID: "c1", Name: "look", Arguments: "{}"}, {ID: "c2", Name: "now"}}},
		{Role: execution.RoleTool, ToolCallID: "c1", Parts: text("a cat")},
		{Role: execution.RoleTool, ToolCallID: "c2", Parts: []execution.Part{{Text: "noon"}, {Image: &execution.Image{MediaType: "image/jpeg", Data: []byte{0xff}}}}},
		{Role: execution.RoleTool, ToolCallID: "c3"},
		{Role: execution.RoleAssistant, Parts: text("no"), Reasoning: "so"},
		{Role: execution.RoleAssistant, Parts: text("never"), Reasoning: "so"},
		{Role: execution.RoleAssistant, Reasoning: "cut off"},
	}
	if len(got) != len(want) {
		t.Errorf("%d messages, want %d", len(got), len(want))
	}
	for i := range want {
		if i >= len(got) || !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("messages[%d]: %+v, want %+v", i, got, want[i])
			break
		}
	}
}

// What asks for nothing that a run lacks is read as if it weren't there.
func TestParseAcceptsWhatAsksForNothing(t *testing.T) {
	want := parsed(t, asking(``))
	for _, member := range []string{
		`"user":"u"`, `"safety_identifier":"s"`, `"metadata":{"a":"b"}`, `"store":true`, `"service_tier":"flex"`, `"prediction":{"type":"content","content":"x"}`,
		`"prompt_cache_key":"k"`, `"prompt_cache_retention":"24h"`, `"prompt_cache_options":{"mode":"explicit"}`,
		`"n":1`, `"logprobs":false`, `"top_logprobs":0`, `"logit_bias":{}`, `"modalities":["text"]`, `"modalities": [ "text" ]`, `"verbosity":"medium"`,
		`"response_format":{"type":"text"}`, `"stream":false`, `"stream_options":{}`, `"tools":[]`, `"stop":[]`, `"tool_choice":null`,
		`"n":null`, `"audio":null`, `"functions":null`, `"function_call":null`, `"verbosity":null`, `"max_tokens":null,"max_completion_tokens":null`,
	} {
		got := parsed(t, asking(","+member))
		if got.Input.Tools = nil; len(got.Input.Options.Stop) == 0 {
			got.Input.Options.Stop = nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s was read as %+v", member, got)
		}
	}
}

// Each member that OpenAI's own SDK has (openai-go 3.99) has its place, and docs/dialects.md says which.
func TestParseKnowsTheWholeAPI(t *testing.T) {
	doc, err := os.ReadFile("../../../../../docs/dialects.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "\n## OpenAI")
	section, _, _ = strings.Cut(section, "\n## ")
	for name := range strings.FieldsSeq(`messages model frequency_penalty logprobs max_completion_tokens max_tokens n presence_penalty prompt_cache_key
		safety_identifier seed store temperature top_logprobs top_p parallel_tool_calls user audio logit_bias metadata modalities moderation
		prompt_cache_retention reasoning_effort service_tier stop stream stream_options verbosity function_call functions prediction
		prompt_cache_options response_format tool_choice tools web_search_options`) {
		if (&request{}).member(name) == nil {
			t.Errorf("%s is unknown", name)
		}
		if !regexp.MustCompile("`" + name + "[`:. ]").MatchString(section) {
			t.Errorf("docs/dialects.md doesn't name %s", name)
		}
	}
}

func TestParseVariants(t *testing.T) {
	options := func(members string) execution.Options { return parsed(t, asking(","+members)).Input.Options }
	for _, members := range []string{`"max_tokens":7`, `"max_completion_tokens":7`, `"max_tokens":7,"max_completion_tokens":7`} {
		if got := options(members); got.MaxTokens == nil || *got.MaxTokens != 7 {
			t.Errorf("%s: %+v", members, got)
		}
	}
	if got := options(`"stop":" \n"`); !reflect.DeepEqual(got.Stop, []string{" \n"}) {
		t.Errorf("%q", got.Stop)
	}
	if got := options(`"response_format": {"type" : "json_object"}`); string(got.ResponseFormat) != `{"type" : "json_object"}` {
		t.Errorf("%s", got.ResponseFormat)
	}
	tool := `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":`
	for raw, want := range map[string]execution.ToolChoice{`"none"`: {Mode: "none"}, `"auto"`: {Mode: "auto"}, `"required"`: {Mode: "required"},
		`{"type":"function","function":{"name":"f"}}`: {Mode: "tool", Name: "f"}} {
		if got := parsed(t, asking(tool+raw)).Input.ToolChoice; got != want {
			t.Errorf("%s: %+v", raw, got)
		}
	}
}

// refusal is a body, the field that is at fault in it, and what the refusal says.
type refusal struct{ body, field, says string }

func wantRefusals(t *testing.T, list []refusal) {
	t.Helper()
	for _, c := range list {
		q, ref := Chat().Parse([]byte(c.body))
		if short := c.body[:min(len(c.body), 300)]; ref == nil || q != nil || ref.Field != c.field || !strings.Contains(ref.Text, c.says) {
			t.Errorf("%s: %+v, want field %q and a text with %q", short, ref, c.field, c.says)
		}
	}
}

func TestParseRefusesWhatNoRunHas(t *testing.T) {
	wantRefusals(t, []refusal{
		{`[]`, "", "an object"},
		{`{` + hi + `}`, "model", "missing"},
		{`{"model":"tiny"}`, "messages", "missing"},
		{talking(``), "messages", "says nothing"},
		{`{"model":7,` + hi + `}`, "model", "type"},
		{asking(`,"n":2`), "n", "only 1"},
		{asking(`,"logprobs":true`), "logprobs", "probabilities"},
		{asking(`,"top_logprobs":5`), "top_logprobs", "probabilities"},
		{asking(`,"logit_bias":{"7":1}`), "logit_bias", "tokens"},
		{asking(`,"modalities":["text","audio"]`), "modalities", "text"},
		{asking(`,"audio":{"voice":"alloy"}`), "audio", "text"},
		{asking(`,"verbosity":"low"`), "verbosity", "prompt"},
		{asking(`,"functions":[]`), "functions", "use tools"},
		{asking(`,"function_call":"auto"`), "function_call", "tool_choice"},
		{asking(`,"web_search_options":{}`), "web_search_options", "providers"},
		{asking(`,"moderation":{}`), "moderation", "providers"},
		{asking(`,"min_p":0.1`), "min_p", "providers"},
		{asking(`,"repetition_penalty":1.1`), "repetition_penalty", "providers"},
		{asking(`,"chat_template_kwargs":{}`), "chat_template_kwargs", "providers"},
		{asking(`,"reasoning":{"effort":"low"}`), "reasoning", "reasoning_effort"},
		{asking(`,"temprature":1`), "temprature", "unknown"},
		{asking(`,"stream_options":{"chunk_size":1}`), "stream_options.chunk_size", "unknown"},
	})
}

func TestParseRefusesValues(t *testing.T) {
	wantRefusals(t, []refusal{
		{asking(`,"max_tokens":1,"max_completion_tokens":2`), "max_tokens", "differ"},
		{asking(`,"max_tokens":0`), "max_tokens", "at least 1"},
		{asking(`,"max_completion_tokens":-1`), "max_completion_tokens", "at least 1"},
		{asking(`,"max_tokens":1.5`), "max_tokens", "type"},
		{asking(`,"temperature":2.5`), "temperature", "from 0 to 2"},
		{asking(`,"temperature":"hot"`), "temperature", "type"},
		{asking(`,"top_p":-1`), "top_p", "from 0 to 1"},
		{asking(`,"presence_penalty":3`), "presence_penalty", "from -2 to 2"},
		{asking(`,"stop":""`), "stop", "bytes"},
		{asking(`,"stop":7`), "stop", "list"},
		{asking(`,"stop":["a",7]`), "stop[1]", "text"},
		{asking(`,"reasoning_effort":"very much"`), "reasoning_effort", "word"},
		{asking(`,"response_format":"json"`), "response_format", "object"},
		{asking(`,"response_format":{"type":"grammar"}`), "response_format.type", "json_schema"},
		{asking(`,"response_format":{"type":"json_object","schema":{}}`), "response_format.schema", "unknown"},
		{asking(`,"response_format":{"type":"json_object","json_schema":{}}`), "response_format.json_schema", "only"},
		{asking(`,"response_format":{"type":"json_schema"}`), "response_format.json_schema", "missing"},
		{asking(`,"response_format":{"type":"json_schema","json_schema":{"schema":{}}}`), "response_format.json_schema.name", "missing"},
		{asking(`,"response_format":{"type":"json_schema","json_schema":{"name":"x"}}`), "response_format.json_schema.schema", "object"},
	})
}

func TestParseRefusesTools(t *testing.T) {
	tool := func(f string) string { return asking(`,"tools":[{"type":"function","function":` + f + `}]`) }
	wantRefusals(t, []refusal{
		{asking(`,"tools":[{"type":"custom","custom":{"name":"x"}}]`), "tools[0].custom", "functions"},
		{asking(`,"tools":[{"type":"web_search"}]`), "tools[0].type", "functions"},
		{asking(`,"tools":[{"type":"function"}]`), "tools[0].function", "missing"},
		{tool(`{"name":"f","strict":true}`), "tools[0].function.strict", "promise"},
		{tool(`{"name":"f","returns":{}}`), "tools[0].function.returns", "unknown"},
		{tool(`{"description":"f"}`), "tools[0].function.name", "letters"},
		{tool(`{"name":"f","parameters":[]}`), "tools[0].function.parameters", "object"},
		{asking(`,"tool_choice":"maybe"`), "tool_choice", "required"},
		{asking(`,"tool_choice":"tool"`), "tool_choice", "required"},
		{asking(`,"tool_choice":"required"`), "tool_choice", "there are none"},
		{asking(`,"tool_choice":{"type":"function","function":{"name":"f"}}`), "tool_choice", "isn't among"},
		{asking(`,"tool_choice":{"type":"function"}`), "tool_choice.function", "name"},
		{asking(`,"tool_choice":{"type":"allowed_tools","allowed_tools":{}}`), "tool_choice.allowed_tools", "offer only"},
		{asking(`,"tool_choice":{"type":"custom","custom":{}}`), "tool_choice.custom", "functions"},
	})
}

func TestParseRefusesMessages(t *testing.T) {
	calls := func(c string) string { return talking(`{"role":"assistant","tool_calls":[` + c + `]}`) }
	wantRefusals(t, []refusal{
		{`{"model":"tiny","messages":"hi"}`, "messages", "list"},
		{talking(`"hi"`), "messages[0]", "object"},
		{talking(`{"content":"hi"}`), "messages[0].role", "missing"},
		{talking(`{"role":"model","content":"hi"}`), "messages[0].role", "assistant"},
		{talking(`{"role":"function","name":"f","content":"hi"}`), "messages[0].role", "use tool"},
		{talking(`{"role":"user"}`), "messages[0].content", "missing"},
		{talking(`{"role":"user","content":""}`), "messages[0].content", "empty"},
		{talking(`{"role":"assistant","content":[{"type":"text","text":""}]}`), "messages", "says nothing"},
		{talking(`{"role":"assistant"},{"role":"user","content":"x","name":"a\u0000"}`), "messages[1].name", "control"}, // the first was left out
		{talking(`{"role":"tool","content":"x"}`), "messages[0].tool_call_id", "missing"},
		{talking(`{"role":"user","content":"x","tool_call_id":"c"}`), "messages[0].tool_call_id", "tool"},
		{talking(`{"role":"user","content":"x","tool_calls":[{"id":"c","function":{"name":"f"}}]}`), "messages[0].tool_calls", "assistant"},
		{talking(`{"role":"user","content":"x","reasoning_content":"y"}`), "messages[0].reasoning_content", "assistant"},
		{talking(`{"role":"user","content":"x","reasoning":"y"}`), "messages[0].reasoning", "assistant"},
		{talking(`{"role":"user","content":"x","refusal":"y"}`), "messages[0].refusal", "assistant"},
		{talking(`{"role":"assistant","content":"x","reasoning":"y","reasoning_content":"z"}`), "messages[0].reasoning", "differ"},
		{talking(`{"role":"assistant","content":"x","audio":{"id":"a"}}`), "messages[0].audio", "text and images"},
		{talking(`{"role":"assistant","content":"x","function_call":{"name":"f"}}`), "messages[0].function_call", "tool_calls"},
		{talking(`{"role":"user","content":"x","name":"a\nb"}`), "messages[0].name", "control"},
		{talking(`{"role":"user","content":"x","weight":1}`), "messages[0].weight", "unknown"},
		{calls(`{"type":"function","function":{"name":"f"}}`), "messages[0].tool_calls[0].id", "missing"},
		{calls(`{"id":"c","type":"custom","custom":{}}`), "messages[0].tool_calls[0].custom", "functions"},
		{calls(`{"id":"c","type":"mcp","function":{"name":"f"}}`), "messages[0].tool_calls[0].type", "function"},
		{calls(`{"id":"c","function":{"arguments":"{}"}}`), "messages[0].tool_calls[0].function.name", "missing"},
		{calls(`{"id":"c","function":{"name":"f","arguments":{}}}`), "messages[0].tool_calls[0].function.arguments", "type"},
		{calls(`{"id":"c","function":{"name":"f g"}}`), "messages[0].tool_calls[0].function.name", "tool"},
		{calls(`{"id":"c","function":{"name":"f"}},{"id":"c","function":{"name":"f"}}`), "messages[0].tool_calls[1].id", "twice"},
	})
}

func TestParseRefusesParts(t *testing.T) {
	user := func(content string) string { return talking(`{"role":"user","content":` + content + `}`) }
	wantRefusals(t, []refusal{
		{user(`7`), "messages[0].content", "text or a list"},
		{user(`{}`), "messages[0].content", "text or a list"},
		{user(`[7]`), "messages[0].content[0]", "object"},
		{user(`[{"text":"x"}]`), "messages[0].content[0].type", "image_url"},
		{user(`[{"type":"text"}]`), "messages[0].content[0].text", "missing"},
		{user(`[{"type":"image","text":"x"}]`), "messages[0].content[0].type", "image_url"},
		{user(`[{"type":"text","text":"x","image_url":{"url":"data:image/png;base64,AA=="}}]`), "messages[0].content[0].image_url", "type image_url"},
		{user(`[{"type":"input_audio","input_audio":{}}]`), "messages[0].content[0].input_audio", "images only"},
		{user(`[{"type":"text","text":"x"},{"type":"file","file":{}}]`), "messages[0].content[1].file", "images only"},
		{user(`[{"type":"refusal","refusal":"x"}]`), "messages[0].content[0]", "assistant"},
		{talking(`{"role":"system","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}`), "messages[0].content[0]", "user or a tool"},
	})
}

// Pictures come with the request: no caller may say where to connect to.
func TestParseFetchesNothing(t *testing.T) {
	user := func(content string) string { return talking(`{"role":"user","content":` + content + `}`) }
	picture := func(url string) string { return user(`[{"type":"image_url","image_url":{"url":"` + url + `"}}]`) }
	const url = "messages[0].content[0].image_url.url"
	wantRefusals(t, []refusal{
		{picture("https://example.com/a.png"), url, "nothing is fetched"},
		{picture("http://169.254.169.254/"), url, "nothing is fetched"},
		{picture("file:///etc/passwd"), url, "nothing is fetched"},
		{picture(""), url, "nothing is fetched"},
		{picture("data:image/png,abc"), url, "base64"},
		{picture("data:image/png;base64"), url, "base64"},
		{picture("data:image/png;base64,%%%"), url, "isn't base64"},
		{picture("data:image/png;base64,"), url, "empty"},
		{picture("data:;base64,AAAA"), url, "kind of image"},
		{picture("data:text/plain;base64,AAAA"), url, "kind of image"},
		{picture("data:image/;base64,AAAA"), url, "kind of image"},
		{picture("data:image/png;base64," + base64.StdEncoding.EncodeToString(make([]byte, execution.MaxImage+1))), url, "bytes"},
		{user(`[{"type":"image_url","image_url":"data:image/png;base64,AAAA"}]`), "messages[0].content[0].image_url", "object"},
	})
}

// FuzzParse: whatever the body is, it is refused by name or it is a run that a node takes.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		asking(``), asking(`,"stop":"x","max_tokens":7,"stream":true,"stream_options":{"include_usage":true}`),
		asking(`,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"tool_choice":"auto","response_format":{"type":"json_object"}`),
		talking(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAEC"}},{"type":"text","text":"x"}]}`),
		talking(`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"x"}`),
		`{}`, `{"model":`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		q, ref := Chat().Parse(body)
		if (q == nil) == (ref == nil) {
			t.Fatalf("%+v, %+v", q, ref)
		}
		if ref != nil {
			if ref.Text == "" || strings.ContainsAny(ref.Text, "\r\n") || len(ref.Text) > 1<<10 {
				t.Fatalf("not fit to be told: %+v", ref)
			}
			return
		}
		in := q.Input
		in.Target = q.Model
		if err := in.Check(); err != nil {
			t.Fatal(err)
		}
		var given struct {
			Model    string
			Messages []json.RawMessage
		}
		if err := json.Unmarshal(body, &given); err != nil || len(in.Messages) > len(given.Messages) {
			t.Fatalf("%v: %d messages of %d", err, len(in.Messages), len(given.Messages))
		}
	})
}

// Places of the run are told where they stand in the body, also when it has fewer messages than the body.
func TestNamesOfPlaces(t *testing.T) {
	for body, words := range map[string]map[string]string{
		`{"model":"m","max_tokens":9,"messages":[{"role":"assistant","content":""},{"role":"user","content":"hi"}]}`: {"max_tokens": "max_tokens",
			"messages[0].name": "messages[1].name", "messages[0].parts[0]": "messages[1].content", "messages[0].tool_calls[1].arguments": "messages[1].tool_calls[1].function.arguments",
			"tools[0].parameters": "tools[0].function.parameters", "seed": "seed", "response_format.type": "response_format.type"},
		`{"model":"m","max_completion_tokens":9,"messages":[{"role":"user","content":"hi"}]}`: {"max_tokens": "max_completion_tokens", "messages[0]": "messages[0]"},
	} {
		q, ref := Chat().Parse([]byte(body))
		if ref != nil {
			t.Fatal(ref)
		}
		for place, want := range words {
			if got := q.Names.Of(place); got != want {
				t.Errorf("%s is called %s, want %s", place, got, want)
			}
		}
	}
}
