package httpapi

import (
	"fmt"
	"slices"
	"strings"

	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// wildcard is the model name of a route that takes every model under its own name.
const wildcard = "*"

// latest is the tag that Ollama gives a name without one. Its clients use either.
const latest = ":latest"

// namesOf returns the names under which a model is looked for, the one that was asked for first.
func namesOf(asked string) []string {
	switch short, ok := strings.CutSuffix(asked, latest); {
	case ok && short != "" && !tagged(short): // a name has one tag, or it would lead to what another name has
		return []string{asked, short}
	case tagged(asked):
		return []string{asked}
	}
	return []string{asked, asked + latest}
}

// tagged reports whether a model's name has a tag.
func tagged(name string) bool {
	return strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ":")
}

// found is where a request for a model goes.
type found struct {
	model  string // the name by which the route was found
	route  *config.Route
	target string
}

// resolve finds the route of a model for the principal of a call: one of its name, then the wildcard. A model that
// isn't the principal's is as unknown as one that doesn't exist.
func (h *Handler) resolve(c *call, asked string) (found, *refusal) {
	names := namesOf(asked)
	refused := unknownModel()
	for i, name := range names {
		if !named(c.state, name) || !mayUse(c.principal, c.state.Route(name)) {
			continue
		}
		f := found{model: name, route: c.state.Route(name)}
		targets := []string{f.route.Target}
		if f.route.Target == "" {
			targets = namesOf(name)
		}
		f, ref := h.bestTarget(c.state, f, targets)
		if ref == nil {
			return f, nil
		}
		if i == 0 {
			refused = ref
		}
	}
	route := c.state.Route(asked)
	if route == nil || asked == wildcard || taken(c.state, asked) || !mayUse(c.principal, route) {
		return found{}, refused
	}
	if f, ref := h.bestTarget(c.state, found{model: asked, route: route}, names); ref == nil {
		return f, nil
	}
	return found{}, refused
}

// taken reports whether a route of its own has the model by one of its names: then the wildcard doesn't lead to it. What
// a principal may not ask for it doesn't get under another spelling.
func taken(state *config.State, model string) bool {
	return slices.ContainsFunc(namesOf(model), func(name string) bool { return named(state, name) })
}

// named reports whether a route of its own has this name.
func named(state *config.State, name string) bool {
	route := state.Route(name)
	return route != nil && route.Model == name && name != wildcard
}

// bestTarget chooses of the names that a route's target may have: the first that a candidate serves, else the first that
// one may serve which hasn't been heard yet.
func (h *Handler) bestTarget(state *config.State, f found, targets []string) (found, *refusal) {
	hope := ""
	for _, target := range targets {
		offered, known := h.offered(state, f.route, target)
		if offered {
			f.target = target
			return f, nil
		}
		if hope == "" && (known == nobody || known == somebody && f.route.Model != wildcard) {
			hope = target
		}
	}
	switch {
	case hope != "":
		f.target = hope
		return f, nil
	case f.route.Model == wildcard:
		return f, unknownModel()
	}
	return f, notOffered(f.route, targets[0])
}

// notOffered says what is wrong with a route whose adapters are all known and all lack its target: waiting for a place
// would end in no_node and tell nothing.
func notOffered(route *config.Route, target string) *refusal {
	ref := refuseCode(execution.CodeUnknownModel, execution.OriginEdge, fmt.Sprintf(
		"the route %q leads to the target %q, which none of its adapters lists; load the model, or name it in the adapter's targets if the provider serves more than it lists",
		route.Model, target))
	ref.param = "model"
	return ref
}

func unknownModel() *refusal {
	ref := refuseCode(execution.CodeUnknownModel, execution.OriginCaller,
		"no such model, or it isn't this key's; GET /v1/models lists those that are")
	ref.param = "model"
	return ref
}

// heard is how many of a route's candidates have told what they serve.
type heard uint8

const (
	nobody heard = iota // the edge has just started: waiting for a node tells
	somebody
	everybody
)

// offered reports whether a candidate of the route serves target, now or when it comes back, and otherwise how much
// that says: of a wildcard route no candidate may serve a model that somebody mistyped; of any other the operator said
// that one does, so that a candidate which hasn't been heard is waited for.
func (h *Handler) offered(state *config.State, route *config.Route, target string) (offered bool, known heard) {
	told := map[adapterKey]bool{}
	for _, o := range h.cfg.Offers() {
		if !o.matches(route) {
			continue
		}
		if o.serves(target) {
			return true, somebody
		}
		told[o.key()] = true
	}
	if len(told) == 0 {
		return false, nobody
	}
	for key := range adaptersOf(state, route) {
		if !told[key] {
			return false, somebody
		}
	}
	return false, everybody
}

// ways reports by which ways a request for a path can be served: by adapters that carry it, and by others, which it can
// only reach as a run. Of an adapter that has told what it serves only that counts.
func (h *Handler) ways(state *config.State, f found, path string) (carry, others bool) {
	if !h.mixed.of(state, f.route, path) {
		return true, false
	}
	told := map[adapterKey]*Offer{}
	offers := h.cfg.Offers()
	for i := range offers {
		if offers[i].matches(f.route) {
			told[offers[i].key()] = &offers[i]
		}
	}
	for key, a := range adaptersOf(state, f.route) {
		o := told[key]
		if o == nil {
			o = &Offer{Targets: a.Targets}
		}
		switch {
		case !o.serves(f.target):
		case httprules.Carries(a.Kind, a.AllowPaths, path):
			carry = true
		default:
			others = true
		}
	}
	return carry, others
}
