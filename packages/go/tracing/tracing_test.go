package tracing

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"iop/packages/go/patience"
	"iop/packages/go/tracing/tracingtest"
)

// started returns a tracer that exports to a receiver.
func started(t *testing.T, change func(*Config)) (*Tracer, *tracingtest.Receiver) {
	t.Helper()
	r := tracingtest.Start(t)
	cfg := &Config{Endpoint: r.URL, Service: "test", Version: "1"}
	if change != nil {
		change(cfg)
	}
	tracer, err := Open(cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	tracer.limit = patience.Limit
	t.Cleanup(func() { tracer.Close(nil) })
	return tracer, r
}

const (
	callers   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

func TestSpans(t *testing.T) {
	tracer, r := started(t, func(c *Config) { c.Attributes = map[string]string{"deployment": "x", "service.name": "not this"} })
	server := tracer.Start(Parse(callers, "vendor=1"), Server, "POST /v1/chat/completions")
	server.Text(KeyMethod, "POST")
	server.Text(KeyRoute, "")
	server.Number(KeyStatus, 502)
	child := server.Child(Client, NameAttempt)
	tokens := int64(7)
	child.Count(KeyInputTokens, &tokens)
	child.Count(KeyOutputTokens, nil)
	child.Texts(KeyFinishReasons, "stop")
	child.Seconds(KeyFirstChunk, 1500*time.Millisecond)
	child.Name("chat tiny")
	child.Fail("upstream_error")
	child.End()
	child.End()
	server.End()
	tracer.Start(Context{}, Internal, "of nobody").End()
	tracer.Close(nil)
	tracer.Close(nil)

	spans := r.Spans()
	if len(spans) != 3 {
		t.Fatalf("%d spans, want 3: %+v", len(spans), spans)
	}
	a, b, c := spans[0], spans[1], spans[2]
	if a.Trace != "0af7651916cd43dd8448eb211c80319c" || a.Parent != "b7ad6b7169203331" || a.State != "vendor=1" ||
		a.Kind != tracepb.Span_SPAN_KIND_SERVER || a.Service != "test" || a.Failed || a.Attrs["http.response.status_code"] != int64(502) {
		t.Errorf("server span: %+v", a)
	}
	if _, set := a.Attrs["http.route"]; set {
		t.Error("an empty text is an attribute")
	}
	if b.Trace != a.Trace || b.Parent != a.ID || b.Name != "chat tiny" || !b.Failed || b.Attrs["error.type"] != "upstream_error" ||
		b.Attrs["gen_ai.usage.input_tokens"] != int64(7) || b.Attrs["gen_ai.response.time_to_first_chunk"] != 1.5 ||
		b.Kind != tracepb.Span_SPAN_KIND_CLIENT || b.End < b.Start {
		t.Errorf("child: %+v", b)
	}
	if _, set := b.Attrs["gen_ai.usage.output_tokens"]; set {
		t.Error("an unknown number is an attribute")
	}
	if c.Trace == a.Trace || c.Parent != "" {
		t.Errorf("a span without a parent is in somebody's trace: %+v", c)
	}
}

// What a peer calls things must neither be long nor lose the spans that go with it: a text that isn't UTF-8 can't be
// encoded.
func TestTextsAreBounded(t *testing.T) {
	tracer, r := started(t, nil)
	s := tracer.Start(Context{}, Internal, strings.Repeat("n", 10_000))
	s.Text(KeyAdapter, strings.Repeat("ä", 10_000))
	s.Text(KeyNode, "bad\xff\xfe")
	s.Fail("\xff")
	s.End()
	tracer.Close(nil)
	spans := r.Spans()
	if len(spans) != 1 {
		t.Fatalf("%d spans arrived, want 1", len(spans))
	}
	if n := len(spans[0].Name); n > maxValue {
		t.Errorf("a name of %d bytes", n)
	}
	if v, _ := spans[0].Attrs[string(KeyAdapter)].(string); len(v) == 0 || len(v) > maxValue {
		t.Errorf("an attribute of %d bytes", len(v))
	}
	if v := spans[0].Attrs[string(KeyNode)]; v != "bad\uFFFD" {
		t.Errorf("text that isn't UTF-8: %q", v)
	}
}

// A caller that doesn't record is followed in that, by default, and its trace is carried on.
func TestUnsampledCallers(t *testing.T) {
	tracer, r := started(t, nil)
	s := tracer.Start(Parse(unsampled, ""), Server, "x")
	if s.Recorded() {
		t.Error("the span of an unsampled caller is recorded")
	}
	if at := s.Context().Traceparent(); !strings.HasPrefix(at, unsampled[:36]) || !strings.HasSuffix(at, "-00") || at == unsampled {
		t.Errorf("carried on as %q", at)
	}
	s.Child(Client, "y").End()
	s.End()
	tracer.Close(nil)
	if n := len(r.Spans()); n != 0 {
		t.Errorf("%d spans were exported", n)
	}
}

func TestSamplers(t *testing.T) {
	for name, want := range map[string]bool{"always_off": false, "parentbased_always_off": false, "always_on": true,
		"traceidratio": true, "parentbased_traceidratio": true, "": true} {
		tracer, _ := started(t, func(c *Config) { c.Sampler, c.Ratio = name, 1 })
		if s := tracer.Start(Context{}, Server, "x"); s.Recorded() != want {
			t.Errorf("%q: recorded = %t", name, s.Recorded())
		}
	}
	if _, err := Open(&Config{Sampler: "sometimes"}, zerolog.Nop()); err == nil {
		t.Error("an unknown sampler is taken")
	}
}

// everything is what a request does with tracing, through both programs.
func everything(t *Tracer, parent Context) Context {
	server := t.Start(parent, Server, "x")
	server.Text(KeyMethod, "POST")
	at := server.Within(parent)
	queue := t.Start(at, Internal, NameQueue)
	queue.Number(KeyPosition, 1)
	queue.End()
	attempt := t.Start(at, Client, NameAttempt)
	attempt.Text(KeyNode, "n")
	attempt.Fail("x")
	attempt.End()
	server.End()
	return attempt.Within(at)
}

// What is off starts nothing and takes nothing.
func TestOffCostsNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	off, err := Open(nil, zerolog.Nop())
	if off != nil || err != nil {
		t.Fatalf("no configuration: %v, %v", off, err)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines more", n-before)
	}
	patience.Allocations(t, 0, 100, func() { everything(off, Context{}) })
	parent := Parse(callers, "")
	if got := everything(off, parent); got.Traceparent() != callers {
		t.Errorf("the caller's place isn't carried on: %q", got.Traceparent())
	}
	off.Close(nil)
}

func BenchmarkOff(b *testing.B) {
	for b.Loop() {
		everything(nil, Context{})
	}
}

func BenchmarkOn(b *testing.B) {
	r := tracingtest.Start(b)
	tracer, err := Open(&Config{Endpoint: r.URL, Service: "test"}, zerolog.Nop())
	if err != nil {
		b.Fatal(err)
	}
	defer tracer.Close(nil)
	parent := Parse(callers, "")
	for b.Loop() {
		everything(tracer, parent)
	}
}
