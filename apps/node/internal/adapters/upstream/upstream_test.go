package upstream_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/upstream"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tunneler makes a client what adaptertest's helpers take.
type tunneler struct{ *upstream.Client }

func (tunneler) Probe(context.Context) execution.Capabilities { return execution.Capabilities{} }

func paths() []string { return []string{"/v1/chat/completions", "/v1/models", "/v1/models/*"} }

func client(t testing.TB, base string, change ...func(*upstream.Config)) tunneler {
	t.Helper()
	cfg := upstream.Config{BaseURL: base, Paths: paths(), MaxConcurrency: 4, Connect: patience.Limit}
	for _, f := range change {
		f(&cfg)
	}
	c, err := upstream.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return tunneler{c}
}

func chat() *execution.TunnelRequest {
	return adaptertest.Post("/v1/chat/completions", `{"model":"m"}`)
}

// HT-16
func TestBasePathIsJoinedOnce(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "ok"))
	cases := []struct{ base, path, want string }{
		{"", "/v1/chat/completions", "/v1/chat/completions"},
		{"/", "/v1/chat/completions", "/v1/chat/completions"},
		{"/v1", "/v1/chat/completions", "/v1/chat/completions"},
		{"/v1/", "/v1/chat/completions", "/v1/chat/completions"},
		{"/api", "/v1/chat/completions", "/api/v1/chat/completions"},
		{"/openai/v1", "/v1/chat/completions", "/openai/v1/chat/completions"},
		{"/api/paas/v4/", "/v1/chat/completions", "/api/paas/v4/chat/completions"},
		{"/vllm", "/v1/models/a%3Ab", "/vllm/v1/models/a%3Ab"},
		{"/v1", "/v1/models/v1", "/v1/models/v1"},
	}
	for _, k := range cases {
		req := adaptertest.Post(k.path, "{}")
		req.Query = "x=1%202&y=%2F;+"
		if _, err := adaptertest.Do(t, t.Context(), client(t, p.URL()+k.base), req); err != nil {
			t.Fatal(k.base, err)
		}
		got := p.Exchanges()
		if target := got[len(got)-1].Target; target != k.want+"?x=1%202&y=%2F;+" {
			t.Errorf("base %q: provider got %q", k.base, target)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	bases := map[string]string{
		"": "missing", "127.0.0.1:80": "base_url", "ftp://h": "scheme", "http://": "no host", "http:///v1": "no host",
		"http://u:secret@h": "user name", "http://h?x=1": "query", "http://h/#f": "fragment", "http://h/a/../b": "segment",
		"http://h/a%2fb": "escape", "http:h": "no host", "://": "URL", "http://h\x00": "URL",
	}
	for base, want := range bases {
		_, err := upstream.New(upstream.Config{BaseURL: base})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("base %q: %v, want a word on %q", base, err, want)
		}
	}
	for _, path := range []string{"", "v1", "/v1/*/x", "/v1*", "/a//b", "/v1/../x", "http://h/"} {
		if _, err := upstream.New(upstream.Config{BaseURL: "http://h", AllowPaths: []string{path}}); err == nil {
			t.Errorf("allow_paths %q passes", path)
		}
	}
}

// HT-15, E32, E34, CR-09: nothing of it reaches the provider, and no connection is made.
func TestRequestsRefusedBeforeSending(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "ok"))
	c := client(t, p.URL(), func(cfg *upstream.Config) { cfg.AllowPaths = []string{"/extra"} })
	var reqs []*execution.TunnelRequest
	for _, path := range []string{
		"/v1/chat/../models", "/v1/%2e%2e/admin", "//v1/models", "/v1%2fmodels", "/v1/models%2f..%2fdelete", "/V1/models",
		"/v1/models?x", "/v1/\\models", "http://169.254.169.254/v1/models", "@evil/x", "/v1/models#f", "/v1/models;x",
		"*", "", "/v1/m\x00", "/v1/m\r\nX: y", "/v1/ünder", "/admin", "/v1/model%73", "/v1/models/", "/v1/chat/completions/",
		"/extra/below", "/v1/modelsx", "/v1/models//x", "/v1/models/..;/x",
	} {
		reqs = append(reqs, adaptertest.Get(path))
	}
	for _, bad := range []func(*execution.TunnelRequest){
		func(r *execution.TunnelRequest) { r.Query = "a b" },
		func(r *execution.TunnelRequest) { r.Method = "GET /x" },
		func(r *execution.TunnelRequest) { r.Method = "CONNECT" },
		func(r *execution.TunnelRequest) { r.Header["X A"] = []string{"v"} },
		func(r *execution.TunnelRequest) { r.Header["X-A"] = []string{"v\r\nX-B: 1"} },
		func(r *execution.TunnelRequest) { r.Header["X-A:"] = []string{"v"} },
	} {
		r := adaptertest.Get("/v1/models")
		bad(r)
		reqs = append(reqs, r)
	}
	for _, req := range reqs {
		r, err := adaptertest.Do(t, t.Context(), c, req)
		var f *execution.Failure
		if !errors.As(err, &f) || f.Code != execution.CodeBadRequest || f.Origin != execution.OriginCaller || !f.NothingSent || r.Status() != 0 {
			t.Errorf("%s %q: %v", req.Method, req.Path, err)
		}
	}
	if opened, _ := p.Connections(); opened != 0 {
		t.Errorf("%d connections", opened)
	}
	for _, path := range []string{"/extra", "/v1/models", "/v1/models/a.b", "/v1/models/org/name"} {
		if _, err := adaptertest.Do(t, t.Context(), c, adaptertest.Get(path)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// HT-01, CR-03, OL-03, E33, E35, E36: the head that the provider gets, byte for byte.
func TestHeadOnTheWire(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "ok"))
	req := adaptertest.Post("/v1/chat/completions", "{}")
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "X-Custom": {"a", "b\tc"}, "x-odd-CASE": {"kept"}, "Accept-Encoding": {"gzip"},
		"Idempotency-Key": {"k"}, "Content-Length": {"999"}, "Host": {"evil.example"}, "host": {"evil.example"},
		"Connection": {"keep-alive, X-Hop"}, "X-Hop": {"1"}, "Te": {"trailers"}, "Transfer-Encoding": {"chunked"},
		"Upgrade": {"h2c"}, "Expect": {"100-continue"}, "Authorization": {"Bearer client-1"}, "x-api-KEY": {"client-2"},
		"Cookie": {"client-2"}, "Origin": {"https://app.example"}, "X-Forwarded-Host": {"evil.example"},
		"Proxy-Authorization": {"client-2"}, "api-key": {"client-2"}, "X-Iop-Session": {"s"},
	}
	before := req.Header.Clone()
	if _, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), req); err != nil {
		t.Fatal(err)
	}
	want := "POST /v1/chat/completions HTTP/1.1\r\nHost: " + p.Addr() + "\r\n" +
		"Accept-Encoding: gzip\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\nX-Custom: a\r\nX-Custom: b\tc\r\n" +
		"x-odd-CASE: kept\r\nContent-Length: 2\r\n\r\n"
	x := p.Exchanges()[0]
	if d := cmp.Diff(want, string(x.Head)); d != "" {
		t.Error(d)
	}
	if string(x.Received()) != "{}" {
		t.Errorf("body %q", x.Received())
	}
	if d := cmp.Diff(before, req.Header); d != "" {
		t.Error("the request's header was changed", d)
	}
}

func TestBodylessRequests(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "ok"))
	c := client(t, p.URL())
	for method, want := range map[string]bool{"GET": false, "HEAD": false, "DELETE": false, "POST": true, "PUT": true} {
		req := adaptertest.Get("/v1/models")
		req.Method = method
		if _, err := adaptertest.Do(t, t.Context(), c, req); err != nil {
			t.Fatal(method, err)
		}
		got := p.Exchanges()
		if has := strings.Contains(string(got[len(got)-1].Head), "Content-Length: 0\r\n"); has != want {
			t.Errorf("%s: Content-Length: 0 is %v", method, has)
		}
	}
}

// HT-01, E35: what belongs to the provider's connection stops here; the rest is passed as it is.
func TestResponseHead(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(429, "application/json", `{"error":1}`, "Retry-After: 7", "Connection: X-Hop",
		"X-Hop: 1", "Keep-Alive: timeout=5", "Proxy-Authenticate: Basic", "Set-Cookie: a=1", "Set-Cookie: b=2", "Upgrade: h2c"))
	r, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), chat())
	if err != nil {
		t.Fatal(err)
	}
	// ST-21: status, Retry-After and body of a refusal are the provider's.
	want := http.Header{"Content-Type": {"application/json"}, "Content-Length": {"11"}, "Retry-After": {"7"}, "Set-Cookie": {"a=1", "b=2"}}
	if d := cmp.Diff(want, r.Header()); d != "" || r.Status() != 429 || string(r.Bytes()) != `{"error":1}` {
		t.Error(r.Status(), string(r.Bytes()), d)
	}
}

// CR-01, E37: a redirect is an answer like any other.
func TestRedirectsAreReturned(t *testing.T) {
	sink := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "stolen"))
	for _, status := range []int{301, 302, 303, 307, 308} {
		p := fakeprovider.New(t, fakeprovider.Answer(status, "text/plain", "moved", "Location: "+sink.URL()+"/v1/chat/completions"))
		r, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), chat())
		if err != nil || r.Status() != status || r.Header().Get("Location") == "" {
			t.Errorf("%d: %v, %d", status, err, r.Status())
		}
	}
	if opened, _ := sink.Connections(); opened != 0 {
		t.Error("a redirect was followed")
	}
}

// E22
func TestNoProxyFromTheEnvironment(t *testing.T) {
	proxy := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "proxied"))
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, proxy.URL())
	}
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "direct"))
	r, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), chat())
	if err != nil || string(r.Bytes()) != "direct" {
		t.Error(err, string(r.Bytes()))
	}
}

func failure(t *testing.T, err error) *execution.Failure {
	t.Helper()
	var f *execution.Failure
	if !errors.As(err, &f) {
		t.Fatalf("outcome %v is no failure", err)
	}
	return f
}

// faults row 21: connection refused, TLS that isn't, a certificate that nobody signed, a host that doesn't answer.
func TestConnectFailuresSentNothing(t *testing.T) {
	gone := fakeprovider.New(t, nil)
	gone.Close()
	secure := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "text/plain", "ok"))
	cases := map[string]struct{ base, text string }{
		"refused":    {gone.URL(), "connection refused"},
		"no TLS":     {notTLS(t), "TLS: the provider doesn't speak it"},
		"untrusted":  {secure.URL(), "signed by nobody"},
		"no host":    {"http://no-such-host.invalid", "can't be resolved"},
		"black hole": {blackHole(t), "no connection within"},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			c := client(t, k.base, func(cfg *upstream.Config) {
				cfg.Connect = time.Minute // the others don't wait for it
				if name == "black hole" {
					cfg.Connect = 300 * time.Millisecond
				}
			})
			_, err := adaptertest.Do(t, t.Context(), c, chat())
			f := failure(t, err)
			if f.Code != execution.CodeUpstreamConnect || !f.NothingSent || f.Origin != execution.OriginProvider || !strings.Contains(f.Text, k.text) {
				t.Errorf("%+v", f)
			}
		})
	}
	if len(secure.Exchanges()) != 0 {
		t.Error("a request arrived")
	}
}

func TestTLSProviderIsReusedAlsoAfterStreams(t *testing.T) {
	p := fakeprovider.NewTLS(t, fakeprovider.Events(0, "data: 1\n\n", "data: [DONE]\n\n"))
	c := client(t, p.URL(), func(cfg *upstream.Config) { cfg.RootCAs = p.Roots() })
	c.NoRest()
	for range 5 {
		r, err := adaptertest.Do(t, t.Context(), c, chat())
		if err != nil || string(r.Bytes()) != "data: 1\n\ndata: [DONE]\n\n" {
			t.Fatal(err, string(r.Bytes()))
		}
	}
	if opened, _ := p.Connections(); opened != 1 {
		t.Errorf("%d connections for 5 requests", opened)
	}
}
