package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// picture is the smallest PNG.
const picture = "image/png:\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"

// conversation asks for as much as a request can hold that each dialect has a word for.
func conversation() *fakeprovider.Asked {
	return &fakeprovider.Asked{Model: "m", Stream: true, Count: true,
		Messages: []fakeprovider.Message{
			fakeprovider.Says("system", "Be brief. 짧게."),
			{Role: "user", Content: []fakeprovider.Content{{Image: picture}, {Image: "image/gif:GIF89a rest"}, {Text: "What is <this>?\n"}}},
			{Role: "assistant", Reasoning: "two pictures", Content: []fakeprovider.Content{{Text: "I'll look."}},
				Calls: []fakeprovider.Call{{ID: "call_1", Name: "get_weather", Arguments: `{"unit":"°C","city":"Seoul","days":[1,2.50]}`}, {ID: "call_2", Name: "get_time", Arguments: `{}`}}},
			{Role: "tool", CallID: "call_1", Content: []fakeprovider.Content{{Text: "21"}}},
			{Role: "tool", CallID: "call_2", Content: []fakeprovider.Content{{Text: "no such clock"}}, Failed: true},
			fakeprovider.Says("user", "And now?"),
		},
		Tools:   []fakeprovider.Tool{weather(), {Name: "get_time", Description: "now", Schema: `{"type":"object","properties":{}}`}},
		Options: map[string]string{"max_tokens": "400", "temperature": "0.5", "top_p": "0.9", "top_k": "7", "stop": `["END","\n\n"]`},
	}
}

// arrived is what a provider must be asked when a caller asks that.
func (p *pair) arrived(q *fakeprovider.Asked) *fakeprovider.Asked {
	want := *q
	want.Options = maps.Clone(q.Options)
	want.Messages = slices.Clone(q.Messages)
	for i := range want.Messages {
		m := &want.Messages[i]
		// Only Anthropic's API, and runs, have a word for a call that failed. Of reasoning it wants its own signature.
		m.Failed = m.Failed && (p.name == "Anthropic" || p.name == "runs") && p.kind.runs == "/v1/messages"
		if p.kind.runs == "/v1/messages" {
			m.Reasoning = ""
		}
	}
	want.Stream, want.Count = true, true
	return &want
}

// asks sends a request that is answered, and returns what the provider was asked.
func (p *pair) asks(t *testing.T, q *fakeprovider.Asked) (*fakeprovider.Asked, *harness.Answer) {
	t.Helper()
	body, before := p.write(q), len(p.seen())
	a := p.ask(harness.Post(p.path, body))
	seen := p.seen()[before:]
	if len(seen) == 0 {
		return nil, a
	}
	got, err := seen[0].DialectOf().Read(seen[0].Received())
	if err != nil || len(seen) > 1 {
		t.Errorf("the provider saw %d requests, and of the first: %v", len(seen), err)
	}
	if p.tunnel() && string(seen[0].Received()) != body {
		t.Errorf("not as it was sent: %s", seen[0].Received())
	}
	return got, a
}

// What a caller says arrives, and nothing else: the system's words, pictures, calls and what came of them, thoughts, tools
// and options.
func TestPairsCarryWholeConversations(t *testing.T) {
	t.Parallel()
	eachPair(t, harness.Options{}, 4, func(t *testing.T, p *pair) {
		p.says(fakeprovider.Speak(sayings()["text"]))
		for _, stream := range []bool{true, false} {
			q := conversation()
			if q.Stream = stream; p.path == "/api/generate" {
				q.Tools, q.Messages = nil, q.Messages[:2]
			}
			got, a := p.asks(t, q)
			if a.StatusCode != 200 || got == nil {
				t.Fatalf("%d %s", a.StatusCode, a.Bytes)
			}
			if p.tunnel() {
				continue // each byte is there
			}
			if diff := cmp.Diff(p.arrived(q), got); diff != "" {
				t.Errorf("wanted (-), asked (+):\n%s", diff)
			}
		}
	})
}

// wish is something that not every dialect and kind of provider has a word for.
type wish struct {
	name string
	by   string // the dialects that can say it
	say  func(q *fakeprovider.Asked)
	as   map[string]string // by the path that a run goes to: the options that it becomes, name=value & name=value; !name = refused
}

// option is a wish for an option, with what it is to kinds for which it isn't just itself.
func option(by, name, value string, as map[string]string) wish {
	all := map[string]string{}
	for _, k := range kinds() {
		all[k.runs] = name + "=" + value
	}
	maps.Copy(all, as)
	return wish{name: name + " " + value, by: by, as: all, say: func(q *fakeprovider.Asked) { q.Options[name] = value }}
}

func wishes() []wish {
	const openAI, messages, chat = "/v1/chat/completions", "/v1/messages", "/api/chat"
	const everybody, exceptAnthropic, exceptOllama = "OpenAI Anthropic Ollama generate runs", "OpenAI Ollama generate runs", "OpenAI Anthropic runs"
	schema := `{"type":"object","required":["z"],"properties":{"z":{"type":"string"},"a":{"type":"number"}}}`
	as := func(path, what string) map[string]string { return map[string]string{path: what} }
	choose := func(choice, arrives string, ollama string) wish {
		return wish{"choice " + choice, exceptOllama, func(q *fakeprovider.Asked) { q.Choice, q.Tools = choice, []fakeprovider.Tool{weather()} },
			map[string]string{openAI: "choice=" + choice, messages: "choice=" + choice, chat: ollama}}
	}
	return []wish{
		option(exceptAnthropic, "seed", "42", as(messages, "!seed")),
		option(exceptAnthropic, "frequency_penalty", "0.5", as(messages, "!frequency_penalty")),
		option(exceptAnthropic, "presence_penalty", "-0.5", as(messages, "!presence_penalty")),
		option(everybody, "temperature", "1.5", as(messages, "!temperature")),
		option(exceptAnthropic, "format", `"json"`, as(messages, "!format")),
		option(everybody, "format", schema, nil),
		option(everybody, "reasoning_effort", `"none"`, nil),
		option(everybody, "reasoning_effort", `"low"`, as(messages, "reasoning_budget=2048 & max_tokens=2448")),
		option(everybody, "reasoning_effort", `"high"`, as(messages, "reasoning_budget=16384 & max_tokens=16784")),
		option("Ollama generate", "reasoning_effort", "true", map[string]string{openAI: `reasoning_effort="medium"`, messages: "reasoning_budget=8192 & max_tokens=8592"}),
		option("Anthropic runs", "reasoning_budget", "4096", map[string]string{openAI: `reasoning_effort="medium"`, messages: "reasoning_budget=4096 & max_tokens=4496", chat: "reasoning_effort=true"}),
		option("runs", "reasoning_budget", "0", map[string]string{openAI: `reasoning_effort="none"`, messages: `reasoning_effort="none"`, chat: `reasoning_effort="none"`}),
		choose("auto", "auto", ""),
		choose("none", "none", "no tools"),
		choose("required", "required", "!tool_choice"),
		choose("tool get_weather", "", "!tool_choice"),
		{"one call at a time", exceptOllama, func(q *fakeprovider.Asked) {
			q.Options["parallel_tool_calls"], q.Choice, q.Tools = "false", "auto", []fakeprovider.Tool{weather()}
		}, map[string]string{openAI: "parallel_tool_calls=false & choice=auto", messages: "parallel_tool_calls=false & choice=auto", chat: "!parallel_tool_calls"}},
	}
}

// What one dialect says in its words arrives in those of the other. What the other has no word for is a 400 that names
// it, and the provider hears nothing. An adapter that speaks the caller's dialect gets it as it is.
func TestPairsTranslateWishes(t *testing.T) {
	t.Parallel()
	eachPair(t, harness.Options{}, 4, func(t *testing.T, p *pair) {
		p.says(fakeprovider.Speak(sayings()["text"]))
		word := p.name[strings.LastIndexByte(p.name, ' ')+1:]
		for _, w := range wishes() {
			if !slices.Contains(strings.Fields(w.by), word) {
				continue
			}
			q := chatOf(true)
			w.say(q)
			if p.path == "/api/generate" {
				q.Tools, q.Choice = nil, ""
			}
			got, a := p.asks(t, q)
			if p.tunnel() {
				if a.StatusCode != 200 || got == nil {
					t.Errorf("%s: %d %s", w.name, a.StatusCode, a.Bytes)
				}
				continue
			}
			if field, refused := cutPrefix(w.as[p.kind.runs], "!"); refused {
				p.wantRefusal(t, w.name, a, field)
				if got != nil {
					t.Errorf("%s: the provider was asked %+v", w.name, got)
				}
				continue
			}
			if diff := cmp.Diff(p.wished(q, w.as[p.kind.runs]), got); diff != "" {
				t.Errorf("%s: %d %s; wanted (-), asked (+):\n%s", w.name, a.StatusCode, shorten(a.Bytes), diff)
			}
		}
	})
}

// wished is what a provider must be asked when a wish is said as that.
func (p *pair) wished(q *fakeprovider.Asked, as string) *fakeprovider.Asked {
	want := p.arrived(q)
	want.Choice, want.Options = "", map[string]string{"max_tokens": "400"}
	if as == "no tools" {
		want.Tools = nil
		return want
	}
	for each := range strings.SplitSeq(as, " & ") {
		name, value, said := strings.Cut(each, "=")
		if !said {
			continue
		}
		if name == "choice" {
			want.Choice = value
			continue
		}
		want.Options[name] = value
	}
	return want
}

// wantRefusal checks a 400 in the caller's dialect that names a field.
func (p *pair) wantRefusal(t *testing.T, what string, a *harness.Answer, field string) {
	t.Helper()
	code, text, err := p.refusal(a.Bytes)
	if a.StatusCode != 400 || code != "bad_request" || err != nil || !strings.Contains(text, field) {
		t.Errorf("%s: %d %s, %v; want a 400 that names %s", what, a.StatusCode, a.Bytes, err, field)
	}
	if a.Header.Get("X-Should-Retry") != "" || !strings.HasPrefix(a.Header.Get("Content-Type"), "application/json") {
		t.Errorf("%s: header %v", what, a.Header)
	}
}

// alien is a member that no run can carry, within a request that is in order otherwise.
type alien struct{ body, field string }

func aliens(path string) []alien {
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	asked := func(head string, more ...alien) (all []alien) {
		for _, m := range more {
			if !strings.Contains(m.body, `"messages"`) && path != "/api/generate" {
				m.body += "," + hi
			}
			all = append(all, alien{"{" + head + "," + m.body + "}", m.field})
		}
		return all
	}
	switch path {
	case "/v1/chat/completions":
		return asked(`"model":"m"`, alien{`"logprobs":true`, "logprobs"}, alien{`"n":2`, "n"}, alien{`"whatever":1`, "whatever"},
			alien{`"functions":[{"name":"f"}]`, "functions"}, alien{`"web_search_options":{}`, "web_search_options"},
			alien{`"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"http://h/x.png"}}]}]`, "messages[0].content[1].image_url.url"},
			alien{`"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"","format":"wav"}}]}]`, "messages[0].content[0].input_audio"})
	case "/v1/messages":
		return asked(`"model":"m","max_tokens":9`, alien{`"container":"c"`, "container"}, alien{`"mcp_servers":[{"name":"x"}]`, "mcp_servers"}, alien{`"whatever":1`, "whatever"},
			alien{`"tools":[{"type":"web_search_20250305","name":"web_search"}]`, "tools[0].type"},
			alien{`"messages":[{"role":"user","content":[{"type":"document","source":{}}]}]`, "messages[0].content[0].type"},
			alien{`"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://h/x.png"}}]}]`, "messages[0].content[0].source"})
	case "/api/chat":
		return asked(`"model":"m"`, alien{`"options":{"num_ctx":4096}`, "options.num_ctx"}, alien{`"options":{"mirostat":1}`, "options.mirostat"}, alien{`"logprobs":true`, "logprobs"},
			alien{`"whatever":1`, "whatever"}, alien{`"messages":[{"role":"user","content":"a","images":["AAAA"]}]`, "messages[0].images[0]"})
	case "/api/generate":
		return asked(`"model":"m","prompt":"hi"`, alien{`"raw":true`, "raw"}, alien{`"suffix":"b"`, "suffix"}, alien{`"context":[1,2]`, "context"}, alien{`"options":{"num_gpu":1}`, "options.num_gpu"})
	}
	return asked(`"adapter":"gpu","target":"m"`, alien{`"whatever":1`, "whatever"}, alien{`"options":{"min_p":0.1}`, "min_p"},
		alien{`"messages":[{"role":"user","content":[{"type":"audio"}]}]`, "messages[0].content[0].type"})
}

// What no run can carry is refused by name, before anybody is asked; an adapter that speaks the dialect gets it as it is.
func TestPairsRefuseWhatNoRunCarries(t *testing.T) {
	t.Parallel()
	eachPair(t, harness.Options{}, 4, func(t *testing.T, p *pair) {
		p.says(ok)
		for _, m := range aliens(p.path) {
			before := len(p.seen())
			a := p.ask(harness.Post(p.path, m.body))
			seen := p.seen()[before:]
			if p.tunnel() {
				if a.StatusCode != 200 || len(seen) != 1 || string(seen[0].Received()) != m.body {
					t.Errorf("%s: %d %s", m.body, a.StatusCode, a.Bytes)
				}
				continue
			}
			p.wantRefusal(t, m.body, a, m.field)
			if len(seen) != 0 {
				t.Errorf("%s: the provider was asked", m.body)
			}
		}
		if !p.tunnel() {
			fmt.Fprintf(t.Output(), "%d members are refused\n", len(aliens(p.path)))
		}
	})
}

// What only the adapter knows that its provider can't be told is refused in the caller's words: by the name and the place
// that it has in the caller's body, whatever the run has made of it.
func TestPairsNameWhatAProviderCantBeTold(t *testing.T) {
	t.Parallel()
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	const png = `iVBORw0KGgo=`
	for _, tt := range []struct {
		pairNames
		body, field string
	}{
		{pairNames{"OpenAI", "anthropic"}, `{"model":"m","seed":1,` + hi + `}`, "seed"},
		{pairNames{"OpenAI", "anthropic"}, `{"model":"m","response_format":{"type":"json_object"},` + hi + `}`, "response_format.type"},
		{pairNames{"OpenAI", "anthropic"}, `{"model":"m","messages":[{"role":"assistant","content":""},{"role":"user","name":"bob","content":"hi"}]}`, "messages[1].name"},
		{pairNames{"OpenAI", "anthropic"}, `{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"[1]"}}]},{"role":"tool","tool_call_id":"a","content":"x"}]}`,
			"messages[1].tool_calls[0].function.arguments"},
		{pairNames{"OpenAI", "anthropic"}, `{"model":"m","messages":[{"role":"system","content":"hi"}]}`, "messages"},
		{pairNames{"Ollama", "anthropic"}, `{"model":"m","format":"json",` + hi + `}`, "format"},
		{pairNames{"Ollama", "anthropic"}, `{"model":"m","options":{"seed":1},` + hi + `}`, "options.seed"},
		{pairNames{"Ollama", "anthropic"}, `{"model":"m","options":{"temperature":1.5},` + hi + `}`, "options.temperature"},
		{pairNames{"Ollama generate", "anthropic"}, `{"model":"m","format":"json","prompt":"hi"}`, "format"},
		{pairNames{"Ollama", "openai"}, `{"model":"m","messages":[{"role":"assistant","content":""},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{}}}]},{"role":"tool","content":"t","images":["` + png + `"]}]}`,
			"messages[2].images"},
		{pairNames{"Anthropic", "openai"}, `{"model":"m","max_tokens":9,"system":"x","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}},{"type":"tool_use","id":"b","name":"f","input":{}}]},` +
			`{"role":"user","content":[{"type":"text","text":"see"},{"type":"tool_result","tool_use_id":"a","content":"t"},{"type":"tool_result","tool_use_id":"b","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + png + `"}}]}]}]}`,
			"messages[2].content"},
	} {
		t.Run(tt.speech+" to "+tt.kind+", "+tt.field, func(t *testing.T) {
			t.Parallel()
			s, k := tt.find()
			p := newPair(t, s, k, harness.Options{}, 1)
			a := p.ask(harness.Post(p.path, tt.body))
			want := tt.field + ": "
			if !strings.HasPrefix(s.name, "Ollama") { // whose errors have no place for it
				want = tt.field + " | " + want
			}
			p.wantRefusal(t, tt.field, a, want)
			if _, text, _ := p.refusal(a.Bytes); !strings.HasPrefix(text, want) {
				t.Errorf("%q doesn't begin with %q", text, want)
			}
			if n := len(p.seen()); n != 0 {
				t.Errorf("the provider saw %d requests", n)
			}
		})
	}
}
