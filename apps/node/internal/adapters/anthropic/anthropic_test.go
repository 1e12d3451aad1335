package anthropic

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
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

func TestConformance(t *testing.T) { adaptertest.Run(t, build, adaptertest.Anthropic()) }

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]Config{
		"base_url":    {},
		"temperature": {BaseURL: "http://h", Options: map[string]string{"temperature": "1"}},
		"version":     {BaseURL: "http://h", Options: map[string]string{"version": "2023-6-1"}},
		"version: ":   {BaseURL: "http://h", Options: map[string]string{"version": "2023-06-01\r\nX-A: b"}},
		"max_tokens":  {BaseURL: "http://h", Options: map[string]string{"max_tokens": "0"}},
		"max_tokens:": {BaseURL: "http://h", Options: map[string]string{"max_tokens": "many"}},
		"thinking":    {BaseURL: "http://h", Options: map[string]string{"thinking": "hard"}},
		"allow_paths": {BaseURL: "http://h", AllowPaths: []string{"v1"}},
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
	const api = `{"data":[{"type":"model","id":"claude-x","display_name":"Claude X","created_at":"2026-01-01T00:00:00Z","max_input_tokens":200000,"max_tokens":64000},` +
		`{"type":"model","id":"claude-y","display_name":"Claude Y"}],"has_more":false,"first_id":"claude-x","last_id":"claude-y"}`
	json := func(status int, body string) fakeprovider.Script {
		return fakeprovider.Answer(status, "application/json", body)
	}
	unknown := execution.Capabilities{Available: true, Version: "unknown"}
	with := func(models ...execution.Model) execution.Capabilities {
		return execution.Capabilities{Available: true, Version: "unknown", Models: models}
	}
	cases := map[string]struct {
		answer fakeprovider.Script
		want   execution.Capabilities
		reason string
	}{
		"the API":     {json(200, api), with(execution.Model{Name: "claude-x", Context: 200000}, execution.Model{Name: "claude-y"}), ""},
		"llama.cpp":   {fixture(t, "llamacpp-0.7.0/models"), with(execution.Model{Name: "tiny", Loaded: true, Context: 4096}), ""},
		"ollama":      {fixture(t, "ollama-0.17.4/models"), with(execution.Model{Name: "slow:latest"}, execution.Model{Name: "tiny:latest"}), ""},
		"wants a key": {json(401, `{"type":"error","error":{"type":"authentication_error","message":"x-api-key header is required"}}`), unknown, ""},
		"refuses":     {json(403, `{}`), unknown, ""},
		"has no list": {json(404, `{}`), unknown, ""},
		"busy":        {json(429, `{}`), unknown, ""},
		"loading":     {fixture(t, "llamacpp-0.7.0/503-loading"), execution.Capabilities{Version: "unknown"}, "loading"},
		"overloaded":  {json(529, `{}`), execution.Capabilities{Version: "unknown"}, "529"},
		"moved":       {fakeprovider.Answer(301, "text/html", "", "Location: https://x/"), execution.Capabilities{Version: "unknown"}, "redirects"},
		"a web page":  {fakeprovider.Answer(200, "text/html", "<html>"), execution.Capabilities{Version: "unknown"}, "isn't a list"},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			p := fakeprovider.New(t, k.answer)
			got := build(t, p.URL()+"/v1", zerolog.Nop()).Probe(t.Context())
			if !strings.Contains(got.Reason, k.reason) || (got.Reason == "") != (k.reason == "") {
				t.Errorf("reason %q, want %q", got.Reason, k.reason)
			}
			got.Reason = ""
			if d := cmp.Diff(k.want, got); d != "" {
				t.Error(d)
			}
			x := p.Exchanges()
			if len(x) != 1 || x[0].Method != "GET" || x[0].Target != "/v1/models?limit=1000" || x[0].Header.Get("Anthropic-Version") != "2023-06-01" {
				t.Errorf("the probe sent %d requests, or another one", len(x))
			}
		})
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

// A tunnel carries the caller's own version and beta words, and nothing of the adapter's.
func TestTunnelCarriesTheCallersVersion(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "application/json", "{}"))
	a := build(t, p.URL(), zerolog.Nop()).(*Provider)
	t.Cleanup(a.Close)
	for _, header := range []http.Header{{"Anthropic-Version": {"2099-01-01"}, "Anthropic-Beta": {"a,b"}}, {}} {
		req := adaptertest.Post("/v1/messages", "{}")
		maps.Copy(req.Header, header)
		if _, err := adaptertest.Do(t, t.Context(), a, req); err != nil {
			t.Fatal(err)
		}
		x := p.Exchanges()
		for _, name := range []string{"Anthropic-Version", "Anthropic-Beta"} {
			if got := x[len(x)-1].Header.Values(name); !slices.Equal(got, header.Values(name)) {
				t.Errorf("%s: %q, want %q", name, got, header.Values(name))
			}
		}
	}
}
