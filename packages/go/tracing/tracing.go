// Package tracing makes OpenTelemetry spans of what happens to a request in both programs, and carries its place in the
// caller's trace along: from the caller's headers through the link to the provider's.
//
// It owns the exporter (OTLP over HTTP), the names of spans' attributes, and what may stand in them: names, numbers and
// codes. No prompt, answer, key or header value gets into a span. It must not delay a request, whatever the receiver
// does: spans wait in a bounded queue, and what doesn't fit is lost and counted. A nil *Tracer is one that is off: it
// makes nil spans, and nothing that is done to those costs more than a comparison.
package tracing

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

const (
	// closeLimit bounds Close, so that a receiver that hangs doesn't hold up the program's end.
	closeLimit = 2 * time.Second
	// maxValue is the longest text of an attribute, and of a span's name, in bytes.
	maxValue = 256
)

// Tracer makes spans. Its methods may be called concurrently, and on nil, which is a tracer that is off.
type Tracer struct {
	tracer   trace.Tracer
	provider *sdk.TracerProvider
	client   *client
	limit    time.Duration // of Close
}

// Open starts the export that cfg describes; nil is off, and returns nil. Who calls it closes what it returns. The
// receiver needn't be there: what can't be delivered is lost, and log says so at most once a minute.
func Open(cfg *Config, log zerolog.Logger) (*Tracer, error) {
	if cfg == nil {
		return nil, nil
	}
	sampler, err := cfg.sampler()
	if err != nil {
		return nil, err
	}
	c := newClient(cfg, log)
	exporter, err := otlptrace.New(context.Background(), c)
	if err != nil {
		return nil, fmt.Errorf("start the export of traces: %w", err)
	}
	limits := sdk.NewSpanLimits()
	if limits.AttributeValueLengthLimit < 0 || limits.AttributeValueLengthLimit > maxValue {
		limits.AttributeValueLengthLimit = maxValue
	}
	var batch []sdk.BatchSpanProcessorOption
	if cfg.Delay > 0 {
		batch = append(batch, sdk.WithBatchTimeout(cfg.Delay))
	}
	p := sdk.NewTracerProvider(sdk.WithSampler(sampler), sdk.WithResource(cfg.resource()), sdk.WithRawSpanLimits(limits),
		sdk.WithBatcher(exporter, batch...))
	return &Tracer{tracer: p.Tracer("iop"), provider: p, client: c, limit: closeLimit}, nil
}

// Close delivers what was recorded, in one try, for two seconds at most and until atOnce is closed (nil never is). Spans
// that end later are lost.
func (t *Tracer) Close(atOnce <-chan struct{}) {
	if t == nil {
		return
	}
	t.client.hurry()
	limit, cancel := context.WithTimeout(context.Background(), t.limit)
	defer cancel()
	go func() { // ends with Close
		select {
		case <-atOnce:
		case <-limit.Done():
		}
		// What can't be delivered any more fails at once, and the queue runs empty: Shutdown alone would leave its
		// goroutine behind.
		t.client.abort()
	}()
	if err := t.provider.Shutdown(limit); err != nil {
		t.client.complain(err, 0)
	}
}

func (c *Config) resource() *resource.Resource {
	attrs := []attribute.KeyValue{semconv.ServiceName(c.Service), semconv.ServiceVersion(c.Version)}
	if c.Version == "" {
		attrs = attrs[:1]
	}
	for name, value := range c.Attributes {
		if name != string(semconv.ServiceNameKey) {
			attrs = append(attrs, attribute.String(name, clean(value)))
		}
	}
	return resource.NewWithAttributes(semconv.SchemaURL, attrs...)
}

// Kind is a span's role between programs.
type Kind uint8

// The kinds.
const (
	Internal Kind = iota
	Server        // answers somebody else's request
	Client        // waits for an answer of somebody else
)

func (k Kind) of() trace.SpanKind {
	switch k {
	case Server:
		return trace.SpanKindServer
	case Client:
		return trace.SpanKindClient
	}
	return trace.SpanKindInternal
}

// Start begins a span below parent; without one it begins a trace. It returns nil when tracing is off. The span may be
// one that isn't recorded, as when the caller doesn't: then only its place is carried on.
func (t *Tracer) Start(parent Context, kind Kind, name string) *Span {
	if t == nil {
		return nil
	}
	ctx := context.Background()
	if parent.Valid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent.at)
	}
	_, span := t.tracer.Start(ctx, clean(name), trace.WithSpanKind(kind.of()))
	return &Span{tracer: t, span: span}
}

// Span is something that begins and ends. Its methods may be called concurrently, and on nil.
type Span struct {
	tracer *Tracer
	span   trace.Span
}

// Child begins a span below this one.
func (s *Span) Child(kind Kind, name string) *Span {
	if s == nil {
		return nil
	}
	return s.tracer.Start(s.Context(), kind, name)
}

// Context is the span's place in its trace; of nil the zero value.
func (s *Span) Context() Context {
	if s == nil {
		return Context{}
	}
	return Context{at: s.span.SpanContext()}
}

// Within is the place of what happens in this span: the span's, or, where tracing is off, that of who asked for it.
func (s *Span) Within(parent Context) Context {
	if s == nil {
		return parent
	}
	return s.Context()
}

// Recorded reports whether what is set here is kept.
func (s *Span) Recorded() bool { return s != nil && s.span.IsRecording() }

// Name renames the span.
func (s *Span) Name(name string) {
	if s != nil {
		s.span.SetName(clean(name))
	}
}

// Text sets an attribute; "" sets none.
func (s *Span) Text(k Key, v string) {
	if s != nil && v != "" {
		s.span.SetAttributes(k.String(clean(v)))
	}
}

// Texts sets a list of texts; an empty one sets none.
func (s *Span) Texts(k Key, v ...string) {
	if s != nil && len(v) > 0 {
		s.span.SetAttributes(k.StringSlice(v))
	}
}

// Number sets an attribute.
func (s *Span) Number(k Key, v int64) {
	if s != nil {
		s.span.SetAttributes(k.Int64(v))
	}
}

// Count sets a number that may be unknown.
func (s *Span) Count(k Key, v *int64) {
	if s != nil && v != nil && *v >= 0 {
		s.span.SetAttributes(k.Int64(*v))
	}
}

// Seconds sets a time; 0 sets none.
func (s *Span) Seconds(k Key, d time.Duration) {
	if s != nil && d > 0 {
		s.span.SetAttributes(k.Float64(d.Seconds()))
	}
}

// Fail says that it failed, and with which code.
func (s *Span) Fail(code string) {
	if s != nil {
		s.span.SetAttributes(KeyErrorType.String(clean(code)))
		s.span.SetStatus(codes.Error, "")
	}
}

// End ends the span, once; later calls do nothing.
func (s *Span) End() {
	if s != nil {
		s.span.End()
	}
}

// clean bounds a text, and makes it one that a message can carry.
func clean(s string) string {
	if len(s) > maxValue {
		n := maxValue
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
