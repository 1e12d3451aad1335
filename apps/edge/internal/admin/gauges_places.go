package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"iop/apps/edge/internal/admission"
)

// held is what is known of a place. A node that came back has places of two generations for a while; the series has
// one.
type held struct {
	inFlight, capacity, unconfirmed, adopted int
	saturated, broken                        bool
}

// placesGroup is the state of the scheduler.
func placesGroup(read func() admission.Snapshot) *group {
	draining := gaugeOf("iop_draining", "1 while the edge takes no new work.")
	queued := gaugeOf("iop_queue_length", "Requests that wait for a place.")
	ignored := counterOf("iop_admission_ignored_total", "Words about places that came too late to change anything.", "about")
	inFlight := gaugeOf("iop_places_in_flight", "Places that are held.", "node", "adapter")
	capacity := gaugeOf("iop_places_capacity", "Places that there are.", "node", "adapter")
	unconfirmed := gaugeOf("iop_places_unconfirmed", "Places held by runs whose end the node hasn't confirmed.", "node", "adapter")
	adopted := gaugeOf("iop_places_adopted", "Places held by runs of an earlier connection.", "node", "adapter")
	saturated := gaugeOf("iop_places_saturated", "1 while the node refuses work although places seem free.", "node", "adapter")
	broken := gaugeOf("iop_breaker_open", "1 while the adapter is taken out because it failed again and again.", "node", "adapter")
	all := []*metric{draining, queued, ignored, inFlight, capacity, unconfirmed, adopted, saturated, broken}
	return &group{all, func(c chan<- prometheus.Metric) {
		snap := read()
		draining.truth(c, snap.Draining)
		queued.set(c, float64(snap.Queued))
		n := &snap.Ignored
		for about, n := range map[string]uint64{"sent": n.Sent, "release": n.Release, "rejected": n.Rejected, "decided": n.Decided,
			"ended": n.Ended, "adopt": n.Adopt, "stale": n.Stale} {
			ignored.set(c, float64(n), about)
		}
		for at, p := range sumPlaces(snap.Places) {
			inFlight.set(c, float64(p.inFlight), at.Node, at.Adapter)
			capacity.set(c, float64(p.capacity), at.Node, at.Adapter)
			unconfirmed.set(c, float64(p.unconfirmed), at.Node, at.Adapter)
			adopted.set(c, float64(p.adopted), at.Node, at.Adapter)
			saturated.truth(c, p.saturated, at.Node, at.Adapter)
			broken.truth(c, p.broken, at.Node, at.Adapter)
		}
	}}
}

func sumPlaces(places []admission.PlaceSnapshot) map[admission.Place]*held {
	sums := map[admission.Place]*held{}
	for i := range places {
		p := &places[i]
		sum := sums[p.Place]
		if sum == nil {
			sum = &held{}
			sums[p.Place] = sum
		}
		sum.inFlight += p.InFlight
		sum.capacity += p.Capacity
		sum.unconfirmed += p.Unconfirmed
		sum.adopted += p.Adopted
		sum.saturated = sum.saturated || p.Saturated
		sum.broken = sum.broken || p.Broken != nil
	}
	return sums
}
