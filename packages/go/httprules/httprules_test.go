package httprules

import (
	"bufio"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// HT-01, E35
func TestHopByHop(t *testing.T) {
	h := http.Header{
		"Connection":          {"keep-alive, X-Hop", " x-other ,,"},
		"X-Hop":               {"1"},
		"x-OTHER":             {"1"},
		"Te":                  {"trailers"},
		"TE":                  {"trailers"},
		"Keep-Alive":          {"5"},
		"Proxy-Authorization": {"Basic eA=="},
		"Proxy_authorization": {"Basic eA=="},
		"proxy-connection":    {"keep-alive"},
		"Upgrade":             {"h2c"},
		"Trailer":             {"X-T"},
		"Transfer-Encoding":   {"chunked"},
		"transfer-encoding":   {"chunked"},
		"Content-Type":        {"application/json"},
		"Content-Length":      {"2"},
	}
	HopByHop(h)
	want := http.Header{"Content-Type": {"application/json"}, "Content-Length": {"2"}}
	if d := cmp.Diff(want, h); d != "" {
		t.Error(d)
	}
}

// CR-03, CR-09, OL-03, E33, E36
func TestStripCaller(t *testing.T) {
	h := http.Header{
		"authorization":     {"Bearer client-1"},
		"AUTHORIZATION":     {"Bearer client-1"},
		"X-API-KEY":         {"client-2"},
		"api-key":           {"client-2"},
		"X-Goog-Api-Key":    {"client-2"},
		"X_Api_Key":         {"client-3"},
		"x_goog-api_key":    {"client-3"},
		"X-Forwarded_For":   {"1.2.3.4"},
		"X_iop_session":     {"s"},
		"Cookie":            {"a=b"},
		"cookie":            {"a=b"},
		"Host":              {"evil.example"},
		"Origin":            {"https://app.example"},
		"Referer":           {"https://app.example/x"},
		"Expect":            {"100-continue"},
		"Forwarded":         {"for=1.2.3.4"},
		"x-forwarded-host":  {"evil.example"},
		"X-Forwarded-For":   {"1.2.3.4"},
		"X-Real-Ip":         {"1.2.3.4"},
		"X-IOP-Session":     {"s"},
		"Accept":            {"*/*"},
		"Idempotency-Key":   {"k"},
		"X-Api-Keyring":     {"not a credential"},
		"Openai-Beta":       {"x"},
		"Anthropic-Version": {"2023-06-01"},
	}
	StripCaller(h)
	want := http.Header{"Accept": {"*/*"}, "Idempotency-Key": {"k"}, "X-Api-Keyring": {"not a credential"},
		"Openai-Beta": {"x"}, "Anthropic-Version": {"2023-06-01"}}
	if d := cmp.Diff(want, h); d != "" {
		t.Error(d)
	}
}

func TestForProviderAgreesWithTheStrippers(t *testing.T) {
	for _, name := range []string{"te", "TRAILER", "Authorization", "x-forwarded-proto", "Content-Type", "Accept", "X-Iop-Session", "Traceparent",
		"X_Api_Key", "transfer_encoding", "Content_Type"} {
		h := http.Header{name: {"v"}}
		HopByHop(h)
		StripCaller(h)
		if ForProvider(name) != (len(h) == 1) {
			t.Errorf("%s: ForProvider says %v, %d left", name, ForProvider(name), len(h))
		}
	}
}

// E34
func TestCheckHeader(t *testing.T) {
	bad := []struct {
		name, value string
		want        error
	}{
		{"", "v", ErrHeaderName},
		{"X A", "v", ErrHeaderName},
		{"X-A:", "v", ErrHeaderName},
		{"X-A\r\nX-B", "v", ErrHeaderName},
		{"Ünder", "v", ErrHeaderName},
		{"X-A ", "v", ErrHeaderName},
		{"X-A", "v\r\nX-B: 1", ErrHeaderValue},
		{"X-A", "v\n", ErrHeaderValue},
		{"X-A", "v\x00", ErrHeaderValue},
		{"X-A", "v\x7f", ErrHeaderValue},
	}
	for _, b := range bad {
		if err := CheckHeader(http.Header{b.name: {"good", b.value}}); err != b.want {
			t.Errorf("%q: %q: got %v, want %v", b.name, b.value, err, b.want)
		}
	}
	if err := CheckHeader(http.Header{"X-A": {"a\tb", "", "naïve"}, "a!#$%&'*+-.^_`|~9": nil}); err != nil {
		t.Error(err)
	}
}

// E34
func TestCheckMethod(t *testing.T) {
	for _, m := range []string{"", "GET /", "GET\r\n", "post", "CONNECT", "TRACE", "PO ST", "G\x00T"} {
		if CheckMethod(m) == nil {
			t.Errorf("%q passes", m)
		}
	}
	for _, m := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		if err := CheckMethod(m); err != nil {
			t.Errorf("%s: %v", m, err)
		}
	}
}

// refusedPaths are E32's and HT-15's, and what belongs to their families.
func refusedPaths() []string {
	return []string{
		"http://169.254.169.254/latest", "//evil/", "/\\evil/", "@evil/x", "/v1/../admin", "/v1/%2e%2e/admin",
		"/v1/..%2fadmin", "/v1/%252e%252e/admin", "/v1/\x00", "/v1/\tx", "/v1\r\nX: y", "/v1/#frag", "/v1/..;/admin",
		"/v1/ünder", "*", "", "v1/chat", "/v1//chat", "/v1/./chat", "/v1/..", "/..", "/v1/%2E./x", "/v1/a%2fb",
		"/v1/a%5cb", "/v1/%", "/v1/%4", "/v1/%zz", "/v1/x?y", "/v1/x y", "/v1/%c0%ae%c0%ae/x", "/v1/;x", "/v1/%3bx",
		"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete", "/api%2fdelete", "/api/chat%2f..%2fdelete",
		"/api/\\delete", "/api/delete?", "/v1/%00", "/v1/%0d%0a", "/v1/.../x", "/" + strings.Repeat("a", MaxPath),
	}
}

// HT-15, E32, CR-09
func TestCheckTargetRefuses(t *testing.T) {
	for _, p := range refusedPaths() {
		if CheckTarget(p, "") == nil {
			t.Errorf("%q passes", p)
		}
	}
	for _, q := range []string{"a b", "a#b", "a\r\nHost: x", "a\x00", "ü", "a\tb"} {
		if CheckTarget("/v1/models", q) == nil {
			t.Errorf("query %q passes", q)
		}
	}
}

func TestCheckTargetPasses(t *testing.T) {
	for _, p := range []string{"/", "/v1/chat/completions", "/v1/models/llama3%3A8b", "/v1/models/a.b-c_d~e:f@g", "/v1/", "/API/delete", "/v1/x..y", "/.well-known/x"} {
		if err := CheckTarget(p, "x=1%202&y=%2F..%2f;\\"); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
}

// FuzzCheckTarget: what passes reads the same for every router that we could stand before: it survives unescaping and
// cleaning, names no host, and is one request line.
func FuzzCheckTarget(f *testing.F) {
	for _, p := range refusedPaths() {
		f.Add(p, "a=b")
	}
	f.Add("/v1/models/llama3%3A8b", "x=1%202")
	f.Fuzz(func(t *testing.T, p, q string) {
		if CheckTarget(p, q) != nil {
			return
		}
		un, err := url.PathUnescape(p)
		if err != nil {
			t.Fatalf("%q can't be unescaped: %v", p, err)
		}
		if again, err := url.PathUnescape(un); err != nil || again != un {
			t.Fatalf("%q unescapes twice", p)
		}
		if clean := path.Clean(un); clean != strings.TrimSuffix(un, "/") && un != "/" {
			t.Fatalf("%q cleans to %q", un, clean)
		}
		line := fmt.Sprintf("GET %s?%s HTTP/1.1\r\nHost: own.example\r\n\r\n", p, q)
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line)))
		if err != nil {
			t.Fatalf("%q %q: %v", p, q, err)
		}
		if r.Host != "own.example" || r.URL.EscapedPath() != p || r.URL.RawQuery != q || len(r.Header) != 0 {
			t.Fatalf("%q %q reads as %q %q of %q", p, q, r.URL.EscapedPath(), r.URL.RawQuery, r.Host)
		}
	})
}

// E36: fields with keys that no list has. (found by attack)
func TestMayHoldKey(t *testing.T) {
	for name, want := range map[string]bool{
		"Authorization": true, "x-api-key": true, "X_Api_Key": true, "Ocp-Apim-Subscription-Key": true, "x-litellm-api-key": true, "X-Access-Token": true,
		"Helicone-Auth": true, "cf-aig-authorization": true, "X-Amz-Security-Token": true, "X-ApiKey": true, "Token": true, "Authentication": true,
		"Idempotency-Key": false, "Content-Type": false, "X-Api-Keyring": false, "Anthropic-Version": false, "Openai-Organization": false,
		"X-Stainless-Retry-Count": false, "Accept": false, "User-Agent": false, "Traceparent": false, "X-Tokenizer": false,
	} {
		if MayHoldKey(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
