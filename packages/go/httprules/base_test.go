package httprules

import (
	"strings"
	"testing"
)

// E8, HT-16: where a key may go is compared as text, so that one place has one text.
func TestDestination(t *testing.T) {
	for _, k := range []struct{ base, path, origin, full string }{
		{"https://api.openai.com", "/v1/chat/completions", "https://api.openai.com:443", "/v1/chat/completions"},
		{"https://API.OpenAI.com:443/", "/v1/chat/completions", "https://api.openai.com:443", "/v1/chat/completions"},
		{"HTTPS://api.openai.com/v1", "/v1/chat/completions", "https://api.openai.com:443", "/v1/chat/completions"},
		{"https://api.openai.com:8443/v1/", "/v1/models/a%3Ab", "https://api.openai.com:8443", "/v1/models/a%3Ab"},
		{"https://h/openai/v1", "/v1/chat/completions", "https://h:443", "/openai/v1/chat/completions"},
		{"https://h/api/paas/v4/", "/v1/chat/completions", "https://h:443", "/api/paas/v4/chat/completions"},
		{"https://h/vllm", "/v1/messages", "https://h:443", "/vllm/v1/messages"},
		{"https://h/v1", "/api/chat", "https://h:443", "/v1/api/chat"},
		{"https://h/v1", "/v1", "https://h:443", "/v1/v1"},
		{"https://[2001:DB8::1]:8443", "/v1/messages", "https://[2001:db8::1]:8443", "/v1/messages"},
		{"https://[::1]", "/v1/messages", "https://[::1]:443", "/v1/messages"},
		{"http://H:8000/v1", "/v1/messages", "http://h:8000", "/v1/messages"},
		{"http://h", "/v1/messages", "http://h:80", "/v1/messages"},
	} {
		origin, full, err := Destination(k.base, k.path)
		if err != nil || origin != k.origin || full != k.full {
			t.Errorf("%s and %s: %s, %s, %v; want %s, %s", k.base, k.path, origin, full, err, k.origin, k.full)
		}
	}
}

// E32: what could be read as another place is no place.
func TestDestinationRefuses(t *testing.T) {
	for _, k := range []struct{ base, path, want string }{
		{"", "/v1/x", "base_url: the scheme must be http or https"},
		{"ftp://h", "/v1/x", "base_url: the scheme must be http or https"},
		{"https://", "/v1/x", "base_url: no host; use the form http://HOST:PORT"},
		{"https:h", "/v1/x", "base_url: no host; use the form http://HOST:PORT"},
		{"https://a b", "/v1/x", "base_url: not a URL; use the form http://HOST:PORT"},
		{"https://sk-1@h", "/v1/x", "base_url: holds a user name or a password; remove it"},
		{"https://h?sk-1", "/v1/x", "base_url: holds a query or a fragment; remove it"},
		{"https://h#", "/v1/x", "base_url: holds a query or a fragment; remove it"},
		{"https://h/..", "/v1/x", "base_url: path holds an empty or a dot segment"},
		{"https://h", "v1/x", ErrPathForm.Error()},
		{"https://h", "@evil.example/x", ErrPathForm.Error()},
		{"https://h", "//evil.example/x", ErrPathSegment.Error()},
		{"https://h", "/v1/%2e%2e/admin", ErrPathEscape.Error()},
		{"https://h", "/v1/x?q", ErrPathByte.Error()},
	} {
		origin, full, err := Destination(k.base, k.path)
		if err == nil || err.Error() != k.want || origin+full != "" || strings.Contains(err.Error(), "sk-1") {
			t.Errorf("%s and %s: %s%s, %v; want %s", k.base, k.path, origin, full, err, k.want)
		}
	}
}

// A driver's own request must be one that its kind may send at all.
func TestRunPathIsCarried(t *testing.T) {
	for _, kind := range []string{"openai", "anthropic", "ollama", "auto"} {
		if path := RunPath(kind); !Carries(kind, nil, path) {
			t.Errorf("%s asks for %q, which it doesn't carry", kind, path)
		}
	}
	if RunPath("loopback") != "" || RunPath("") != "" {
		t.Error("a kind without a provider asks for a path")
	}
}

// HT-16, E8: edge and node agree on where an Ollama's own API is, with a copied /v1 or without.
func TestKindBase(t *testing.T) {
	for _, k := range []struct{ kind, base, path, origin, full string }{
		{"ollama", "https://h", "/api/chat", "https://h:443", "/api/chat"},
		{"ollama", "https://h/v1", "/api/chat", "https://h:443", "/api/chat"},
		{"ollama", "https://h/v1/", "/v1/messages", "https://h:443", "/v1/messages"},
		{"auto", "https://h/box/v1", "/api/chat", "https://h:443", "/box/api/chat"},
		{"ollama", "https://v1", "/api/chat", "https://v1:443", "/api/chat"},
		{"openai", "https://h/v1", "/v1/models", "https://h:443", "/v1/models"},
		{"openai", "https://h/api/v4", "/v1/models", "https://h:443", "/api/v4/models"},
	} {
		origin, full, err := Destination(KindBase(k.kind, k.base), k.path)
		if err != nil || origin != k.origin || full != k.full {
			t.Errorf("%s at %s, %s: %s, %s, %v", k.kind, k.base, k.path, origin, full, err)
		}
	}
	if got := KindBase("ollama", "http://h/v1?q"); got != "http://h/v1?q" {
		t.Errorf("what is no base URL becomes %q", got)
	}
}

func TestRootOfABase(t *testing.T) {
	for raw, want := range map[string]string{"http://h": "", "http://h/v1": "", "http://h/a/v1beta": "/a", "http://h/a": "/a", "http://h/a/v0": "/a/v0"} {
		b, err := ParseBase(raw)
		if err != nil || b.Root() != want {
			t.Errorf("%s: %q, %v; want %q", raw, b.Root(), err, want)
		}
	}
}
