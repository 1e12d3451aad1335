package credential

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
)

func TestLeaseIsGoodAtItsNode(t *testing.T) {
	r := opened(t)
	n := r.node("gpu-1", 7)
	l := r.lend(n.to, "run-1")
	if got, err := n.use(l, "run-1"); err != nil || got != keyA {
		t.Fatal(err)
	}
	if _, err := n.use(l, "run-1"); err == nil {
		t.Error("used twice")
	}
	if l.Slot() != "main" || l.Profile() != "openai" || len(l.ID()) != 32 || !l.Current() {
		t.Errorf("%s %s %s", l.Slot(), l.Profile(), l.ID())
	}
	if _, err := n.use(r.lend(n.to, "run-2"), "run-1"); err == nil {
		t.Error("good for another run")
	}
}

// A normalized run goes where its adapter's kind asks, and callers without names are anonymous.
func TestLeaseOfARun(t *testing.T) {
	r := opened(t)
	to, _ := recipient(t, "gpu-1", 1)
	o := r.order(to, "run")
	o.Principal, o.Method, o.Path = "", "", ""
	if why := r.refused(o); why != "" {
		t.Fatal(why)
	}
	g, err := grantOf(r.state.Load(), &o)
	if err != nil || g.Principal != "anonymous" || g.Method != "POST" || g.Path != "/v1/chat/completions" || g.Origin != "https://api.example.com:443" {
		t.Errorf("%+v, %v", g, err)
	}
	o.Adapter = &config.Adapter{Name: "hosted", Kind: "loopback", BaseURL: "https://api.example.com/v1"}
	if why := r.refused(o); why != "binding_mismatch(path)" {
		t.Error(why)
	}
}

// issueRefusal is a way in which a request isn't one that a key is lent for.
type issueRefusal struct {
	name   string
	change func(o *Order)
	want   string
}

// issueRefusals are those of a recipient of gpu-1, what is checked last first. other is a recipient of gpu-2.
func (r *rig) issueRefusals(other credentiallease.Recipient) []issueRefusal {
	adapter := func(change func(a *config.Adapter)) *config.Adapter {
		a := r.state.Load().Projection("gpu-1").Adapters[0].Adapter
		change(&a)
		return &a
	}
	return []issueRefusal{
		{"no such adapter there", func(o *Order) { o.Adapter = adapter(func(a *config.Adapter) { a.Name = "x" }) }, "stale_generation(projection)"},
		{"another base URL", func(o *Order) { o.Adapter = adapter(func(a *config.Adapter) { a.BaseURL = "https://api.example.com" }) }, "stale_generation(projection)"},
		{"a path that isn't listed", func(o *Order) { o.Path = "/v1/models" }, "binding_mismatch(path)"},
		{"a path below a listed one", func(o *Order) { o.Path = "/v1/embeddings/x" }, "binding_mismatch(path)"},
		{"a path of dots", func(o *Order) { o.Path = "/v1/../v1/embeddings" }, "binding_mismatch(path)"},
		{"another method", func(o *Order) { o.Method = "GET" }, "binding_mismatch(path)"},
		{"another origin", func(o *Order) { o.Adapter = adapter(func(a *config.Adapter) { a.BaseURL = "https://evil.example/v1" }) }, "origin_refused(origin)"},
		{"another port", func(o *Order) {
			o.Adapter = adapter(func(a *config.Adapter) { a.BaseURL = "https://api.example.com:8443/v1" })
		}, "origin_refused(origin)"},
		{"plain HTTP", func(o *Order) {
			o.Adapter = adapter(func(a *config.Adapter) { a.BaseURL = "http://api.example.com:443/v1" })
		}, "plaintext_origin_refused(origin)"},
		{"another generation", func(o *Order) { o.Generation = 2 }, "stale_generation(connection)"},
		{"no recipient", func(o *Order) { o.Recipient = credentiallease.Recipient{} }, "wrong_recipient(recipient_key_id)"},
		{"another's recipient", func(o *Order) { o.Recipient = other }, "wrong_recipient(recipient_key_id)"},
		{"not proven", func(o *Order) { o.Proven = false }, "identity_required"},
		{"a node that isn't listed", func(o *Order) { o.NodeID, o.Recipient = "gpu-2", other }, "wrong_recipient(node_id)"},
		{"no node", func(o *Order) { o.NodeID = "" }, "wrong_recipient(node_id)"},
		{"a route that is gone", func(o *Order) { o.Route = &config.Route{Model: "gone", Slot: "main"} }, "stale_revision(route)"},
		{"no such slot", func(o *Order) { o.Route = &config.Route{Model: "fast", Slot: "nowhere"} }, "disabled(slot)"},
		{"no slot at all", func(o *Order) { o.Route = &config.Route{Model: "fast"} }, "disabled(slot)"},
	}
}

// E18, E19, the edge's half: each check refuses, before anything that is checked later, with one reason, an audit and an
// event; nothing was sent, and the caller learns none of it.
func TestIssueRefuses(t *testing.T) {
	r := opened(t)
	to, _ := recipient(t, "gpu-1", 1)
	other, _ := recipient(t, "gpu-2", 1)
	cases := r.issueRefusals(other)
	for i, c := range cases {
		r.kinds()
		o := r.order(to, "run-"+c.name)
		c.change(&o)
		_, f := r.store.Issue(o)
		if f == nil || f.Code != execution.CodeCredentialUnavailable || f.Origin != execution.OriginEdge || !f.NothingSent || f.Text != unavailable {
			t.Errorf("%s: %+v", c.name, f)
			continue
		}
		if why := r.refused(o); why != c.want {
			t.Errorf("%s: %s, want %s", c.name, why, c.want)
		}
		if kinds := r.kinds(); kinds[events.KindLeaseRefused] != 2 || len(kinds) != 1 {
			t.Errorf("%s: %v", c.name, kinds)
		}
		// What is wrong in more than one way is refused for what is checked first: the cases stand in the opposite order.
		for _, later := range cases[:i] {
			both := r.order(to, "run")
			later.change(&both)
			c.change(&both)
			if why := r.refused(both); why != c.want && later.name != "a path of dots" { // with it nobody knows where it would go
				t.Errorf("%s and %s: %s, want %s", later.name, c.name, why, c.want)
			}
		}
	}
	if got := r.store.Counts(); got.Leases["main"]["unavailable"] == 0 || got.Refusals["identity_required"] == 0 || got.Security != 0 {
		t.Errorf("%+v", got)
	}
	if why := r.refused(r.order(to, "")); why != "malformed(run_id)" {
		t.Error(why)
	}
}

// CR-10, E10 the edge's half: what is disabled, revoked or rotated counts for the next request at once.
func TestIssueByState(t *testing.T) {
	r := opened(t)
	n := r.node("gpu-1", 1)
	before := r.lend(n.to, "before")
	do := func(f func(ctx context.Context, id string) (Change, error)) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // nobody answers
		_, err := f(ctx, "main")
		check(t, err)
	}
	do(r.store.Disable)
	if why := r.refused(r.order(n.to, "run")); why != "disabled(slot)" || before.Current() {
		t.Errorf("%s, current %v", why, before.Current())
	}
	do(r.store.Enable)
	n.project()
	if _, err := n.use(before, "before"); !errors.Is(err, credentiallease.Refusal{Reason: credentiallease.Revoked, Field: credentiallease.FieldSlotRevision}) &&
		!errors.Is(err, credentiallease.Refusal{Reason: credentiallease.Revoked}) {
		t.Errorf("a lease from before: %v", err)
	}
	l := r.lend(n.to, "after")
	if got, err := n.use(l, "after"); err != nil || got != keyA {
		t.Error(err)
	}
	r.put(keyB)
	_, err := r.store.refresh(t.Context(), "main")
	check(t, err)
	n.project()
	rotated := r.lend(n.to, "rotated")
	if got, err := n.use(rotated, "rotated"); err != nil || got != keyB || l.Current() || !rotated.Current() {
		t.Errorf("%v", err)
	}
	do(r.store.Revoke)
	if why := r.refused(r.order(n.to, "run")); why != "revoked(slot)" {
		t.Error(why)
	}
}

// The fence before a lease is sent sees that the profile or the route changed, or that the slot is gone.
func TestCurrent(t *testing.T) {
	for name, change := range map[string]func(e *config.Edge){
		"profile": func(e *config.Edge) { e.Profiles[0].Paths = e.Profiles[0].Paths[:1] },
		"route":   func(e *config.Edge) { e.Routes[0].Target = "another" },
		"slot":    func(e *config.Edge) { e.Slots, e.Routes[0].Slot = nil, "" },
	} {
		r := opened(t)
		to, _ := recipient(t, "gpu-1", 1)
		l := r.lend(to, "run")
		r.configure(func(e *config.Edge) { e.Limits.Body = 1 })
		r.store.Reconfigured()
		if !l.Current() {
			t.Errorf("%s: something else changed, and the lease is old", name)
		}
		r.configure(change)
		r.store.Reconfigured()
		if l.Current() {
			t.Errorf("%s changed, and the lease is current", name)
		}
	}
}

// meanwhile is what may happen while a lease is made. why "" = the lease is of the new state.
type meanwhile struct {
	change func(ctx context.Context, r *rig) error
	why    string
}

func changesMeanwhile() map[string]meanwhile {
	return map[string]meanwhile{
		"disabled": {func(ctx context.Context, r *rig) error { _, err := r.store.Disable(ctx, "main"); return err }, "disabled(slot)"},
		"revoked":  {func(ctx context.Context, r *rig) error { _, err := r.store.Revoke(ctx, "main"); return err }, "revoked(slot)"},
		"rotated": {func(ctx context.Context, r *rig) error {
			r.put(keyB)
			_, err := r.store.refresh(context.Background(), "main")
			return err
		}, ""},
		"removed": {func(_ context.Context, r *rig) error {
			r.configure(func(e *config.Edge) { e.Slots, e.Routes[0].Slot = nil, "" })
			r.store.Reconfigured()
			return nil
		}, "disabled(slot)"},
		"removed from the slot's nodes": {func(_ context.Context, r *rig) error {
			r.configure(func(e *config.Edge) { e.Slots[0].Nodes = []string{"gpu-2"} })
			return nil
		}, "wrong_recipient(node_id)"},
		"moved": {func(_ context.Context, r *rig) error {
			r.configure(func(e *config.Edge) { e.Profiles[0].Origin = "https://other.example:443" })
			return nil
		}, "origin_refused(origin)"},
	}
}

// E15, the edge's half, CR-10: what happens while a lease is sealed and signed counts: none is issued by a state that is over.
func TestChangesWhileALeaseIsMade(t *testing.T) {
	for name, c := range changesMeanwhile() {
		t.Run(name, func(t *testing.T) {
			r := opened(t)
			n := r.node("gpu-1", 1)
			o := r.order(n.to, "run")
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			looks := 0
			r.store.cfg.State = func() *config.State {
				if looks++; looks == 2 { // after the cryptography, before the lease is issued
					check(t, c.change(gone, r))
				}
				return r.state.Load()
			}
			l, f := r.store.Issue(o)
			if c.why != "" {
				if f == nil {
					t.Fatal("issued")
				}
				got := credentiallease.Refusal{Reason: credentiallease.Reason(f.Lease.Reason), Field: credentiallease.Field(f.Lease.Field)}
				if got.String() != c.why {
					t.Errorf("%v, want %s", got, c.why)
				}
				return
			}
			if f != nil {
				t.Fatal(f)
			}
			defer l.Close()
			n.project()
			if got, err := n.use(l, "run"); err != nil || got != keyB {
				t.Errorf("%v", err)
			}
		})
	}
}

// lastChange is what the last change of a slot said that has returned.
type lastChange struct {
	mu     sync.Mutex
	closed bool
	floor  uint64
}

func (l *lastChange) set(closed bool, floor uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.floor = closed, max(floor, l.floor)
}

func (l *lastChange) get() (closed bool, floor uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed, l.floor
}

// issueUntil issues and uses leases until stop is closed, and reports those that shouldn't be.
func (r *rig) issueUntil(stop <-chan struct{}, n *node, name string, last *lastChange) {
	for k := 0; ; k++ {
		select {
		case <-stop:
			return
		default:
		}
		wasClosed, least := last.get()
		run := fmt.Sprintf("run-%s-%d", name, k)
		l, f := r.store.Issue(r.order(n.to, run))
		if f != nil {
			continue
		}
		if closed, floor := last.get(); wasClosed && closed && floor == least {
			r.t.Errorf("a lease after the slot was closed")
		}
		if l.entry.revision < least {
			r.t.Errorf("a lease of revision %d after %d", l.entry.revision, least)
		}
		_, err := n.use(l, run)
		r.store.Ended("gpu-1", l.ID(), err == nil, because(credentiallease.Revoked))
		l.Close()
	}
}

// E15, the edge's half, CR-10: once Disable or Revoke has returned no lease of what was before is issued, whatever happens
// at the same time, and none of a key that is gone. Run with -race.
func TestNothingIsIssuedAfterRevoke(t *testing.T) {
	r := opened(t)
	n := r.node("gpu-1", 1)
	r.store.OnChange(func(_ []string, p Push) { // a node that answers at once, in between
		committed := n.guard.Revoke(credentiallease.Revocation{Slot: p.Slot, MinRevision: p.MinRevision, Disabled: p.Disabled})
		r.store.Acked("gpu-1", 1, p.Epoch, committed)
	})
	var last lastChange
	stop := make(chan struct{})
	var issuers sync.WaitGroup
	for i := range 4 {
		issuers.Go(func() { r.issueUntil(stop, n, fmt.Sprint(i), &last) })
	}
	for i := range 60 {
		f := []func(context.Context, string) (Change, error){r.store.Disable, r.store.Enable, r.store.Revoke, r.store.Refresh}[i%4]
		if i%4 == 3 {
			r.put(fmt.Sprintf("sk-round-%08d", i))
		}
		if i%4 == 1 || i%4 == 3 {
			last.set(false, 0)
		}
		c, err := f(t.Context(), "main")
		check(t, err)
		if len(c.Unanswered) != 0 {
			t.Errorf("%+v", c)
		}
		last.set(c.State != StateActive, c.Revision)
	}
	close(stop)
	issuers.Wait()
	if got := r.store.Counts(); got.Security != 0 || got.Unknown != 0 || got.Leases["main"]["committed"] == 0 {
		t.Errorf("%+v", got)
	}
	if len(r.store.ledger.live) != 0 || len(r.store.waits) != 0 {
		t.Errorf("%d leases and %d waits are left", len(r.store.ledger.live), len(r.store.waits))
	}
}

// BenchmarkIssue is the whole of the edge's part: checks, sealing, signing, ledger, audit.
func BenchmarkIssue(b *testing.B) {
	r := opened(b)
	to, _ := recipient(b, "gpu-1", 1)
	o := r.order(to, "run")
	took := make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	for b.Loop() {
		begun := time.Now()
		l, f := r.store.Issue(o)
		took = append(took, time.Since(begun))
		if f != nil {
			b.Fatal(f)
		}
		l.Void()
		l.Close()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}
