package httpapi

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// adapterKey names an adapter of a node.
type adapterKey struct{ node, adapter string }

// adaptersOf walks the adapters that the configuration gives a route.
func adaptersOf(state *config.State, route *config.Route) iter.Seq2[adapterKey, *config.Adapter] {
	return func(yield func(adapterKey, *config.Adapter) bool) {
		for i := range state.Edge.Nodes {
			n := &state.Edge.Nodes[i]
			for j := range n.Adapters {
				a := &n.Adapters[j]
				candidate := Offer{Node: n.ID, Labels: n.Labels, Adapter: a.Name}
				if n.Enabled && candidate.matches(route) && !yield(candidate.key(), a) {
					return
				}
			}
		}
	}
}

func (o *Offer) key() adapterKey { return adapterKey{o.Node, o.Adapter} }

// matches reports whether the adapter is a candidate of a route.
func (o *Offer) matches(route *config.Route) bool {
	if route.Adapter != "" && route.Adapter != o.Adapter {
		return false
	}
	if len(route.Nodes) > 0 && !slices.Contains(route.Nodes, o.Node) {
		return false
	}
	for name, value := range route.Labels {
		if o.Labels[name] != value {
			return false
		}
	}
	return true
}

// serves reports whether the adapter can be asked for target, as the scheduler sees it: a name that a provider knows
// stays as the caller wrote it, and so does its answer.
func (o *Offer) serves(target string) bool {
	if len(o.Targets) > 0 {
		return slices.ContainsFunc(o.Targets, func(name string) bool { return execution.SameModel(name, target) })
	}
	return len(o.Models) == 0 || slices.ContainsFunc(o.Models, func(m execution.Model) bool { return execution.SameModel(m.Name, target) })
}

// mixture remembers which routes of a configuration have adapters that don't carry a path. It is asked for each request,
// and for most fleets the answer is that they all do.
type mixture struct{ last atomic.Pointer[mixtureOf] }

type mixtureOf struct {
	state *config.State
	known sync.Map // of routePath to bool
}

type routePath struct {
	route *config.Route
	path  string // of an endpoint: there are only so many
}

func (m *mixture) of(state *config.State, route *config.Route, path string) bool {
	cache := m.last.Load()
	if cache == nil || cache.state != state {
		cache = &mixtureOf{state: state}
		m.last.Store(cache)
	}
	key := routePath{route, path}
	if mixed, ok := cache.known.Load(key); ok {
		return mixed.(bool)
	}
	mixed := false
	for _, a := range adaptersOf(state, route) {
		if mixed = !httprules.Carries(a.Kind, a.AllowPaths, path); mixed {
			break
		}
	}
	cache.known.Store(key, mixed)
	return mixed
}
