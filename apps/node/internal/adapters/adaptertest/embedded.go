package adaptertest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// Embedded is what the suite has to know of an adapter that is its own provider.
type Embedded struct {
	New     func(t testing.TB) execution.Tunneler
	Whole   func() *execution.TunnelRequest // gets a whole answer soon
	Endless func() *execution.TunnelRequest // gets pieces for longer than any test
	Cut     func() *execution.TunnelRequest // gets an answer that breaks off
}

// RunEmbedded runs what of the suite makes sense for an adapter without a provider elsewhere.
func RunEmbedded(t *testing.T, e Embedded) {
	t.Run("probe", func(t *testing.T) {
		if c := e.New(t).Probe(t.Context()); !c.Available || c.Version == "" {
			t.Errorf("%+v", c)
		}
	})
	t.Run("whole", func(t *testing.T) {
		a := e.New(t)
		first, err := Do(t, t.Context(), a, e.Whole())
		if err != nil || first.Status() != 200 || len(first.Bytes()) == 0 {
			t.Fatal(err, first.Status())
		}
		var workers sync.WaitGroup
		for range 8 {
			workers.Go(func() {
				if again, err := Do(t, t.Context(), a, e.Whole()); err != nil || !bytes.Equal(first.Bytes(), again.Bytes()) {
					t.Errorf("%v: %q, before %q", err, again.Bytes(), first.Bytes())
				}
			})
		}
		workers.Wait()
	})
	t.Run("cut", func(t *testing.T) {
		if _, err := Do(t, t.Context(), e.New(t), e.Cut()); Code(t, err) != execution.CodeUpstreamTruncated {
			t.Errorf("%v", err)
		}
	})
	t.Run("cancel", e.cancel)
	t.Run("sink", func(t *testing.T) {
		enough := errors.New("enough")
		r := NewRecorder()
		r.OnBody = func(int) error { return enough }
		if err := DoWith(t, t.Context(), e.New(t), e.Endless(), r); !errors.Is(err, enough) {
			t.Errorf("%v, want the sink's own error", err)
		}
	})
}

func (e Embedded) cancel(t *testing.T) {
	for _, cause := range []execution.CancelCause{execution.CauseClientGone, execution.CauseLinkLost} {
		ctx, cancel := context.WithCancelCause(t.Context())
		r, done := NewRecorder(), make(chan error, 1)
		go func() { done <- DoWith(t, ctx, e.New(t), e.Endless(), r) }()
		r.WaitBody(t, 1)
		cancel(cause)
		if err := patience.Receive(t, "the end", done); err != cause {
			t.Errorf("%v, want %v", err, cause)
		}
	}
}
