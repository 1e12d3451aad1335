// Package tracingtest is a receiver of traces for tests: a real HTTP server that takes OTLP as the exporters send it. It
// is for tests only.
package tracingtest

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one span as it arrived.
type Span struct {
	Service string // service.name of its program
	Trace   string // in hex
	ID      string
	Parent  string // "" = it has none
	State   string // tracestate
	Name    string
	Kind    tracepb.Span_SpanKind
	Failed  bool
	Attrs   map[string]any // string, int64, float64, bool or []string
	Start   uint64         // Unix nanoseconds
	End     uint64
}

// Receiver gathers what is posted to it. Its methods may be called concurrently.
type Receiver struct {
	// URL is what an exporter's endpoint is set to.
	URL string

	mu      sync.Mutex
	answer  http.HandlerFunc // in place of a 200
	spans   []Span
	raw     []byte // everything that arrived, uncompressed
	headers []http.Header
	arrived chan struct{} // closed and made anew with each post
}

// Start returns a receiver that ends with the test.
func Start(t testing.TB) *Receiver {
	r := &Receiver{arrived: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(t, w, req) }))
	t.Cleanup(server.Close)
	r.URL = server.URL + "/v1/traces"
	return r
}

// Answer makes the receiver answer otherwise than with a 200; what it is sent then doesn't count as arrived.
func (r *Receiver) Answer(h http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = h
}

func (r *Receiver) serve(t testing.TB, w http.ResponseWriter, req *http.Request) {
	var in io.Reader = req.Body
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(in)
		if err != nil {
			t.Errorf("post to the receiver: %v", err)
			return
		}
		in = z
	}
	body, err := io.ReadAll(in)
	if err != nil {
		return // the exporter gave up
	}
	r.mu.Lock()
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		answer(w, req)
		return
	}
	// It has the same form as an ExportTraceServiceRequest, whose package would bring gRPC along.
	var request tracepb.TracesData
	if err := proto.Unmarshal(body, &request); err != nil || req.Method != http.MethodPost || req.URL.Path != "/v1/traces" ||
		req.Header.Get("Content-Type") != "application/x-protobuf" {
		t.Errorf("%s %s isn't a post of spans: %v", req.Method, req.URL.Path, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw = append(r.raw, body...)
	r.headers = append(r.headers, req.Header)
	for _, of := range request.GetResourceSpans() {
		service := attributes(of.GetResource().GetAttributes())["service.name"]
		for _, in := range of.GetScopeSpans() {
			for _, s := range in.GetSpans() {
				name, _ := service.(string)
				r.spans = append(r.spans, spanOf(name, s))
			}
		}
	}
	close(r.arrived)
	r.arrived = make(chan struct{})
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func spanOf(service string, s *tracepb.Span) Span {
	return Span{Service: service, Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
		Parent: hex.EncodeToString(s.GetParentSpanId()), State: s.GetTraceState(), Name: s.GetName(), Kind: s.GetKind(),
		Failed: s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR, Attrs: attributes(s.GetAttributes()),
		Start: s.GetStartTimeUnixNano(), End: s.GetEndTimeUnixNano()}
}

func attributes(list []*commonpb.KeyValue) map[string]any {
	out := map[string]any{}
	for _, kv := range list {
		switch v := kv.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			out[kv.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			out[kv.GetKey()] = v.IntValue
		case *commonpb.AnyValue_DoubleValue:
			out[kv.GetKey()] = v.DoubleValue
		case *commonpb.AnyValue_BoolValue:
			out[kv.GetKey()] = v.BoolValue
		case *commonpb.AnyValue_ArrayValue:
			var texts []string
			for _, e := range v.ArrayValue.GetValues() {
				texts = append(texts, e.GetStringValue())
			}
			out[kv.GetKey()] = texts
		}
	}
	return out
}

// Spans returns what has arrived, in the order in which the spans began.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.spans)
	slices.SortStableFunc(out, func(a, b Span) int {
		switch {
		case a.Start < b.Start:
			return -1
		case a.Start > b.Start:
			return 1
		}
		return 0
	})
	return out
}

// Raw returns everything that has arrived, as it was before compression.
func (r *Receiver) Raw() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.raw)
}

// Headers returns the header of each post.
func (r *Receiver) Headers() []http.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.headers)
}

// Arrived returns a channel that is closed with the next post.
func (r *Receiver) Arrived() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.arrived
}
