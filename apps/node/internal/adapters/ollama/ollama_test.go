package ollama

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
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

// at returns an adapter of p that the test closes.
func at(t *testing.T, p *fakeprovider.Provider) *Provider {
	t.Helper()
	a := build(t, p.URL(), zerolog.Nop()).(*Provider)
	a.shows = patience.Limit
	t.Cleanup(a.Close)
	return a
}

func TestConformance(t *testing.T) { adaptertest.Run(t, build, adaptertest.Ollama()) }

func TestNormalized(t *testing.T) { adaptertest.RunNormalized(t, build, normalized()) }

// The auto kind is the same driver with something to find.
func TestConformanceOfAuto(t *testing.T) {
	adaptertest.Run(t, func(t testing.TB, url string, log zerolog.Logger) execution.Provider {
		p, err := New(Config{BaseURL: url, Auto: true, MaxConcurrency: 8, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, adaptertest.Ollama())
}

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]Config{
		"base_url":                   {},
		"base_url: holds a query":    {BaseURL: "http://h/v1?x=1"},
		"base_url: the scheme":       {BaseURL: "ftp://h/v1"},
		`"num_ctx" is unknown`:       {BaseURL: "http://h", Options: map[string]string{"num_ctx": "1"}},
		"keep_alive: must be":        {BaseURL: "http://h", Options: map[string]string{"keep_alive": "long"}},
		"options: keep_alive":        {Auto: true, Options: map[string]string{"keep_alive": ""}},
		"allow_paths: \"v1\"":        {BaseURL: "http://h", AllowPaths: []string{"v1"}},
		"allow_paths: \"/api/../x\"": {BaseURL: "http://h", AllowPaths: []string{"/api/../x"}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// HT-16: whatever form the base has that people copy from elsewhere, both APIs are found, and the query stays.
func TestBaseIsJoinedOnce(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "application/json", `{"models":[]}`))
	for base, before := range map[string]string{"": "", "/": "", "/v1": "", "/v1/": "", "/ollama": "/ollama", "/ollama/v1": "/ollama", "/ollama/v1/": "/ollama"} {
		a := build(t, p.URL()+base, zerolog.Nop()).(*Provider)
		var want []string
		seen := len(p.Exchanges())
		for _, path := range []string{"/api/chat", "/v1/chat/completions", "/v1/messages"} {
			req := adaptertest.Post(path, "{}")
			req.Query = "x=1%202"
			if _, err := adaptertest.Do(t, t.Context(), a, req); err != nil {
				t.Fatal(base, err)
			}
			want = append(want, before+path+"?x=1%202")
		}
		if err := a.Command(t.Context(), adaptertest.Get("/api/tags"), adaptertest.NewRecorder()); err != nil {
			t.Fatal(base, err)
		}
		if !a.Probe(t.Context()).Available {
			t.Errorf("%s: isn't found", base)
		}
		want = append(want, before+"/api/tags", before+"/api/version", before+"/api/tags", before+"/api/ps")
		var got []string
		for _, x := range p.Exchanges()[seen:] {
			got = append(got, x.Target)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", base, got, want)
		}
		a.Close()
	}
}

// hostile are HT-15's paths.
func hostile() []string {
	return []string{"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete", "/api%2fdelete", "/api/chat%2f..%2fdelete",
		"/API/delete", "/api/delete?", "/api/\\delete"}
}

// HT-15: nothing that changes the provider is reached, however it is written.
func TestPathsThatAreRefused(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "application/json", `{}`))
	a := at(t, p)
	for _, path := range append(hostile(), "/api/delete", "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/blobs/sha256:0",
		"/api/tags", "/api/me", "/api/signout", "/api/chat/", "/API/chat", "/api/chat?x", "/") {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			req := adaptertest.Post(path, "{}")
			req.Method = method
			_, err := adaptertest.Do(t, t.Context(), a, req)
			if f, ok := err.(*execution.Failure); !ok || f.Code != execution.CodeBadRequest || !f.NothingSent {
				t.Errorf("%s %s: %v", method, path, err)
			}
		}
	}
	if n := len(p.Exchanges()); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

// OL-03: Ollama answers 403 to a foreign Origin; it gets its own Host and none.
func TestHostAndOriginAreTheProvidersOwn(t *testing.T) {
	var own string
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
		x.Body()
		status := 200
		if x.Header.Get("Origin") != "" || !strings.Contains(string(x.Head), "\r\nHost: "+own+"\r\n") {
			status = 403
		}
		fakeprovider.Answer(status, "application/json", `{"model":"m","done":true}`)(x)
	})
	own = strings.TrimPrefix(p.URL(), "http://")
	a := at(t, p)
	req := adaptertest.Post("/api/chat", "{}")
	req.Header.Set("Host", "edge.example")
	req.Header.Set("Origin", "https://app.example")
	if r, err := adaptertest.Do(t, t.Context(), a, req); err != nil || r.Status() != 200 {
		t.Errorf("%v, status %d", err, r.Status())
	}
	if _, _, err := adaptertest.Execute(t, t.Context(), a, adaptertest.Ask("m", "hi")); err != nil {
		t.Error(err)
	}
}

// OL-02: a provider that is busy says so to the caller, is asked once, and isn't taken for one that is down.
func TestBusyProvider(t *testing.T) {
	busy := fixture(t, "ollama-0.17.4/native-chat-503-busy")
	p := fakeprovider.New(t, fakeprovider.Routes(map[string]fakeprovider.Script{
		"/api/chat": busy, "/api/version": fixture(t, "ollama-0.17.4/version"),
		"/api/tags": fixture(t, "ollama-0.17.4/tags"), "/api/ps": fixture(t, "ollama-0.17.4/ps-loaded"),
	}))
	a := at(t, p)
	r, err := adaptertest.Do(t, t.Context(), a, adaptertest.Post("/api/chat", "{}"))
	if err != nil || r.Status() != http.StatusServiceUnavailable || !strings.Contains(string(r.Bytes()), "server busy") {
		t.Errorf("%v, status %d, %s", err, r.Status(), r.Bytes())
	}
	got, _, err := adaptertest.Execute(t, t.Context(), a, adaptertest.Ask("m", "hi"))
	if got.Code != execution.CodeUpstreamError || got.Status != 503 || !strings.Contains(err.Error(), "server busy") {
		t.Errorf("%v", err)
	}
	if n := len(p.Exchanges()); n != 2 {
		t.Errorf("%d requests for two", n)
	}
	if c := a.Probe(t.Context()); !c.Available {
		t.Errorf("%+v", c)
	}
}

// OL-01: a provider that is silent while it loads a model is waited for: one request, whose connection stays, and a
// provider that is as available as before.
func TestColdModel(t *testing.T) {
	loaded := make(chan struct{})
	answers := table(t, "ps-empty")
	answers["/api/chat"] = func(x *fakeprovider.Exchange) {
		x.Body()
		<-loaded
		fakeprovider.Answer(200, "application/x-ndjson", say("a")+end)(x)
	}
	p := fakeprovider.New(t, fakeprovider.Routes(answers))
	a := at(t, p)
	done := make(chan error, 1)
	go func() {
		_, _, err := adaptertest.Execute(t, t.Context(), a, adaptertest.Ask("tiny", "hi"))
		done <- err
	}()
	adaptertest.Until(t, func() bool { return len(p.Exchanges()) == 1 })
	for range 3 {
		if c := a.Probe(t.Context()); !c.Available || len(c.Models) != 2 {
			t.Errorf("%+v", c)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("it wasn't waited for: %v", err)
	default:
	}
	close(loaded)
	if err := <-done; err != nil {
		t.Error(err)
	}
	chats := 0
	for _, x := range p.Exchanges() {
		if x.Target == "/api/chat" {
			chats++
		}
	}
	if chats != 1 {
		t.Errorf("%d requests", chats)
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
