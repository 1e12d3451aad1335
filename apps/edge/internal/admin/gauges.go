package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/packages/go/identity"
)

// Sources are the snapshots that gauges are read from, each time somebody scrapes. A nil one is left out.
type Sources struct {
	// Nodes returns every configured node.
	Nodes func() []node.NodeView
	// Health returns what connected nodes say of themselves.
	Health func() []node.Health
	// Certificates returns how long those are good that the edge relies on, by what they are for.
	Certificates func() map[string]identity.Validity
	// Ended returns how many connections of nodes have ended, by why.
	Ended func() map[node.FenceReason]uint64
	// NodeIgnored returns how many messages of nodes had no use, by why.
	NodeIgnored func() node.Ignored
	// Places returns places and waiters.
	Places func() admission.Snapshot
	// Links returns the links of the connected nodes.
	Links func() []LinkStats
	// Listener returns what the listener of nodes did since the start.
	Listener func() ListenerStats
	// Live returns how many runs are live.
	Live func() int
	// SlowAnswers returns how many answers are whole here while their callers still read.
	SlowAnswers func() int
	// Frames returns how many frames of work streams came from nodes, by kind; LateFrames those of them that came after
	// their run was decided.
	Frames, LateFrames func() map[string]uint64
	// Bus returns what the bus has done.
	Bus func() events.Stats
	// BodyBytes returns how many bytes of request bodies are held, in memory and in files.
	BodyBytes func() int64
	// Offered returns how a provider calls a model that an adapter is asked for, "" = it didn't name it.
	Offered func(nodeID, adapter, target string) string
	// Slots returns the slots, as [Slots] does.
	Slots func() []SlotStatus
	// Leases returns what became of leases.
	Leases func() LeaseCounts
	// Config returns the number of the configuration that is in force.
	Config func() uint64
}

// LinkStats is one node's link.
type LinkStats struct {
	Node        string
	OpenStreams int
	Pending     int // bytes that wait to be written
	BytesIn     int64
	BytesOut    int64
	RoundTrip   time.Duration // 0 = not measured yet
}

// ListenerStats is what became of connections to the listener of nodes.
type ListenerStats struct {
	Accepted     uint64
	AcceptErrors uint64
	Refused      map[string]uint64 // by reason
	Unregistered int               // now
}

// metric is one family of values that are read when somebody scrapes.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func gaugeOf(name, help string, labels ...string) *metric {
	return &metric{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

func counterOf(name, help string, labels ...string) *metric {
	return &metric{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

func (m *metric) set(c chan<- prometheus.Metric, value float64, labels ...string) {
	c <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
}

// truth is how yes and no look.
func (m *metric) truth(c chan<- prometheus.Metric, is bool, labels ...string) {
	value := 0.0
	if is {
		value = 1
	}
	m.set(c, value, labels...)
}

// group is what is read from one snapshot.
type group struct {
	metrics []*metric
	collect func(c chan<- prometheus.Metric)
}

// Describe implements prometheus.Collector.
func (g *group) Describe(c chan<- *prometheus.Desc) {
	for _, m := range g.metrics {
		c <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (g *group) Collect(c chan<- prometheus.Metric) { g.collect(c) }

// groups are all of them, without those that have no source.
func groups(s *Sources) []prometheus.Collector {
	all := []prometheus.Collector{edgeGroup(s)}
	if s.Nodes != nil {
		all = append(all, nodesGroup(s.Nodes))
	}
	if s.Health != nil {
		all = append(all, healthGroup(s.Health))
	}
	if s.Certificates != nil {
		all = append(all, expiryGroup(s.Certificates))
	}
	if s.Ended != nil {
		all = append(all, endedGroup(s.Ended))
	}
	if s.NodeIgnored != nil {
		all = append(all, ignoredGroup(s.NodeIgnored))
	}
	if s.Places != nil {
		all = append(all, placesGroup(s.Places))
	}
	if s.Links != nil {
		all = append(all, linksGroup(s.Links))
	}
	if s.Listener != nil {
		all = append(all, listenerGroup(s.Listener))
	}
	if s.Bus != nil {
		all = append(all, busGroup(s.Bus))
	}
	if s.Slots != nil {
		all = append(all, slotsGroup(s.Slots))
	}
	if s.Leases != nil {
		all = append(all, leasesGroup(s.Leases))
	}
	return all
}

// edgeGroup is what is about the edge as a whole.
func edgeGroup(s *Sources) *group {
	live := gaugeOf("iop_runs_live", "Runs and tunnels that have no outcome yet.")
	slow := gaugeOf("iop_answers_unread", "Answers that are whole at the edge while their callers still read.")
	bodies := gaugeOf("iop_request_body_held_bytes", "Bytes of request bodies that are held, in memory and in files.")
	version := gaugeOf("iop_config_version", "Number of the configuration that is in force.")
	frames := counterOf("iop_frames_received_total", "Frames of work streams from nodes, counted when their attempt ends.", "kind")
	late := counterOf("iop_late_frames_total", "Frames that came after their run was decided.", "kind")
	return &group{[]*metric{live, slow, bodies, version, frames, late}, func(c chan<- prometheus.Metric) {
		for m, read := range map[*metric]func() int{live: s.Live, slow: s.SlowAnswers} {
			if read != nil {
				m.set(c, float64(read()))
			}
		}
		if s.BodyBytes != nil {
			bodies.set(c, float64(s.BodyBytes()))
		}
		if s.Config != nil {
			version.set(c, float64(s.Config()))
		}
		for m, read := range map[*metric]func() map[string]uint64{frames: s.Frames, late: s.LateFrames} {
			if read == nil {
				continue
			}
			for kind, n := range read() {
				m.set(c, float64(n), kind)
			}
		}
	}}
}

// busGroup is what the event bus has done. Of each subscriber it holds that what it received and what was dropped for it
// is what was published for it.
func busGroup(read func() events.Stats) *group {
	published := counterOf("iop_events_published_total", "Events that were published.")
	dropped := counterOf("iop_events_dropped_total", "Events that slow subscribers have lost, all of them together.")
	subscribers := gaugeOf("iop_event_subscribers", "Who follows events now.")
	return &group{[]*metric{published, dropped, subscribers}, func(c chan<- prometheus.Metric) {
		st := read()
		published.set(c, float64(st.Published))
		dropped.set(c, float64(st.Dropped))
		subscribers.set(c, float64(st.Subscribers))
	}}
}
