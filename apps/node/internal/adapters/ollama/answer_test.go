package ollama

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

// script is an executor whose provider's answer is bytes at hand.
type script struct {
	status int
	pieces [][]byte
	broken error
}

func (s script) Probe(context.Context) execution.Capabilities { return execution.Capabilities{} }
func (s script) Close()                                       {}

func (s script) Execute(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
	a := newAnswer(req.RunID, emit)
	return a.end(ctx, s.play(a))
}

// play gives the answer to the sink as package upstream does.
func (s script) play(a *answer) error {
	if err := a.Head(s.status, http.Header{"Content-Type": {"application/x-ndjson"}}); err != nil {
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

// Whatever a provider answers, however it is cut and however it ends: no panic, events in order, one outcome, the same
// for the same bytes, and complete only if the dialect's end was there. (ST-18, ST-24)
func FuzzAnswer(f *testing.F) {
	for _, s := range streams() {
		f.Add([]byte(s.Body), uint64(1), false, true)
		f.Add([]byte(s.Body), uint64(2), true, true)
	}
	f.Add([]byte(`{"error":"x"}`), uint64(3), true, false)
	f.Fuzz(func(t *testing.T, body []byte, seed uint64, broken, success bool) {
		s := script{status: 200, pieces: [][]byte{body}}
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
		if got.Code == execution.CodeOK && !bytes.Contains(bytes.ToLower(body), []byte("done")) && !bytes.Contains(body, []byte(`\u`)) {
			t.Fatalf("%q is complete", body)
		}
	})
}

// A provider that is silent in the middle of its last line broke off; one whose last object is whole didn't.
func TestEndWithoutALineEnd(t *testing.T) {
	silent := execution.Failf(execution.CodeIdleTimeout, execution.OriginProvider, "silent")
	for body, code := range map[string]execution.Code{
		`{"model":"m","message":{"content":"a"},"done":true}`:  execution.CodeOK,
		`{"model":"m","message":{"content":"a"},"done":true`:   execution.CodeIdleTimeout,
		`{"model":"m","message":{"content":"a"},"done":false}`: execution.CodeIdleTimeout,
		`{"error":"boom"}`: execution.CodeUpstreamError,
		``:                 execution.CodeIdleTimeout,
	} {
		s := script{status: 200, pieces: [][]byte{[]byte(body)}, broken: silent}
		if got, _, err := adaptertest.Execute(t, t.Context(), s, adaptertest.Ask("m", "hi")); got.Code != code {
			t.Errorf("%s: %v, want %v", body, err, code)
		}
	}
}

// An emitter that has enough ends the answer at any of its events, also inside a line without an end.
func TestEmitterEndsAWholeAnswer(t *testing.T) {
	enough := errors.New("enough")
	s := script{status: 200, pieces: [][]byte{[]byte(`{"model":"m","message":{"thinking":"hm","content":"a","tool_calls":[{"function":{"name":"f"}},{"function":{"name":"g"}}]},"done":true,"eval_count":1}`)}}
	for n := 1; n <= 6; n++ {
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
		err := a.Head(200, http.Header{"Content-Encoding": {encoding}})
		_, err = a.end(t.Context(), err)
		if adaptertest.Code(t, err) != code {
			t.Errorf("%q: %v", encoding, err)
		}
	}
}

// The cause of a cancel stands over what the answer says.
func TestCauseStands(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	a := newAnswer("r", func(execution.Event) error { return nil })
	if err := a.Head(200, http.Header{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Body([]byte(say("a") + end)); err != upstream.ErrEnough {
		t.Fatal(err)
	}
	cancel(execution.CauseAPI)
	if done, err := a.end(ctx, execution.CauseAPI); err != execution.CauseAPI || done.FinishReason != "" {
		t.Errorf("%+v, %v", done, err)
	}
}

func BenchmarkAnswer(b *testing.B) {
	piece := []byte(say(" from"))
	a := newAnswer("r", func(execution.Event) error { return nil })
	_ = a.Head(200, http.Header{})
	b.ReportAllocs()
	for b.Loop() {
		_ = a.Body(piece)
	}
}
