package httpapi

import (
	"net/url"
	"path"
	"testing"
)

// refusedTargets must reach neither an endpoint nor a provider: E32, HT-15, CR-09, CVE-2024-6587.
var refusedTargets = []string{
	"http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:1/v1/chat/completions", "https://evil.example/v1/models",
	"//evil/", "//evil/v1/chat/completions", `/\evil/`, `\\evil\v1`, "@evil/x", "evil.example:80", "*", "",
	"/v1/../admin", "/v1/./models", "/v1/%2e%2e/admin", "/v1/..%2fadmin", "/v1/%252e%252e/admin", "/..;/admin",
	"/v1/chat/completions/..;/x", "/v1//chat/completions", "/v1/chat%2fcompletions", "/v1%2Fchat%2Fcompletions",
	"/v1/chat/completions%00", "/v1/chat/completions\x00", "/v1/chat\tcompletions", "/v1/chat/completions\r\nX: y",
	"/v1/chat/completions#frag", "/v1/chat/completions?a b", "/v1/chat/completions?x=\x01", "/v1/chat/completion\u0455",
	"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete",
	"/api%2fdelete", "/api/chat%2f..%2fdelete", `/api/\\delete`, "/v1/..//SINK", "/v1/models/..", "/v1/models/%2e%2e/admin",
	"/v1/models/a%2f..%2fb", "/v1/models/a%2f%2fb", "/v1/models/a%252fb", "/v1/models/a%5cb", "/v1/models/a%0ab", "/v1/models/%",
	"/v1/models/%4", "/v1/models/%ff", "/v1/models//a",
}

func TestTargetRefused(t *testing.T) {
	for _, raw := range refusedTargets {
		if _, _, ref := splitTarget(raw); ref == nil || ref.status != 400 {
			t.Errorf("target %q wasn't refused", raw)
		}
	}
}

func TestTargetAccepted(t *testing.T) {
	for _, tt := range []struct{ raw, path, query string }{
		{"/", "/", ""},
		{"/v1/chat/completions", "/v1/chat/completions", ""},
		{"/v1/chat/completions?x=1%202&y=//..", "/v1/chat/completions", "x=1%202&y=//.."},
		{"/v1/chat/completions?", "/v1/chat/completions", ""},
		{"/v1/chat/completions/", "/v1/chat/completions/", ""},
		{"/v1/chat/%63ompletions?q=\\", "/v1/chat/%63ompletions", "q=\\"}, // unknown, but clear
		{"/API/delete", "/API/delete", ""},
		{"/v1/models/org/name:tag", "/v1/models/org/name:tag", ""},
		{"/v1/models/org%2Fname%20x", "/v1/models/org%2Fname%20x", ""},
	} {
		path, query, ref := splitTarget(tt.raw)
		if ref != nil || path != tt.path || query != tt.query {
			t.Errorf("target %q: %q %q %v", tt.raw, path, query, ref)
		}
	}
}

// FuzzTarget: what is accepted means the same to everyone who reads it, and names no host.
func FuzzTarget(f *testing.F) {
	for _, raw := range refusedTargets {
		f.Add(raw)
	}
	f.Add("/v1/models/org%2Fname")
	f.Add("/v1/chat/completions?x=%2e%2e")
	f.Fuzz(func(t *testing.T, raw string) {
		p, query, ref := splitTarget(raw)
		if ref != nil {
			return
		}
		if whole := p + "?" + query; whole != raw && p != raw {
			t.Fatalf("%q was split into %q and %q", raw, p, query)
		}
		u, err := url.ParseRequestURI(raw)
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if u.Host != "" || u.Scheme != "" || u.User != nil || u.RawQuery != query {
			t.Fatalf("%q has a host, or another query: %#v", raw, u)
		}
		if clean := path.Clean(u.Path); clean != u.Path && clean+"/" != u.Path {
			t.Fatalf("%q is %q to who cleans it", raw, clean)
		}
		joined, err := url.Parse("http://provider.example/base" + raw)
		if err != nil || joined.Host != "provider.example" {
			t.Fatalf("%q behind a base names another host: %v %v", raw, joined, err)
		}
	})
}
