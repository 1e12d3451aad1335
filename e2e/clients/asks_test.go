package clients

import (
	"fmt"
	"strings"
)

// What the models of scripts/gengguf say.
const (
	greeting  = "Hello from the tiny test model. It streams one piece at a time: naïve café, 한국어 🙂\ndata: not an event\n\ndone!"
	reasoning = "Okay so someone asks something; let me reason about this slowly.\n"
	thought   = "The answer is forty-two.\n\n"
)

// The tool that the model calls whenever it has one.
const (
	toolName        = "get_weather"
	toolDescription = "the weather of a city"
	toolCall        = `{"city":"Seoul","unit":"celsius"}`
)

func toolSchema() map[string]any {
	text := map[string]any{"type": "string"}
	return map[string]any{"type": "object", "required": []string{"city"}, "properties": map[string]any{"city": text, "unit": text}}
}

// image is a PNG of one pixel.
const image = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// asked is one row of the table of conversations: a question in all the forms that matter, and what the model says.
type asked struct {
	name string
	ask
	want said
	only string // the provider that the question is for, "" = every
	long bool   // asked for as a stream only: as a whole it would show nothing more
}

// said is what a client must have been told, whoever carried it. Finish is in the words of runs.
type said struct {
	text, reasoning string
	calls           []call
	finish          string
	in, out         int64
	fails           string // part of the error that comes instead, "" = none
}

func user(text string) []message { return []message{{Role: "user", Text: text}} }

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, " %d", i+1)
	}
	return b.String()
}

// chats are the conversations.
func chats() []asked {
	rounds := []message{{Role: "system", Text: "be brief"}, {Role: "user", Text: "count"}, {Role: "assistant", Text: " 1 2 3", Reasoning: "as I was told"}, {Role: "user", Text: "hi"}}
	tool := []message{{Role: "user", Text: "weather?"},
		{Role: "assistant", Calls: []call{{ID: "call_1", Name: toolName, Arguments: `{"city":"Seoul"}`}}},
		{Role: "tool", CallID: "call_1", Text: "21"}}
	return []asked{
		{name: "text", ask: ask{Messages: user("hi"), MaxTokens: 200}, want: said{text: greeting, finish: "stop", in: 6, out: 39}},
		{name: "long", long: true, ask: ask{Messages: user("count"), MaxTokens: 2000}, want: said{text: numbers(400), finish: "stop", in: 8, out: 401}},
		{name: "rounds", ask: ask{Messages: rounds, MaxTokens: 200}, want: said{text: greeting, finish: "stop", in: 0, out: 39}},
		{name: "length", ask: ask{Messages: user("count"), MaxTokens: 7}, want: said{text: numbers(7), finish: "length", in: 8, out: 7}},
		{name: "stop", ask: ask{Messages: user("count"), MaxTokens: 200, Stop: " 5"}, want: said{text: numbers(4), finish: "stop", in: 8, out: 5}},
		{name: "reasoning", ask: ask{Messages: user("think"), MaxTokens: 2000, Think: true}, want: said{text: thought, reasoning: reasoning, finish: "stop", in: 9, out: 22}},
		{name: "tool", ask: ask{Messages: user("weather in Seoul?"), Tools: true, MaxTokens: 200},
			want: said{calls: []call{{Name: toolName, Arguments: toolCall}}, finish: "tool_calls", in: 0, out: 13}},
		{name: "tool's answer", ask: ask{Messages: tool, Tools: true, MaxTokens: 200}, want: said{text: greeting, finish: "stop", in: 0, out: 39}},
		{name: "image", ask: ask{Messages: []message{{Role: "user", Text: "hi", Image: image}}, MaxTokens: 200}, only: providerOllama,
			want: said{text: greeting, finish: "stop", in: 0, out: 39}},
		{name: "image refused", ask: ask{Messages: []message{{Role: "user", Text: "hi", Image: image}}, MaxTokens: 200}, only: providerLlama,
			want: said{fails: "image input is not supported"}},
		{name: "bad member", ask: ask{Messages: user("hi"), MaxTokens: 200, Extra: map[string]any{"temperature": "hot"}}, want: said{fails: "temperature"}},
	}
}
