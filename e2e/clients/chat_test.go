package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// clients are all of them.
func clients() []client {
	all := []client{goOpenAI, goAnthropic, goOllama}
	if the.npm != nil {
		all = append(all, npmClients(the.npm)...)
	}
	return all
}

// way is a route of the edge to a provider.
type way struct {
	route, provider string
	as              []string        // the APIs whose requests it carries as they are
	run             []string        // the APIs whose requests go as runs there
	unlike          map[string]said // what comes of some conversations instead, where they go as runs
}

// ways are the nine pairs of callers and adapters, with both providers behind them.
var ways = []way{
	{route: "tiny", provider: providerLlama, as: []string{apiOpenAI, apiAnthropic}, run: []string{apiOllama}},
	{route: "llama-openai", provider: providerLlama, run: []string{apiAnthropic, apiOllama}},
	{route: "llama-anthropic", provider: providerLlama, as: []string{apiAnthropic}, run: []string{apiOpenAI, apiOllama}},
	{route: "otiny", provider: providerOllama, as: []string{apiOpenAI, apiAnthropic, apiOllama}},
	{route: "ollama-openai", provider: providerOllama, as: []string{apiOpenAI}, run: []string{apiAnthropic, apiOllama},
		// OpenAI's API has words for how much to reason, and Ollama takes none of them for this model; the kind ollama can tell it.
		unlike: map[string]said{"reasoning": {fails: "is not supported for this model"}}},
	{route: "ollama-anthropic", provider: providerOllama, as: []string{apiAnthropic}, run: []string{apiOpenAI, apiOllama}},
}

// limit bounds one request. It says nothing about speed: a loaded machine must not fail a test.
const limit = time.Minute

func talk(t *testing.T, c client, p place, a ask) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if a.Kind == "" {
		a.Kind = kindChat
	}
	return c.ask(ctx, p, a)
}

// each runs a test for each client, each way, each conversation and both forms of an answer.
func each(t *testing.T, apis func(w way) []string, test func(t *testing.T, c client, w way, q asked)) {
	for _, c := range clients() {
		t.Run(c.name, func(t *testing.T) {
			for _, w := range ways {
				if !the.has(w.provider) || !slices.Contains(apis(w), c.api) {
					continue
				}
				for _, q := range chats() {
					if q.only != "" && q.only != w.provider || q.Extra != nil && !c.can(kindExtra) {
						continue
					}
					for _, q.Stream = range []bool{false, true} {
						if q.long && !q.Stream {
							continue
						}
						form := map[bool]string{false: "whole", true: "stream"}[q.Stream]
						t.Run(fmt.Sprintf("%s/%s/%s", w.route, q.name, form), func(t *testing.T) { test(t, c, w, q) })
					}
				}
			}
		})
	}
}

// A request that the edge carries as it is gets the provider's answer, byte for byte as far as a client can see.
func TestSameAsDirectly(t *testing.T) {
	each(t, func(w way) []string { return w.as }, func(t *testing.T, c client, w way, q asked) {
		// Asked once before, the provider has the prompt in its cache both times, and counts the same.
		talk(t, c, the.direct(w.provider), q.ask)
		direct := talk(t, c, the.direct(w.provider), q.ask)
		got := talk(t, c, the.through(w.route), q.ask)
		if c.odd[w.provider+" "+q.name] == "" {
			q.want.from(c, q.Stream).check(t, c, direct)
		}
		if got, want := same(t, got), same(t, direct); got != want {
			t.Error(difference(got, want))
		}
	})
}

// A request that goes as a run has the model's known answer, in the client's own types.
func TestRendered(t *testing.T) {
	each(t, func(w way) []string { return w.run }, func(t *testing.T, c client, w way, q asked) {
		want := q.want
		if instead, ok := w.unlike[q.name]; ok {
			want = instead
		}
		want.from(c, q.Stream).check(t, c, talk(t, c, the.through(w.route), q.ask))
	})
}

// from leaves out what a client doesn't get to know.
func (s said) from(c client, stream bool) said {
	if c.fromStart && stream {
		s.in = 0
	}
	return s
}

// check compares an answer with what must have been said.
func (s said) check(t *testing.T, c client, got answer) {
	t.Helper()
	if s.fails != "" {
		switch {
		case got.Error == nil:
			t.Errorf("no error, but %q", got.Text)
		case !strings.Contains(got.Error.String(), s.fails):
			t.Errorf("the error doesn't say %q: %v", s.fails, got.Error)
		}
		return
	}
	if got.Error != nil {
		t.Errorf("%v", got.Error)
	}
	if strings.TrimSpace(got.Text) != strings.TrimSpace(s.text) { // llama-server trims whole answers
		t.Errorf("text %q, want %q", got.Text, s.text)
	}
	if strings.TrimSpace(got.Reasoning) != strings.TrimSpace(s.reasoning) {
		t.Errorf("reasoning %q, want %q", got.Reasoning, s.reasoning)
	}
	if want := c.word(s.finish); got.Finish != want {
		t.Errorf("finish %q, want %q", got.Finish, want)
	}
	if s.in > 0 && got.In != s.in || got.Out != s.out {
		t.Errorf("%d tokens in, %d out, want %d and %d", got.In, got.Out, s.in, s.out)
	}
	s.checkCalls(t, got.Calls)
}

func (s said) checkCalls(t *testing.T, got []call) {
	t.Helper()
	if len(got) != len(s.calls) {
		t.Errorf("calls %v, want %v", got, s.calls)
		return
	}
	ids := map[string]bool{}
	for i, c := range got {
		var is, want any
		err := json.Unmarshal([]byte(c.Arguments), &is)
		_ = json.Unmarshal([]byte(s.calls[i].Arguments), &want)
		if c.ID == "" || ids[c.ID] || c.Name != s.calls[i].Name || err != nil || !reflect.DeepEqual(is, want) {
			t.Errorf("call %+v, want %+v and an id of its own", c, s.calls[i])
		}
		ids[c.ID] = true
	}
}

// word is what a client calls a finish reason of a run.
func (c client) word(finish string) string {
	if word, ok := c.words[finish]; ok {
		return word
	}
	switch c.api + " " + finish {
	case "anthropic stop":
		return "end_turn"
	case "anthropic length":
		return "max_tokens"
	case "anthropic tool_calls":
		return "tool_use"
	case "ollama tool_calls":
		return "stop"
	}
	return finish
}

// A tool's answer goes back with the id that its call had, whoever made it up, and beside what else the client keeps.
func TestToolsInRounds(t *testing.T) {
	for _, c := range clients() {
		for _, w := range ways {
			if !the.has(w.provider) || !slices.Contains(w.as, c.api) && !slices.Contains(w.run, c.api) {
				continue
			}
			t.Run(c.name+"/"+w.route, func(t *testing.T) {
				a := ask{Messages: user("weather in Seoul?"), Tools: true, MaxTokens: 200, Stream: true}
				called := talk(t, c, the.through(w.route), a)
				if called.Error != nil || len(called.Calls) != 1 {
					t.Fatalf("calls %v, %v", called.Calls, called.Error)
				}
				a.Messages = append(a.Messages, message{Role: "assistant", Text: called.Text, Calls: called.Calls},
					message{Role: "tool", CallID: called.Calls[0].ID, Text: "21"})
				said{text: greeting, finish: "stop", out: 39}.check(t, c, talk(t, c, the.through(w.route), a))
			})
		}
	}
}
