package clients

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"iop/packages/go/patience"
)

// other is a request beside chat.
type other struct {
	name  string
	ask   ask
	api   string
	at    place  // the provider itself
	route string // the same through the edge
	want  said
}

func others() []other {
	tiny, vectors := the.direct(providerLlama), place{Base: "http://" + the.vectors, Model: "tiny", Key: "not-needed"}
	x, hi, think := user("x"), user("hi"), user("think")
	all := []other{
		{"completions", ask{Kind: kindCompletions, Messages: x}, apiOpenAI, tiny, "tiny", said{text: " once upon some raw prompt there was text."}},
		{"responses", ask{Kind: kindResponses, Messages: hi}, apiOpenAI, tiny, "tiny", said{text: greeting}},
		{"responses, streamed", ask{Kind: kindResponses, Messages: hi, Stream: true}, apiOpenAI, tiny, "tiny", said{text: greeting}},
		{"responses with reasoning", ask{Kind: kindResponses, Messages: think, Stream: true}, apiOpenAI, tiny, "tiny", said{text: thought}},
		{"count_tokens", ask{Kind: kindCount, Messages: hi}, apiAnthropic, tiny, "tiny", said{in: 6}},
		{"count_tokens by kind anthropic", ask{Kind: kindCount, Messages: hi}, apiAnthropic, tiny, "llama-anthropic", said{in: 6}},
		{"embeddings", ask{Kind: kindEmbed, Messages: hi}, apiOpenAI, vectors, "vectors", said{}},
		{"embeddings where there are none", ask{Kind: kindEmbed, Messages: hi}, apiOpenAI, tiny, "tiny", said{fails: "embeddings"}},
		{"too long", ask{Kind: kindChat, Messages: user(strings.Repeat("x ", 40000)), MaxTokens: 9}, apiOpenAI, tiny, "tiny", said{fails: "exceed"}},
		{"too long", ask{Kind: kindChat, Messages: user(strings.Repeat("x ", 40000)), MaxTokens: 9}, apiAnthropic, tiny, "tiny", said{fails: "exceed"}},
	}
	if !the.has(providerOllama) {
		return all
	}
	otiny := the.direct(providerOllama)
	return append(all,
		other{"completions at Ollama", ask{Kind: kindCompletions, Messages: x}, apiOpenAI, otiny, "otiny", said{text: "Hello from the tiny test model. It streams"}},
		other{"responses at Ollama", ask{Kind: kindResponses, Messages: hi}, apiOpenAI, otiny, "otiny", said{text: greeting}},
		other{"responses at Ollama, streamed", ask{Kind: kindResponses, Messages: hi, Stream: true}, apiOpenAI, otiny, "otiny", said{text: greeting}},
		other{"embeddings at Ollama", ask{Kind: kindEmbed, Messages: hi}, apiOpenAI, otiny, "otiny", said{}},
		other{"embed", ask{Kind: kindEmbed, Messages: hi}, apiOllama, otiny, "otiny", said{}},
		other{"generate", ask{Kind: kindGenerate, Messages: hi}, apiOllama, otiny, "otiny", said{text: greeting}},
		other{"generate, streamed", ask{Kind: kindGenerate, Messages: hi, Stream: true}, apiOllama, otiny, "otiny", said{text: greeting}},
		other{"generate with thinking", ask{Kind: kindGenerate, Messages: think, Stream: true, Think: true}, apiOllama, otiny, "otiny",
			said{text: thought, reasoning: reasoning}},
		other{"show", ask{Kind: kindModel}, apiOllama, otiny, "otiny", said{}},
		other{"version", ask{Kind: kindVersion}, apiOllama, otiny, "otiny", said{text: "0.17.4"}},
	)
}

// What only tunnels carry is the provider's, too.
func TestOtherRequestsSameAsDirectly(t *testing.T) {
	for _, c := range clients() {
		t.Run(c.name, func(t *testing.T) {
			for _, o := range others() {
				if o.api != c.api || !c.can(o.ask.Kind) {
					continue
				}
				t.Run(o.name, func(t *testing.T) {
					talk(t, c, o.at, o.ask)
					direct, got := talk(t, c, o.at, o.ask), talk(t, c, the.through(o.route), o.ask)
					o.want.checkOther(t, o.ask, direct)
					if got, want := same(t, got), same(t, direct); got != want {
						t.Error(difference(got, want))
					}
				})
			}
		})
	}
}

func (s said) checkOther(t *testing.T, a ask, got answer) {
	t.Helper()
	switch {
	case s.fails != "":
		if got.Error == nil || !strings.Contains(got.Error.String(), s.fails) {
			t.Errorf("error %v, want %q", got.Error, s.fails)
		}
	case got.Error != nil:
		t.Error(got.Error)
	case a.Kind == kindEmbed && len(got.Vector) != 128:
		t.Errorf("%d numbers", len(got.Vector))
	case strings.TrimSpace(got.Text) != strings.TrimSpace(s.text) || s.in > 0 && got.In != s.in:
		t.Errorf("%q with %d tokens in, want %q and %d", got.Text, got.In, s.text, s.in)
	}
}

// What an API has beside chat goes as a run where that can carry it, and is else refused in words that say why.
func TestOtherRequestsRendered(t *testing.T) {
	const noAdapter = "no adapter of the route"
	for _, tt := range []struct {
		route string
		api   string
		ask   ask
		want  said
	}{
		{"tiny", apiOllama, ask{Kind: kindGenerate, Messages: user("hi")}, said{text: greeting}},
		{"tiny", apiOllama, ask{Kind: kindGenerate, Messages: user("think"), Stream: true, Think: true}, said{text: thought, reasoning: reasoning}},
		{"llama-anthropic", apiOllama, ask{Kind: kindGenerate, Messages: user("hi"), Stream: true}, said{text: greeting}},
		{"llama-anthropic", apiOllama, ask{Kind: kindGenerate, Messages: user("think"), Think: true}, said{text: thought, reasoning: reasoning}},
		{"vectors", apiOllama, ask{Kind: kindEmbed, Messages: user("hi")}, said{fails: noAdapter}},
		{"llama-anthropic", apiOpenAI, ask{Kind: kindEmbed, Messages: user("hi")}, said{fails: noAdapter}},
		{"llama-anthropic", apiOpenAI, ask{Kind: kindCompletions, Messages: user("hi")}, said{fails: noAdapter}},
		{"llama-anthropic", apiOpenAI, ask{Kind: kindResponses, Messages: user("hi")}, said{fails: noAdapter}},
		{"llama-openai", apiAnthropic, ask{Kind: kindCount, Messages: user("hi")}, said{fails: noAdapter}},
	} {
		for _, c := range clients() {
			if c.api != tt.api || !c.can(tt.ask.Kind) {
				continue
			}
			t.Run(c.name+"/"+tt.ask.Kind+"/"+tt.route, func(t *testing.T) {
				got := talk(t, c, the.through(tt.route), tt.ask)
				tt.want.checkOther(t, tt.ask, got)
				if got.Error == nil && got.Reasoning != tt.want.reasoning {
					t.Errorf("reasoning %q, want %q", got.Reasoning, tt.want.reasoning)
				}
				if got.Error != nil && got.Error.Status != 400 {
					t.Errorf("status %d", got.Error.Status)
				}
			})
		}
	}
}

// A caller's list has what it may ask for: the routes. Each of them can be looked at.
func TestLists(t *testing.T) {
	want := the.models
	for _, c := range clients() {
		t.Run(c.name, func(t *testing.T) {
			for _, kind := range []string{kindList, kindModel} {
				if !c.can(kind) {
					continue
				}
				for _, name := range want {
					got := talk(t, c, the.through(name), ask{Kind: kind})
					if got.Error != nil {
						t.Errorf("%s of %s: %v", kind, name, got.Error)
					}
					for i := range got.Names { // Ollama's way to say it
						got.Names[i] = strings.TrimSuffix(got.Names[i], ":latest")
					}
					if kind == kindList && !slices.Equal(got.Names, want) {
						t.Errorf("the list is %v, want %v", got.Names, want)
						break
					}
					if kind == kindModel && len(got.Names) > 0 && got.Names[0] != name {
						t.Errorf("asked for %s, got %v", name, got.Names)
					}
				}
			}
		})
	}
}

// Of its models an Ollama's list through the edge says the same as its own.
func TestOllamasLists(t *testing.T) {
	if !the.has(providerOllama) {
		t.Skip("no Ollama")
	}
	for _, c := range clients() {
		if c.api != apiOllama || !c.can(kindList) {
			continue
		}
		for _, kind := range []string{kindList, kindRunning} {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				if got := talk(t, c, the.direct(providerOllama), ask{Messages: user("hi"), MaxTokens: 1}); got.Error != nil {
					t.Fatal(got.Error) // it is loaded now
				}
				var wrong string
				defer func() {
					if t.Failed() {
						t.Log(wrong)
					}
				}()
				patience.Until(t, "the lists are the same", func() bool { wrong = entriesDiffer(t, c, kind); return wrong == "" })
			})
		}
	}
}

func entriesDiffer(t *testing.T, c client, kind string) string {
	t.Helper()
	direct, got := talk(t, c, the.direct(providerOllama), ask{Kind: kind}), talk(t, c, the.through("otiny"), ask{Kind: kind})
	if direct.Error != nil || len(direct.Names) == 0 {
		return fmt.Sprintf("the Ollama itself has %v, %v", direct.Names, direct.Error)
	}
	for i, name := range direct.Names {
		at := slices.Index(got.Names, name)
		if at < 0 {
			return fmt.Sprintf("%s isn't in the list %v", name, got.Names)
		}
		one, other := answer{Raw: direct.Raw[i : i+1]}, answer{Raw: got.Raw[at : at+1]}
		if got, want := same(t, other), same(t, one); got != want {
			return difference(got, want)
		}
	}
	return ""
}
