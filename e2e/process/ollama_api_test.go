//go:build e2e

package process

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"iop/e2e/procs"
)

const weatherTool = `[{"type":"function","function":{"name":"get_weather","description":"Weather of a city","parameters":{"type":"object","properties":{"city":{"type":"string"},"unit":{"type":"string","enum":["celsius","fahrenheit"]}},"required":["city"]}}}]`

// its is what differs from one answer of an Ollama to the next: times, durations and ids.
var its = regexp.MustCompile(`"(created_at|created|total_duration|load_duration|prompt_eval_duration|eval_duration|id|modified_at|expires_at|request_id)":("[^"]*"|\d+)`)

func lasting(text string) string { return its.ReplaceAllString(text, `"$1":…`) }

// ollamaAsk is a request of one of an Ollama's APIs.
type ollamaAsk struct{ name, path, body string }

func ollamaAsks() []ollamaAsk {
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	const think = `"messages":[{"role":"user","content":"think"}]`
	const weather = `"messages":[{"role":"user","content":"weather?"}]`
	const answered = `"messages":[{"role":"user","content":"weather?"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"get_weather","arguments":{"city":"Seoul"}}}]},` +
		`{"role":"tool","tool_name":"get_weather","content":"21"}]`
	return []ollamaAsk{
		{"chat", "/api/chat", `{"model":"tiny",` + hi + `}`},
		{"chat, whole", "/api/chat", `{"model":"tiny","stream":false,` + hi + `}`},
		{"think", "/api/chat", `{"model":"tiny","think":true,` + think + `}`},
		{"think not", "/api/chat", `{"model":"tiny","think":false,` + think + `}`},
		{"tools", "/api/chat", `{"model":"tiny",` + weather + `,"tools":` + weatherTool + `}`},
		{"a tool's answer", "/api/chat", `{"model":"tiny","tools":` + weatherTool + `,` + answered + `}`},
		{"options that only an Ollama has", "/api/chat", `{"model":"tiny","options":{"num_ctx":2048,"repeat_penalty":1.1,"num_predict":3},` + hi + `}`},
		{"generate", "/api/generate", `{"model":"tiny","prompt":"hi"}`},
		{"generate, raw", "/api/generate", `{"model":"tiny","prompt":"x","raw":true,"stream":false}`},
		{"load", "/api/generate", `{"model":"tiny"}`},
		{"embed", "/api/embed", `{"model":"tiny","input":["a","b"]}`},
		{"embeddings", "/api/embeddings", `{"model":"tiny","prompt":"a"}`},
		{"show", "/api/show", `{"model":"tiny"}`},
		{"OpenAI", "/v1/chat/completions", `{"model":"tiny","stream":true,"stream_options":{"include_usage":true},` + hi + `}`},
		{"OpenAI, tools", "/v1/chat/completions", `{"model":"tiny",` + weather + `,"tools":` + weatherTool + `}`},
		{"OpenAI, embeddings", "/v1/embeddings", `{"model":"tiny","input":"a"}`},
		{"OpenAI, completions", "/v1/completions", `{"model":"tiny","prompt":"x","stream":true}`},
		{"Anthropic", "/v1/messages", `{"model":"tiny","max_tokens":64,"stream":true,` + hi + `}`},
		{"Anthropic, whole", "/v1/messages", `{"model":"tiny","max_tokens":64,` + hi + `}`},
		{"Anthropic, thinking", "/v1/messages", `{"model":"tiny","max_tokens":64,"stream":true,"thinking":{"type":"enabled","budget_tokens":1024},` + think + `}`},
		{"a wrong type", "/api/chat", `{"model":"tiny","messages":"x"}`},
		{"an effort that the model hasn't", "/v1/chat/completions", `{"model":"tiny","reasoning_effort":"high",` + hi + `}`},
		{"no pictures", "/api/chat", `{"model":"tiny","messages":[{"role":"user","content":"hi","images":["AAAA"]}]}`},
	}
}

// What an Ollama answers itself is what its callers get through the edge: every path of its API, each dialect, and its
// refusals. But for times and ids, which differ from one answer to the next, it is one of its own answers byte for byte.
func TestOllamaAnswersTheSame(t *testing.T) {
	o := startOllama(t, "")
	s := ollamaSite(t, o, 4)
	s.ask(native("/api/generate", `{"model":"tiny"}`)) // loads it: what is compared is alike
	for _, tt := range ollamaAsks() {
		c := s.ask(native(tt.path, tt.body))
		var direct *call
		for range 20 { // an Ollama shuffles the members of some objects
			direct = begin(t, nil, o.Addr, "directly", native(tt.path, tt.body)).await(t, limit)
			if lasting(c.text()) == lasting(direct.text()) {
				break
			}
		}
		if c.status != direct.status || c.err != nil || lasting(c.text()) != lasting(direct.text()) || c.header.Get("Content-Type") != direct.header.Get("Content-Type") {
			t.Errorf("%s:\ndirectly %s\nthrough the edge %s", tt.name, direct, c)
		}
		if c.header.Get("X-Iop-Node") != procs.NodeID {
			t.Errorf("%s: no node served it: %v", tt.name, c.header)
		}
	}
	for _, path := range []string{"/api/tags", "/api/ps"} {
		var direct, edge struct{ Models []map[string]any }
		for addr, into := range map[string]any{o.Addr: &direct, s.HTTP: &edge} {
			if err := json.Unmarshal(get(t, nil, addr, path), into); err != nil {
				t.Fatal(err)
			}
		}
		sameModels(t, path, direct.Models, edge.Models)
	}
	if c := s.ask(native("/api/chat", `{"model":"nope","messages":[{"role":"user","content":"hi"}]}`)); c.status != 404 || !strings.Contains(c.text(), "not found") {
		t.Errorf("a model that isn't there: %s", c)
	}
}

// sameModels compares lists of models by their names.
func sameModels(t *testing.T, path string, direct, edge []map[string]any) {
	t.Helper()
	list := func(models []map[string]any) string {
		byName := map[string]any{}
		for _, m := range models {
			delete(m, "expires_at") // each answer moves it
			byName[fmt.Sprint(m["name"])] = m
		}
		text, err := json.Marshal(byName)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if a, b := list(direct), list(edge); a != b || len(direct) == 0 {
		t.Errorf("%s:\ndirectly %s\nthrough the edge %s", path, a, b)
	}
}

// understood is what a stream says, in whichever of the three dialects it is: each has its own names for its pieces.
type understood struct{ text, reasoning, tool, arguments, finish string }

// streamed is an event or a line of a stream, with what the dialects have in one.
type streamed struct {
	Choices []struct { // OpenAI
		Delta struct {
			Content   string
			Reasoning string       `json:"reasoning_content"`
			Calls     []calledTool `json:"tool_calls"`
		}
		Finish string `json:"finish_reason"`
	}
	Block struct{ Name string } `json:"content_block"` // Anthropic
	Delta struct {
		Text, Thinking string
		Partial        string `json:"partial_json"`
		Stop           string `json:"stop_reason"`
	}
	Message struct { // Ollama
		Content  any
		Thinking string
		Calls    []calledTool `json:"tool_calls"`
	}
	Done string `json:"done_reason"`
}

type calledTool struct {
	Function struct {
		Name      string
		Arguments json.RawMessage
	}
}

func understand(t *testing.T, stream string) understood {
	t.Helper()
	var u understood
	for line := range strings.Lines(stream) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "data: ")
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var e streamed
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		content, _ := e.Message.Content.(string) // a list in Anthropic's dialect
		u.text += e.Delta.Text + content
		u.reasoning += e.Delta.Thinking + e.Message.Thinking
		u.tool += e.Block.Name
		u.arguments += e.Delta.Partial
		u.finish += e.Delta.Stop + e.Done
		called := e.Message.Calls
		for _, c := range e.Choices {
			u.text, u.reasoning, u.finish = u.text+c.Delta.Content, u.reasoning+c.Delta.Reasoning, u.finish+c.Finish
			called = append(called, c.Delta.Calls...)
		}
		for _, c := range called {
			arguments := string(c.Function.Arguments)
			_ = json.Unmarshal(c.Function.Arguments, &arguments) // a text in OpenAI's dialect
			u.tool, u.arguments = u.tool+c.Function.Name, u.arguments+arguments
		}
	}
	return u
}

// everyKind starts edge and node in front of an Ollama, with an adapter of each kind and a route to each: by-openai,
// by-anthropic, by-ollama.
func everyKind(t *testing.T, o *procs.OllamaServer, target string) *site {
	t.Helper()
	var adapters, routes []string
	for _, kind := range []string{"openai", "anthropic", "ollama"} {
		adapters = append(adapters, fmt.Sprintf("{name: %s, kind: %s, base_url: %q, max_concurrency: 4}", kind, kind, "http://"+o.Addr))
		routes = append(routes, fmt.Sprintf("{model: by-%s, adapter: %s, target: %s}", kind, kind, target))
	}
	return newSite(t, procs.SiteConfig{Adapters: "[" + strings.Join(adapters, ",") + "]", Routes: "[" + strings.Join(routes, ",") + "]",
		Edge: "timers: {" + quickTimers + "}"})
}

// One real Ollama behind an adapter of each kind, asked in each dialect: it says the same to everybody.
func TestOllamaInEveryDialect(t *testing.T) {
	o := startOllama(t, "")
	s := everyKind(t, o, "tiny")
	const thought = "Okay so someone asks something; let me reason about this slowly.\n"
	anthropicTool := `[{"name":"get_weather","input_schema":{"type":"object","properties":{"city":{"type":"string"},"unit":{"type":"string"}}}}]`
	for _, by := range []string{"by-openai", "by-anthropic", "by-ollama"} {
		for _, speaks := range []struct{ path, more, tools, finish, calls string }{
			{"/v1/chat/completions", `"stream":true,`, weatherTool, "stop", "tool_calls"},
			{"/v1/messages", `"stream":true,"max_tokens":100,`, anthropicTool, "end_turn", "tool_use"},
			{"/api/chat", "", weatherTool, "stop", "stop"},
		} {
			say := func(text, more string) understood {
				t.Helper()
				c := s.ask(native(speaks.path, fmt.Sprintf(`{"model":%q,%s"messages":[{"role":"system","content":"x"},{"role":"user","content":%q}]%s}`, by, speaks.more, text, more)))
				if c.status != 200 || c.err != nil {
					t.Fatalf("%s %s: %s", by, speaks.path, c)
				}
				return understand(t, c.text())
			}
			if got := say("hi", ""); got != (understood{text: greeting, finish: speaks.finish}) {
				t.Errorf("%s %s: %+v", by, speaks.path, got)
			}
			think := ""
			if speaks.path == "/v1/messages" && by != "by-openai" { // whose dialect has efforts only, which this model refuses
				think = `,"thinking":{"type":"enabled","budget_tokens":50}`
			}
			got := say("think", think)
			if want := "The answer is forty-two.\n\n"; got.text != want || got.reasoning != thought && !strings.HasPrefix(speaks.path, "/v1/chat") {
				t.Errorf("%s %s: %+v", by, speaks.path, got)
			}
			got = say("weather?", `,"tools":`+speaks.tools)
			if got.tool != "get_weather" || !strings.Contains(got.arguments, `"Seoul"`) || !json.Valid([]byte(got.arguments)) || got.finish != speaks.calls {
				t.Errorf("%s %s: %+v", by, speaks.path, got)
			}
		}
	}
}

// A caller that leaves a run ends the generation, whatever the adapter speaks to the Ollama: its only slot is free for
// the next one. (CA-01)
func TestOllamaCancelOfRuns(t *testing.T) {
	o := startOllama(t, "", "OLLAMA_NUM_PARALLEL=1")
	s := everyKind(t, o, "slow")
	const messages = `"stream":true,"messages":[{"role":"user","content":"loop"}]}`
	for name, request := range map[string]string{
		"Ollama to openai":    native("/api/chat", `{"model":"by-openai",`+messages),
		"OpenAI to anthropic": native("/v1/chat/completions", `{"model":"by-anthropic",`+messages),
		"Anthropic to openai": native("/v1/messages", `{"model":"by-openai","max_tokens":100000,`+messages),
		"a run to ollama":     native("/iop/v1/runs", `{"adapter":"ollama","target":"slow",`+messages),
	} {
		c := begin(t, nil, s.HTTP, name, request)
		c.awaitText(t, "tack")
		c.leave(name == "Ollama to openai")
		s.awaitFree(promise)
		next := s.ask(native("/api/chat", `{"model":"by-ollama","messages":[{"role":"user","content":"hi"}],"options":{"num_predict":2}}`))
		if text, last := spoken(t, next.text()); next.err != nil || text != "Hello from" || last.Reason != "length" {
			t.Errorf("after %s: %s", name, next)
		}
	}
}
