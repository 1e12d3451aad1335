package service

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// How runs wait that no route leads: in one queue for each adapter name.
const (
	runQueueDepth = config.RunQueueDepth
	runQueueWait  = time.Minute
)

// ask implements job.
func (j *runJob) ask(state *config.State, r *admission.Request) {
	r.SetRevision = state.Version
	r.Target, r.Queue, r.Depth, r.Wait = j.spec.Target, "\x00run\x00"+j.spec.Adapter, runQueueDepth, runQueueWait
	if routes, f := j.admissible(state); f == nil {
		r.Set, r.Match = j.candidates(state, routes)
	}
}

// readmit implements job.
func (j *runJob) readmit(state *config.State, r *admission.Request) (bool, *execution.Failure) {
	routes, f := j.admissible(state)
	if f != nil {
		f.NothingSent = true
		return false, f
	}
	set, match := j.candidates(state, routes)
	same := set == r.Set
	r.Set, r.SetRevision, r.Match = set, state.Version, match
	return same, nil
}

// admissible refuses a run that the configuration has no place for: its adapter isn't there, or its principal may not
// use it for this target. It returns the routes by which a principal with a list of them comes there; none with a nil
// failure is no such list.
func (j *runJob) admissible(state *config.State) ([]*config.Route, *execution.Failure) {
	s := &j.spec
	if s.Node != "" && state.Node(s.Node) == nil {
		return nil, execution.Failf(execution.CodeNoNode, execution.OriginEdge, "no node of the name that was asked for is configured")
	}
	there := slices.ContainsFunc(state.Edge.Nodes, func(n config.NodeRecord) bool {
		return (s.Node == "" || n.ID == s.Node) &&
			slices.ContainsFunc(n.Adapters, func(a config.Adapter) bool { return a.Name == s.Adapter })
	})
	routes, allowed := routesTo(state, s.Principal, s.Adapter, s.Target)
	switch {
	case !there:
		return nil, execution.Failf(execution.CodeUnknownAdapter, execution.OriginEdge, "no adapter of this name is configured")
	case !allowed:
		return nil, execution.Failf(execution.CodeUnknownAdapter, execution.OriginEdge,
			"no route of this principal leads to this adapter and target")
	}
	return routes, nil
}

// routesTo returns the routes by which a principal may use an adapter for a target, and whether it may at all: one
// without a list of routes may do so without.
func routesTo(state *config.State, principal, adapter, target string) (routes []*config.Route, allowed bool) {
	if state.Anonymous() {
		return nil, true
	}
	i := slices.IndexFunc(state.Edge.Principals, func(p config.Principal) bool { return p.ID == principal })
	if i < 0 {
		return nil, false
	}
	list := state.Edge.Principals[i].Routes
	if len(list) == 0 {
		return nil, true
	}
	for j := range state.Edge.Routes {
		route := &state.Edge.Routes[j]
		if !slices.Contains(list, route.Model) || route.Adapter != "" && route.Adapter != adapter {
			continue
		}
		if leadsTo(route, target) {
			routes = append(routes, route)
		}
	}
	return routes, len(routes) > 0
}

// leadsTo reports whether a route asks for the target: its own, or, when it has none, the model's name.
func leadsTo(route *config.Route, target string) bool {
	switch {
	case route.Target != "":
		return route.Target == target
	case route.Model == "*":
		return true
	}
	return route.Model == target
}

// candidates returns the set of a run's candidates: adapters of its name that offer its target, on its node if it names
// one, and where one of the routes leads if there are any. If exactly one node is connected, and none was named, that
// one is a candidate although its provider doesn't name the target, so that its own answer is seen; a configured list
// of targets stands.
func (j *runJob) candidates(state *config.State, routes []*config.Route) (string, func(*admission.Node, *admission.Adapter) bool) {
	node, adapter, target, only := j.spec.Node, j.spec.Adapter, j.spec.Target, j.only
	name := []string{"", "run", adapter, target, node, only}
	if routes != nil {
		// The same for all runs of the principal until the configuration changes.
		name = append(name, j.spec.Principal, strconv.FormatUint(state.Version, 10))
	}
	return strings.Join(name, "\x00"), func(n *admission.Node, a *admission.Adapter) bool {
		if a.Name != adapter || node != "" && n.ID != node {
			return false
		}
		if routes != nil && !slices.ContainsFunc(routes, func(r *config.Route) bool { return reaches(r, n, a) }) {
			return false
		}
		return a.Offers(target) || n.ID == only && len(a.Targets) == 0
	}
}

// single is the node that is used when a run names none: the only one that is connected, "" when there are others.
func (s *Service) single() string {
	if connected := s.cfg.Nodes.Connected(); len(connected) == 1 {
		return connected[0]
	}
	return ""
}
