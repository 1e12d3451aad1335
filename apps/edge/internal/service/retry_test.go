package service

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
)

// refuses returns a script by which the named nodes refuse every open and the others answer.
func refuses(code execution.Code, nodes ...string) func(w *work) {
	return func(w *work) {
		if slices.Contains(nodes, w.node.id) {
			w.reject(code, true)
			return
		}
		w.answer("from " + w.node.id)
	}
}

// A refusal that started nothing goes to another node, at once and with the whole body. Fault 30.
func TestRefusedBeforeStart(t *testing.T) {
	patience.Alone(t, func(t *testing.T) {
		for _, c := range []execution.Code{execution.CodeAdapterBusy, execution.CodeNodeDraining, execution.CodeStaleProjection} {
			t.Run(c.String(), func(t *testing.T) {
				patience.Bubble(t, func(t *testing.T) {
					var got [2]string // the body that each node saw
					r := newRig(t, setup{nodes: []string{"a", "b"}, work: func(w *work) {
						if w.attempt == 1 {
							w.reject(c, true)
							return
						}
						w.accept()
						got[1] = string(w.input())
						w.head(200)
						w.end(0)
					}})
					started := time.Now()
					o, _ := r.run(r.tunnel("run-1", "the body"))
					if !o.OK() || o.Attempts != 2 || len(o.Tried) != 1 || o.Tried[0].Code != c || o.Tried[0].NodeID == o.NodeID {
						t.Errorf("%+v", o)
					}
					if got[1] != "the body" {
						t.Errorf("the second node got %q", got[1])
					}
					if took := time.Since(started); took > 0 {
						t.Errorf("it took %v", took)
					}
					r.idle()
				})
			})
		}
	})
}

// protocol.md 8 "busy spins": a node that is always busy gets at most three opens of a run, and at most one a second
// in all once it has said so; then the caller is told. The other codes have their own limits.
func TestRefusedForGood(t *testing.T) {
	patience.Alone(t, func(t *testing.T) {
		for c, opens := range map[execution.Code]int{
			execution.CodeAdapterBusy:     maxBusy,
			execution.CodeNodeDraining:    maxDraining,
			execution.CodeStaleProjection: maxStale + 1,
		} {
			t.Run(c.String(), func(t *testing.T) {
				patience.Bubble(t, func(t *testing.T) {
					r := newRig(t, setup{capacity: 8, work: refuses(c, "a")})
					n, started := r.node("a", 1), time.Now()
					runs := []*pending{r.submit(r.tunnel("run-1", ""), &recorder{}), r.submit(r.tunnel("run-2", ""), &recorder{})}
					for _, p := range runs {
						o := r.outcome(p)
						if code(o) != c || o.Failure.RetryAfter == 0 || o.Attempts > opens {
							t.Errorf("%v after %d attempts", o.Failure, o.Attempts)
						}
					}
					// Two opens may be under way before the first refusal is here; from then on it is one a second.
					if got, limit := n.openCount(), 2+int(time.Since(started)/time.Second)+1; got > limit || got > 2*opens {
						t.Errorf("%d opens in %v", got, time.Since(started))
					}
					r.idle()
				})
			})
		}
	})
}

// A run that a node refused stands where it stood before: who came later doesn't overtake it.
func TestRetryKeepsItsPosition(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		proceed := make(chan struct{})
		r := newRig(t, setup{capacity: 1, work: func(w *work) {
			switch {
			case w.runID == "first" && w.attempt == 1:
				<-proceed
				w.reject(execution.CodeNodeDraining, true)
				return
			}
			mu.Lock()
			order = append(order, w.runID)
			mu.Unlock()
			w.answer("x")
		}})
		first := r.submit(r.tunnel("first", ""), &recorder{})
		untilSent(r, first)
		second := r.submit(r.tunnel("second", ""), &recorder{})
		untilQueued(r, 1)
		close(proceed)
		for _, p := range []*pending{first, second} {
			if o := r.outcome(p); !o.OK() {
				t.Error(o.Failure)
			}
		}
		if !slices.Equal(order, []string{"first", "second"}) {
			t.Errorf("served %v", order)
		}
		r.idle()
	})
}

// CP-12: all providers of a route refuse connections. Each candidate is tried once, and the caller gets the reason.
func TestUnreachableProviders(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		r := newRig(t, setup{nodes: []string{"a", "b", "c"}, work: func(w *work) {
			w.accept()
			w.fail(execution.CodeUpstreamConnect, true)
		}})
		started := time.Now()
		o, _ := r.run(r.tunnel("run-1", "body"))
		if code(o) != execution.CodeUpstreamConnect || len(o.Tried) != 3 {
			t.Errorf("%+v", o)
		}
		for _, id := range []string{"a", "b", "c"} {
			if n := r.node(id, 1).openCount(); n != 1 {
				t.Errorf("node %s was tried %d times", id, n)
			}
		}
		if took := time.Since(started); took > 0 {
			t.Errorf("it took %v", took)
		}
		r.idle()
	})
}

func TestUnreachableProviderThenAnother(t *testing.T) {
	r := newRig(t, setup{nodes: []string{"a", "b"}, work: func(w *work) {
		w.accept()
		if w.attempt == 1 {
			w.fail(execution.CodeUpstreamConnect, true)
			return
		}
		w.head(200)
		w.body("x")
		w.end(1)
	}})
	if o, c := r.run(r.tunnel("run-1", "")); !o.OK() || c.text() != "x" || o.Attempts != 2 {
		t.Errorf("%+v", o)
	}
	r.idle()
}

// CP-11: once request bytes may have reached a provider, the run isn't sent again, whatever becomes of it.
func TestNothingIsSentTwice(t *testing.T) {
	for _, c := range []struct {
		name string
		work func(w *work)
		code execution.Code
	}{
		{"reset after the request", func(w *work) { w.accept(); w.input(); w.fail(execution.CodeUpstreamError, false) }, execution.CodeUpstreamError},
		{"no first byte", func(w *work) { w.accept(); w.input(); w.fail(execution.CodeFirstByteTimeout, false) }, execution.CodeFirstByteTimeout},
		{"connection lost with bytes sent", func(w *work) { w.accept(); w.fail(execution.CodeUpstreamConnect, false) }, execution.CodeUpstreamConnect},
		{"link lost", func(w *work) { w.accept(); _ = w.node.far; w.node.far.Close(1) }, execution.CodeNodeLost},
		{"busy, but started", func(w *work) { w.reject(execution.CodeAdapterBusy, false) }, execution.CodeAdapterBusy},
	} {
		t.Run(c.name, func(t *testing.T) {
			var opens atomic.Int64
			r := newRig(t, setup{nodes: []string{"a", "b", "c"}, work: func(w *work) { opens.Add(1); c.work(w) }})
			o, _ := r.run(r.tunnel("run-1", "body"))
			if code(o) != c.code || o.Attempts != 1 || opens.Load() != 1 {
				t.Errorf("%v after %d attempts and %d opens", o.Failure, o.Attempts, opens.Load())
			}
			r.idle()
		})
	}
}

// protocol.md 8 "never left the edge": the link is cut after the open was taken by the coalescer and before it reached
// the node. The caller gets node_lost, no provider was called, and no second node is.
func TestNeverLeftTheEdge(t *testing.T) {
	var relay *valve
	r := newRig(t, setup{manual: true, nodes: []string{"a", "b"}})
	called := func(w *work) { t.Errorf("%s was called", w.node.id); w.answer("x") }
	r.dial = func(near net.Conn) net.Conn { relay = &valve{Conn: near}; relay.init(); return relay }
	a := r.join("a", 1, 1, called)
	r.dial = nil
	relay.shut()
	p := r.submit(r.tunnel("run-1", "body"), &recorder{})
	// The open with its body is some 170 bytes; a control message may stand in the valve before it.
	r.poll("sent", func() bool { return r.held() == 1 && relay.held.Load() > 0 && a.edge.Status().Pending > 150 })
	r.join("b", 1, 4, called)
	a.edge.Close(2) // lost or dead: nothing that is pending is sent any more
	if o := r.outcome(p); code(o) != execution.CodeNodeLost || o.Failure.NothingSent || o.Attempts != 1 {
		t.Errorf("%+v", o)
	}
	relay.open()
	r.idle()
}

// The multiplexer reports a write as failed that reached the node whole, when the link ends before the writer is told
// (a test of the node's saw "link down" although the node had answered the open). To take that for "never sent" is to
// void a lease that was used, and to call a background run lost that works on.
func TestLinkEndsBeforeTheWriterIsTold(t *testing.T) {
	for name, check := range map[string]func(t *testing.T, s setup, told func()){
		"tunnel": func(t *testing.T, s setup, told func()) {
			l := &ledger{}
			r := keyed(t, s, l)
			defer told()
			o, _ := r.run(r.tunnel("run-1", "body"))
			if code(o) != execution.CodeNodeLost || o.Failure.NothingSent || o.Attempts != 1 {
				t.Errorf("%+v", o)
			}
			if l.all() != "1:lost 1:closed" {
				t.Errorf("of the lease: %s", l.all())
			}
		},
		"run": func(t *testing.T, s setup, told func()) {
			r := newRig(t, s)
			defer told()
			if o, _ := r.ask(r.spec("run-1")); code(o) != execution.CodeNodeLost || o.Attempts != 1 {
				t.Errorf("%+v", o)
			}
		},
		"background run": func(t *testing.T, s setup, told func()) {
			r := newRig(t, s)
			defer told()
			h := r.start(r.inBackground("run-1"), &listener{})
			r.untilState("run-1", StateDetached)
			told()
			r.idle()
			n := r.join("a", 2, 4, s.work, running("run-1", 1))
			n.far.SendRunEnded(end("run-1", 1, statusComplete, 0))
			if o := r.result(h); !o.OK() {
				t.Errorf("%+v", o)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var armed atomic.Bool
			release := make(chan struct{})
			s := setup{work: func(w *work) { w.input(); w.node.edge.Close(transport.ReasonLost) }}
			s.service.Faults = faultpoint.New(func(at faultpoint.Point, _ string) {
				if at == faultpoint.EdgeSent {
					armed.Store(true)
				}
			})
			s.link = faultpoint.New(func(at faultpoint.Point, _ string) {
				if at == faultpoint.LinkTaken && armed.CompareAndSwap(true, false) {
					<-release
				}
			})
			check(t, s, sync.OnceFunc(func() { close(release) }))
		})
	}
}

// valve is a connection whose writes can be held up, as a stalled path does.
type valve struct {
	net.Conn
	held atomic.Int64 // bytes that wait

	mu     sync.Mutex
	closed chan struct{} // of the connection
	pass   chan struct{} // closed = open
	once   sync.Once
}

func (v *valve) init() {
	v.closed, v.pass = make(chan struct{}), make(chan struct{})
	close(v.pass)
}

func (v *valve) shut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pass = make(chan struct{})
}

func (v *valve) open() {
	v.mu.Lock()
	defer v.mu.Unlock()
	select {
	case <-v.pass:
	default:
		close(v.pass)
	}
}

func (v *valve) Write(p []byte) (int, error) {
	v.mu.Lock()
	pass := v.pass
	v.mu.Unlock()
	v.held.Add(int64(len(p)))
	defer v.held.Add(-int64(len(p)))
	select {
	case <-pass:
	case <-v.closed:
		return 0, net.ErrClosed
	}
	return v.Conn.Write(p)
}

func (v *valve) Close() error {
	v.once.Do(func() { close(v.closed) })
	return v.Conn.Close()
}
