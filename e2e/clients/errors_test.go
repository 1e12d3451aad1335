package clients

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// A model that nobody has is each API's own 404, with the failure's code where the API has a place for it.
func TestUnknownModel(t *testing.T) {
	says := map[string][]string{apiOpenAI: {"unknown_model"}, apiAnthropic: {"not_found_error", "unknown_model"}, apiOllama: {"not found"}}
	for _, c := range clients() {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%t", c.name, stream), func(t *testing.T) {
				got := talk(t, c, the.through("nobody-has-this"), ask{Messages: user("hi"), MaxTokens: 9, Stream: stream})
				refused(t, got, http.StatusNotFound, says[c.api]...)
			})
		}
	}
}

func refused(t *testing.T, got answer, status int, says ...string) {
	t.Helper()
	if got.Error == nil || got.Error.Status != status {
		t.Fatalf("error %v, want status %d", got.Error, status)
	}
	for _, word := range says {
		if !strings.Contains(got.Error.String(), word) {
			t.Errorf("the error doesn't say %q: %v", word, got.Error)
		}
	}
}

// The edge takes the key as each client sends it, and refuses another one as the client's API does.
func TestKeys(t *testing.T) {
	says := map[string][]string{apiOpenAI: {"unauthorized"}, apiAnthropic: {"authentication_error"}}
	for _, c := range clients() {
		t.Run(c.name, func(t *testing.T) {
			right := place{Base: "http://" + the.guarded, Model: "tiny", Key: rightKey}
			wrong := right
			wrong.Key = "sk-of-somebody-else"
			for _, stream := range []bool{false, true} {
				a := ask{Messages: user("hi"), MaxTokens: 200, Stream: stream}
				if got := talk(t, c, right, a); got.Text != greeting {
					t.Errorf("with the right key: %q, %v", got.Text, got.Error)
				}
				refused(t, talk(t, c, wrong, a), http.StatusUnauthorized, says[c.api]...)
			}
		})
	}
}

// A provider that wants a key refuses the caller's in its own words, also the right one: that key is for the edge.
func TestProvidersOwnKey(t *testing.T) {
	for _, c := range clients() {
		if c.api == apiOllama {
			continue
		}
		for _, key := range []string{"sk-of-somebody-else", "the-provider's"} {
			t.Run(c.name+"/"+key, func(t *testing.T) {
				a := ask{Messages: user("hi"), MaxTokens: 200}
				direct := talk(t, c, place{Base: "http://" + the.locked, Model: "tiny", Key: "sk-of-somebody-else"}, a)
				got := talk(t, c, place{Base: "http://" + the.edge, Model: "locked", Key: key}, a)
				refused(t, direct, http.StatusUnauthorized)
				if got, want := same(t, got), same(t, direct); got != want {
					t.Error(difference(got, want))
				}
			})
		}
	}
}

// What a run can't carry is a 400 that names the field, in every API.
func TestRefusedMembers(t *testing.T) {
	for _, tt := range []struct {
		api, route, name string
		value            any
		says             string
	}{
		{apiOpenAI, "llama-anthropic", "n", 2, "n"},
		{apiOpenAI, "llama-anthropic", "logprobs", true, "logprobs"},
		{apiOpenAI, "llama-anthropic", "min_p", 0.1, "min_p"},
		{apiAnthropic, "llama-openai", "container", "c", "container"},
		{apiAnthropic, "llama-openai", "mcp_servers", []any{map[string]any{"type": "url", "url": "https://a", "name": "b"}}, "mcp_servers"},
		{apiAnthropic, "llama-openai", "top_kk", 3, "top_kk"},
		{apiOllama, "tiny", "num_ctx", 4096, "options.num_ctx"},
		{apiOllama, "tiny", "temperature", 7, "temperature"},
	} {
		for _, c := range clients() {
			if c.api != tt.api || !slices.Contains(c.also, kindExtra) {
				continue
			}
			t.Run(c.name+"/"+tt.name, func(t *testing.T) {
				got := talk(t, c, the.through(tt.route), ask{Messages: user("hi"), MaxTokens: 9, Extra: map[string]any{tt.name: tt.value}})
				refused(t, got, http.StatusBadRequest, tt.says)
			})
		}
	}
}

// Calls side by side, which the models of the real providers don't make: the embedded one does.
func TestCallsSideBySide(t *testing.T) {
	for _, c := range clients() {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%t", c.name, stream), func(t *testing.T) {
				got := talk(t, c, the.through("many"), ask{Messages: user("hi loopback: tools=3 delay=0s"), MaxTokens: 200, Tools: true, Stream: stream})
				one := call{Name: toolName, Arguments: `{"city":"loopback","unit":"loopback"}`}
				if got.Error != nil || got.Finish != c.word("tool_calls") {
					t.Errorf("finish %q, %v", got.Finish, got.Error)
				}
				said{calls: []call{one, one, one}}.checkCalls(t, got.Calls)
			})
		}
	}
}
