package admin

import (
	"fmt"
	"slices"
	"strings"

	"iop/apps/edge/internal/node"
)

// warnings are what deserves somebody's attention though the Edge takes work: what the program knows by itself
// (Config.Warnings), and what nodes and places look like.
func (h *handler) warnings(nodes []node.NodeView, q *queueView) []string {
	found := []string{}
	if h.cfg.Warnings != nil {
		found = append(found, h.cfg.Warnings()...)
	}
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	ready := 0
	for i := range nodes {
		switch n := &nodes[i]; {
		case n.State == node.StateUnresponsive:
			add("the node %s is connected and doesn't answer what is sent to it", n.ID)
		case n.State == node.StateNotReady:
			add("the node %s is connected and doesn't say that it can work", n.ID)
		case n.State == node.StateReady && !n.Drained && slices.ContainsFunc(n.Adapters, func(a node.AdapterView) bool { return a.Available }):
			ready++
		}
	}
	if ready == 0 {
		add("no adapter of any node takes work; callers wait for one, as their routes say")
	}
	for i := range q.Places {
		p := &q.Places[i]
		if p.Unconfirmed > 0 {
			add("%s on %s: places held by runs that are over, which the node hasn't confirmed: %d", p.Adapter, p.Node, p.Unconfirmed)
		}
		if p.Broken != nil {
			add("%s on %s is taken out, because it failed %d times in a row", p.Adapter, p.Node, p.Broken.Failures)
		}
	}
	if v := versionsOf(nodes, h.cfg.Version); len(v) > 1 {
		add("programs of different versions work together: %s", strings.Join(v, ", "))
	}
	return found
}

// versionsOf are the versions of the Edge and the nodes that are connected, sorted.
func versionsOf(nodes []node.NodeView, edge string) []string {
	all := []string{edge}
	for i := range nodes {
		if n := &nodes[i]; n.Since != nil && n.Version != "" {
			all = append(all, n.Version)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
