package openai

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func build(t testing.TB, url string, log zerolog.Logger) execution.Provider {
	t.Helper()
	p, err := New(Config{BaseURL: url, MaxConcurrency: 8, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) { adaptertest.Run(t, build, adaptertest.OpenAI()) }

// Paths of other dialects, which the configuration may allow, are tunnelled as the dialect's own are: llama.cpp's
// /v1/messages and native API, and whatever else was recorded.
func TestAllowedPaths(t *testing.T) {
	allowed := []string{"/", "/v1/messages", "/v1/messages/*", "/v1/nothing", "/completion", "/health", "/metrics", "/props", "/slots", "/api/*"}
	adaptertest.RunRecordings(t, func(t testing.TB, url string, log zerolog.Logger) execution.Provider {
		p, err := New(Config{BaseURL: url, AllowPaths: allowed, MaxConcurrency: 8, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, func(_, path string) bool { return !httprules.Carries("openai", nil, path) })
}

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]Config{
		"base_url":         {},
		"temperature":      {BaseURL: "http://h", Options: map[string]string{"temperature": "1"}},
		"include_usage":    {BaseURL: "http://h", Options: map[string]string{"include_usage": "no"}},
		"reasoning_field":  {BaseURL: "http://h", Options: map[string]string{"reasoning_field": "thoughts"}},
		"max_tokens_field": {BaseURL: "http://h", Options: map[string]string{"max_tokens_field": "n_predict"}},
		"allow_paths":      {BaseURL: "http://h", AllowPaths: []string{"v1"}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func fixture(t *testing.T, name string) fakeprovider.Script {
	t.Helper()
	f, err := fakeprovider.LoadFixture(name)
	if err != nil {
		t.Fatal(err)
	}
	return f.Again()
}

func TestProbe(t *testing.T) {
	const vllm = `{"object":"list","data":[{"id":"Qwen/Qwen3-8B","object":"model","owned_by":"vllm","max_model_len":4096},{"id":"lora","owned_by":"vllm"}]}`
	const router = `{"data":[{"id":"a","owned_by":"llamacpp","status":{"value":"loaded"}},{"id":"b","owned_by":"llamacpp","status":{"value":"unloaded"}},{"id":""}]}`
	json := func(status int, body string) fakeprovider.Script {
		return fakeprovider.Answer(status, "application/json", body)
	}
	cases := map[string]struct {
		table  map[string]fakeprovider.Script
		want   execution.Capabilities
		reason string
	}{
		"llama.cpp": {map[string]fakeprovider.Script{"/v1/models": fixture(t, "llamacpp-0.7.0/models"), "/props": fixture(t, "llamacpp-0.7.0/props")},
			execution.Capabilities{Available: true, Version: "llama.cpp b11669-Debian", Models: []execution.Model{{Name: "tiny", Loaded: true, Context: 4096}}}, ""},
		"llama.cpp with a key": {map[string]fakeprovider.Script{"/v1/models": fixture(t, "llamacpp-0.7.0/models"), "/props": fixture(t, "llamacpp-0.7.0/401-no-key")},
			execution.Capabilities{Available: true, Version: "unknown", Models: []execution.Model{{Name: "tiny", Loaded: true, Context: 4096}}}, ""},
		"llama.cpp, several": {map[string]fakeprovider.Script{"/v1/models": json(200, router)},
			execution.Capabilities{Available: true, Version: "unknown", Models: []execution.Model{{Name: "a", Loaded: true}, {Name: "b"}}}, ""},
		"vllm": {map[string]fakeprovider.Script{"/v1/models": json(200, vllm), "/version": json(200, `{"version":"0.11.2"}`)},
			execution.Capabilities{Available: true, Version: "vllm 0.11.2", Models: []execution.Model{{Name: "Qwen/Qwen3-8B", Loaded: true, Context: 4096}, {Name: "lora", Loaded: true}}}, ""},
		"ollama": {map[string]fakeprovider.Script{"/v1/models": fixture(t, "ollama-0.17.4/models"), "/api/version": fixture(t, "ollama-0.17.4/version")},
			execution.Capabilities{Available: true, Version: "ollama 0.17.4", Models: []execution.Model{{Name: "slow:latest"}, {Name: "tiny:latest"}}}, ""},
		"another":      {map[string]fakeprovider.Script{"/v1/models": fakeprovider.Models("m")}, execution.Capabilities{Available: true, Version: "unknown", Models: []execution.Model{{Name: "m"}}}, ""},
		"wants a key":  {map[string]fakeprovider.Script{"/v1/models": json(401, `{}`)}, execution.Capabilities{Available: true, Version: "unknown"}, ""},
		"refuses":      {map[string]fakeprovider.Script{"/v1/models": json(403, `{}`)}, execution.Capabilities{Available: true, Version: "unknown"}, ""},
		"has no list":  {nil, execution.Capabilities{Available: true, Version: "unknown"}, ""},
		"empty list":   {map[string]fakeprovider.Script{"/v1/models": json(200, `{"data":null}`)}, execution.Capabilities{Available: true, Version: "unknown", Models: []execution.Model{}}, ""},
		"loading":      {map[string]fakeprovider.Script{"/v1/models": fixture(t, "llamacpp-0.7.0/503-loading")}, execution.Capabilities{Version: "unknown"}, "loading"},
		"broken":       {map[string]fakeprovider.Script{"/v1/models": json(500, `{}`)}, execution.Capabilities{Version: "unknown"}, "500"},
		"moved":        {map[string]fakeprovider.Script{"/v1/models": fakeprovider.Answer(301, "text/html", "", "Location: https://x/")}, execution.Capabilities{Version: "unknown"}, "redirects"},
		"a web page":   {map[string]fakeprovider.Script{"/v1/models": fakeprovider.Answer(200, "text/html", "<html>")}, execution.Capabilities{Version: "unknown"}, "isn't JSON"},
		"odd version":  {map[string]fakeprovider.Script{"/v1/models": json(200, vllm), "/version": json(200, `{"version":7}`)}, execution.Capabilities{Available: true, Version: "unknown", Models: []execution.Model{{Name: "Qwen/Qwen3-8B", Loaded: true, Context: 4096}, {Name: "lora", Loaded: true}}}, ""},
		"long version": {map[string]fakeprovider.Script{"/v1/models": json(200, vllm), "/version": json(200, `{"version":"1\n`+strings.Repeat("é", 90)+`"}`)}, execution.Capabilities{Available: true, Version: "vllm 1", Models: []execution.Model{{Name: "Qwen/Qwen3-8B", Loaded: true, Context: 4096}, {Name: "lora", Loaded: true}}}, ""},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			p := fakeprovider.New(t, fakeprovider.Routes(k.table))
			got := build(t, p.URL()+"/v1", zerolog.Nop()).Probe(t.Context())
			if !strings.Contains(got.Reason, k.reason) || (got.Reason == "") != (k.reason == "") {
				t.Errorf("reason %q, want %q", got.Reason, k.reason)
			}
			got.Reason = ""
			if d := cmp.Diff(k.want, got); d != "" {
				t.Error(d)
			}
			for _, x := range p.Exchanges() {
				if x.Method != "GET" {
					t.Errorf("the probe sent %s %s", x.Method, x.Target)
				}
			}
		})
	}
}

// The version is asked for once in a provider's life; a provider that was away is asked again.
func TestVersionIsAskedOnce(t *testing.T) {
	table := map[string]fakeprovider.Script{"/v1/models": fixture(t, "llamacpp-0.7.0/models"), "/props": fixture(t, "llamacpp-0.7.0/props")}
	p := fakeprovider.New(t, fakeprovider.Routes(table))
	a := build(t, p.URL(), zerolog.Nop())
	asked := func() (n int) {
		for _, x := range p.Exchanges() {
			if x.Target == "/props" {
				n++
			}
		}
		return n
	}
	for range 3 {
		a.Probe(t.Context())
	}
	if asked() != 1 {
		t.Errorf("asked %d times", asked())
	}
	p.Use(fixture(t, "llamacpp-0.7.0/503-loading"))
	a.Probe(t.Context())
	p.Use(fakeprovider.Routes(table))
	if got := a.Probe(t.Context()); asked() != 2 || got.Version != "llama.cpp b11669-Debian" {
		t.Errorf("asked %d times, %+v", asked(), got)
	}
}

// A probe is bounded even when its caller isn't in a hurry.
func TestProbeHasItsOwnLimit(t *testing.T) {
	t.Parallel()
	p := fakeprovider.New(t, fakeprovider.Silent(""))
	began := time.Now()
	got := build(t, p.URL(), zerolog.Nop()).Probe(context.Background())
	if took := time.Since(began); got.Available || took < probeLimit || !strings.Contains(got.Reason, "in time") {
		t.Errorf("%+v after %v", got, took)
	}
}

// A probe that got no answer to its second question asks again; the version isn't unknown for good.
func TestProbeAsksAgainForTheVersion(t *testing.T) {
	answers := map[string]fakeprovider.Script{"/v1/models": fixture(t, "llamacpp-0.7.0/models"), "/props": func(x *fakeprovider.Exchange) { x.Reset() }}
	p := fakeprovider.New(t, fakeprovider.Routes(answers))
	provider := build(t, p.URL(), zerolog.Nop())
	if got := provider.Probe(t.Context()); !got.Available || got.Version != "unknown" {
		t.Errorf("%+v", got)
	}
	p.Use(fakeprovider.Routes(map[string]fakeprovider.Script{"/v1/models": answers["/v1/models"], "/props": fixture(t, "llamacpp-0.7.0/props")}))
	if got := provider.Probe(t.Context()); got.Version != "llama.cpp b11669-Debian" {
		t.Errorf("%+v", got)
	}
}
