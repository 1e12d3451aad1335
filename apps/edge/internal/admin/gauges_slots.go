package admin

import "github.com/prometheus/client_golang/prometheus"

// LeaseCounts is what became of leases, and of reading the sources of slots, since the start.
type LeaseCounts struct {
	Leases          map[string]map[string]uint64 // by slot and result: committed, refused, void, expired, unavailable
	Refusals        map[string]uint64            // by reason, the edge's and the nodes'
	RefreshFailures map[string]uint64            // by slot
	Security        uint64                       // leases that were used though they were void, and refusals that only an attack explains
	Unknown         uint64                       // ends of leases that this process doesn't know
}

// slotsGroup is the state of each slot.
func slotsGroup(read func() []SlotStatus) *group {
	state := gaugeOf("iop_slot_state", "1 for the state that the slot is in, 0 for the others.", "slot", "state")
	revision := gaugeOf("iop_slot_revision", "Number of the slot's key and state; it grows with each change.", "slot")
	return &group{[]*metric{state, revision}, func(c chan<- prometheus.Metric) {
		for _, s := range read() {
			for _, is := range []string{SlotActive, SlotDisabled, SlotRevoked} {
				state.truth(c, s.State == is, s.ID, is)
			}
			revision.set(c, float64(s.Revision), s.ID)
		}
	}}
}

// leasesGroup is what became of leases.
func leasesGroup(read func() LeaseCounts) *group {
	leases := counterOf("iop_leases_total", "Leases of the slot's key, by what became of them.", "slot", "result")
	refusals := counterOf("iop_lease_refusals_total", "Leases that were refused, by why, by the edge and by nodes.", "reason")
	failures := counterOf("iop_slot_refresh_failures_total", "Attempts to read the slot's source that failed.", "slot")
	security := counterOf("iop_lease_security_events_total", "Leases that were used though they were void, and refusals that only an attack explains.")
	unknown := counterOf("iop_lease_unknown_ends_total", "Ends of leases that this process of the edge doesn't know.")
	return &group{[]*metric{leases, refusals, failures, security, unknown}, func(c chan<- prometheus.Metric) {
		n := read()
		for slot, results := range n.Leases {
			for result, count := range results {
				leases.set(c, float64(count), slot, result)
			}
		}
		for reason, count := range n.Refusals {
			refusals.set(c, float64(count), reason)
		}
		for slot, count := range n.RefreshFailures {
			failures.set(c, float64(count), slot)
		}
		security.set(c, float64(n.Security))
		unknown.set(c, float64(n.Unknown))
	}}
}
