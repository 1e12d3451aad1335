package tracing

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// maxState is the longest tracestate that is carried on, in bytes: what W3C Trace Context asks for at least.
const maxState = 512

// maxParent is the longest traceparent that is looked at: a later version may append to the 55 bytes of this one.
const maxParent = 256

const (
	headerParent = "Traceparent"
	headerState  = "Tracestate"
)

// Context is a place in a trace: W3C Trace Context. The zero value is none. It is a value and safe to share.
type Context struct{ at trace.SpanContext }

// Parse reads a place. What isn't valid is none; a tracestate that isn't, or that is over 512 bytes, is left out.
func Parse(traceparent, tracestate string) Context {
	if traceparent == "" || len(traceparent) > maxParent {
		return Context{}
	}
	if len(tracestate) > maxState {
		tracestate = ""
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), &fields{traceparent, tracestate})
	return Context{at: trace.SpanContextFromContext(ctx)}
}

// FromHeader reads the place that a request's headers name. Several traceparents are as good as none.
func FromHeader(h http.Header) Context {
	parent := h[headerParent]
	if len(parent) != 1 {
		return Context{}
	}
	state, length := "", 0
	for i, v := range h[headerState] {
		if length += len(v) + 1; length > maxState {
			state = ""
			break
		}
		if i > 0 {
			state += ","
		}
		state += v
	}
	return Parse(parent[0], state)
}

// IsHeader reports whether a header, by its canonical name, says where a request stands in a trace.
func IsHeader(name string) bool { return name == headerParent || name == headerState }

// Valid reports whether there is a trace.
func (c Context) Valid() bool { return c.at.IsValid() }

// Traceparent is the place in 55 bytes, "" of none.
func (c Context) Traceparent() string { return c.fields().parent }

// Tracestate is what the systems on the way keep there, at most 512 bytes.
func (c Context) Tracestate() string { return c.fields().state }

// Put makes h name this place and no other; of none it only removes what is there.
func (c Context) Put(h http.Header) {
	delete(h, headerParent)
	delete(h, headerState)
	f := c.fields()
	if f.parent != "" {
		h[headerParent] = []string{f.parent}
	}
	if f.state != "" {
		h[headerState] = []string{f.state}
	}
}

func (c Context) fields() fields {
	var f fields
	if c.Valid() {
		propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), c.at), &f)
	}
	if len(f.state) > maxState {
		f.state = ""
	}
	return f
}

// fields are the two headers; they implement propagation.TextMapCarrier.
type fields struct{ parent, state string }

// Get implements propagation.TextMapCarrier.
func (f *fields) Get(key string) string {
	if key == "traceparent" {
		return f.parent
	}
	return f.state
}

// Set implements propagation.TextMapCarrier.
func (f *fields) Set(key, value string) {
	if key == "traceparent" {
		f.parent = value
		return
	}
	f.state = value
}

// Keys implements propagation.TextMapCarrier.
func (f *fields) Keys() []string { return []string{"traceparent", "tracestate"} }

type contextKey struct{}

// With returns ctx for what happens at a place; of none it is ctx.
func With(ctx context.Context, at Context) context.Context {
	if !at.Valid() {
		return ctx
	}
	return context.WithValue(ctx, contextKey{}, at)
}

// From returns the place that ctx was given by [With].
func From(ctx context.Context) Context {
	at, _ := ctx.Value(contextKey{}).(Context)
	return at
}
