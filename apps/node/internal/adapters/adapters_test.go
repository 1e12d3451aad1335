package adapters_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"iop/apps/node/internal/adapters"
	"iop/packages/go/execution"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBuildsEveryKind(t *testing.T) {
	for _, kind := range adapters.Kinds() {
		cfg := adapters.Config{Name: "a", Kind: kind}
		if kind != "loopback" && kind != "auto" {
			cfg.BaseURL = "http://127.0.0.1:1/v1"
		}
		p, err := adapters.Build(cfg)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if _, ok := p.(execution.Tunneler); !ok {
			t.Errorf("%s carries no tunnels", kind)
		}
		if _, ok := p.(execution.Executor); !ok {
			t.Errorf("%s runs nothing", kind)
		}
		p.Close()
	}
}

func TestBuildRefuses(t *testing.T) {
	for want, cfg := range map[string]adapters.Config{
		`adapter "a": kind "vllm" is unknown`: {Name: "a", Kind: "vllm"},
		"base_url: missing":                   {Name: "a", Kind: "openai"},
		"base_url: the loopback kind":         {Name: "a", Kind: "loopback", BaseURL: "http://h"},
		"base_url: the auto kind":             {Name: "a", Kind: "auto", BaseURL: "http://h"},
		`options: "x" is unknown`:             {Name: "a", Kind: "openai", BaseURL: "http://h", Options: map[string]string{"x": "1"}},
		`"x" is unknown`:                      {Name: "a", Kind: "loopback", Options: map[string]string{"x": "1"}},
		"allow_paths":                         {Name: "a", Kind: "openai", BaseURL: "http://h", AllowPaths: []string{"x"}},
	} {
		if p, err := adapters.Build(cfg); err == nil || p != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
