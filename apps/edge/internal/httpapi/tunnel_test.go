package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

const small = `{"model":"small","messages":[]}`

func TestTunnelCarriesTheRequest(t *testing.T) {
	g := start(t, keyed(), nil)
	c := g.dial()
	c.send("POST /v1/embeddings?x=1%202&y HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + aliceKey +
		"\r\nX-IOP-Session: s-1\r\nX-Request-Id: caller-7\r\nAccept-Encoding: gzip, br\r\nUser-Agent: probe\r\nContent-Length: " +
		itoa(len(small)) + "\r\n\r\n" + small)
	resp, body := c.response()
	if resp.StatusCode != 200 || body != `{"hello":"you"}` {
		t.Fatalf("%d %q", resp.StatusCode, body)
	}
	got := g.last()
	want := service.Tunnel{SessionID: "s-1", Principal: "alice", Model: "small", Target: "small", Method: "POST",
		Path: "/v1/embeddings", Query: "x=1%202&y"}
	if got.SessionID != want.SessionID || got.Principal != want.Principal || got.Model != want.Model ||
		got.Target != want.Target || got.Method != want.Method || got.Path != want.Path || got.Query != want.Query ||
		got.Route == nil || got.Route.Model != "small" || string(got.body) != small {
		t.Errorf("tunnel %+v", got)
	}
	if got.Header.Get("Accept-Encoding") != "gzip, br" || got.Header.Get("User-Agent") != "probe" {
		t.Errorf("header %v", got.Header)
	}
	for name, value := range map[string]string{"X-Request-Id": "caller-7", "X-IOP-Run-Id": got.RunID, "X-IOP-Node": "gpu-1",
		"X-IOP-Queue-Ms": "12", "X-IOP-Queue-Position": "3"} {
		if resp.Header.Get(name) != value {
			t.Errorf("%s: %q, want %q", name, resp.Header.Get(name), value)
		}
	}
}

// HT-08: the length is known to whoever sends the body on, however it came.
func TestBodyLengthIsKnown(t *testing.T) {
	g := start(t, open(), nil)
	padded := `{"model":"small","pad":"` + strings.Repeat("x", 4096-26) + `"}`
	g.ask("", padded)
	if got := g.last(); got.Body.Size() != 4096 || string(got.body) != padded {
		t.Errorf("size %d", got.Body.Size())
	}
	c := g.dial()
	c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
		"5;ext=1\r\n{\"mod\r\n0b\r\nel\":\"small\"\r\n1\r\n}\r\n0\r\nX-Trailer: t\r\n\r\n")
	if resp, _ := c.response(); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if got := g.tunnels()[1]; string(got.body) != `{"model":"small"}` || got.Body.Size() != 17 || got.Header.Get("X-Trailer") != "" {
		t.Errorf("body %q, header %v", got.body, got.Header)
	}
}

// HT-09: an alias changes exactly the bytes of the model's value, and the length.
func TestAliasReplacesTheModel(t *testing.T) {
	g := start(t, open(), func(cfg *Config) { cfg.Limits.BodyInMemory = 512 })
	for i, format := range []string{
		"{ \"model\" :\t\"@\" , \"messages\" : [ { \"model\":\"alias\" } ] }\r\n",
		`{"a":"` + strings.Repeat(`naïve\u00e9\\`, 200) + `","m\u006fdel":"@","z":1e+2}`,
	} {
		resp, body := g.ask("", strings.ReplaceAll(format, "@", "alias"))
		if resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
		got := g.tunnels()[i]
		if want := strings.ReplaceAll(format, "@", "org/real:7b"); string(got.body) != want || got.Body.Size() != int64(len(want)) {
			t.Errorf("body %q", got.body)
		}
		if got.Model != "alias" || got.Target != "org/real:7b" {
			t.Errorf("model %q, target %q", got.Model, got.Target)
		}
	}
}

func TestAliasedReadsAtEveryOffset(t *testing.T) {
	text := `{"model":"a","x":1}`
	for _, value := range []string{`""`, `"b"`, `"a much longer name than before"`, `"<&>"`} {
		view := &aliased{of: &body{memory: []byte(text), size: int64(len(text))}, start: 9, end: 12, value: []byte(value)}
		want := strings.Replace(text, `"a"`, value, 1)
		if err := iotest.TestReader(io.NewSectionReader(view, 0, view.Size()), []byte(want)); err != nil {
			t.Error(err)
		}
		for off := range len(want) {
			for n := range len(want) - off + 2 {
				p := make([]byte, n)
				got, err := view.ReadAt(p, int64(off))
				if !strings.HasPrefix(want[off:], string(p[:got])) || got < min(n, len(want)-off) || got < n && err != io.EOF {
					t.Fatalf("ReadAt(%d bytes, %d): %d %q %v", n, off, got, p[:got], err)
				}
			}
		}
	}
	if got := string(quote("a<b>&\"\u2028")); got != `"a<b>&\"\u2028"` {
		t.Errorf("quote: %s", got)
	}
}

// HT-09: two lengths are an attack or a mistake; nobody may guess.
func TestConflictingLengths(t *testing.T) {
	g := start(t, open(), nil)
	for _, headers := range []string{
		"Content-Length: 31\r\nContent-Length: 30\r\n", "Content-Length: 31, 30\r\n", "Content-Length: +31\r\n", "Content-Length: -1\r\n",
		"Content-Length: 31\r\nTransfer-Encoding: identity\r\n",
		"Transfer-Encoding: chunked, chunked\r\n", "Transfer-Encoding: \x0bchunked\r\n", "X: y\r\n Content-Length : 31\r\n",
	} {
		c := g.dial()
		c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n" + small)
		resp, _ := c.response()
		if resp.StatusCode != 400 && resp.StatusCode != 501 {
			t.Errorf("%q: %s", headers, resp.Status)
		}
	}
	if n := len(g.tunnels()); n != 0 {
		t.Errorf("%d tunnels reached the node", n)
	}
}

// HT-05
func TestExpectContinue(t *testing.T) {
	g := start(t, open(), nil)
	text := `{"model":"small","pad":"` + strings.Repeat("x", 2<<20) + `"}`
	c := g.dial()
	c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: " + itoa(len(text)) + "\r\n\r\n")
	if head := c.head(); head != "HTTP/1.1 100 Continue\r\n\r\n" {
		t.Fatalf("got %q", head)
	}
	c.send(text)
	if resp, _ := c.response(); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
	got := g.last()
	if string(got.body) != text || got.Header.Get("Expect") != "" {
		t.Error("another body, or Expect was passed on")
	}
}

// HT-05, CP-02: who is refused by the head alone isn't asked for the body.
func TestExpectContinueRefused(t *testing.T) {
	g := start(t, keyed(), nil)
	for headers, status := range map[string]int{
		"Content-Length: 9\r\n": 401,
		"Authorization: Bearer " + aliceKey + "\r\nContent-Length: 999999999\r\n":                   413,
		"Authorization: Bearer " + aliceKey + "\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n": 400,
	} {
		c := g.dial()
		c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n" + headers + "\r\n")
		if resp, body := c.response(); resp.StatusCode != status {
			t.Errorf("%q: %d %s", headers, resp.StatusCode, body)
		}
	}
}

// HT-10
func TestLargeBodies(t *testing.T) {
	g := start(t, open(), nil)
	text := `{"model":"small","image":"` + strings.Repeat("/9j/4AAQSkZJRg+", 12<<20/15) + `"}`
	resp, _ := g.ask("", text)
	if got := g.last(); resp.StatusCode != 200 || sha256.Sum256(got.body) != sha256.Sum256([]byte(text)) {
		t.Errorf("%s, %d bytes", resp.Status, len(got.body))
	}
	g.wantNothingHeld()
}

// HT-10, CP-02
func TestBodyOverTheLimit(t *testing.T) {
	g := start(t, open(), func(cfg *Config) { cfg.Limits.Body, cfg.Limits.BodyInMemory = 1<<20, 1<<10 })
	text := strings.Repeat(" ", 1<<20+1)
	for _, request := range []string{
		"Content-Length: " + itoa(len(text)) + "\r\n\r\n" + text,
		"Transfer-Encoding: chunked\r\n\r\n100001\r\n" + text + "\r\n0\r\n\r\n",
	} {
		c := g.dial()
		go func() {
			// The refusal may come, and the connection end, before all of it is sent.
			_, _ = io.WriteString(c.Conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"+request)
		}()
		resp, body := c.response()
		if message := wantError(t, resp, body, 413, "body_too_large"); !strings.Contains(message, "1048576") {
			t.Errorf("the message doesn't name the limit: %s", message)
		}
	}
	if n := len(g.tunnels()); n != 0 {
		t.Errorf("%d tunnels reached the node", n)
	}
	g.wantNothingHeld()
}

func TestBodyAtTheLimits(t *testing.T) {
	g := start(t, open(), func(cfg *Config) { cfg.Limits.Body, cfg.Limits.BodyInMemory = 40_000, 20_000 })
	for i, size := range []int{17, 8191, 8192, 8193, 19_999, 20_000, 20_001, 39_999, 40_000} {
		text := small + strings.Repeat(" ", max(0, size-len(small)))
		resp, _ := g.ask("", text)
		if got := g.tunnels()[i]; resp.StatusCode != 200 || string(got.body) != text {
			t.Errorf("size %d: %s, %d bytes", size, resp.Status, len(got.body))
		}
	}
}

// One budget bounds all bodies, and is given back whatever became of them.
func TestBodyBudget(t *testing.T) {
	g := start(t, open(), func(cfg *Config) { cfg.Limits.BodyInMemory, cfg.Limits.BodyMemory = 16<<10, 300<<10 })
	held, release := make(chan struct{}), make(chan struct{})
	g.answer(func(ctx context.Context, tn *service.Tunnel, sink service.Sink) *service.Outcome {
		close(held)
		<-release
		return hello(ctx, tn, sink)
	})
	text := small + strings.Repeat(" ", 200<<10)
	first := g.dial()
	first.post("", text)
	<-held
	dir, err := os.ReadDir(g.handler.bodies.dir)
	if err != nil || len(dir) != 0 {
		t.Errorf("a body has a name on disk: %v %v", dir, err)
	}
	resp, body := g.ask("", text)
	wantError(t, resp, body, 503, "overloaded")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	close(release)
	if resp, _ := first.response(); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
	g.wantNothingHeld()
	g.answer(hello)
	if resp, _ := g.ask("", text); resp.StatusCode != 200 {
		t.Errorf("afterwards: %s", resp.Status)
	}
	g.wantNothingHeld()
}

func TestBodyWithoutDisk(t *testing.T) {
	g := start(t, open(), func(cfg *Config) { cfg.TempDir = "/nonexistent/iop" })
	resp, body := g.ask("", small+strings.Repeat(" ", 300<<10))
	wantError(t, resp, body, 503, "overloaded")
	if strings.Contains(body, "nonexistent") || !strings.Contains(g.log.String(), "nonexistent") {
		t.Errorf("the path belongs into the log and nowhere else: %s", body)
	}
}

// HT-12, CA-02: a caller that leaves is noticed while its run waits, however large its body and whatever the framing.
func TestCallerGoneWhileWaiting(t *testing.T) {
	big := small + strings.Repeat(" ", 300<<10)
	for name, request := range map[string]string{
		"small":   "Content-Length: 31\r\n\r\n" + small,
		"spilled": "Content-Length: " + itoa(len(big)) + "\r\n\r\n" + big,
		"chunked": "Transfer-Encoding: chunked\r\n\r\n1f\r\n" + small + "\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, open(), nil)
			waiting, cause := make(chan struct{}), make(chan error, 1)
			g.answer(func(ctx context.Context, _ *service.Tunnel, _ service.Sink) *service.Outcome {
				close(waiting)
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return &service.Outcome{Failure: execution.Failf(execution.CodeClientGone, execution.OriginCaller, "gone")}
			})
			c := g.dial()
			c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + request)
			<-waiting
			_ = c.Close()
			select {
			case got := <-cause:
				if got != execution.CauseClientGone {
					t.Errorf("cause %v", got)
				}
			case <-time.After(patience.Limit):
				t.Error("nobody told the run that its caller left")
			}
		})
	}
}

// A caller that leaves once it has every byte that was declared hasn't left its run: the terminal and the usage are
// still on their way. One byte less, and it has.
func TestCallerLeavesWithTheWholeAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		length, body string
		left         bool
	}{"whole": {"5", "hello", false}, "empty": {"0", "", false}, "short": {"6", "hello", true}, "unknown length": {"", "hello", true}} {
		t.Run(name, func(t *testing.T) {
			g := start(t, open(), nil)
			cause := make(chan error, 1)
			g.answer(func(ctx context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
				head := http.Header{}
				if tt.length != "" {
					head.Set("Content-Length", tt.length)
				}
				_ = sink.Head(200, head)
				_ = sink.Body([]byte(tt.body), true)
				limit := 200 * time.Millisecond
				if tt.left {
					limit = patience.Limit
				}
				select {
				case <-ctx.Done():
				case <-time.After(limit):
				}
				cause <- context.Cause(ctx)
				return &service.Outcome{HeadSent: true}
			})
			c := g.dial()
			c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 31\r\n\r\n" + small)
			got := make([]byte, 1)
			for seen := ""; !strings.Contains(seen, "\r\n\r\n") || !strings.Contains(seen, tt.body); seen += string(got) {
				if _, err := io.ReadFull(c, got); err != nil {
					t.Fatal(err)
				}
			}
			_ = c.Close()
			if got := <-cause; (got == execution.CauseClientGone) != tt.left {
				t.Errorf("cause %v", got)
			}
		})
	}
}

// CP-02: none of these may ask for a place, and each is refused in the dialect, with a line and an observation.
func TestMalformedRequestsTakeNoPlace(t *testing.T) {
	g := start(t, keyed(), nil)
	auth := "Authorization: Bearer " + aliceKey + "\r\n"
	n := 0
	for range 10 {
		for _, tt := range []struct {
			headers, body string
			status        int
			code          string
		}{
			{auth, `{"model":"nope"}`, 404, "unknown_model"},
			{auth, `{"model":`, 400, "bad_request"},
			{auth, ``, 400, "bad_request"},
			{auth, `{"model":"small","model":"large"}`, 400, "bad_request"},
			{"Authorization: Bearer expired\r\n", small, 401, "unauthorized"},
			{"Authorization: Bearer " + bobKey + "\r\n", `{"model":"large"}`, 404, "unknown_model"},
			{auth + "X-IOP-Session: a b\r\n", small, 400, "bad_request"},
			{auth + "X-Long: " + strings.Repeat("x", 32<<10-200) + "\r\nX-More: " + strings.Repeat("y", 300) + "\r\n", small, 431, "bad_request"},
		} {
			resp, body := g.ask(tt.headers, tt.body)
			wantError(t, resp, body, tt.status, tt.code)
			n++
		}
		c := g.dial()
		c.send("GET /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, body := c.response()
		wantError(t, resp, body, 405, "bad_request")
		n++
	}
	if len(g.tunnels()) != 0 {
		t.Errorf("%d tunnels reached the node", len(g.tunnels()))
	}
	if got := g.outcomes(); len(got) != n || slices.ContainsFunc(got, func(o service.Outcome) bool { return o.OK() }) {
		t.Errorf("%d outcomes for %d requests", len(got), n)
	}
	if got := strings.Count(g.log.String(), `"request ended"`); got != n {
		t.Errorf("%d lines for %d requests", got, n)
	}
	if resp, _ := g.ask(auth, small); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

// ST-21: a provider's refusal is passed on as it is, before anything else was committed.
func TestUpstreamRefusalPasses(t *testing.T) {
	g := start(t, open(), nil)
	for _, status := range []int{400, 401, 429, 500, 503, 307} {
		text := `{"error":{"message":"slow down"}}`
		g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
			return respond(sink, status, http.Header{"Content-Type": {"application/json"}, "Retry-After": {"7"},
				"Location": {"http://elsewhere.example/"}, "Content-Length": {itoa(len(text))}}, text)
		})
		resp, body := g.ask("", `{"model":"small","stream":true}`)
		if resp.StatusCode != status || body != text || resp.Header.Get("Retry-After") != "7" ||
			resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("Location") == "" {
			t.Errorf("%d: %d %q %v", status, resp.StatusCode, body, resp.Header)
		}
	}
}

// A run that failed before its head is answered in the dialect, keeps what is known of its place, and tells SDKs not to
// run it again when it may have run.
func TestFailedRuns(t *testing.T) {
	g := start(t, open(), nil)
	ask := func(f *execution.Failure, attempts int) *http.Response {
		g.answer(fail(f, attempts))
		resp, body := g.ask("", small)
		row, _ := rowOf(f.Code)
		wantError(t, resp, body, row.status, f.Code.String())
		return resp
	}
	for _, tt := range []struct {
		f        execution.Failure
		attempts int
		retry    string // x-should-retry
		after    string
	}{
		{execution.Failure{Code: execution.CodeNodeLost}, 1, "false", ""},
		{execution.Failure{Code: execution.CodeUpstreamConnect}, 1, "false", ""},
		{execution.Failure{Code: execution.CodeUpstreamConnect, NothingSent: true}, 2, "", ""},
		{execution.Failure{Code: execution.CodeFirstByteTimeout}, 1, "false", ""},
		{execution.Failure{Code: execution.CodeDeadline}, 0, "", ""},
		{execution.Failure{Code: execution.CodeEdgeDraining}, 0, "", "5"},
		{execution.Failure{Code: execution.CodeEdgeDraining}, 1, "false", "5"},
		{execution.Failure{Code: execution.CodeQueueFull, RetryAfter: 1500 * time.Millisecond}, 0, "", "2"},
		{execution.Failure{Code: execution.CodeAdapterBusy}, 3, "", "5"},
		{execution.Failure{Code: execution.CodeCancelled}, 1, "", ""},
	} {
		resp := ask(&tt.f, tt.attempts)
		if got := resp.Header.Get("x-should-retry"); got != tt.retry {
			t.Errorf("%v after %d attempts: x-should-retry %q", tt.f.Code, tt.attempts, got)
		}
		if got := resp.Header.Get("Retry-After"); got != tt.after {
			t.Errorf("%v: Retry-After %q", tt.f.Code, got)
		}
		if resp.Header.Get("X-IOP-Run-Id") == "" {
			t.Errorf("%v: no run id", tt.f.Code)
		}
	}
	if len(g.outcomes()) != 10 || strings.Contains(g.log.String(), "request ended") {
		t.Error("who drives a run observes it and writes its line; not the surface a second time")
	}
}

func TestPanicBeforeTheHead(t *testing.T) {
	g := start(t, open(), nil)
	g.answer(func(context.Context, *service.Tunnel, service.Sink) *service.Outcome { panic("S3CR3T-value") })
	resp, body := g.ask("", small)
	wantError(t, resp, body, 500, "internal")
	if strings.Contains(body+g.log.String(), "S3CR3T") || !strings.Contains(g.log.String(), "stack") {
		t.Error("a panic's value may hold what a caller sent; its stack is needed")
	}
}

// A wildcard route takes what its candidates have, and everything while nothing is known of them.
func TestWildcardRoute(t *testing.T) {
	edge := open()
	edge.Routes = []config.Route{{Model: "pinned", Adapter: "other"}, {Model: "*", Labels: map[string]string{"zone": "a"}}}
	var offers []Offer
	g := start(t, edge, func(cfg *Config) { cfg.Offers = func() []Offer { return offers } })
	status := func(model string) int {
		resp, _ := g.ask("", `{"model":"`+model+`"}`)
		return resp.StatusCode
	}
	if got := status("anything"); got != 200 {
		t.Errorf("nothing known: %d", got)
	}
	if got := status("*"); got != 404 {
		t.Errorf("the name of the route itself is no model: %d", got)
	}
	inA := map[string]string{"zone": "a"}
	offers = []Offer{
		{Node: "n1", Adapter: "x", Labels: inA, Models: []execution.Model{{Name: "m1"}}},
		{Node: "n2", Adapter: "x", Models: []execution.Model{{Name: "m2"}}},
		{Node: "n3", Adapter: "x", Labels: inA, Targets: []string{"t1"}, Models: []execution.Model{{Name: "m3"}}},
	}
	for model, want := range map[string]int{"m1": 200, "t1": 200, "m2": 404, "m3": 404, "nope": 404, "pinned": 200, "*": 404} {
		if got := status(model); got != want {
			t.Errorf("%s: %d, want %d", model, got, want)
		}
	}
	offers = append(offers, Offer{Node: "n4", Adapter: "y", Labels: inA})
	if got := status("nope"); got != 200 {
		t.Errorf("an adapter that doesn't tell may have it: %d", got)
	}
}

// A route whose adapters were all heard and all lack its target is the operator's mistake: it says so at once, instead
// of letting the caller wait for a place that never comes. A candidate that hasn't been heard is waited for.
func TestRouteThatNobodyServes(t *testing.T) {
	edge := open()
	edge.Nodes = []config.NodeRecord{
		{ID: "n1", Enabled: true, Adapters: []config.Adapter{{Name: "x", Kind: "openai"}, {Name: "y", Kind: "openai"}}},
		{ID: "n2", Enabled: true, Adapters: []config.Adapter{{Name: "x", Kind: "openai"}}},
		{ID: "off", Adapters: []config.Adapter{{Name: "x", Kind: "openai"}}},
	}
	edge.Routes = []config.Route{{Model: "public", Adapter: "x", Target: "inner"}}
	var offers []Offer
	g := start(t, edge, func(cfg *Config) { cfg.Offers = func() []Offer { return offers } })
	lacks := []execution.Model{{Name: "other"}}
	for _, tt := range []struct {
		offers []Offer
		status int
	}{
		{nil, 200},
		{[]Offer{{Node: "n1", Adapter: "x", Models: lacks}}, 200}, // n2 may have it
		{[]Offer{{Node: "n1", Adapter: "x", Models: lacks}, {Node: "n2", Adapter: "x", Models: lacks}}, 404},
		{[]Offer{{Node: "n1", Adapter: "x", Models: lacks}, {Node: "n2", Adapter: "x", Models: []execution.Model{{Name: "inner"}}}}, 200},
		{[]Offer{{Node: "n1", Adapter: "x", Models: lacks}, {Node: "n2", Adapter: "x", Targets: []string{"inner"}, Models: lacks}}, 200},
	} {
		offers = tt.offers
		resp, body := g.ask("", `{"model":"public"}`)
		if resp.StatusCode != tt.status || tt.status == 404 && !strings.Contains(body, `\"inner\"`) {
			t.Errorf("%v: %d %s, want %d", tt.offers, resp.StatusCode, body, tt.status)
		}
	}
}

func TestScanRefusalOfABrokenFile(t *testing.T) {
	ref := scanRefusal(os.ErrClosed)
	if ref.status != 500 || strings.Contains(string(encoderOf("/")(500, ref.failure, "")), "closed") {
		t.Errorf("%+v", ref)
	}
	if !bytes.HasSuffix(encoderOf("/")(500, ref.failure, ""), []byte("}\n")) {
		t.Error("not a line of JSON")
	}
}
