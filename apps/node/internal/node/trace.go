package node

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"iop/packages/go/execution"
	"iop/packages/go/tracing"
	pb "iop/proto/iop"
)

// spans are what an execution shows in its caller's trace; nil ones where tracing is off.
type spans struct {
	whole *tracing.Span // from the open to the end; set once
	call  *tracing.Span // of the provider; the adapter's goroutine owns it
}

// traceOf is where in its caller's trace an open stands. An Edge that can't say it itself passes on the caller's own
// words in a tunnel's header.
func (s *Session) traceOf(open *pb.WorkOpen) tracing.Context {
	if s.traces {
		return tracing.Parse(open.GetTraceparent(), open.GetTracestate())
	}
	var h http.Header
	for _, field := range open.GetTunnel().GetHeaders() {
		if name := http.CanonicalHeaderKey(field.GetName()); tracing.IsHeader(name) {
			if h == nil {
				h = http.Header{}
			}
			h[name] = append(h[name], string(field.GetValue()))
		}
	}
	return tracing.FromHeader(h)
}

// beginSpan shows that the execution was admitted.
func (t *task) beginSpan() {
	span := t.executor().cfg.Tracer.Start(t.trace, tracing.Server, tracing.NameExecution)
	t.spans.whole = span
	if !span.Recorded() {
		return
	}
	span.Text(tracing.KeyRun, t.runID)
	span.Text(tracing.KeyKind, t.kind.String())
	span.Text(tracing.KeyAdapter, t.adapter)
	span.Number(tracing.KeyGeneration, int64(t.session.generation))
	span.Number(tracing.KeyAttempt, int64(t.attempt))
	if t.background {
		span.Number(tracing.KeyBackground, 1)
	}
}

// endSpan shows how the execution ended.
func (t *task) endSpan(o outcome) {
	defer t.spans.whole.End()
	if o.failure != nil {
		t.spans.whole.Fail(o.code().String())
		return
	}
	t.spans.whole.Text(tracing.KeyOutcome, execution.CodeOK.String())
}

// beginCall shows that the provider is asked, and returns where in the trace that happens.
func (t *task) beginCall() tracing.Context {
	call := t.spans.whole.Child(tracing.Client, "provider")
	t.spans.call = call
	if !call.Recorded() {
		return call.Within(t.trace)
	}
	spec := t.place.Adapter().Spec()
	if operation := t.work.operation(); operation == "" {
		call.Name(http.MethodPost)
	} else {
		call.Name(strings.TrimSpace(operation + " " + t.target))
		call.Text(tracing.KeyOperation, operation)
		call.Text(tracing.KeyRequestModel, t.target)
	}
	call.Text(tracing.KeyAdapter, t.adapter)
	call.Text(tracing.KeyProvider, dialectOf(spec.Kind))
	if base, err := url.Parse(spec.BaseURL); err == nil && base.Host != "" {
		call.Text(tracing.KeyServerAddress, base.Hostname())
		call.Number(tracing.KeyServerPort, portOf(base))
	}
	if w, ok := t.work.(*tunnelWork); ok {
		w.watched = true
	}
	return call.Context()
}

// dialectOf is what the adapters of a kind speak.
func dialectOf(kind string) string {
	if kind == "auto" {
		return "ollama"
	}
	return kind
}

// portOf is the port that an address leads to.
func portOf(u *url.URL) int64 {
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		return int64(n)
	}
	if u.Scheme == "https" {
		return 443
	}
	return 80
}

// endCall shows what the provider answered. It does nothing if it wasn't asked.
func (t *task) endCall(o outcome) {
	call := t.spans.call
	defer call.End()
	if !call.Recorded() {
		return
	}
	seen := t.reply.answer()
	model, finish := seen.model, seen.completion
	if w, ok := t.work.(*tunnelWork); ok {
		model, finish = w.words.Words()
	} else {
		call.Seconds(tracing.KeyFirstChunk, seen.first.Sub(t.started))
	}
	call.Text(tracing.KeyResponseModel, t.speakable(model))
	if isWord(finish) {
		call.Texts(tracing.KeyFinishReasons, finish)
	}
	call.Count(tracing.KeyInputTokens, seen.usage.Input)
	call.Count(tracing.KeyOutputTokens, seen.usage.Output)
	call.Count(tracing.KeyCachedTokens, seen.usage.Cached)
	call.Count(tracing.KeyReasoning, seen.usage.Reasoning)
	if seen.status != 0 {
		call.Number(tracing.KeyStatus, int64(seen.status))
	}
	switch {
	case o.failure != nil:
		call.Fail(o.code().String())
	case seen.status >= http.StatusBadRequest:
		call.Fail(strconv.Itoa(seen.status))
	}
}

// speakable is a provider's name for its model, "" if it may be something else: a provider that was shown a key may
// give it back in any field, so then only what begins as the target does is taken for a name.
func (t *task) speakable(model string) string {
	if t.key != nil && !strings.HasPrefix(model, t.target) {
		return ""
	}
	return model
}

// isWord reports whether a finish reason looks like one of any dialect.
func isWord(s string) bool {
	return s != "" && len(s) <= 32 && !strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && r != '_' })
}
