package httpapi

import (
	"context"
	"testing"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// Ollama lists "tiny:latest", and its clients ask for "tiny": the provider gets the name that the caller wrote, so that
// the answer names it, too. Only a name that no candidate knows in that form is written in the other.
func TestNamesWithAndWithoutTheTag(t *testing.T) {
	edge := open()
	edge.Nodes = []config.NodeRecord{{ID: "n", Enabled: true, Adapters: []config.Adapter{{Name: "o", Kind: "ollama"}, {Name: "v", Kind: "openai"}}}}
	edge.Routes = []config.Route{{Model: "named", Adapter: "o", Target: "tiny"}, {Model: "*"}}
	offers := []Offer{
		{Node: "n", Adapter: "o", Models: []execution.Model{{Name: "tiny:latest"}, {Name: "big:8b"}}},
		{Node: "n", Adapter: "v", Targets: []string{"plain"}},
	}
	g := start(t, edge, func(cfg *Config) { cfg.Offers = func() []Offer { return offers } })
	for asked, target := range map[string]string{
		"tiny": "tiny", "tiny:latest": "tiny:latest", "named": "tiny", "big:8b": "big:8b", "plain": "plain", "plain:latest": "plain",
		"big": "", "tin": "", "tiny:8b": "",
	} {
		before := len(g.tunnels())
		resp, body := g.ask("", `{"model":"`+asked+`"}`)
		if target == "" {
			if resp.StatusCode != 404 || len(g.tunnels()) != before {
				t.Errorf("%s: %d %s", asked, resp.StatusCode, body)
			}
			continue
		}
		if resp.StatusCode != 200 {
			t.Errorf("%s: %d %s", asked, resp.StatusCode, body)
			continue
		}
		if got := g.tunnels()[before]; got.Target != target || string(got.body) != `{"model":"`+target+`"}` {
			t.Errorf("%s: target %q, body %s", asked, got.Target, got.body)
		}
	}
}

// commandFunc is [Commands] by a function.
type commandFunc func(*service.Command) *service.CommandResult

func (f commandFunc) Command(_ context.Context, c *service.Command) *service.CommandResult {
	return f(c)
}

// An Ollama shows a model under either name.
func TestShowWithAndWithoutTheTag(t *testing.T) {
	edge := open()
	edge.Nodes = []config.NodeRecord{{ID: "n", Enabled: true, Adapters: []config.Adapter{{Name: "o", Kind: "ollama"}}}}
	edge.Routes = []config.Route{{Model: "named", Adapter: "o", Target: "tiny"}, {Model: "*"}}
	var asked []string
	g := start(t, edge, func(cfg *Config) {
		cfg.Offers = func() []Offer {
			return []Offer{{Node: "n", Adapter: "o", Models: []execution.Model{{Name: "tiny:latest"}}}}
		}
		cfg.Commands = commandFunc(func(c *service.Command) *service.CommandResult {
			asked = append(asked, c.NodeID+" "+c.Adapter+" "+c.Method+" "+c.Path+" "+string(c.Body))
			return &service.CommandResult{Status: 200, Body: []byte(`{"shown":true}`)}
		})
	})
	for i, name := range []string{"tiny", "tiny:latest", "named"} {
		resp, body := g.do2("POST", "/api/show", "", `{"model":"`+name+`"}`)
		if resp.StatusCode != 200 || body != `{"shown":true}` || len(asked) != i+1 || asked[i] != `n o POST /api/show {"model":"tiny:latest"}` {
			t.Errorf("%s: %d %s, the node was asked %q", name, resp.StatusCode, body, asked)
		}
	}
}
