package service

import (
	"net/http"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// Leases lends provider keys, each for one attempt.
type Leases interface {
	// Issue makes a lease after a place was granted. A failure has the code credential_unavailable, and nothing was
	// sent; why is in the audit, not for callers.
	Issue(o LeaseOrder) (Lease, *execution.Failure)
}

// LeaseOrder is what a lease is asked for.
type LeaseOrder struct {
	Principal  string
	Route      *config.Route // whose slot it is
	RunID      string
	Attempt    uint32
	NodeID     string
	Generation uint64
	Projection uint64 // that the node works by
	Recipient  credentiallease.Recipient
	Proven     bool
	Adapter    *config.Adapter
	Target     string
	Method     string
	Path       string // as the caller sent it; "" = the request that the adapter makes of a normalized run
}

// Lease is permission to use a key once, for one attempt. The attempt's driver calls its methods, Close last; of Void,
// Refused and Lost the first call counts. What the node says of it at the run's end comes another way.
type Lease interface {
	Wire() []byte // goes into the open
	Profile() string
	// Current reports whether the slot is still as it was when the lease was issued.
	Current() bool
	// Used says that the provider has answered.
	Used()
	// Void says that the node never had it.
	Void()
	// Refused says that the node refused the open because of it.
	Refused(why execution.LeaseRefusal)
	// Lost says that the link went when the node had it: it may have been used.
	Lost()
	// Close says that the attempt is over.
	Close()
	// Scanner looks for the key in what comes back.
	Scanner() Scanner
}

// Scanner looks for a key in an answer. One goroutine calls its methods.
type Scanner interface {
	// Head reports whether the key is in a header.
	Head(h http.Header) bool
	// Pass returns what of a piece of a body may go out now, and whether the key was in it: then nothing more goes out.
	// It looks at the beginning of a body only, and keeps back what may be the beginning of the key.
	Pass(p []byte) (out []byte, reflected bool)
	// Rest returns what was kept back, at the body's end.
	Rest() []byte
	// Text reports whether the key is in s.
	Text(s string) bool
}

// errand is a request for which a provider wants a key.
type errand struct {
	route        *config.Route
	method, path string // path "" = the adapter's own for a normalized run
}

// errand implements carrier.
func (j *tunnelJob) errand(*config.State) *errand { return errandOf(j.route, j.Method, j.Path) }

// errand implements carrier.
func (w *asRun) errand(*config.State) *errand { return errandOf(w.of.route, http.MethodPost, "") }

// errand implements carrier. A run names no route: one with a key that leads where it goes is its route then, and the
// key that of the first that the principal may use.
func (w *runWay) errand(state *config.State) *errand {
	routes := state.Routes()
	for i := range routes {
		r := &routes[i]
		if r.Slot != "" && r.Adapter == w.spec.Adapter && leadsTo(r, w.spec.Target) && permitted(state, w.spec.Principal, r) {
			return errandOf(r, http.MethodPost, "")
		}
	}
	return nil
}

func errandOf(r *config.Route, method, path string) *errand {
	if r == nil || r.Slot == "" {
		return nil
	}
	return &errand{route: r, method: method, path: path}
}

// borrow gets the lease that this attempt needs, if it needs one. The place is granted, and nothing is written yet.
func (a *attempt) borrow() bool {
	r := a.run
	state := r.service.cfg.State()
	e := a.by.errand(state)
	if e == nil {
		return true
	}
	leases := r.service.cfg.Leases
	if leases == nil {
		f := execution.Failf(execution.CodeCredentialUnavailable, execution.OriginEdge, "the edge has no provider keys to lend")
		f.NothingSent = true
		r.decide(f)
		return false
	}
	adapter := adapterOf(state, a.grant.Place)
	if adapter == nil {
		return a.unsent() // reconfigured meanwhile
	}
	to, projection, proven := a.node.Recipient()
	lease, f := leases.Issue(LeaseOrder{
		Principal: r.out.Principal, Route: e.route, RunID: r.id, Attempt: r.attempt,
		NodeID: a.grant.Node, Generation: a.grant.Generation, Projection: projection, Recipient: to, Proven: proven,
		Adapter: adapter, Target: r.out.Target, Method: e.method, Path: e.path,
	})
	if f != nil {
		r.decide(f)
		return false
	}
	a.errand, a.lease, a.scan = e, lease, lease.Scanner()
	return true
}

// adapterOf finds the adapter of a place in the configuration, nil when it is gone.
func adapterOf(state *config.State, p admission.Place) *config.Adapter {
	projection := state.Projection(p.Node)
	if projection == nil {
		return nil
	}
	for i := range projection.Adapters {
		if a := &projection.Adapters[i]; a.Name == p.Adapter {
			return &a.Adapter
		}
	}
	return nil
}

// lend puts the lease into the open.
func (a *attempt) lend(open *pb.WorkOpen) {
	if a.lease == nil {
		return
	}
	if t := open.GetTunnel(); t != nil {
		t.Lease, t.Slot, t.Profile = a.lease.Wire(), a.errand.route.Slot, a.lease.Profile()
	}
	if q := open.GetRun(); q != nil {
		q.Lease, q.Slot, q.Profile, q.Route = a.lease.Wire(), a.errand.route.Slot, a.lease.Profile(), a.errand.route.Model
	}
}

// repay says what is known of the lease when the attempt ends; what the node says of it comes on control.
func (a *attempt) repay() {
	if a.lease == nil {
		return
	}
	defer a.lease.Close()
	switch {
	case a.stream == nil || !a.opened || a.refused:
		a.lease.Void()
	case a.downed():
		a.lease.Lost()
	}
}

// downed reports whether the node's connection is over.
func (a *attempt) downed() bool {
	select {
	case <-a.node.Down():
		return true
	default:
		return false
	}
}

// again reports whether a refused lease may be followed by a fresh one: only for what a fresh one cures, and once,
// but for stale revisions.
func (a *attempt) again(f *execution.Failure) bool {
	if a.lease == nil || f.Code != execution.CodeCredentialRefused {
		return false
	}
	why := credentiallease.Reason(f.Lease.Reason)
	// A key that was rotated while its lease was on the way is revoked to the node; the slot has another one.
	if !why.Retry() && (why != credentiallease.Revoked || a.lease.Current()) {
		return false
	}
	// Reloads may follow each other faster than a node takes them in.
	if why == credentiallease.StaleRevision {
		a.run.budget.revision++
		return a.run.budget.revision <= maxRevision
	}
	a.run.budget.lease++
	return a.run.budget.lease <= maxLease
}

// reflected ends a run whose provider sent the key back.
func (a *attempt) reflected() {
	r := a.run
	r.decide(execution.Failf(execution.CodeCredentialReflected, execution.OriginProvider,
		"the provider's answer had the key in it that it was called with; the rest of it is withheld"))
	r.service.cfg.Log.Error().Str("run_id", r.id).Str("node_id", a.grant.Node).Str("adapter", a.grant.Adapter).
		Str("slot", a.errand.route.Slot).Msg("a provider sent its key back: replace the key, and look at that provider")
	if r.service.cfg.Events != nil {
		r.service.cfg.Events.Publish(events.Event{Kind: events.KindReflected, NodeID: a.grant.Node, Generation: a.grant.Generation,
			Adapter: a.grant.Adapter, RunID: r.id, Code: execution.CodeCredentialReflected.String(),
			Text: "the answer had the key of slot " + a.errand.route.Slot + " in it and was withheld; replace the key, and look at that provider"})
	}
}

// echoes reports whether a text that came from the provider has the key in it, and ends the run then.
func (a *attempt) echoes(text string) bool {
	if a.scan == nil || !a.scan.Text(text) {
		return false
	}
	a.reflected()
	return true
}
