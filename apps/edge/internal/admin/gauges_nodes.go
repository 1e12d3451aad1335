package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"iop/apps/edge/internal/node"
)

// nodesGroup is the state of each node and of its adapters.
func nodesGroup(read func() []node.NodeView) *group {
	states := gaugeOf("iop_nodes", "Configured nodes, by state.", "state")
	connected := gaugeOf("iop_node_connected", "1 while the node has a connection.", "node")
	ready := gaugeOf("iop_node_ready", "1 while work may be sent to the node.", "node")
	drained := gaugeOf("iop_node_drained", "1 while an operator keeps new work from the node.", "node")
	disabled := gaugeOf("iop_node_disabled", "1 while the configuration keeps the node out.", "node")
	generation := gaugeOf("iop_node_connection_generation", "Number of the node's current or last connection; it only grows.", "node")
	heard := gaugeOf("iop_node_last_heard_timestamp_seconds", "When anything last came from the node.", "node")
	available := gaugeOf("iop_adapter_available", "1 while the adapter's provider can be used.", "node", "adapter")
	return &group{[]*metric{states, connected, ready, drained, disabled, generation, heard, available}, func(c chan<- prometheus.Metric) {
		views := read()
		for state, n := range nodeStates(views) {
			states.set(c, float64(n), state)
		}
		for i := range views {
			v := &views[i]
			connected.truth(c, v.Since != nil, v.ID)
			ready.truth(c, v.State == node.StateReady, v.ID)
			drained.truth(c, v.Drained, v.ID)
			disabled.truth(c, v.State == node.StateDisabled, v.ID)
			generation.set(c, float64(v.Generation), v.ID)
			if v.LastHeartbeat != nil {
				heard.set(c, float64(v.LastHeartbeat.UnixMilli())/1000, v.ID)
			}
			for _, a := range v.Adapters {
				available.truth(c, a.Available, v.ID, a.Name)
			}
		}
	}}
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

// endedGroup is why connections ended. A reason that there wasn't yet is 0, so that the first one is seen as a change.
func endedGroup(read func() map[node.FenceReason]uint64) *group {
	ended := counterOf("iop_node_connections_ended_total", "Connections of registered nodes that have ended, by why.", "reason")
	return &group{[]*metric{ended}, func(c chan<- prometheus.Metric) {
		n := read()
		for _, why := range node.FenceReasons() {
			ended.set(c, float64(n[why]), string(why))
		}
	}}
}

func ignoredGroup(read func() node.Ignored) *group {
	ignored := counterOf("iop_node_messages_ignored_total", "Messages of nodes that had no use, by why.", "reason")
	return &group{[]*metric{ignored}, func(c chan<- prometheus.Metric) {
		n := read()
		for reason, n := range map[string]uint64{"run_ended": n.RunEnded, "status": n.Status, "events": n.Events, "other": n.Other, "late": n.Late} {
			ignored.set(c, float64(n), reason)
		}
	}}
}

// linksGroup is what the links of connected nodes carry. Its counters are those of the current connection: they begin
// anew with each.
func linksGroup(read func() []LinkStats) *group {
	streams := gaugeOf("iop_open_streams", "Open work streams of a node's link.", "node")
	pending := gaugeOf("iop_link_pending_bytes", "Bytes that wait to be written to a node's link.", "node")
	in := counterOf("iop_link_received_bytes_total", "Bytes from a node, on its current connection.", "node")
	out := counterOf("iop_link_sent_bytes_total", "Bytes to a node, on its current connection.", "node")
	rtt := gaugeOf("iop_link_round_trip_seconds", "Time that the last heartbeat took to a node and back.", "node")
	return &group{[]*metric{streams, pending, in, out, rtt}, func(c chan<- prometheus.Metric) {
		for _, l := range read() {
			streams.set(c, float64(l.OpenStreams), l.Node)
			pending.set(c, float64(l.Pending), l.Node)
			in.set(c, float64(l.BytesIn), l.Node)
			out.set(c, float64(l.BytesOut), l.Node)
			if l.RoundTrip > 0 {
				rtt.set(c, l.RoundTrip.Seconds(), l.Node)
			}
		}
	}}
}

// listenerGroup is what comes of connections to the listener of nodes before they are registered.
func listenerGroup(read func() ListenerStats) *group {
	accepted := counterOf("iop_node_connections_accepted_total", "Connections to the listener of nodes.")
	failed := counterOf("iop_node_connections_failed_total", "Connections to the listener of nodes that couldn't be accepted.")
	refused := counterOf("iop_node_registrations_refused_total", "Connections that didn't register, by why.", "reason")
	unregistered := gaugeOf("iop_node_connections_unregistered", "Connections that haven't registered yet.")
	return &group{[]*metric{accepted, failed, refused, unregistered}, func(c chan<- prometheus.Metric) {
		st := read()
		accepted.set(c, float64(st.Accepted))
		failed.set(c, float64(st.AcceptErrors))
		unregistered.set(c, float64(st.Unregistered))
		for reason, n := range st.Refused {
			refused.set(c, float64(n), reason)
		}
	}}
}
