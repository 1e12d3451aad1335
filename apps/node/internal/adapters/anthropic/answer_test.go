package anthropic

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
	"iop/apps/node/internal/adapters/upstream"
	"iop/e2e/fakeprovider"
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

var errCut = execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "cut")

// ST-17, ST-18: every recorded answer, ended after each of its bytes, by a broken connection and by a clean end: an
// error unless the dialect's own end was there, and never more than was said.
func TestRecordingsCutAnywhere(t *testing.T) {
	for name, want := range recordings() {
		f, err := fakeprovider.LoadFixture(name)
		if err != nil {
			t.Fatal(err)
		}
		status, header, body, _, err := f.Answer()
		if err != nil {
			t.Fatal(name, err)
		}
		kind := header.Get("Content-Type")
		whole := len(bytes.TrimRight(body, "\n")) // of an object
		for k := range len(body) {
			for _, broken := range []error{nil, errCut} {
				got, _, err := adaptertest.Execute(t, t.Context(), script{status: status, kind: kind, pieces: [][]byte{body[:k]}, broken: broken}, adaptertest.Ask("m", "hi"))
				code := execution.CodeUpstreamTruncated
				switch {
				case status != 200:
					code = execution.CodeUpstreamError
				case kind == "text/event-stream" && ended(body[:k]), kind != "text/event-stream" && k >= whole:
					code = execution.CodeOK
				}
				if got.Code != code || !strings.HasPrefix(want.Text, got.Text) || !strings.HasPrefix(want.Reasoning, got.Reasoning) || len(got.Calls) > len(want.Calls) {
					t.Fatalf("%s cut after %d of %d bytes (%v): %v, %+v", name, k, len(body), broken, err, got)
				}
			}
		}
	}
}

// Whatever a provider answers, however it is cut and however it ends: no panic, events in order, one outcome, and the
// same for the same bytes.
func FuzzAnswer(f *testing.F) {
	for _, s := range streams() {
		if len(s.Body) < 16<<10 {
			f.Add([]byte(s.Body), uint64(1), true, false, true)
			f.Add([]byte(s.Body), uint64(2), false, true, true)
		}
	}
	f.Add([]byte(`{"type":"error","error":{"type":"overloaded_error","message":"x"}}`), uint64(3), true, true, false)
	f.Fuzz(func(t *testing.T, body []byte, seed uint64, stream, broken, success bool) {
		s := script{status: 200, kind: "application/json", pieces: [][]byte{body}}
		if stream {
			s.kind = "text/event-stream"
		}
		if broken {
			s.broken = errCut
		}
		if !success {
			s.status = 529
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

// OL-02: an error keeps the API's word for its kind, before and within a stream.
func TestErrorsKeepTheirWord(t *testing.T) {
	const busy = `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}`
	for name, s := range map[string]script{
		"a refusal": {status: 529, kind: "application/json", pieces: [][]byte{[]byte(busy)}},
		"an event":  {status: 200, kind: "text/event-stream", pieces: [][]byte{[]byte(begin + say("a") + "event: error\ndata: " + busy + "\n\n")}},
		"an object": {status: 200, kind: "application/json", pieces: [][]byte{[]byte(busy)}},
	} {
		_, _, err := adaptertest.Execute(t, t.Context(), s, adaptertest.Ask("m", "hi"))
		if f, ok := errors.AsType[*execution.Failure](err); !ok || f.Code != execution.CodeUpstreamError || f.UpstreamStatus != s.status || !strings.HasSuffix(f.Text, ": overloaded_error: Overloaded") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An emitter that has enough while a whole answer is told ends it.
func TestEmitterEndsAWholeAnswer(t *testing.T) {
	enough := errors.New("enough")
	s := script{status: 200, kind: "application/json", pieces: [][]byte{[]byte(`{"type":"message","model":"m","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"a"},` +
		`{"type":"tool_use","id":"a","name":"f","input":{}}],"usage":{"input_tokens":1}}`)}}
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

// ST-04: an object with arguments that are an object of any length is told as it came.
func TestLongArguments(t *testing.T) {
	input := `{"text":"` + strings.Repeat("0123456789abcdef", 1<<16) + `"}`
	body := begin + open(0, `{"type":"tool_use","id":"a","name":"f","input":`+input+`}`) + closed(0) + stopped("tool_use", "") + done
	got, _, err := adaptertest.Execute(t, t.Context(), script{status: 200, kind: "text/event-stream", pieces: [][]byte{[]byte(body)}}, adaptertest.Ask("m", "hi"))
	if err != nil || len(got.Calls) != 1 || got.Calls[0].Arguments != input {
		t.Errorf("%v, %d calls", err, len(got.Calls))
	}
}

func BenchmarkAnswer(b *testing.B) {
	piece := []byte(say(" from"))
	a := newAnswer("r", func(execution.Event) error { return nil })
	_ = a.Head(200, http.Header{"Content-Type": {"text/event-stream"}})
	b.ReportAllocs()
	for b.Loop() {
		_ = a.Body(piece)
	}
}
