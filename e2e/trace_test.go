package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	"iop/packages/go/tracing"
	"iop/packages/go/tracing/tracingtest"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

const (
	callerTrace = "0af7651916cd43dd8448eb211c80319c"
	callerSpan  = "b7ad6b7169203331"
	traceparent = "Traceparent: 00-" + callerTrace + "-" + callerSpan + "-01"
)

// tracedRig is a rig whose programs export to a receiver.
type tracedRig struct {
	*rig
	receiver *tracingtest.Receiver
}

func newTraced(t *testing.T, script fakeprovider.Script, s setup) *tracedRig {
	t.Helper()
	receiver := tracingtest.Start(t)
	s.Tracing = &tracing.Config{Endpoint: receiver.URL, Delay: 10 * time.Millisecond}
	return &tracedRig{assemble(t, fakeprovider.New(t, behindProbe(script)), s), receiver}
}

// spans ends both programs and returns what they exported.
func (r *tracedRig) spans() []tracingtest.Span {
	r.t.Helper()
	r.idle()
	for _, stop := range []func(time.Duration) error{r.node.Stop, r.Edge.Stop} {
		if err := stop(limit); err != nil {
			r.t.Fatal(err)
		}
	}
	return r.receiver.Spans()
}

// only returns the one span of a name.
func only(t *testing.T, spans []tracingtest.Span, name string) tracingtest.Span {
	t.Helper()
	found := named(spans, name)
	if len(found) != 1 {
		t.Fatalf("%d spans called %q, want 1, of %s", len(found), name, names(spans))
	}
	return found[0]
}

func named(spans []tracingtest.Span, name string) (found []tracingtest.Span) {
	for _, s := range spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

func names(spans []tracingtest.Span) string {
	var all []string
	for _, s := range spans {
		all = append(all, fmt.Sprintf("%s/%s %v", s.Service, s.Name, s.Attrs))
	}
	return strings.Join(all, "\n")
}

// chain checks that each span is the parent of the next.
func chain(t *testing.T, trace, parent string, spans ...tracingtest.Span) {
	t.Helper()
	for _, s := range spans {
		if s.Trace != trace || s.Parent != parent {
			t.Errorf("%s is %s below %s, want %s below %s", s.Name, s.Trace, s.Parent, trace, parent)
		}
		parent = s.ID
	}
}

// wantAttrs checks attributes; nil = there is none.
func wantAttrs(t *testing.T, s tracingtest.Span, want map[string]any) {
	t.Helper()
	for name, value := range want {
		got, has := s.Attrs[name]
		if value == nil && has || value != nil && fmt.Sprint(got) != fmt.Sprint(value) {
			t.Errorf("%s: %s = %v, want %v", s.Name, name, got, value)
		}
	}
}

// One trace from the caller to the provider, through both programs, with nothing in it of what was said or shown.
func TestTraceFromCallerToProvider(t *testing.T) {
	t.Parallel()
	const key = "canary-key-0123456789abcdef"
	answer := "data: {\"model\":\"m-2026\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"canary answer\"}}]}\n\n" + finish + usage(11, 7) + done
	r := newTraced(t, fakeprovider.Raw(stream("text/event-stream", answer)), setup{Options: harness.Options{Principals: principals(key)}})
	body := `{"model":"m","stream":true,"user":"canary user","messages":[{"role":"user","content":"canary prompt"}]}`
	a := r.ask(harness.Post(chatPath+"?token=canary-query", body, "Authorization: Bearer "+key, traceparent, "Tracestate: vendor=1",
		"X-Other: canary header", "User-Agent: canary agent", "Cookie: canary=1"))
	wantWhole(t, a, 200, answer)
	seen := r.seen()[0]
	spans := r.spans()
	if len(spans) != 5 {
		t.Fatalf("%d spans, want 5: %s", len(spans), names(spans))
	}
	server, queue, attempt := only(t, spans, "POST "+chatPath), only(t, spans, "iop.queue"), only(t, spans, "iop.attempt")
	execution, provider := only(t, spans, "iop.execution"), only(t, spans, "chat m")
	chain(t, callerTrace, callerSpan, server, attempt, execution, provider)
	chain(t, callerTrace, server.ID, queue)
	for _, s := range spans {
		if s.Failed || s.Attrs["error.type"] != nil || s.State != "vendor=1" {
			t.Errorf("%s: failed, or its tracestate is %q", s.Name, s.State)
		}
	}
	run := a.Header.Get("X-IOP-Run-Id")
	wantAttrs(t, server, map[string]any{"http.request.method": "POST", "http.route": chatPath, "http.response.status_code": 200,
		"url.scheme": "http", "iop.run_id": run, "iop.principal": "alice", "iop.route": "*"})
	wantAttrs(t, attempt, map[string]any{"iop.run_id": run, "iop.node_id": "box", "iop.adapter": "gpu", "iop.attempt": 1,
		"iop.outcome": "ok", "iop.kind": "tunnel"})
	wantAttrs(t, execution, map[string]any{"iop.run_id": run, "iop.adapter": "gpu", "iop.outcome": "ok",
		"iop.connection_generation": attempt.Attrs["iop.connection_generation"]})
	host, port, _ := strings.Cut(r.provider.Addr(), ":")
	wantAttrs(t, provider, map[string]any{"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.response.model": "m-2026",
		"gen_ai.provider.name": "openai", "gen_ai.usage.input_tokens": 11, "gen_ai.usage.output_tokens": 7,
		"gen_ai.response.finish_reasons": []string{"stop"}, "server.address": host, "server.port": port, "http.response.status_code": 200})
	wantKinds(t, map[tracepb.Span_SpanKind][]tracingtest.Span{tracepb.Span_SPAN_KIND_SERVER: {server, execution},
		tracepb.Span_SPAN_KIND_CLIENT: {attempt, provider}, tracepb.Span_SPAN_KIND_INTERNAL: {queue}})
	if got := seen.Header.Values("Traceparent"); !slices.Equal(got, []string{"00-" + callerTrace + "-" + provider.ID + "-01"}) || seen.Header.Get("Tracestate") != "vendor=1" {
		t.Errorf("the provider was told %v, %q", got, seen.Header.Get("Tracestate"))
	}
	if raw := string(r.receiver.Raw()); strings.Contains(raw, "canary") {
		t.Errorf("something that a caller or a provider said was exported: %q", raw)
	}
}

func wantKinds(t *testing.T, kinds map[tracepb.Span_SpanKind][]tracingtest.Span) {
	t.Helper()
	for kind, spans := range kinds {
		for _, s := range spans {
			if service := "edge"; s.Kind != kind || (s.Name == "iop.execution" || s.Name == "chat m") == (s.Service == service) {
				t.Errorf("%s is of %s and a %v, want a %v", s.Name, s.Service, s.Kind, kind)
			}
		}
	}
}

// What a request becomes on the way doesn't break its trace: a run of the runs API, and one that another dialect's
// request amounts to.
func TestTraceOfRuns(t *testing.T) {
	t.Parallel()
	r := newTraced(t, fakeprovider.Events(0, "data: {\"model\":\"m-2026\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n", finish, usage(3, 1), done), setup{})
	for _, request := range []string{
		harness.Post("/iop/v1/runs", `{"adapter":"gpu","target":"m","messages":[{"role":"user","content":"hi"}]}`, traceparent, "Tracestate: vendor=1"),
		harness.Post("/api/chat", `{"model":"m","stream":false,"messages":[{"role":"user","content":"hi"}]}`, traceparent, "Tracestate: vendor=1"),
	} {
		if a := r.ask(request); a.StatusCode != 200 {
			t.Fatalf("%d %s", a.StatusCode, a.Bytes)
		}
	}
	seen := r.seen()
	spans := r.spans()
	providers := named(spans, "chat m")
	if len(providers) != 2 {
		t.Fatalf("spans: %s", names(spans))
	}
	for i, route := range []string{"POST /iop/v1/runs", "POST /api/chat"} {
		server, attempt, execution := only(t, spans, route), named(spans, "iop.attempt")[i], named(spans, "iop.execution")[i]
		chain(t, callerTrace, callerSpan, server, attempt, execution, providers[i])
		wantAttrs(t, attempt, map[string]any{"iop.kind": "run", "iop.run_id": server.Attrs["iop.run_id"]})
		wantAttrs(t, providers[i], map[string]any{"gen_ai.response.model": "m-2026", "gen_ai.usage.output_tokens": 1,
			"gen_ai.response.finish_reasons": []string{"stop"}})
		if got := seen[i].Header.Get("Traceparent"); got != "00-"+callerTrace+"-"+providers[i].ID+"-01" || seen[i].Header.Get("Tracestate") != "vendor=1" {
			t.Errorf("%s: the provider was told %q, %q", route, got, seen[i].Header.Get("Tracestate"))
		}
	}
}

// Why something failed is the type of the error, by our stable codes, on each span that failed with it.
func TestTraceOfFailures(t *testing.T) {
	t.Parallel()
	r := newTraced(t, nil, setup{Options: harness.Options{Routes: "[{model: m}]"}})
	for _, c := range []struct {
		name, body string
		script     fakeprovider.Script
		status     int
		server     map[string]any
		failed     bool
		execution  any // the type of its error
		provider   any
	}{
		{"unknown model", `{"model":"nothing"}`, nil, 404, map[string]any{"error.type": "unknown_model"}, false, nil, nil},
		{"a provider's own error", chatBody, fakeprovider.Answer(503, "application/json", `{"error":{"message":"x"}}`), 503,
			map[string]any{"error.type": nil, "http.response.status_code": 503}, false, nil, "503"},
		{"cut before the answer", chatBody, fakeprovider.CutAfter([]byte("HTTP/1.1 2"), 10, false), 502,
			map[string]any{"error.type": "upstream_truncated", "http.response.status_code": 502}, true, "upstream_truncated", "upstream_truncated"},
		{"cut inside the answer", chatBody, fakeprovider.CutAfter(stream("text/event-stream", delta("a")+done), 150, false), 200,
			map[string]any{"error.type": "upstream_truncated"}, true, "upstream_truncated", "upstream_truncated"},
	} {
		if c.script != nil {
			r.provider.Use(behindProbe(c.script))
		}
		span := fmt.Sprintf("%016x", len(c.name)) // tells the requests apart
		a := r.ask(harness.Post(chatPath, c.body, "Traceparent: 00-"+callerTrace+"-"+span+"-01"))
		if a.StatusCode != c.status {
			t.Fatalf("%s: %d %s", c.name, a.StatusCode, a.Bytes)
		}
		defer func() { r.wantFailure(c.name, span, c.server, c.failed, c.execution, c.provider) }()
	}
	r.spans()
}

// wantFailure looks at the spans below one of the caller's.
func (r *tracedRig) wantFailure(name, parent string, want map[string]any, failed bool, execution, provider any) {
	r.t.Helper()
	below := func(parent string, of ...string) (s tracingtest.Span) {
		for _, s := range r.receiver.Spans() {
			if s.Parent == parent && slices.Contains(of, s.Name) {
				return s
			}
		}
		return s
	}
	server := below(parent, "POST "+chatPath)
	if server.ID == "" || server.Failed != failed {
		r.t.Errorf("%s: failed = %t: %+v", name, server.Failed, server)
	}
	wantAttrs(r.t, server, want)
	attempt := below(server.ID, "iop.attempt")
	inside := below(attempt.ID, "iop.execution")
	asked := below(inside.ID, "chat m")
	for _, c := range []struct {
		span tracingtest.Span
		want any
	}{{attempt, execution}, {inside, execution}, {asked, provider}} {
		if c.span.Attrs["error.type"] != c.want || c.span.Failed != (c.want != nil) {
			r.t.Errorf("%s: %s failed as %v, want %v", name, c.span.Name, c.span.Attrs["error.type"], c.want)
		}
	}
}

// A caller that leaves: every span below it ends, and says why.
func TestTraceOfCancelledRun(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	r := newTraced(t, f.script, setup{})
	c := r.dial()
	c.Send(chat(traceparent))
	<-f.begun
	f.step(t, func(x *fakeprovider.Exchange) { x.BeginStream(200, "text/event-stream"); x.Chunk(delta("a")) })
	c.Head(limit, http.MethodPost)
	c.Reset()
	spans := r.spans()
	server, attempt := only(t, spans, "POST "+chatPath), only(t, spans, "iop.attempt")
	execution, provider := only(t, spans, "iop.execution"), only(t, spans, "chat m")
	chain(t, callerTrace, callerSpan, server, attempt, execution, provider)
	for _, s := range []tracingtest.Span{server, attempt, execution, provider} {
		if s.Attrs["error.type"] != "client_gone" || !s.Failed || s.End < s.Start {
			t.Errorf("%s: %+v", s.Name, s)
		}
	}
}

// A request that its first place didn't take has two waits and two attempts, one after the other, below one request.
func TestTraceOfRetriedRun(t *testing.T) {
	t.Parallel()
	dead := fakeprovider.New(t, behindProbe(nil))
	receiver := tracingtest.Start(t)
	s := setup{Options: harness.Options{Tracing: &tracing.Config{Endpoint: receiver.URL, Delay: 10 * time.Millisecond}}}
	good := fakeprovider.New(t, behindProbe(fakeprovider.Events(0, delta("a"), finish, done)))
	s.Adapters = "[" + adapter("dead", dead.URL(), 4) + ", " + adapter("good", good.URL(), 4) + "]"
	r := &tracedRig{assemble(t, good, s), receiver}
	dead.Close()
	for range 4 { // ties rotate
		if a := r.ask(chat(traceparent)); a.StatusCode != 200 {
			t.Fatalf("%d %s", a.StatusCode, a.Bytes)
		}
	}
	spans := r.spans()
	retried := 0
	for _, server := range named(spans, "POST "+chatPath) {
		var tries, waits []tracingtest.Span
		for _, s := range spans {
			switch {
			case s.Parent == server.ID && s.Name == "iop.attempt":
				tries = append(tries, s)
			case s.Parent == server.ID && s.Name == "iop.queue":
				waits = append(waits, s)
			}
		}
		if len(tries) != len(waits) || len(tries) == 0 || server.Failed {
			t.Fatalf("%d attempts, %d waits, %+v", len(tries), len(waits), server)
		}
		wantAttrs(t, tries[len(tries)-1], map[string]any{"iop.adapter": "good", "iop.attempt": len(tries), "iop.outcome": "ok", "error.type": nil})
		if len(tries) == 2 {
			retried++
			wantAttrs(t, tries[0], map[string]any{"iop.adapter": "dead", "iop.attempt": 1, "error.type": "upstream_connect", "iop.outcome": nil})
			if tries[0].End > tries[1].Start || !tries[0].Failed {
				t.Errorf("attempts overlap, or the first didn't fail: %+v", tries)
			}
		}
	}
	if retried == 0 {
		t.Errorf("no request had two attempts: %s", names(spans))
	}
}

// What a caller says of its trace is taken only if it is right; no request suffers from it.
func TestTracesOfStrangers(t *testing.T) {
	t.Parallel()
	r := newTraced(t, fakeprovider.Events(0, delta("a"), finish, done), setup{})
	long := "Tracestate: a=" + strings.Repeat("x", 250) + ",b=" + strings.Repeat("y", 300)
	for _, headers := range [][]string{
		{"Traceparent: garbage", "Tracestate: canary=1"},
		{"Traceparent: 00-" + callerTrace + "-" + callerSpan + "-zz"},
		{traceparent, traceparent},
		{traceparent, long},
		{"Traceparent: 00-" + callerTrace + "-" + callerSpan + "-00", "Tracestate: vendor=1"},
	} {
		if a := r.ask(chat(headers...)); a.StatusCode != 200 {
			t.Fatalf("%v: %d %s", headers, a.StatusCode, a.Bytes)
		}
	}
	seen := r.seen()
	spans := r.spans()
	servers := named(spans, "POST "+chatPath)
	if len(servers) != 4 || len(spans) != 4*5 {
		t.Fatalf("%d requests were recorded in %d spans, want the 4 whose callers didn't say no", len(servers), len(spans))
	}
	for _, s := range servers[:3] {
		if s.Trace == callerTrace || s.Parent != "" || s.State != "" {
			t.Errorf("garbage was taken for a trace: %+v", s)
		}
	}
	if s := servers[3]; s.Trace != callerTrace || s.Parent != callerSpan || s.State != "" {
		t.Errorf("over-long tracestate: %+v", s)
	}
	for i, x := range seen {
		parent := x.Header.Values("Traceparent")
		if len(parent) != 1 || len(parent[0]) != 55 || strings.Contains(parent[0], callerSpan) || strings.HasSuffix(parent[0], "-01") == (i == 4) {
			t.Errorf("request %d: the provider was told %v", i, parent)
		}
		if state := x.Header.Get("Tracestate"); (state == "vendor=1") != (i == 4) || state != "" && i != 4 {
			t.Errorf("request %d: the provider was told %q", i, state)
		}
	}
}

// Whether anything is exported or not, a caller's trace reaches the provider: as it is where nobody adds to it.
func TestTraceIsPassedOnWhereTracingIsOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, fakeprovider.Events(0, delta("a"), finish, done), setup{})
	for _, request := range []string{
		chat(traceparent, "Tracestate: vendor=1"),
		harness.Post("/iop/v1/runs", `{"adapter":"gpu","target":"m","messages":[{"role":"user","content":"hi"}]}`, traceparent, "Tracestate: vendor=1"),
	} {
		if a := r.ask(request); a.StatusCode != 200 {
			t.Fatalf("%d %s", a.StatusCode, a.Bytes)
		}
	}
	for _, x := range r.seen() {
		if got := x.Header.Get("Traceparent"); "Traceparent: "+got != traceparent || x.Header.Get("Tracestate") != "vendor=1" {
			t.Errorf("the provider was told %q, %q", got, x.Header.Get("Tracestate"))
		}
	}
}

// A node of an earlier version takes no place in a trace with its open; in a tunnel it gets the headers, and passes
// them on.
func TestTraceAndNodesThatDontKnowIt(t *testing.T) {
	t.Parallel()
	receiver := tracingtest.Start(t)
	for name, features := range map[string][]pb.Feature{"old": nil, "new": {pb.Feature_FEATURE_TRACE}} {
		e := harness.StartEdge(t, harness.Options{Tracing: &tracing.Config{Endpoint: receiver.URL, Delay: 10 * time.Millisecond}})
		opens := make(chan *pb.WorkOpen, 1)
		hello := harness.Hello("box", name)
		hello.Features = features
		n := harness.DialFake(t, e.Addr.Nodes.String(), harness.FakeNodeOptions{Hello: hello,
			Work: func(n *harness.FakeNode, s *transport.Stream, open *pb.WorkOpen) {
				opens <- open
				_ = n.Answer(s, open, "ok")
				harness.Discard(s)
			}})
		n.Ready(t, nil)
		e.AwaitReady("box")
		if a, err := harness.Ask(e.HTTP(), harness.Post(chatPath, `{"model":"loopback"}`, traceparent, "Tracestate: vendor=1"), limit); err != nil || a.StatusCode != 200 {
			t.Fatalf("%s: %v, %v", name, a, err)
		}
		open := <-opens
		header := map[string]string{}
		for _, h := range open.GetTunnel().GetHeaders() {
			header[h.GetName()] = string(h.GetValue())
		}
		parent, state := open.GetTraceparent(), open.GetTracestate()
		if features == nil {
			if parent != "" || state != "" {
				t.Errorf("a node that didn't offer it was sent %q, %q", parent, state)
			}
			parent, state = header["Traceparent"], header["Tracestate"]
		} else if header["Traceparent"] != "" || header["Tracestate"] != "" {
			t.Errorf("the headers say it, too: %v", header)
		}
		if len(parent) != 55 || !strings.Contains(parent, callerTrace) || strings.Contains(parent, callerSpan) || state != "vendor=1" {
			t.Errorf("%s: the node was told %q, %q", name, parent, state)
		}
	}
}

// A receiver that takes spans and never answers is nobody's problem: requests are served, and both programs end.
func TestReceiverOfTracesThatHangs(t *testing.T) {
	t.Parallel()
	r := newTraced(t, fakeprovider.Events(0, delta("a"), finish, done), setup{})
	released := make(chan struct{})
	defer close(released)
	r.receiver.Answer(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-req.Context().Done():
		case <-released:
		}
	})
	for range 20 {
		if a := r.ask(chat(traceparent)); a.StatusCode != 200 {
			t.Fatalf("%d %s", a.StatusCode, a.Bytes)
		}
	}
	r.spans()
}
