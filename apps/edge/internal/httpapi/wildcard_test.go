package httpapi

import (
	"testing"

	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// A key that may use the wildcard alone gets no model that has a route of its own, under no spelling and on no surface:
// a run names adapter and target itself, and Ollama takes many names for one.
func TestTheWildcardIsNoWayPastARoute(t *testing.T) {
	edge := keyed()
	edge.Nodes = []config.NodeRecord{{ID: "n", Enabled: true, Adapters: []config.Adapter{{Name: "o", Kind: "ollama"}, {Name: "v", Kind: "openai"}}}}
	edge.Principals[1].Routes = []string{"*"}
	edge.Routes = []config.Route{{Model: "priv", Adapter: "o"}, {Model: "*"}}
	f := &fakeRuns{do: talk(t, nil)}
	g := start(t, edge, func(cfg *Config) {
		cfg.Runs = f
		cfg.Offers = func() []Offer {
			return []Offer{
				{Node: "n", Adapter: "o", Models: []execution.Model{{Name: "priv:latest"}, {Name: "tiny:latest"}}},
				{Node: "n", Adapter: "v", Models: []execution.Model{{Name: "other"}}},
			}
		}
	})
	ask := func(adapter, model string) (run, chat int) {
		body := `","messages":[{"role":"user","content":"hi"}]}`
		resp, _ := g.run(bobKey, `{"adapter":"`+adapter+`","target":"`+model+body)
		run = resp.StatusCode
		resp, _ = g.ask("Authorization: Bearer "+bobKey+"\r\n", `{"model":"`+model+body)
		return run, resp.StatusCode
	}
	for _, model := range []string{"priv", "priv:latest", "priv:latest:latest", "PRIV", "library/priv", `pri\u0076`, "*"} {
		if run, chat := ask("o", model); run == 200 || chat == 200 {
			t.Errorf("%s: a run got %d, a chat %d", model, run, chat)
		}
	}
	for _, model := range []string{"tiny", "tiny:latest"} {
		if run, chat := ask("o", model); run != 200 || chat != 200 {
			t.Errorf("%s: a run got %d, a chat %d", model, run, chat)
		}
	}
	if run, _ := ask("v", "tiny"); run == 200 {
		t.Error("a run got a model at an adapter that doesn't list it")
	}
	if resp, body := g.run(aliceKey, `{"adapter":"o","target":"priv","messages":[{"role":"user","content":"hi"}]}`); resp.StatusCode != 200 {
		t.Errorf("who may use every route got %d %s", resp.StatusCode, body)
	}
}
