package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// OL-02
func TestBusyProviderIsNeitherRetriedNorBlamed(t *testing.T) {
	t.Parallel()
	const busy = `{"error":"server busy, please try again.  maximum pending requests exceeded"}`
	r := newRig(t, fakeprovider.Answer(503, "application/json", busy), setup{})
	wantWhole(t, r.ask(chat()), 503, busy)
	if n := len(r.seen()); n != 1 {
		t.Errorf("the provider saw %d requests", n)
	}
	if node := r.Node("box"); node.State != "ready" || !node.Adapters[0].Available {
		t.Errorf("the node is %+v", node)
	}
	r.idle()
	r.provider.Use(ok)
	wantWhole(t, r.ask(chat()), 200, `{"object":"chat.completion"}`)
}

// OL-03
func TestHostAndOriginAreTheProvidersOwn(t *testing.T) {
	t.Parallel()
	var r *rig
	guarded := func(x *fakeprovider.Exchange) {
		if _, there := x.Header["Origin"]; there || x.Host != r.provider.Addr() {
			x.Reply(403, "text/plain", "")
			return
		}
		ok(x)
	}
	r = newRig(t, ok, setup{Options: harness.Options{Principals: principals("client-1")}})
	r.provider.Use(guarded)
	for _, origin := range []string{"https://app.example", "null", "http://localhost:3000"} {
		a := r.ask(chat("Host: edge.example", "Origin: "+origin, "Referer: "+origin+"/x", "Authorization: Bearer client-1"))
		wantWhole(t, a, 200, `{"object":"chat.completion"}`)
	}
}

// CP-11, CP-14 and the rows of providers that fail: what a caller is told, and that nothing is tried twice.
func TestProviderThatFails(t *testing.T) {
	t.Parallel()
	begun := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct {
		script fakeprovider.Script
		status int
		code   string
		cut    bool
	}{
		// CP-11 (a)
		"resets after the request": {func(x *fakeprovider.Exchange) { x.Body(); x.Reset() }, 502, "upstream_truncated", false},
		"closes after the request": {func(x *fakeprovider.Exchange) { x.Body(); x.Close() }, 502, "upstream_truncated", false},
		// CP-11 (b)
		"never answers": {fakeprovider.Silent(""), 504, "first_byte_timeout", false},
		"half a head":   {fakeprovider.Silent("HTTP/1.1 200 OK\r\nContent-"), 504, "first_byte_timeout", false},
		// CP-14
		"head, then silence": {fakeprovider.Silent(begun), 200, "idle_timeout", true},
		// Fault 18
		"an event, then silence": {fakeprovider.Silent(begun + "7\r\ndata: 1\r\n"), 200, "idle_timeout", true},
		"not HTTP":               {fakeprovider.Raw([]byte("SSH-2.0-OpenSSH_9.9\r\n")), 502, "upstream_error", false},
		"broken chunks":          {fakeprovider.Raw([]byte(begun + "zz\r\n")), 200, "upstream_error", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := fakeprovider.New(t, behindProbe(ok))
			provider := fakeprovider.New(t, behindProbe(c.script))
			// The second adapter is the first one's equal, but never the least loaded while the first is preferred.
			r := newRigWith(t, provider, setup{Options: harness.Options{
				Adapters: "[" + adapter("gpu", provider.URL(), 1) + "," + adapter("spare", other.URL(), 1) + "]",
				Routes:   fmt.Sprintf(`[{model: "*", first_byte: %v, idle: %v}]`, patienceFor(c.code, "first_byte_timeout"), patienceFor(c.code, "idle_timeout")),
			}})
			askUntil(t, r, func(a *harness.Answer) bool {
				if len(requests(provider)) == 0 {
					return false // it went to the spare, which answered
				}
				if a.StatusCode != c.status || (a.Cut != nil) != c.cut {
					t.Errorf("got %d, cut %v: %s", a.StatusCode, a.Cut, a.Bytes)
				}
				if !c.cut && (!bytes.Contains(a.Bytes, []byte(`"code":"`+c.code+`"`)) || a.Header.Get("X-Should-Retry") != "false") {
					t.Errorf("%v %s", a.Header, a.Bytes)
				}
				line := r.ended(a.Header)
				wantLog(t, line, map[string]any{"code": c.code, "origin": "provider", "attempts": 1, "adapter": "gpu"})
				noUsage(t, line)
				return true
			})
			if n := len(requests(provider)); n != 1 {
				t.Errorf("the provider saw %d requests", n)
			}
		})
	}
}

// patienceFor is a limit that passes soon where a test wants its code, and doesn't where it doesn't.
func patienceFor(code, of string) time.Duration {
	if code == of {
		return 300 * time.Millisecond
	}
	return 2 * limit
}

// askUntil asks again until the answer was the one that the test is about.
func askUntil(t *testing.T, r *rig, enough func(*harness.Answer) bool) {
	t.Helper()
	for range 20 {
		if enough(r.ask(chat())) {
			return
		}
		r.idle()
	}
	t.Fatal("the adapter was never chosen in 20 requests")
}

// CP-12
func TestEveryCandidateIsTriedOnce(t *testing.T) {
	t.Parallel()
	var list []string
	var providers []*fakeprovider.Provider
	for _, name := range []string{"a", "b", "c"} {
		p := fakeprovider.New(t, behindProbe(ok))
		providers, list = append(providers, p), append(list, adapter(name, p.URL(), 4))
	}
	r := newRigWith(t, providers[0], setup{Options: harness.Options{Adapters: "[" + strings.Join(list, ",") + "]"}})
	for _, p := range providers {
		p.Close()
	}
	began := time.Now()
	a := r.ask(chat())
	if took := time.Since(began); took > limit {
		t.Errorf("it took %v", took)
	}
	if a.StatusCode != 502 || !bytes.Contains(a.Bytes, []byte(`"code":"upstream_connect"`)) || a.Header.Get("X-Should-Retry") != "" {
		t.Errorf("got %d %v %s", a.StatusCode, a.Header, a.Bytes)
	}
	line := r.ended(a.Header)
	wantLog(t, line, map[string]any{"code": "upstream_connect"})
	tried := map[string]int{line["adapter"].(string): 1}
	for _, e := range r.Log.Entries("attempt gave its place back") {
		tried[e["adapter"].(string)]++
	}
	for _, name := range []string{"a", "b", "c"} {
		if tried[name] < 1 || tried[name] > 2 || len(tried) != 3 {
			t.Errorf("tried %v", tried)
		}
	}
	r.idle()
}

// Fault 21
func TestProviderThatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, ok, setup{})
	r.provider.Close()
	began := time.Now()
	a := r.ask(chat())
	if took := time.Since(began); a.StatusCode != 502 || took > limit || !bytes.Contains(a.Bytes, []byte(`"code":"upstream_connect"`)) {
		t.Errorf("after %v: %d %s", took, a.StatusCode, a.Bytes)
	}
	wantLog(t, r.ended(a.Header), map[string]any{"code": "upstream_connect", "attempts": 1})
}

// Fault 21, TLS: what nobody trusts isn't offered, and the reason is there to be read.
func TestProviderThatNobodyTrusts(t *testing.T) {
	t.Parallel()
	p := fakeprovider.NewTLS(t, behindProbe(ok))
	r := newRigWith(t, p, setup{Options: harness.Options{
		Routes: `[{model: "*", fail_fast: true}]`}})
	if got := r.Node("box").Adapters[0]; got.Available || !strings.Contains(got.Reason, "TLS") {
		t.Errorf("the adapter is %+v", got)
	}
	began := time.Now()
	a := r.ask(chat())
	if took := time.Since(began); a.StatusCode != 503 || took > limit || a.Header.Get("Retry-After") == "" {
		t.Errorf("after %v: %d %v %s", took, a.StatusCode, a.Header, a.Bytes)
	}
	if n := len(requests(p)); n != 0 {
		t.Errorf("the provider saw %d requests", n)
	}
}
