package service

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
)

// full returns a rig whose one place is taken, and what gives it back.
func full(t *testing.T, route string) (r *rig, free func()) {
	release := make(chan struct{})
	open := sync.OnceFunc(func() { close(release) })
	r = newRig(t, setup{capacity: 1, route: route, work: func(w *work) {
		w.accept()
		w.head(200)
		if w.runID == "holder" {
			<-release
		}
		w.end(0)
	}})
	holder := r.submit(r.tunnel("holder", ""), &recorder{})
	untilSent(r, holder)
	t.Cleanup(open) // before the rig is closed
	return r, func() {
		open()
		r.outcome(holder) // a route's deadline bounds it, too
		r.idle()
	}
}

func untilQueued(r *rig, n int) {
	r.Helper()
	r.poll("queued", func() bool { return r.sched.Snapshot().Queued == n })
}

// The column waiting. None of these ever reaches the node, and none takes longer than its limit.
func TestWaiting(t *testing.T) {
	patience.Alone(t, func(t *testing.T) {
		for _, c := range []struct {
			name   string
			route  string
			tunnel func(*Tunnel)
			during func(r *rig, p *pending)
			code   execution.Code
		}{
			{name: "queue full", route: ", queue: {depth: 0}", code: execution.CodeQueueFull},
			{name: "queue wait is over", route: ", queue: {wait: 50ms}", code: execution.CodeQueueTimeout},
			{name: "caller gone", during: func(_ *rig, p *pending) { p.leave() }, code: execution.CodeClientGone}, // CA-04, HT-12
			{name: "cancelled", during: func(r *rig, _ *pending) { r.svc.Cancel("run-1", execution.CauseAPI) }, code: execution.CodeCancelled},
			{name: "deadline", tunnel: func(t *Tunnel) { t.Deadline = 2 * short }, code: execution.CodeDeadline},
			{name: "route's deadline", route: ", deadline: 100ms", code: execution.CodeDeadline},
			{name: "drain", during: func(r *rig, _ *pending) { r.svc.Drain() }, code: execution.CodeEdgeDraining},
			{name: "last candidate gone, fail fast", route: ", fail_fast: true", during: func(r *rig, _ *pending) { r.node("a", 1).edge.Close(transport.ReasonLost) }, code: execution.CodeNoNode},
		} {
			t.Run(c.name, func(t *testing.T) {
				patience.Bubble(t, func(t *testing.T) {
					r, free := full(t, c.route)
					n, tunnel, sink := r.node("a", 1), r.tunnel("run-1", ""), &recorder{}
					if c.tunnel != nil {
						c.tunnel(tunnel)
					}
					p := r.submit(tunnel, sink)
					since := time.Now()
					if c.during != nil {
						untilQueued(r, 1)
						since = time.Now()
						c.during(r, p)
					}
					o := r.outcome(p)
					if code(o) != c.code || o.HeadSent || o.NodeID != "" {
						t.Errorf("outcome %v (%v), want %v", code(o), o.Failure, c.code)
					}
					if took := time.Since(since); took > 100*time.Millisecond { // the longest of the limits above
						t.Errorf("the outcome took %v", took)
					}
					if n.openCount() != 1 {
						t.Error("the run reached the node")
					}
					r.once("run-1")
					if c.code == execution.CodeNoNode {
						return // the holder's link is gone, too
					}
					untilQueued(r, 0)
					free()
				})
			})
		}
	})
}

// Without fail_fast a run waits for a node that isn't there yet, and goes on when it is.
func TestWaitsForANode(t *testing.T) {
	answer := func(w *work) { w.answer("hello") }
	r := newRig(t, setup{manual: true, work: answer})
	p := r.submit(r.tunnel("run-1", ""), &recorder{})
	untilQueued(r, 1)
	r.join("a", 1, 1, answer)
	if o := r.outcome(p); !o.OK() || o.Queued == 0 || p.text() != "hello" || p.node != "a" {
		t.Errorf("%+v, body %q of %q", o, p.text(), p.node)
	}
	r.idle()
}

// A draining edge takes nobody in; a known run_id isn't taken a second time, whether its run is live or over.
func TestRefusedAtTheDoor(t *testing.T) {
	r, free := full(t, "")
	o, _ := r.run(r.tunnel("holder", ""))
	if code(o) != execution.CodeDuplicateRun {
		t.Errorf("live: %v", o.Failure)
	}
	free()
	if o, _ = r.run(r.tunnel("holder", "")); code(o) != execution.CodeDuplicateRun {
		t.Errorf("ended: %v", o.Failure)
	}
	r.svc.Drain()
	if o, _ = r.run(r.tunnel("run-2", "")); code(o) != execution.CodeEdgeDraining || o.Failure.RetryAfter == 0 {
		t.Errorf("draining: %v", o.Failure)
	}
	if n := r.node("a", 1).openCount(); n != 1 {
		t.Errorf("%d opens", n)
	}
}

// What is remembered of ended runs is bounded. CA-07, fault 27: an unknown id is no run's.
func TestRecentRunsAreBounded(t *testing.T) {
	r := newRig(t, setup{service: Config{Recent: 3}, work: func(w *work) { w.answer("x") }})
	for i := range 10 {
		if o, _ := r.run(r.tunnel(fmt.Sprintf("run-%d", i), "")); !o.OK() {
			t.Fatal(o.Failure)
		}
	}
	for i := range 10 {
		want := NotFound
		if i >= 7 {
			want = AlreadyEnded
		}
		if got := r.svc.Cancel(fmt.Sprintf("run-%d", i), execution.CauseAPI); got != want {
			t.Errorf("run-%d: %v, want %v", i, got, want)
		}
	}
	if n := len(r.svc.runs.index); n > 3 {
		t.Errorf("%d ids are kept", n)
	}
}

// granting is the registry with something in the way between a grant and the open.
type granting struct {
	*rig
	lookup func(n int, nodeID string) Node // nil = the rig's; n counts the calls
	calls  atomic.Int64
	back   atomic.Bool // nothing is in the way any more
}

func (g *granting) Lookup(nodeID string, generation uint64) Node {
	if n := g.lookup(int(g.calls.Add(1)), nodeID); n != nil && !g.back.Load() {
		return n
	}
	return g.rig.Lookup(nodeID, generation)
}

// gone is a connection whose link is over, which the scheduler doesn't know yet.
type gone struct{ Node }

func (gone) Open(context.Context) (*transport.Stream, error) { return nil, transport.ErrLinkDown }

// stuck is a connection on which opening takes as long as it may.
type stuck struct{ Node }

func (stuck) Open(ctx context.Context) (*transport.Stream, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// The column granted: nothing was sent, so nothing is lost. Fault 29.
func TestGranted(t *testing.T) {
	patience.Alone(t, func(t *testing.T) {
		for _, c := range []struct {
			name     string
			limits   Config
			lookup   func(r *rig) func(n int, nodeID string) Node
			during   func(r *rig, p *pending)
			deadline time.Duration
			code     execution.Code
			attempts int
			timeouts int64
		}{
			// However long it takes until the registry has fenced the connection: the run waits for the node to come back.
			{name: "link lost, node comes back", lookup: alwaysGone, during: func(r *rig, _ *pending) {
				r.poll("the run waits", func() bool { return r.sched.Snapshot().Queued == 1 })
				r.node("a", 1).leave()
				r.svc.cfg.Nodes.(*granting).back.Store(true)
				r.join("a", 2, 4, func(w *work) { w.answer("x") })
			}, attempts: 2},
			{name: "link lost, caller gone", lookup: alwaysGone, during: func(r *rig, p *pending) {
				r.poll("the run waits", func() bool { return r.sched.Snapshot().Queued == 1 })
				p.leave()
			}, code: execution.CodeClientGone, attempts: 1},
			{name: "caller gone", lookup: alwaysStuck, during: func(_ *rig, p *pending) { p.leave() }, code: execution.CodeClientGone, attempts: 1},
			{name: "cancelled", lookup: alwaysStuck, during: func(r *rig, _ *pending) { r.svc.Cancel("run-1", execution.CauseAPI) }, code: execution.CodeCancelled, attempts: 1},
			{name: "deadline", lookup: alwaysStuck, deadline: short, code: execution.CodeDeadline, attempts: 1},
			{name: "dispatch limit", limits: dispatchSoon, lookup: alwaysStuck, code: execution.CodeDispatchTimeout, attempts: 1, timeouts: 1}, // TU-05
		} {
			t.Run(c.name, func(t *testing.T) {
				patience.Bubble(t, func(t *testing.T) {
					r := newRig(t, setup{service: c.limits, work: func(w *work) { w.answer("x") }})
					g := &granting{rig: r, lookup: c.lookup(r)}
					r.svc.cfg.Nodes = g
					n := r.node("a", 1)
					tunnel := r.tunnel("run-1", "body")
					tunnel.Deadline = c.deadline
					p := r.submit(tunnel, &recorder{})
					if c.during != nil {
						r.poll("the place is granted", func() bool { return g.calls.Load() > 0 })
						c.during(r, p)
					}
					o := r.outcome(p)
					if code(o) != c.code || o.Attempts != c.attempts {
						t.Errorf("outcome %v (%v) after %d attempts, want %v after %d", code(o), o.Failure, o.Attempts, c.code, c.attempts)
					}
					if opens := n.openCount(); opens > 0 || n.cancelCount() > 0 || n.timeouts.Load() != c.timeouts {
						t.Errorf("%d opens, %d cancels, %d dispatch timeouts", opens, n.cancelCount(), n.timeouts.Load())
					}
					r.idle()
				})
			})
		}
	})
}

func alwaysGone(r *rig) func(int, string) Node {
	n := r.node("a", 1)
	return func(int, string) Node { return gone{n} }
}

func alwaysStuck(r *rig) func(int, string) Node {
	return func(_ int, id string) Node { return stuck{r.node(id, 1)} }
}

// The configuration that a run was admitted by must still stand when it is sent.
func TestFenceByConfiguration(t *testing.T) {
	patience.Alone(t, func(t *testing.T) {
		for _, c := range []struct {
			name     string
			change   func(e *config.Edge)
			code     execution.Code
			attempts int
		}{
			{name: "nothing that matters", change: func(e *config.Edge) { e.Limits.Body++ }, attempts: 1},
			{name: "route gone", change: func(e *config.Edge) { e.Routes = nil }, code: execution.CodeUnknownModel, attempts: 1},
			{name: "another target", change: func(e *config.Edge) { e.Routes[0].Target = "q" }, code: execution.CodeNoNode, attempts: 1},
			{name: "principal gone", change: func(e *config.Edge) {
				e.Principals = []config.Principal{{ID: "somebody else", KeyHashes: []string{fmt.Sprintf("%064x", 1)}}}
			}, code: execution.CodeUnknownModel, attempts: 1},
			{name: "adapter changed, node not yet", change: func(e *config.Edge) { e.Nodes[0].Adapters[0].MaxConcurrency = 9 }, code: execution.CodeNoNode, attempts: 4},
			{name: "no adapter carries it", change: func(e *config.Edge) { e.Nodes[0].Adapters[0].Kind = "anthropic" }, code: execution.CodeBadRequest, attempts: 1},
			{name: "route's nodes changed", change: func(e *config.Edge) { e.Routes[0].Nodes = []string{"a"} }, attempts: 2},
		} {
			t.Run(c.name, func(t *testing.T) {
				patience.Bubble(t, func(t *testing.T) {
					s := setup{nodes: []string{"a"}, capacity: 4, work: func(w *work) { w.answer("x") }}
					r := newRig(t, s)
					old := r.state.Load()
					changed := edgeConfig(t, s, "p")
					c.change(changed)
					// The state is swapped between the submission and the first look at it after a grant.
					var looks atomic.Int64
					r.svc.cfg.State = func() *config.State {
						if looks.Add(1) == 1 {
							return old
						}
						return config.NewState(changed, 2, old)
					}
					o, _ := r.run(r.tunnel("run-1", ""))
					if code(o) != c.code || o.Attempts != c.attempts {
						t.Errorf("outcome %v (%v) after %d attempts, want %v after %d", code(o), o.Failure, o.Attempts, c.code, c.attempts)
					}
					if opens := r.node("a", 1).openCount(); (opens == 1) != o.OK() {
						t.Errorf("%d opens", opens)
					}
					r.idle()
				})
			})
		}
	})
}
