package admission

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/execution"
)

// oneNode is a ready node of generation 1 with one adapter "a".
func oneNode(id string, capacity int) Node { return nodeOf(id, 1, adapterOf("a", capacity)) }

func nodeOf(id string, generation uint64, adapters ...Adapter) Node {
	return Node{ID: id, Generation: generation, Dispatchable: true, Adapters: adapters}
}

func adapterOf(name string, capacity int, loaded ...string) Adapter {
	a := Adapter{Name: name, Capacity: capacity, Available: true, Revision: 1}
	for _, m := range loaded {
		a.Models = append(a.Models, execution.Model{Name: m, Loaded: true, Context: 4096})
	}
	return a
}

func everywhere(*Node, *Adapter) bool { return true }

func onNode(id string) func(*Node, *Adapter) bool {
	return func(n *Node, _ *Adapter) bool { return n.ID == id }
}

// request waits for a minute among at most 1000, at any adapter.
func request(run string) *Request {
	return &Request{RunID: run, Attempt: 1, Set: "all", Match: everywhere, Target: "m", Depth: 1000, Wait: time.Minute}
}

// mustGrant acquires what must be there at once.
func mustGrant(t *testing.T, s *Scheduler, r *Request) *Grant {
	t.Helper()
	r.Wait, r.Depth = 0, 0
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("%s: %v", r.RunID, err)
	}
	return g
}

// refused acquires what must be refused, and returns why.
func refused(t *testing.T, s *Scheduler, r *Request) *execution.Failure {
	t.Helper()
	g, err := s.Acquire(t.Context(), r)
	var f *execution.Failure
	if g != nil || !errors.As(err, &f) {
		t.Fatalf("%s: %v, %v, want a failure", r.RunID, g, err)
	}
	return f
}

func wantCode(t *testing.T, f *execution.Failure, code execution.Code) {
	t.Helper()
	if f.Code != code || f.Origin != execution.OriginEdge || !f.NothingSent {
		t.Fatalf("%+v, want %v of the edge with nothing sent", f, code)
	}
}

// pending is an Acquire in a goroutine of a bubble.
type pending struct {
	cancel context.CancelCauseFunc
	done   chan outcome
}

// begin starts an Acquire and returns when it stands still.
func begin(s *Scheduler, r *Request) *pending {
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &pending{cancel, make(chan outcome, 1)}
	go func() {
		g, err := s.Acquire(ctx, r)
		p.done <- outcome{g, err}
	}()
	synctest.Wait()
	return p
}

func (p *pending) waits(t *testing.T) {
	t.Helper()
	synctest.Wait()
	select {
	case o := <-p.done:
		t.Fatalf("has returned %+v, %v, want it to wait", o.grant, o.err)
	default:
	}
}

func (p *pending) granted(t *testing.T) *Grant {
	t.Helper()
	o := p.now(t)
	if o.err != nil {
		t.Fatalf("refused: %v, want a grant", o.err)
	}
	return o.grant
}

func (p *pending) refused(t *testing.T, code execution.Code) *execution.Failure {
	t.Helper()
	o := p.now(t)
	var f *execution.Failure
	if !errors.As(o.err, &f) {
		t.Fatalf("%+v, %v, want %v", o.grant, o.err, code)
	}
	wantCode(t, f, code)
	return f
}

func (p *pending) now(t *testing.T) outcome {
	t.Helper()
	synctest.Wait()
	select {
	case o := <-p.done:
		return o
	default:
		t.Fatal("still waits")
		return outcome{}
	}
}

func inFlight(s *Scheduler) int {
	n := 0
	for _, p := range s.Snapshot().Places {
		n += p.InFlight
	}
	return n
}

func wantInFlight(t *testing.T, s *Scheduler, want int) {
	t.Helper()
	if got := inFlight(s); got != want {
		t.Fatalf("%d in flight, want %d", got, want)
	}
}

func name(prefix string, i int) string { return fmt.Sprintf("%s%d", prefix, i) }

// end plays the node's RunEnded of a grant.
func end(t *testing.T, s *Scheduler, g *Grant) {
	t.Helper()
	if !s.Ended(g.Node, g.Generation, g.key.runID, g.key.attempt) {
		t.Fatalf("the end of %s is unknown", g.key.runID)
	}
}
