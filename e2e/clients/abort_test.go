package clients

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"iop/e2e/procs"
	"iop/packages/go/patience"
)

// slowWays are those with a model of 45 ms and more a token: what it generates is far from its end when a caller leaves.
var slowWays = []way{
	{route: "slow", provider: providerLlama, as: []string{apiOpenAI, apiAnthropic}, run: []string{apiOllama}},
	{route: "slow-openai", provider: providerLlama, run: []string{apiAnthropic}},
	{route: "slow-anthropic", provider: providerLlama, run: []string{apiOpenAI}},
	{route: "oslow", provider: providerOllama, as: []string{apiOpenAI, apiAnthropic, apiOllama}},
}

var endless = ask{Kind: kindChat, Messages: user("loop"), MaxTokens: 1 << 20, Stream: true}

// A caller that leaves in the middle of a stream ends the generation: the provider's only slot takes the next request.
// (CA-01)
func TestLeaving(t *testing.T) {
	for _, c := range clients() {
		for _, w := range slowWays {
			if !the.has(w.provider) || !slices.Contains(w.as, c.api) && !slices.Contains(w.run, c.api) {
				continue
			}
			t.Run(c.name+"/"+w.route, func(t *testing.T) {
				a := endless
				a.Leave = 4
				got := talk(t, c, the.through(w.route), a)
				if len(got.Raw) < a.Leave || got.Finish != "" {
					t.Errorf("%d pieces, finish %q, %v", len(got.Raw), got.Finish, got.Error)
				}
				the.slotIsFree(t, w.provider)
			})
		}
	}
}

// slotIsFree waits until the provider has nothing to do. By itself it would work on for minutes.
func (w *world) slotIsFree(t *testing.T, provider string) {
	t.Helper()
	if provider == providerLlama {
		patience.Until(t, "llama-server's slot is free", func() bool { return generated(t, w.slow) < 0 })
		return
	}
	// An Ollama doesn't tell; that its only slot answers somebody else does.
	ctx, cancel := context.WithTimeout(t.Context(), patience.Limit)
	defer cancel()
	next := goOllama.ask(ctx, place{Base: "http://" + w.ollama.Addr, Model: "oslow"}, ask{Kind: kindChat, Messages: user("hi"), MaxTokens: 1})
	if next.Error != nil {
		t.Errorf("Ollama is still generating: %v", next.Error)
	}
}

// generated asks a llama-server itself how many tokens its slot has made for its request, -1 = it has none.
func generated(t *testing.T, addr string) int {
	t.Helper()
	response, err := http.Get("http://" + addr + "/slots")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var slots []struct {
		Busy bool `json:"is_processing"`
		Next []struct {
			Decoded int `json:"n_decoded"`
		} `json:"next_token"`
	}
	if err := json.NewDecoder(response.Body).Decode(&slots); err != nil || len(slots) != 1 {
		t.Fatalf("%+v, %v", slots, err)
	}
	if !slots[0].Busy {
		return -1
	}
	if len(slots[0].Next) == 0 {
		return 0
	}
	return slots[0].Next[0].Decoded
}

// A provider that dies in the middle of its answer is an error in every client: none takes what came for the whole.
func TestProviderDies(t *testing.T) {
	for _, c := range clients() {
		for _, route := range []string{"mortal", "mortal-anthropic"} {
			t.Run(c.name+"/"+route, func(t *testing.T) {
				server, err := procs.StartLlama(context.WithoutCancel(t.Context()), the.dir, "slow.gguf", the.mortal, "-np", "1")
				if err != nil {
					t.Fatal(err)
				}
				defer server.Kill()
				if err := procs.Healthy(t.Context(), server, the.mortal); err != nil {
					t.Fatal(err)
				}
				patience.Until(t, "the edge knows that it is there", func() bool {
					return talk(t, goAnthropic, the.through("mortal-anthropic"), ask{Kind: kindCount, Messages: user("hi")}).Error == nil
				})
				answered := make(chan answer, 1)
				go func() { answered <- talk(t, c, the.through(route), endless) }()
				patience.Until(t, "it is at work", func() bool { return generated(t, the.mortal) > 4 })
				server.Kill()
				if got := <-answered; got.Error == nil || got.Finish != "" || len(got.Raw) == 0 {
					t.Errorf("the client saw %d pieces, finish %q and the error %v", len(got.Raw), got.Finish, got.Error)
				}
			})
		}
	}
}
