package adaptertest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// EmbeddedRuns is what the suite has to know of the runs of an adapter that is its own provider.
type EmbeddedRuns struct {
	New func(t testing.TB) execution.Executor
	// Outcomes are requests, and what a run makes of each.
	Outcomes map[string]EmbeddedRun
	Endless  func() *execution.Request // gets events for longer than any test
}

// EmbeddedRun is a request that ends soon, and what it comes to.
type EmbeddedRun struct {
	Request *execution.Request
	Want    Outcome
}

// RunEmbeddedRuns runs what of the suite for normalized runs makes sense for an adapter without a provider elsewhere.
func RunEmbeddedRuns(t *testing.T, e EmbeddedRuns) {
	for name, k := range e.Outcomes {
		t.Run(name, func(t *testing.T) {
			a := e.New(t)
			got, first, err := Execute(t, t.Context(), a, k.Request)
			if d := cmp.Diff(k.Want, got); d != "" {
				t.Errorf("%v\n%s", err, d)
			}
			var workers sync.WaitGroup
			for range 4 {
				workers.Go(func() { // the same request, the same events
					_, again, _ := Execute(t, t.Context(), a, k.Request)
					if d := cmp.Diff(first.Events(), again.Events()); d != "" {
						t.Error(d)
					}
				})
			}
			workers.Wait()
		})
	}
	t.Run("cancel", e.cancel)
	t.Run("emitter", func(t *testing.T) {
		enough := errors.New("enough")
		for n := 1; n <= 3; n++ {
			r := NewEventRecorder()
			r.OnEvent = func(k int) error {
				if k == n {
					return enough
				}
				return nil
			}
			if _, err := ExecuteWith(t, t.Context(), e.New(t), e.Endless(), r); err != enough || len(r.Events()) != n {
				t.Errorf("event %d: %v, want the emitter's own error", n, err)
			}
		}
	})
}

func (e EmbeddedRuns) cancel(t *testing.T) {
	for _, cause := range []execution.CancelCause{execution.CauseAPI, execution.CauseLinkLost} {
		for _, after := range []int{0, 2} {
			ctx, cancel := context.WithCancelCause(t.Context())
			r, done := NewEventRecorder(), make(chan error, 1)
			if after == 0 {
				cancel(cause)
			}
			go func() {
				_, err := ExecuteWith(t, ctx, e.New(t), e.Endless(), r)
				done <- err
			}()
			if after > 0 {
				r.Wait(t, after)
			}
			cancel(cause)
			if err := patience.Receive(t, "the end", done); err != cause || after == 0 && len(r.Events()) != 0 {
				t.Errorf("%v, want %v; %d events", err, cause, len(r.Events()))
			}
		}
	}
}
