package edge

import (
	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/httpapi"
	"iop/apps/edge/internal/node"
)

// view joins what the registry and the scheduler know into what people and surfaces see. It changes nothing.
type view struct {
	registry  *node.Registry
	scheduler *admission.Scheduler
}

// nodes are the nodes with the edge's own count of held places: the node's is as old as its last report.
func (v *view) nodes() []node.NodeView {
	held := map[admission.Place]int{}
	for _, p := range v.scheduler.Snapshot().Places {
		held[p.Place] += p.InFlight
	}
	views := v.registry.Nodes()
	for i := range views {
		for j := range views[i].Adapters {
			a := &views[i].Adapters[j]
			a.InFlight = held[admission.Place{Node: views[i].ID, Adapter: a.Name}]
		}
	}
	return views
}

// offers are what the adapters are known to serve.
func (v *view) offers() []httpapi.Offer {
	models := v.registry.Models()
	offers := make([]httpapi.Offer, len(models))
	for i, m := range models {
		offers[i] = httpapi.Offer{Node: m.NodeID, Labels: m.Labels, Adapter: m.Adapter, Targets: m.Targets, Models: m.Models}
	}
	return offers
}

// openStreams are the open streams of each connected node.
func (v *view) openStreams() map[string]int {
	open := map[string]int{}
	for _, c := range v.registry.Connections() {
		open[c.NodeID] = c.Link.Status().OpenStreams
	}
	return open
}

// notReady says why the edge takes no work.
func (v *view) notReady() []string {
	if v.registry.Draining() {
		return []string{"the edge is draining"}
	}
	return nil
}
