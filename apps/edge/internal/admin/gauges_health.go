package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"iop/apps/edge/internal/node"
	"iop/packages/go/identity"
)

// healthGroup is what connected nodes say of themselves beside their work, and how long they may still connect.
func healthGroup(read func() []node.Health) *group {
	store := gaugeOf("iop_node_store_degraded", "1 while the node can't write its record of what it ran.", "node")
	clock := gaugeOf("iop_node_clock_unsynced", "1 while the node says that its clock isn't in step with the edge's.", "node")
	begins := gaugeOf("iop_node_identity_not_before_seconds", "When the certificate began that the node registered with, in Unix time.", "node")
	ends := gaugeOf("iop_node_identity_not_after_seconds", "When the certificate ends that the node registered with, in Unix time.", "node")
	configured := gaugeOf("iop_places_configured", "Places that the configuration gives the adapter of a connected node.", "node", "adapter")
	return &group{[]*metric{store, clock, begins, ends, configured}, func(c chan<- prometheus.Metric) {
		for _, h := range read() {
			store.truth(c, h.StoreDegraded, h.NodeID)
			clock.truth(c, h.ClockUnsynced, h.NodeID)
			if v := h.Certificate; !v.Ends.IsZero() {
				begins.set(c, float64(v.Begins.Unix()), h.NodeID)
				ends.set(c, float64(v.Ends.Unix()), h.NodeID)
			}
			for adapter, n := range h.Configured {
				configured.set(c, float64(n), h.NodeID, adapter)
			}
		}
	}}
}

// expiryGroup is when the edge's own certificates end.
func expiryGroup(read func() map[string]identity.Validity) *group {
	ends := gaugeOf("iop_identity_not_after_seconds", "When a certificate ends that this program relies on, in Unix time.", "what")
	begins := gaugeOf("iop_identity_not_before_seconds", "When a certificate began that this program relies on, in Unix time.", "what")
	return &group{[]*metric{begins, ends}, func(c chan<- prometheus.Metric) {
		for what, v := range read() {
			begins.set(c, float64(v.Begins.Unix()), what)
			ends.set(c, float64(v.Ends.Unix()), what)
		}
	}}
}
