package service

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// withPrincipal puts a principal of these further keys into the rig's configuration.
func (r *rig) withPrincipal(keys string) {
	r.Helper()
	text := fmt.Sprintf("principals: [{id: alice, key_hashes: [%064x]%s}]\n", 0xabc, keys)
	extra, err := config.ParseEdge("edge.yaml", []byte(text))
	if err != nil {
		r.Fatal(err)
	}
	old := r.state.Load()
	edge := *old.Edge
	edge.Principals = extra.Principals
	r.state.Store(config.NewState(&edge, old.Version+1, old))
}

func (r *rig) alices(id string) *Tunnel {
	t := r.tunnel(id, "{}")
	t.Principal = "alice"
	return t
}

// CP-06: of many requests at once as many are admitted as the principal may have, those that wait included; the others
// are told when to come back. What ended, and what never began, is given back.
func TestOwnConcurrency(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, setup{capacity: 2, work: func(w *work) { <-release; w.answer("ok") }})
	r.withPrincipal(", limits: {concurrency: 10}")
	var group sync.WaitGroup
	codes := make(chan execution.Code, 100)
	admitted := make(chan *pending, 100)
	for i := range 100 {
		group.Go(func() {
			p := r.submit(r.alices(fmt.Sprintf("r%d", i)), &recorder{})
			select {
			case o := <-p.done:
				if o.OK() { // it was admitted, and is through already
					p.done <- o
					admitted <- p
					return
				}
				if o.Failure != nil && (o.Failure.RetryAfter <= 0 || !o.Failure.NothingSent) {
					t.Errorf("refused with %+v", o.Failure)
				}
				codes <- code(o)
			case <-release:
				admitted <- p
			}
		})
	}
	r.poll("90 are refused", func() bool { return len(codes) == 90 })
	close(release)
	group.Wait()
	if len(admitted) != 10 {
		t.Fatalf("%d were admitted", len(admitted))
	}
	for range 90 {
		if c := <-codes; c != execution.CodeLimitExceeded {
			t.Fatalf("refused with %v", c)
		}
	}
	for range 10 {
		if o := r.outcome(<-admitted); !o.OK() {
			t.Errorf("an admitted one ended with %v", o.Failure)
		}
	}
	for range 20 { // duplicates keep nothing
		r.run(r.alices("again"))
	}
	if n := r.svc.quotas.InUse()["alice"]; n != 0 {
		t.Errorf("%d are counted though nothing runs", n)
	}
}

func TestOwnRate(t *testing.T) {
	r := newRig(t, setup{work: speaks})
	r.withPrincipal(", limits: {requests_per_minute: 2}")
	for i, want := range []execution.Code{execution.CodeOK, execution.CodeOK, execution.CodeLimitExceeded} {
		if o, _ := r.run(r.alices(fmt.Sprintf("r%d", i))); code(o) != want {
			t.Errorf("request %d: %v", i, o.Failure)
		}
	}
	r.withPrincipal("") // the limit is taken away
	if o, _ := r.run(r.alices("free")); !o.OK() {
		t.Errorf("without a limit: %v", o.Failure)
	}
}

// The weight is that of the configuration in force.
func TestWeight(t *testing.T) {
	r := newRig(t, setup{work: speaks})
	if w := r.svc.weight("anonymous"); w != 1 {
		t.Errorf("anonymous weighs %v", w)
	}
	r.withPrincipal(", weight: 3")
	if w := r.svc.weight("alice"); w != 3 {
		t.Errorf("alice weighs %v", w)
	}
}

func (r *rig) broken() *admission.Broken { return r.sched.Snapshot().Places[0].Broken }

// design §7: a provider that fails again and again is taken out for a while, and it is visible why. What says nothing
// about the provider doesn't count.
func TestFaultyAdapterIsTakenOut(t *testing.T) {
	faults := map[string]struct {
		work  func(w *work)
		trips bool
	}{
		"connection refused": {func(w *work) { w.accept(); w.fail(execution.CodeUpstreamConnect, false) }, true},
		"breaks off":         {func(w *work) { w.accept(); w.head(200); w.body("x"); w.fail(execution.CodeUpstreamTruncated, false) }, true},
		"silent":             {func(w *work) { w.accept(); w.fail(execution.CodeFirstByteTimeout, false) }, true},
		"panics":             {func(w *work) { w.accept(); w.fail(execution.CodeAdapterPanic, false) }, true},
		"an error answer":    {func(w *work) { w.accept(); w.fail(execution.CodeUpstreamError, false) }, false},
		"a bad request":      {func(w *work) { w.accept(); w.fail(execution.CodeBadRequest, false) }, false},
		"a 500 of its own":   {func(w *work) { w.accept(); w.head(500); w.body("no"); w.end(2) }, false},
	}
	for name, k := range faults {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, setup{work: k.work})
			for i := range 5 {
				if b := r.broken(); b != nil {
					t.Fatalf("taken out after %d: %+v", i, b)
				}
				r.run(r.tunnel(fmt.Sprintf("r%d", i), "{}"))
			}
			r.idle()
			b := r.broken()
			if (b != nil) != k.trips || b != nil && !strings.Contains(b.Why, "_") {
				t.Errorf("after five failures: %+v", b)
			}
		})
	}
}

// protocol §2.F reload: who waits is led by the configuration in force, and refused when it leads nowhere any more.
func TestReconfiguredWhileWaiting(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, setup{nodes: []string{"a", "b"}, capacity: 1, route: ", nodes: [a]", work: func(w *work) { <-release; w.answer("from " + w.node.id) }})
	defer close(release)
	busy := r.submit(r.tunnel("busy", "{}"), &recorder{})
	r.poll("a is busy", func() bool { return r.held() == 1 })
	waits := r.submit(r.tunnel("waits", "{}"), &recorder{})
	r.poll("one waits", func() bool { return r.sched.Snapshot().Queued == 1 })

	old := r.state.Load()
	edge := *old.Edge
	edge.Routes = []config.Route{*old.Route("m")}
	edge.Routes[0].Nodes = []string{"b"}
	r.state.Store(config.NewState(&edge, old.Version+1, old))
	r.svc.Reconfigured()
	r.poll("it goes where the route leads now", func() bool { return r.held() == 2 })

	lost := r.submit(r.tunnel("lost", "{}"), &recorder{})
	r.poll("another waits", func() bool { return r.sched.Snapshot().Queued == 1 })
	none := edge
	none.Routes = nil
	r.state.Store(config.NewState(&none, old.Version+2, r.state.Load()))
	r.svc.Reconfigured()
	if o := r.outcome(lost); code(o) != execution.CodeUnknownModel || !o.Failure.NothingSent {
		t.Errorf("a request whose route is gone: %v", o.Failure)
	}
	release <- struct{}{}
	release <- struct{}{}
	if o := r.outcome(waits); !o.OK() || o.NodeID != "b" || waits.text() != "from b" {
		t.Errorf("%v at %s: %q", o.Failure, o.NodeID, waits.text())
	}
	if o := r.outcome(busy); !o.OK() {
		t.Errorf("what ran: %v", o.Failure)
	}
}
