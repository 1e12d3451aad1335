package httpapi

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
)

// An answer that is collected before it is written counts against the budget of bodies, or callers who don't stream could
// have the edge hold as many long answers as there are places. A stream isn't held.
func TestCollectedAnswersHaveABudget(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	many := make([]execution.Event, 64) // 4 MiB, held twice
	for i := range many {
		many[i] = text(long)
	}
	small := func(cfg *Config) { cfg.Limits.BodyMemory = 4 << 20 }
	for _, s := range surfaces() {
		t.Run(s.name, func(t *testing.T) {
			g := start(t, fleet(s.kindOfOthers), small)
			g.answer(asRun(service.Outcome{FinishReason: "stop"}, many...))
			if resp, body := g.askAt(s.path, "", s.whole); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "body_memory") {
				t.Errorf("%s %.300s", resp.Status, body)
			}
			if resp, body := g.askAt(s.path, "", s.stream); resp.StatusCode != 200 || strings.Count(body, long) != len(many) {
				t.Errorf("streamed: %s, %d bytes", resp.Status, len(body))
			}
			g.answer(asRun(service.Outcome{FinishReason: "stop"}, many[:8]...))
			if resp, body := g.askAt(s.path, "", s.whole); resp.StatusCode != 200 {
				t.Errorf("one that fits: %s %.300s", resp.Status, body)
			}
			g.wantNothingHeld()
		})
	}
	t.Run("runs", func(t *testing.T) {
		f := &fakeRuns{do: func(_ context.Context, _ *service.RunSpec, sink service.EventSink) *service.Outcome {
			o := &service.Outcome{Kind: execution.KindRun, Attempts: 1}
			for i, e := range many {
				if err := sink.Event(uint64(i+1), e); err != nil {
					o.Failure = execution.AsFailure(err, execution.OriginEdge)
					break
				}
			}
			return o
		}}
		g := start(t, open(), func(cfg *Config) { small(cfg); cfg.Runs = f })
		resp, body := g.run("", `{"adapter":"a","target":"m","messages":[{"role":"user","content":"hi"}]}`)
		if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "body_memory") {
			t.Errorf("%s %.300s", resp.Status, body)
		}
		g.wantNothingHeld()
	})
}
