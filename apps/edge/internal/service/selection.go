package service

import (
	"slices"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// Match returns the test of whether an adapter of a node is a candidate of route for target: the route's adapter (any,
// when it names none), its nodes or labels, and an adapter that offers the target.
func Match(route *config.Route, target string) func(*admission.Node, *admission.Adapter) bool {
	return func(n *admission.Node, a *admission.Adapter) bool { return reaches(route, n, a) && a.Offers(target) }
}

// reaches reports whether a route leads to an adapter of a node, whatever the target.
func reaches(route *config.Route, n *admission.Node, a *admission.Adapter) bool {
	if route.Adapter != "" && route.Adapter != a.Name {
		return false
	}
	if len(route.Nodes) > 0 && !slices.Contains(route.Nodes, n.ID) {
		return false
	}
	if route.Slot != "" && !slices.Contains(route.SlotNodes, n.ID) {
		return false // it may not be given the key
	}
	for key, value := range route.Labels {
		if have, ok := n.Labels[key]; !ok || have != value {
			return false
		}
	}
	return true
}

// setOf names the candidate set: runs with the same name have the same candidates. Under one route the target may
// vary only when the route leaves it to the caller.
func setOf(route *config.Route, target string) string {
	if route.Target != "" {
		return route.Model
	}
	return route.Model + "\x00" + target
}

// ask implements job.
func (j *tunnelJob) ask(state *config.State, r *admission.Request) {
	if state.Route(j.Model) == j.route {
		r.SetRevision = state.Version
	}
	queue := j.route.Queue
	r.Set, r.Match, r.Target = j.set(), j.match(), j.Target
	r.Queue, r.Depth, r.Wait, r.FailFast = j.route.Model, queue.Depth, queue.Wait, j.route.FailFast
}

// readmit implements job.
func (j *tunnelJob) readmit(state *config.State, r *admission.Request) (bool, *execution.Failure) {
	route := state.Route(j.Model)
	switch {
	case route == nil || !permitted(state, j.Principal, route):
		f := execution.Failf(execution.CodeUnknownModel, execution.OriginEdge,
			"the configuration changed while the request waited: the model isn't there any more")
		f.NothingSent = true
		return false, f
	case route.Target != "" && route.Target != j.Target:
		// The body names the old target, and only the surface can change that.
		f := execution.Failf(execution.CodeNoNode, execution.OriginEdge,
			"the configuration changed while the request waited: the model has another target now; send the request again")
		f.RetryAfter, f.NothingSent = retryAfter, true
		return false, f
	}
	same := sameRoute(route, j.route)
	j.route = route
	if f := j.possible(state); f != nil {
		return false, f
	}
	r.SetRevision, r.Wait = state.Version, route.Queue.Wait
	if !same {
		r.Queue, r.Set, r.Match = route.Model, j.set(), j.match()
	}
	return same, nil
}

// fence checks what the run was admitted by against the configuration in force, just before something is sent. It is
// free of charge while that is the same object. Otherwise the numbers decide: what the job depends on and the
// adapter's revision as they were. False means that they differ and that the run has to be admitted anew; a failure
// that it can't be any more.
func (r *Run) fence(g *admission.Grant) (bool, *execution.Failure) {
	state := r.service.cfg.State()
	if state.Version == r.version {
		return true, nil
	}
	if same, f := r.job.readmit(state, &r.request); f != nil || !same {
		return false, f
	}
	if revision(state, g.Place) != g.AdapterRevision {
		// The node doesn't run the adapter as it is configured now. It will say so; until then the queue mustn't spin.
		r.service.cfg.Scheduler.Saturated(g.Place, g.Generation)
		return false, nil
	}
	r.version = state.Version
	return true, nil
}

// permitted reports whether the principal is still configured and may ask for the route; without principals everyone
// may.
func permitted(state *config.State, principal string, route *config.Route) bool {
	return state.Anonymous() || slices.ContainsFunc(state.Edge.Principals, func(p config.Principal) bool {
		return p.ID == principal && (len(p.Routes) == 0 || slices.Contains(p.Routes, route.Model))
	})
}

// sameRoute reports whether two versions of a route have the same candidates.
func sameRoute(a, b *config.Route) bool {
	if a.Model != b.Model || a.Adapter != b.Adapter || a.Target != b.Target ||
		a.Slot != b.Slot || !slices.Equal(a.SlotNodes, b.SlotNodes) || !slices.Equal(a.Nodes, b.Nodes) || len(a.Labels) != len(b.Labels) {
		return false
	}
	for key, value := range a.Labels {
		if other, ok := b.Labels[key]; !ok || other != value {
			return false
		}
	}
	return true
}

// revision returns the number that the configuration in force gives an adapter, 0 when it is gone.
func revision(state *config.State, p admission.Place) uint64 {
	projection := state.Projection(p.Node)
	if projection == nil {
		return 0
	}
	for i := range projection.Adapters {
		if a := &projection.Adapters[i]; a.Name == p.Adapter {
			return a.Revision
		}
	}
	return 0
}
