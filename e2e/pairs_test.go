package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// kind is a kind of adapter, with what is said of it in the configuration.
type kind struct {
	name    string
	adapter string   // members of its configuration
	carries []string // paths of chats that go to the provider as they are
	runs    string   // the path that a run goes to
}

func kinds() []kind {
	const chat, messages = "/v1/chat/completions", "/v1/messages"
	return []kind{
		{"openai", "kind: openai", []string{chat}, chat},
		{"openai with messages", "kind: openai, allow_paths: [/v1/messages]", []string{chat, messages}, chat},
		{"anthropic", "kind: anthropic", []string{messages}, messages},
		{"ollama", "kind: ollama", []string{chat, messages, "/api/chat", "/api/generate"}, "/api/chat"},
	}
}

// pair is a caller of one dialect before an adapter of one kind.
type pair struct {
	*rig
	speech
	kind kind
}

// tunnel reports whether the caller's requests go to the provider as they are.
func (p *pair) tunnel() bool { return slices.Contains(p.kind.carries, p.path) }

// says is what the provider answers from now on.
func (p *pair) says(script fakeprovider.Script) { p.provider.Use(behindLists(script)) }

// behindLists answers a node's own questions as a provider does that lists no models, so that any may be asked for.
func behindLists(script fakeprovider.Script) fakeprovider.Script {
	lists := fakeprovider.OllamaLists()
	lists["GET /v1/models"] = fakeprovider.Models()
	known := fakeprovider.Routes(lists)
	return func(x *fakeprovider.Exchange) {
		if isProbe(x) {
			known(x)
			return
		}
		script(x)
	}
}

// newPair starts an edge and a node for a pair.
func newPair(t *testing.T, s speech, k kind, o harness.Options, places int) *pair {
	t.Helper()
	provider := fakeprovider.New(t, behindLists(ok))
	o.Adapters = fmt.Sprintf("[{name: gpu, %s, base_url: %q, max_concurrency: %d}]", k.adapter, provider.URL(), places)
	return &pair{rig: newRigWith(t, provider, setup{Options: o}), speech: s, kind: k}
}

// eachPair tests every pair, each with an edge and a node of its own.
func eachPair(t *testing.T, o harness.Options, places int, test func(t *testing.T, p *pair)) {
	t.Helper()
	for _, s := range speeches() {
		for _, k := range kinds() {
			t.Run(s.name+" to "+k.name, func(t *testing.T) {
				t.Parallel()
				test(t, newPair(t, s, k, o, places))
			})
		}
	}
}

// chatOf asks for little.
func chatOf(stream bool) *fakeprovider.Asked {
	return &fakeprovider.Asked{Model: "m", Stream: stream, Count: true, Options: map[string]string{"max_tokens": "400"},
		Messages: []fakeprovider.Message{fakeprovider.Says("user", "hi")}}
}

// weather is a tool.
func weather() fakeprovider.Tool {
	return fakeprovider.Tool{Name: "get_weather", Description: "Weather of a city",
		Schema: `{"type":"object","required":["city"],"properties":{"unit":{"type":"string"},"city":{"type":"string"}}}`}
}

func tokens(input, output, cached int64) *fakeprovider.Usage {
	return &fakeprovider.Usage{Input: input, Output: output, Cached: cached}
}

// sayings are answers of every sort.
func sayings() map[string]*fakeprovider.Said {
	type pieces = []fakeprovider.Piece
	said := func(finish string, usage *fakeprovider.Usage, p pieces) *fakeprovider.Said {
		return &fakeprovider.Said{Model: "provider's-m", Pieces: p, Finish: finish, Usage: usage}
	}
	one := pieces{{ID: "call_a", Name: "get_weather", Arguments: `{"ci`}, {Arguments: `ty":"Séo`}, {Arguments: `ul \"x\""`}, {Arguments: `}`}}
	two := pieces{{ID: "call_a", Name: "get_weather"}, {Call: 1, ID: "call_b", Name: "get_time", Arguments: `{"zo`}, {Arguments: `{"city":"Seoul"}`},
		{Call: 1, Arguments: `ne":{"name":"KST","offset":[9,0]}}`}}
	text := pieces{{Text: "Hello"}, {Text: " naïve café,"}, {Text: " 한국어 🙂\ndata: not an event\n\n"}, {Text: "<done> \"quoted\" \\ \u2028"}}
	return map[string]*fakeprovider.Said{
		"text":                 said("stop", tokens(11, 7, 0), text),                                                               // ST-03
		"text, uncounted":      said("stop", nil, text),                                                                            // ST-28
		"cut off by length":    said("length", tokens(9, 400, 4), pieces{{Text: "1 2"}, {Text: " 3"}}),                             //
		"filtered":             said("content_filter", tokens(9, 1, 0), pieces{{Text: "I"}}),                                       //
		"reasoning":            said("stop", tokens(9, 22, 8), append(pieces{{Reasoning: "Okay so "}, {Reasoning: "…"}}, text...)), //
		"a call":               said("tool_calls", tokens(337, 13, 336), one),                                                      //
		"a call after words":   said("tool_calls", tokens(337, 13, 0), append(pieces{{Reasoning: "hm"}, {Text: "Let me see."}}, one...)),
		"two calls, mixed":     said("tool_calls", tokens(12, 30, 0), two), // ST-29
		"a call without words": said("tool_calls", tokens(5, 5, 0), pieces{{ID: "call_a", Name: "get_time", Arguments: `{}`}}),
	}
}

// understood is what a caller must understand of an answer.
func (p *pair) understood(s *fakeprovider.Said, q *fakeprovider.Asked) heard {
	h := heard{Text: s.Text(), Reasoning: s.Reasoning(), Calls: s.Calls(), Finish: s.Finish, Whole: true}
	for i := range h.Calls {
		h.Calls[i].Arguments = compacted(h.Calls[i].Arguments)
	}
	native := strings.HasPrefix(p.path, "/api/")
	if s.Usage != nil && (q.Count || !q.Stream || p.name != "OpenAI") {
		usage := *s.Usage
		if native || p.kind.runs == "/api/chat" && !p.tunnel() {
			usage.Cached = 0 // an Ollama has no word for it
		}
		h.Usage = &usage
	}
	return h
}

func compacted(arguments string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(arguments)) != nil {
		return arguments
	}
	return b.String()
}

// same compares what a caller understood with what it must.
func same(t *testing.T, what string, got, want heard) {
	t.Helper()
	for i := range got.Calls {
		got.Calls[i].Arguments = compacted(got.Calls[i].Arguments)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: wanted (-), heard (+):\n%s", what, diff)
	}
}

// Whatever a caller speaks and whatever the provider does, the same answer says the same: as a stream and whole. Where
// both speak the same, each byte is the same as well.
func TestPairsSayTheSame(t *testing.T) {
	t.Parallel()
	eachPair(t, harness.Options{}, 4, func(t *testing.T, p *pair) {
		all := sayings()
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if p.path == "/api/generate" && strings.Contains(name, "call") {
				continue // nobody asks for one there
			}
			for _, stream := range []bool{true, false} {
				q := chatOf(stream)
				if len(all[name].Calls()) > 0 {
					q.Tools = []fakeprovider.Tool{weather(), {Name: "get_time", Description: "now", Schema: `{"type":"object"}`}}
				}
				p.answered(t, fmt.Sprintf("%s, stream %v", name, stream), all[name], q)
			}
		}
		q := chatOf(true)
		q.Count = false
		p.answered(t, "nobody asks for counts", all["text"], q)
	})
}

// answered asks and checks what comes of it on the whole way.
func (p *pair) answered(t *testing.T, what string, s *fakeprovider.Said, q *fakeprovider.Asked) {
	t.Helper()
	p.says(fakeprovider.Speak(s))
	body, before := p.write(q), len(p.seen())
	a := p.ask(harness.Post(p.path, body))
	h, err := p.read(a, q.Stream, !p.tunnel())
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	same(t, what, h, p.understood(s, q))
	seen := p.seen()[before:]
	if len(seen) != 1 {
		t.Fatalf("%s: the provider saw %d requests", what, len(seen))
	}
	x := seen[0]
	d := x.DialectOf()
	if p.tunnel() {
		answer := d.Whole(s)
		if q.Stream {
			answer = strings.Join(d.Stream(s, q), "")
		}
		if x.Target != p.path || string(x.Received()) != body || string(a.Bytes) != answer {
			t.Errorf("%s: not as it was:\n%s %s\n%s", what, x.Target, x.Received(), a.Bytes)
		}
	} else if x.Target != p.kind.runs {
		t.Errorf("%s: went to %s", what, x.Target)
	}
	want := map[string]any{"code": "ok", "kind": "run", "attempts": 1}
	if p.tunnel() {
		want["kind"], want["status"] = "tunnel", 200
	}
	if s.Usage != nil && (q.Count || !q.Stream || !p.tunnel() || x.Target != chatPath) {
		want["input_tokens"], want["output_tokens"] = s.Usage.Input, s.Usage.Output
	}
	wantLog(t, p.ended(a.Header), want)
}
