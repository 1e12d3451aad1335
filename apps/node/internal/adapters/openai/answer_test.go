package openai

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/reply"
	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

// script is an executor whose provider's answer is bytes at hand.
type script struct {
	status int
	kind   string
	pieces [][]byte
	broken error
}

func (s script) Probe(context.Context) execution.Capabilities { return execution.Capabilities{} }
func (s script) Close()                                       {}

func (s script) Execute(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
	a := newAnswer(req.RunID, emit)
	return a.Finish(ctx, s.play(a))
}

// play gives the answer to the sink as package upstream does.
func (s script) play(a *answer) error {
	if err := a.Head(s.status, http.Header{"Content-Type": {s.kind}}); err != nil {
		return err
	}
	for _, p := range s.pieces {
		if err := a.Body(p); err != nil {
			if err == upstream.ErrEnough {
				return nil
			}
			return err
		}
	}
	return s.broken
}

// Whatever a provider answers, however it is cut and however it ends: no panic, events in order, one outcome, and the
// same for the same bytes.
func FuzzAnswer(f *testing.F) {
	for _, s := range streams() {
		f.Add([]byte(s.Body), uint64(1), true, false, true)
		f.Add([]byte(s.Body), uint64(2), false, true, true)
	}
	f.Add([]byte(`{"error":{"message":"x"}}`), uint64(3), true, true, false)
	f.Fuzz(func(t *testing.T, body []byte, seed uint64, stream, broken, success bool) {
		s := script{status: 200, kind: "application/json", pieces: [][]byte{body}}
		if stream {
			s.kind = "text/event-stream"
		}
		if broken {
			s.broken = execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "cut")
		}
		if !success {
			s.status = 500
		}
		want, first, _ := adaptertest.Execute(t, t.Context(), s, adaptertest.Ask("m", "hi"))
		random := rand.New(rand.NewPCG(seed, 4))
		s.pieces = nil
		for rest := body; len(rest) > 0; {
			n := 1 + random.IntN(min(len(rest), 40))
			s.pieces = append(s.pieces, rest[:n])
			rest = rest[n:]
		}
		got, again, _ := adaptertest.Execute(t, t.Context(), s, adaptertest.Ask("m", "hi"))
		if d := cmp.Diff(want, got) + cmp.Diff(first.Events(), again.Events()); d != "" {
			t.Fatal(d)
		}
		if !success && got.Code != execution.CodeUpstreamError {
			t.Fatalf("a refusal ended as %v", got.Code)
		}
	})
}

// A whole answer over the limit is an error that names it.
func TestWholeAnswerOverTheLimit(t *testing.T) {
	piece := bytes.Repeat([]byte(" "), upstream.MaxPiece)
	s := script{status: 200, kind: "application/json", pieces: [][]byte{[]byte(`{"choices":`)}}
	for range reply.MaxWhole / upstream.MaxPiece {
		s.pieces = append(s.pieces, piece)
	}
	got, _, err := adaptertest.Execute(t, t.Context(), s, adaptertest.Ask("m", "hi"))
	if got.Code != execution.CodeUpstreamTruncated {
		t.Errorf("below the limit: %v", err)
	}
	s.pieces = append(s.pieces, piece, piece)
	got, _, err = adaptertest.Execute(t, t.Context(), s, adaptertest.Ask("m", "hi"))
	if got.Code != execution.CodeAdapterDecode || got.Status != 200 || !strings.Contains(err.Error(), "16777216") {
		t.Errorf("%v", err)
	}
}

// A whole answer's end is that of its object, whatever the connection does.
func TestWholeAnswerThatIsBroken(t *testing.T) {
	silent := execution.Failf(execution.CodeIdleTimeout, execution.OriginProvider, "silent")
	for body, code := range map[string]execution.Code{
		`{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`: execution.CodeOK,
		`{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]`:  execution.CodeIdleTimeout,
	} {
		s := script{status: 200, kind: "application/json", pieces: [][]byte{[]byte(body)}, broken: silent}
		if got, _, err := adaptertest.Execute(t, t.Context(), s, adaptertest.Ask("m", "hi")); got.Code != code {
			t.Errorf("%s: %v, want %v", body, err, code)
		}
	}
}

// An emitter that has enough while a whole answer is told ends it.
func TestEmitterEndsAWholeAnswer(t *testing.T) {
	enough := errors.New("enough")
	s := script{status: 200, kind: "application/json", pieces: [][]byte{[]byte(`{"model":"m","choices":[{"message":{"reasoning":"hm","content":"a","tool_calls":[{"function":{"name":"f"}}]}}],"usage":{"prompt_tokens":1}}`)}}
	for n := 1; n <= 5; n++ {
		r := adaptertest.NewEventRecorder()
		r.OnEvent = func(k int) error {
			if k == n {
				return enough
			}
			return nil
		}
		if _, err := adaptertest.ExecuteWith(t, t.Context(), s, adaptertest.Ask("m", "hi"), r); err != enough || len(r.Events()) != n {
			t.Errorf("event %d: %v after %d events", n, err, len(r.Events()))
		}
	}
}

// ST-10: an answer that is compressed although nobody asked can't be read, and says so.
func TestCompressedAnswers(t *testing.T) {
	for encoding, code := range map[string]execution.Code{"gzip": execution.CodeAdapterDecode, "identity": execution.CodeUpstreamTruncated, "": execution.CodeUpstreamTruncated} {
		a := newAnswer("r", func(execution.Event) error { return nil })
		err := a.Head(200, http.Header{"Content-Encoding": {encoding}, "Content-Type": {"text/event-stream"}})
		_, err = a.Finish(t.Context(), err)
		if adaptertest.Code(t, err) != code {
			t.Errorf("%q: %v", encoding, err)
		}
	}
}

// The cause of a cancel stands over what the answer says, even when the cause is a failure itself.
func TestCauseStands(t *testing.T) {
	cause := execution.Failf(execution.CodeBadRequest, execution.OriginCaller, "its input broke off")
	ctx, cancel := context.WithCancelCause(t.Context())
	a := newAnswer("r", func(execution.Event) error { return nil })
	if err := a.Head(200, http.Header{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Body([]byte(say("a") + stopped("stop"))); err != nil {
		t.Fatal(err)
	}
	cancel(cause)
	if done, err := a.Finish(ctx, cause); err != error(cause) || done.FinishReason != "" {
		t.Errorf("%+v, %v", done, err)
	}
}

func BenchmarkAnswer(b *testing.B) {
	piece := []byte(`data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" from"}}],"created":1795956714,` +
		`"id":"chatcmpl-jYbDvCxD84v7hLqnn29TjlC3ChYBPTQp","model":"tiny","system_fingerprint":"b11669","object":"chat.completion.chunk"}` + "\n\n")
	a := newAnswer("r", func(execution.Event) error { return nil })
	_ = a.Head(200, http.Header{"Content-Type": {"text/event-stream"}})
	b.ReportAllocs()
	for b.Loop() {
		_ = a.Body(piece)
	}
}
