package config

import (
	"slices"
	"strings"
)

func (d *decoder) checkRoutes(e *Edge) {
	models := newUnique(d, "model")
	for i := range e.Routes {
		r, p := &e.Routes[i], index("routes", i)
		switch {
		case r.Model == "":
			d.add(p+".model", `is missing; name what callers ask for, or "*" for every model that a node has`)
		case !modelName(r.Model):
			d.add(p+".model", "%s can't be a model's name: at most 256 characters, no blanks", quote(r.Model))
		default:
			models.add(p+".model", r.Model, r.Model)
		}
		if r.Target != "" && !modelName(r.Target) {
			d.add(p+".target", "%s can't be a model's name: at most 256 characters, no blanks", quote(r.Target))
		}
		if r.Model == "*" && r.Target != "" {
			d.add(p+".target", `a route for "*" passes the name on that was asked for; remove target`)
		}
		if len(r.Nodes) > 0 && len(r.Labels) > 0 {
			d.add(p+".labels", "stands beside nodes; keep one of them")
		}
		d.checkLabels(p+".labels", r.Labels)
		d.rangeOf(p+".queue.depth", int64(r.Queue.Depth), 0, 100_000)
		d.checkPool(p, r, e.Nodes)
		d.checkRouteSlot(p, r, e)
	}
}

// checkPool checks that the names in a route mean something, and that some node could serve it.
func (d *decoder) checkPool(p string, r *Route, nodes []NodeRecord) {
	ids := make([]string, len(nodes))
	for i := range nodes {
		ids[i] = nodes[i].ID
	}
	named := newUnique(d, "node in this list")
	for i, id := range r.Nodes {
		np := index(p+".nodes", i)
		at := slices.Index(ids, id)
		switch {
		case at < 0:
			d.dangling(np, "there is no node", id, ids)
		case r.Adapter != "" && !slices.Contains(adapterNames(nodes[at:at+1]), r.Adapter):
			d.add(np, "node %s has no adapter %s; it has: %s", quote(id), quote(r.Adapter),
				strings.Join(adapterNames(nodes[at:at+1]), ", "))
		}
		named.add(np, id, id)
	}
	pool := nodes
	if len(r.Labels) > 0 {
		pool = slices.DeleteFunc(slices.Clone(nodes), func(n NodeRecord) bool { return !n.HasLabels(r.Labels) })
		if len(pool) == 0 {
			d.add(p+".labels", "no node has these labels")
			return
		}
	}
	if names := adapterNames(pool); r.Adapter != "" && len(r.Nodes) == 0 && !slices.Contains(names, r.Adapter) {
		d.dangling(p+".adapter", "no node that may serve this route has an adapter", r.Adapter, names)
	}
}

// HasLabels reports whether the node has all of these labels.
func (n *NodeRecord) HasLabels(labels map[string]string) bool {
	for k, v := range labels {
		if have, ok := n.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func adapterNames(nodes []NodeRecord) []string {
	var names []string
	for i := range nodes {
		for j := range nodes[i].Adapters {
			names = append(names, nodes[i].Adapters[j].Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
