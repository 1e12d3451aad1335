package credentiallease

import (
	"strings"
	"testing"
	"time"
)

// One spelling of an origin, https only (CVE-2024-6587 sent a key to the host that a caller chose).
func TestOrigins(t *testing.T) {
	for _, good := range []string{"https://api.openai.com:443", "https://127.0.0.1:8443", "https://[::1]:8443", "https://llama:1", "https://a-b.c:65535"} {
		if !isOrigin(good) {
			t.Errorf("%s is refused", good)
		}
	}
	for _, bad := range []string{
		"", "https://", "https://:443", "https://api.openai.com", "http://api.openai.com:80", "HTTPS://api.openai.com:443",
		"https://API.openai.com:443", "https://api.openai.com:0443", "https://api.openai.com:0", "https://api.openai.com:65536",
		"https://api.openai.com:443/", "https://api.openai.com:443/v1", "https://user@api.openai.com:443", "https://a:b@c:443",
		"https://api.openai.com:443#x", "https://api.openai.com:443?x", "https://api openai.com:443", "https://api.openai.com:+443",
		"https://::1:443", "https://[::1%25lo]:443", "https://[0::1]:443", "https://[api]:443", "https://.:443", "https://-a:443",
		"https://xn--\u00e4:443", "https://api.openai.com:44\n3", "https://[::1]:443:443", "https://api.openai.com:",
	} {
		if isOrigin(bad) {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestHeadersSchemesMethodsPaths(t *testing.T) {
	for _, h := range []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key"} {
		if !isHeader(h) {
			t.Errorf("%s is refused", h)
		}
	}
	for _, h := range []string{"", "authorization", "Cookie", "Proxy-Authorization", "Host", "X-Api-Key ", "X-Api-Key\r\nX"} {
		if isHeader(h) {
			t.Errorf("header %q is accepted", h)
		}
	}
	if !isScheme("") || !isScheme("Bearer") || isScheme("Bearer ") || isScheme("a\r\n") || isScheme(strings.Repeat("a", maxScheme+1)) {
		t.Error("schemes")
	}
	if !isMethod("POST") || isMethod("post") || isMethod("GET /") || isMethod(strings.Repeat("A", maxMethod+1)) {
		t.Error("methods")
	}
	for _, p := range []string{"/", "/v1/chat/completions", "/v1/%2e"} {
		if !isPath(p) {
			t.Errorf("path %s is refused", p)
		}
	}
	for _, p := range []string{"v1", "*", "/v1?key=x", "/v1#x", "/v 1", "/v1\r\n", "/\\evil", "/\u00e4"} {
		if isPath(p) {
			t.Errorf("path %q is accepted", p)
		}
	}
}

// What no node would take isn't issued, and without a proven identity nothing is.
func TestIssueRefuses(t *testing.T) {
	w := newWorld(t)
	issuer := NewIssuer("edge-a", w.signer)
	issue := func(to Recipient, g Grant, s Secret, now int64, ttl time.Duration) error {
		l, err := issuer.Issue(to, g, s, now, ttl)
		if err != nil && l.Wire != nil {
			t.Error("a refused lease has bytes")
		}
		return err
	}
	check(t, issue(w.proven, w.grant, w.secret, edgeTime, MaxTTL))
	wantRefusal(t, issue(Recipient{}, w.grant, w.secret, edgeTime, DefaultTTL), IdentityRequired, FieldNone)
	_, err := NewIssuer("edge-b", w.signer).Issue(w.proven, w.grant, w.secret, edgeTime, DefaultTTL)
	wantRefusal(t, err, IdentityRequired, FieldNone)
	wantRefusal(t, issue(w.proven, w.grant, w.secret, edgeTime, MaxTTL+time.Millisecond), TTLTooLong, FieldNone)
	wantRefusal(t, issue(w.proven, w.grant, w.secret, edgeTime, 0), Malformed, FieldExpiresAt)
	wantRefusal(t, issue(w.proven, w.grant, Secret{}, edgeTime, DefaultTTL), BadSecret, FieldNone)
	wantRefusal(t, issue(w.proven, w.grant, w.secret, 0, DefaultTTL), Malformed, FieldIssuedAt)
	for field, change := range map[Field]func(*Grant){
		FieldPrincipal:    func(g *Grant) { g.Principal = "" },
		FieldAttempt:      func(g *Grant) { g.Attempt = 0 },
		FieldProjection:   func(g *Grant) { g.Projection = 0 },
		FieldSlotRevision: func(g *Grant) { g.SlotRevision = 0 },
		FieldTarget:       func(g *Grant) { g.Target = strings.Repeat("x", maxText+1) },
		FieldPath:         func(g *Grant) { g.Path = "/v1?key=1" },
		FieldMethod:       func(g *Grant) { g.Method = "post" },
	} {
		g := w.grant
		change(&g)
		wantRefusal(t, issue(w.proven, g, w.secret, edgeTime, DefaultTTL), Malformed, field)
	}
	long := w.grant
	long.Principal, long.Target = strings.Repeat("p", maxText), strings.Repeat("t", maxText)
	wantRefusal(t, issue(w.proven, long, w.secret, edgeTime, DefaultTTL), Malformed, FieldClaims)
	g := w.grant
	g.Header = "Cookie"
	wantRefusal(t, issue(w.proven, g, w.secret, edgeTime, DefaultTTL), HeaderRefused, FieldHeader)
	g = w.grant
	g.Scheme = "Bearer:"
	wantRefusal(t, issue(w.proven, g, w.secret, edgeTime, DefaultTTL), HeaderRefused, FieldScheme)
	g = w.grant
	g.Origin = "http://api.openai.com:80"
	wantRefusal(t, issue(w.proven, g, w.secret, edgeTime, DefaultTTL), PlaintextOriginRefused, FieldOrigin)
	w.signer.Drop()
	wantRefusal(t, issue(w.proven, w.grant, w.secret, edgeTime, DefaultTTL), UnknownKey, FieldNone)
}
