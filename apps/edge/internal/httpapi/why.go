package httpapi

import (
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// Found is where requests for a model go.
type Found struct {
	// Route serves it; nil = there is none.
	Route *config.Route
	// Target is what its adapters are asked to run.
	Target string
	// Failure is what callers are told instead, nil = they are let in.
	Failure *execution.Failure
}

// Find says where a request of a principal (nil = one that may use every route) for a model goes, as its surfaces find
// it. With a Failure it is where it would go if there were nothing wrong with it.
func (h *Handler) Find(state *config.State, p *config.Principal, asked string) Found {
	f, ref := h.resolve(&call{state: state, principal: p}, asked)
	if ref == nil {
		return Found{Route: f.route, Target: f.target}
	}
	out := Found{Route: state.Route(asked), Target: asked, Failure: ref.failure}
	for _, name := range namesOf(asked) {
		if route := state.Route(name); route != nil && route.Model == name {
			out.Route = route // the first, as requests take it
			break
		}
	}
	if out.Route != nil && out.Route.Target != "" {
		out.Target = out.Route.Target
	}
	return out
}

// GoesAsRun reports whether a request for a path can be served by adapters that don't carry it.
func GoesAsRun(path string) bool {
	for _, e := range Endpoints() {
		if e.Path == path && e.api != nil {
			return true
		}
	}
	return false
}
