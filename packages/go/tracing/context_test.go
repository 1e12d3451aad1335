package tracing

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ name, parent, want string }{
		{"as it should be", callers, callers},
		{"not sampled", unsampled, unsampled},
		{"none", "", ""},
		{"of a later version", "01" + callers[2:] + "-more", callers},
		{"of the version that isn't one", "ff" + callers[2:], ""},
		{"longer than its version", callers + "-more", ""},
		{"cut", callers[:54], ""},
		{"of no trace", "00-00000000000000000000000000000000-b7ad6b7169203331-01", ""},
		{"of no span", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", ""},
		{"in capitals", strings.ToUpper(callers), ""},
		{"not in hex", strings.Replace(callers, "0af", "xyz", 1), ""},
		{"a line break", callers[:54] + "\n", ""},
		{"very long", "01" + callers[2:] + "-" + strings.Repeat("x", 1<<20), ""},
	} {
		if got := Parse(c.parent, "").Traceparent(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A tracestate that isn't good never costs the traceparent.
func TestParseState(t *testing.T) {
	for _, c := range []struct{ name, state, want string }{
		{"as it should be", "a=1,b=2", "a=1,b=2"},
		{"none", "", ""},
		{"no list", "garbage", ""},
		{"at its limit", "a=" + strings.Repeat("x", 253) + ",b=" + strings.Repeat("y", 254), "a=" + strings.Repeat("x", 253) + ",b=" + strings.Repeat("y", 254)},
		{"over its limit", "a=" + strings.Repeat("x", 254) + ",b=" + strings.Repeat("y", 254), ""},
		{"too many members", strings.TrimSuffix(strings.Repeat("a=1,", 33), ","), ""},
		{"a line break", "a=1\r\nX: y", ""},
	} {
		got := Parse(callers, c.state)
		if got.Tracestate() != c.want || got.Traceparent() != callers {
			t.Errorf("%s: %q of %q", c.name, got.Tracestate(), got.Traceparent())
		}
	}
}

func TestHeaders(t *testing.T) {
	for _, c := range []struct {
		name          string
		h             http.Header
		parent, state string
	}{
		{"both", http.Header{"Traceparent": {callers}, "Tracestate": {"a=1"}}, callers, "a=1"},
		{"a state in pieces", http.Header{"Traceparent": {callers}, "Tracestate": {"a=1", "b=2"}}, callers, "a=1,b=2"},
		{"a state in pieces over its limit", http.Header{"Traceparent": {callers},
			"Tracestate": {"a=" + strings.Repeat("x", 250), "b=" + strings.Repeat("x", 256), "c=1"}}, callers, ""},
		{"a state alone", http.Header{"Tracestate": {"a=1"}}, "", ""},
		{"two parents", http.Header{"Traceparent": {callers, unsampled}}, "", ""},
		{"none", http.Header{}, "", ""},
	} {
		at := FromHeader(c.h)
		if at.Traceparent() != c.parent || at.Tracestate() != c.state || at.Valid() != (c.parent != "") {
			t.Errorf("%s: %q, %q", c.name, at.Traceparent(), at.Tracestate())
		}
	}
	h := http.Header{"Traceparent": {"old"}, "Tracestate": {"old"}, "Other": {"stays"}}
	Parse(callers, "").Put(h)
	if len(h) != 2 || h.Get("traceparent") != callers {
		t.Errorf("Put: %v", h)
	}
	Context{}.Put(h)
	if len(h) != 1 {
		t.Errorf("Put of no place: %v", h)
	}
}

func TestContextOfContext(t *testing.T) {
	ctx := context.Background()
	if With(ctx, Context{}) != ctx || From(ctx).Valid() {
		t.Error("no place is one")
	}
	if got := From(With(ctx, Parse(callers, ""))).Traceparent(); got != callers {
		t.Errorf("got %q", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(callers, "a=1,b=2")
	f.Add("01"+callers[2:]+"-x", "")
	f.Fuzz(func(t *testing.T, parent, state string) {
		at := Parse(parent, state)
		p, s := at.Traceparent(), at.Tracestate()
		if at.Valid() != (len(p) == 55) || len(s) > maxState || strings.ContainsAny(p+s, "\r\n") {
			t.Fatalf("%q, %q: %q, %q", parent, state, p, s)
		}
		if again := Parse(p, s); again.Traceparent() != p || again.Tracestate() != s {
			t.Fatalf("%q, %q reads as %q, %q", p, s, again.Traceparent(), again.Tracestate())
		}
	})
}
