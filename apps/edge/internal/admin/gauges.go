package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/node"
)

// Sources are the snapshots that gauges are read from, each time somebody scrapes. A nil one is left out.
type Sources struct {
	// Nodes returns every configured node.
	Nodes func() []node.NodeView
	// Places returns places and waiters.
	Places func() admission.Snapshot
	// Live returns how many runs are live.
	Live func() int
	// OpenStreams returns the open work streams of each connected node; the control stream isn't one.
	OpenStreams func() map[string]int
	// LateFrames returns how many frames came after their run was decided, by kind.
	LateFrames func() map[string]uint64
	// NodeIgnored returns how many messages of nodes had no use, by why.
	NodeIgnored func() node.Ignored
	// EventsDropped returns how many events slow subscribers of the bus have lost.
	EventsDropped func() uint64
	// Listener returns what the listener of nodes did since the start.
	Listener func() ListenerStats
	// BodyBytes returns how many bytes of request bodies are held, in memory and in files.
	BodyBytes func() int64
}

// ListenerStats is what became of connections to the listener of nodes.
type ListenerStats struct {
	Accepted     uint64
	AcceptErrors uint64
	Refused      map[string]uint64 // by reason
	Unregistered int               // now
}

// gauges is the collector behind them.
type gauges struct {
	from Sources

	nodes, inFlight, capacity, unconfirmed, adopted, queued, draining *prometheus.Desc
	ignored, live, streams, late, dropped, bodies, unused             *prometheus.Desc
	accepted, acceptErrors, refused, unregistered                     *prometheus.Desc
}

func newGauges(s Sources) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &gauges{
		from:        s,
		nodes:       desc("iop_nodes", "Configured nodes, by state.", "state"),
		inFlight:    desc("iop_places_in_flight", "Places that are held.", "node", "adapter"),
		capacity:    desc("iop_places_capacity", "Places that there are.", "node", "adapter"),
		unconfirmed: desc("iop_places_unconfirmed", "Places held by runs whose end the node hasn't confirmed.", "node", "adapter"),
		adopted:     desc("iop_places_adopted", "Places held by runs of an earlier connection.", "node", "adapter"),
		queued:      desc("iop_queue_length", "Requests that wait for a place."),
		draining:    desc("iop_draining", "1 while the edge takes no new work."),
		ignored:     desc("iop_admission_ignored_total", "Words about places that came too late to change anything.", "about"),
		live:        desc("iop_runs_live", "Runs that are live."),
		streams:     desc("iop_open_streams", "Open work streams of a node's link.", "node"),
		late:        desc("iop_late_frames_total", "Frames that came after their run was decided.", "kind"),
		unused:      desc("iop_node_messages_ignored_total", "Messages of nodes that had no use, by why.", "reason"),
		dropped:     desc("iop_events_dropped_total", "Events that slow subscribers have lost."),
		bodies:      desc("iop_request_body_held_bytes", "Bytes of request bodies that are held."),

		accepted:     desc("iop_node_connections_accepted_total", "Connections to the listener of nodes."),
		acceptErrors: desc("iop_node_connections_failed_total", "Connections to the listener of nodes that couldn't be accepted."),
		refused:      desc("iop_node_registrations_refused_total", "Connections that didn't register, by why.", "reason"),
		unregistered: desc("iop_node_connections_unregistered", "Connections that haven't registered yet."),
	}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.nodes, g.inFlight, g.capacity, g.unconfirmed, g.adopted, g.queued, g.draining,
		g.ignored, g.live, g.streams, g.late, g.dropped, g.bodies, g.unused,
		g.accepted, g.acceptErrors, g.refused, g.unregistered} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(c chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		send(d, prometheus.GaugeValue, value, labels...)
	}
	if g.from.Nodes != nil {
		for state, n := range nodeStates(g.from.Nodes()) {
			gauge(g.nodes, float64(n), state)
		}
	}
	if g.from.Places != nil {
		g.collectPlaces(g.from.Places(), send)
	}
	if g.from.Live != nil {
		gauge(g.live, float64(g.from.Live()))
	}
	if g.from.OpenStreams != nil {
		for id, n := range g.from.OpenStreams() {
			gauge(g.streams, float64(n), id)
		}
	}
	if g.from.LateFrames != nil {
		for kind, n := range g.from.LateFrames() {
			send(g.late, prometheus.CounterValue, float64(n), kind)
		}
	}
	if g.from.NodeIgnored != nil {
		n := g.from.NodeIgnored()
		for reason, n := range map[string]uint64{"run_ended": n.RunEnded, "status": n.Status, "events": n.Events, "other": n.Other, "late": n.Late} {
			send(g.unused, prometheus.CounterValue, float64(n), reason)
		}
	}
	if g.from.EventsDropped != nil {
		send(g.dropped, prometheus.CounterValue, float64(g.from.EventsDropped()))
	}
	if g.from.Listener != nil {
		st := g.from.Listener()
		send(g.accepted, prometheus.CounterValue, float64(st.Accepted))
		send(g.acceptErrors, prometheus.CounterValue, float64(st.AcceptErrors))
		gauge(g.unregistered, float64(st.Unregistered))
		for reason, n := range st.Refused {
			send(g.refused, prometheus.CounterValue, float64(n), reason)
		}
	}
	if g.from.BodyBytes != nil {
		gauge(g.bodies, float64(g.from.BodyBytes()))
	}
}

// nodeStates counts nodes by state. A state without nodes is 0 and not absent: alerts compare with it.
func nodeStates(views []node.NodeView) map[string]int {
	n := map[string]int{}
	for _, s := range []node.State{node.StateRegistered, node.StateNotReady, node.StateReady, node.StateDraining,
		node.StateUnresponsive, node.StateOffline, node.StateDisabled} {
		n[string(s)] = 0
	}
	for _, v := range views {
		n[string(v.State)]++
	}
	return n
}

func (g *gauges) collectPlaces(snap admission.Snapshot, send func(*prometheus.Desc, prometheus.ValueType, float64, ...string)) {
	draining := 0.0
	if snap.Draining {
		draining = 1
	}
	send(g.draining, prometheus.GaugeValue, draining)
	send(g.queued, prometheus.GaugeValue, float64(snap.Queued))
	for about, n := range map[string]uint64{"sent": snap.Ignored.Sent, "release": snap.Ignored.Release, "rejected": snap.Ignored.Rejected,
		"decided": snap.Ignored.Decided, "ended": snap.Ignored.Ended,
		"adopt": snap.Ignored.Adopt, "stale": snap.Ignored.Stale} {
		send(g.ignored, prometheus.CounterValue, float64(n), about)
	}
	// A node that came back has places of two generations for a while; the series has one.
	sums := map[admission.Place]admission.PlaceSnapshot{}
	for _, p := range snap.Places {
		sum := sums[p.Place]
		sum.Capacity += p.Capacity
		sum.InFlight += p.InFlight
		sum.Unconfirmed += p.Unconfirmed
		sum.Adopted += p.Adopted
		sums[p.Place] = sum
	}
	for at, sum := range sums {
		send(g.inFlight, prometheus.GaugeValue, float64(sum.InFlight), at.Node, at.Adapter)
		send(g.capacity, prometheus.GaugeValue, float64(sum.Capacity), at.Node, at.Adapter)
		send(g.unconfirmed, prometheus.GaugeValue, float64(sum.Unconfirmed), at.Node, at.Adapter)
		send(g.adopted, prometheus.GaugeValue, float64(sum.Adopted), at.Node, at.Adapter)
	}
}
