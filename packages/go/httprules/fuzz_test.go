package httprules

import (
	"net"
	"strings"
	"testing"
)

// A base URL that is accepted can't break a request's head, can be dialled, and sends each request to its own origin.
func FuzzParseBase(f *testing.F) {
	for _, s := range []string{"http://127.0.0.1:11434", "https://api.openai.com/v1", "http://[::1]:80/a/v1beta/", "http://a@b", "http://h/..", "http://h:port", "http://[::1%25eth0]/x", "HTTP://H"} {
		f.Add(s, "/v1/chat/completions")
	}
	f.Fuzz(func(t *testing.T, raw, path string) {
		b, err := ParseBase(raw)
		if err != nil {
			return
		}
		if strings.ContainsAny(b.Host, " \r\n\t/") || b.Host == "" {
			t.Fatalf("Host %q", b.Host)
		}
		if _, port, err := net.SplitHostPort(b.Addr); err != nil || port == "" {
			t.Fatalf("address %q: %v", b.Addr, err)
		}
		if CheckTarget(path, "") != nil {
			return
		}
		origin, full, err := Destination(raw, path)
		if err != nil {
			t.Fatalf("a base that is one, and a path that is one, lead nowhere: %v", err)
		}
		if !strings.HasPrefix(origin, "http://") && !strings.HasPrefix(origin, "https://") || strings.Count(origin, "/") != 2 {
			t.Fatalf("origin %q", origin)
		}
		if CheckTarget(full, "") != nil {
			t.Fatalf("%q and %q make %q, which isn't a target", raw, path, full)
		}
	})
}
