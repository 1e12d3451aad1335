package edge

import (
	"fmt"
	"sync/atomic"
	"time"

	"iop/apps/edge/internal/admin"
	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/httpapi"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/transport"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// view joins what the registry and the scheduler know into what people and surfaces see. It changes nothing.
type view struct {
	registry  *node.Registry
	scheduler *admission.Scheduler
	places    *places
	last      atomic.Pointer[offered]
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

// offersFor bounds how long a list of offers is used again: what a node that left offered ends by time alone.
const offersFor = time.Second

// offered is a list of offers and when it was made.
type offered struct {
	list    []httpapi.Offer
	changes uint64
	at      time.Time
}

// offers are what the adapters are known to serve. Every request asks, so the list is made anew only when something
// changed.
func (v *view) offers() []httpapi.Offer {
	changes := v.places.changes.Load() // before the registry is read: a change in between makes the next list
	if last := v.last.Load(); last != nil && last.changes == changes && time.Since(last.at) < offersFor {
		return last.list
	}
	models := v.registry.Models()
	list := make([]httpapi.Offer, len(models))
	for i, m := range models {
		list[i] = httpapi.Offer{Node: m.NodeID, Labels: m.Labels, Adapter: m.Adapter, Targets: m.Targets, Models: m.Models}
	}
	v.last.Store(&offered{list: list, changes: changes, at: time.Now()})
	return list
}

// places is the scheduler as the registry sees it; it notes that what nodes offer has changed.
type places struct {
	*admission.Scheduler
	changes atomic.Uint64
}

// Publish implements node.Scheduler.
func (p *places) Publish(n admission.Node) {
	p.Scheduler.Publish(n)
	p.changes.Add(1)
}

// Fence implements node.Scheduler.
func (p *places) Fence(id string, generation uint64) {
	p.Scheduler.Fence(id, generation)
	p.changes.Add(1)
}

// offered returns how a provider calls a model that an adapter is asked for, "" when it didn't name it.
func (v *view) offered(nodeID, adapter, target string) string {
	for _, o := range v.offers() {
		if o.Node != nodeID || o.Adapter != adapter {
			continue
		}
		for _, name := range o.Targets {
			if execution.SameModel(name, target) {
				return name
			}
		}
		for i := range o.Models {
			if execution.SameModel(o.Models[i].Name, target) {
				return o.Models[i].Name
			}
		}
	}
	return ""
}

// links are the links of the connected nodes.
func (v *view) links() []admin.LinkStats {
	live := v.registry.Connections()
	all := make([]admin.LinkStats, len(live))
	for i, c := range live {
		st := c.Link.Status()
		all[i] = admin.LinkStats{Node: c.NodeID, OpenStreams: st.OpenStreams, Pending: st.Pending, BytesIn: st.BytesIn,
			BytesOut: st.BytesOut, RoundTrip: st.RTT}
	}
	return all
}

// publishReload tells of a try to reload the configuration, unless it says nothing new.
func publishReload(bus *events.Bus, version uint64, changed bool, err error) {
	e := events.Event{Kind: events.KindReloaded, Text: fmt.Sprintf("configuration %d is in force", version)}
	switch {
	case err != nil:
		// What is wrong stands in the log only: it may quote what the file holds.
		e.Kind, e.Text = events.KindReloadRefused, fmt.Sprintf("configuration %d stays in force; the log says what is wrong with the file", version)
	case !changed:
		return
	}
	e.Code = e.Kind.String()
	bus.Publish(e)
}

// notReady says why the edge takes no work.
func (v *view) notReady() []string {
	if v.registry.Draining() {
		return []string{"the edge is draining"}
	}
	return nil
}

// find says where a request of a principal for a model goes.
func (g *graph) find(s *config.State, p *config.Principal, model string) (*config.Route, string, *execution.Failure) {
	f := g.handler.Find(s, p, model)
	return f.Route, f.Target, f.Failure
}

// release takes places back, and tells of it.
func (g *graph) release(bus *events.Bus) func(at admission.Place, runID string, force bool) admission.Released {
	return func(at admission.Place, runID string, force bool) admission.Released {
		done := g.scheduler.Release(at, runID, force)
		if done.Places > 0 {
			bus.Publish(events.Event{Kind: events.KindPlaceReleased, NodeID: at.Node, Adapter: at.Adapter, RunID: runID,
				Code: events.KindPlaceReleased.String(), Text: "an operator took back what the run held"})
		}
		return done
	}
}

// listenerStats is what the listener of nodes counts, as the metrics show it.
func listenerStats(s *transport.Server) admin.ListenerStats {
	st := s.Stats()
	return admin.ListenerStats{Accepted: st.Accepted, AcceptErrors: st.AcceptErrors, Refused: st.Refused, Unregistered: st.Unregistered}
}
