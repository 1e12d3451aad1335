package httpapi

import (
	"testing"

	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// What an operator is told of a model is what a request for it would meet.
func TestFind(t *testing.T) {
	e := keyed()
	e.Routes = append(e.Routes, config.Route{Model: "*", Adapter: "o"}, config.Route{Model: "gone", Adapter: "o", Target: "not-there"})
	e.Nodes = []config.NodeRecord{{ID: "n", Enabled: true, Adapters: []config.Adapter{{Name: "o", Kind: "ollama"}}}}
	state := config.NewState(e, 1, nil)
	h := New(Config{Offers: func() []Offer {
		return []Offer{{Node: "n", Adapter: "o", Models: []execution.Model{{Name: "tiny:latest"}}}}
	}})
	for _, c := range []struct {
		principal, asked, route, target string
		code                            execution.Code
	}{
		{"", "tiny", "*", "tiny", execution.CodeOK},
		{"alice", "tiny:latest", "*", "tiny:latest", execution.CodeOK},
		{"bob", "tiny", "*", "tiny", execution.CodeUnknownModel},
		{"", "nobody-has-it", "*", "nobody-has-it", execution.CodeUnknownModel},
		{"", "gone", "gone", "not-there", execution.CodeUnknownModel},
		{"", "gone:latest", "gone", "not-there", execution.CodeUnknownModel},
	} {
		var p *config.Principal
		if c.principal != "" {
			p = state.Principal(c.principal)
		}
		got := h.Find(state, p, c.asked)
		code := execution.CodeOK
		if got.Failure != nil {
			code = got.Failure.Code
		}
		if got.Route == nil || got.Route.Model != c.route || got.Target != c.target || code != c.code {
			t.Errorf("%s for %q: %+v %v, want %+v", c.asked, c.principal, got, code, c)
		}
	}
	if got := h.Find(config.NewState(keyed(), 1, nil), nil, "nothing"); got.Route != nil || got.Failure == nil || got.Target != "nothing" {
		t.Errorf("no route at all: %+v", got)
	}
}

func TestGoesAsRun(t *testing.T) {
	for path, want := range map[string]bool{"/v1/chat/completions": true, "/v1/messages": true, "/api/chat": true, "/api/generate": true,
		"/v1/embeddings": false, "/v1/models": false, "/nothing": false} {
		if GoesAsRun(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}
