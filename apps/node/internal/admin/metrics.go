package admin

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"iop/apps/node/internal/node"
	"iop/packages/go/execution"
)

// Metrics counts what the executors did. It implements node.Observer; one serves all links.
type Metrics struct {
	executions *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	bytes      *prometheus.CounterVec
	refused    *prometheus.CounterVec
	late       *prometheus.CounterVec

	mu      sync.Mutex
	handles map[node.Ended]prometheus.Counter // by adapter, status and code; the other fields are zero
}

// NewMetrics returns counters that stand at zero.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "iop_node", Name: name, Help: help}, labels)
	}
	return &Metrics{
		executions: counter("executions_total", "Executions that ended.", "adapter", "status", "code"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "iop_node", Name: "execution_seconds", Help: "From the open to the end of an execution.",
			Buckets: []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800},
		}, []string{"adapter"}),
		bytes:   counter("body_bytes_total", "Bytes of bodies: in = requests, out = answers.", "adapter", "direction"),
		refused: counter("rejected_total", "Opens that were rejected before anything started.", "code"),
		late:    counter("late_frames_total", "Messages that came after their time or had no business here.", "kind"),
		handles: map[node.Ended]prometheus.Counter{},
	}
}

// Ended implements node.Observer.
func (m *Metrics) Ended(e node.Ended) {
	m.ended(node.Ended{Adapter: e.Adapter, Status: e.Status, Code: e.Code}).Inc()
	m.seconds.WithLabelValues(e.Adapter).Observe(e.Duration.Seconds())
	m.bytes.WithLabelValues(e.Adapter, "in").Add(float64(e.BytesIn))
	m.bytes.WithLabelValues(e.Adapter, "out").Add(float64(e.BytesOut))
}

// ended returns the counter of an ending, resolved once.
func (m *Metrics) ended(key node.Ended) prometheus.Counter {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.handles[key]
	if c == nil {
		c = m.executions.WithLabelValues(key.Adapter, key.Status.String(), key.Code.String())
		m.handles[key] = c
	}
	return c
}

// Refused implements node.Observer.
func (m *Metrics) Refused(code execution.Code) { m.refused.WithLabelValues(code.String()).Inc() }

// Late implements node.Observer.
func (m *Metrics) Late(kind string) { m.late.WithLabelValues(kind).Inc() }

// gather returns the registry of one listener.
func (m *Metrics) gather(cfg Config) prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(m.executions, m.seconds, m.bytes, m.refused, m.late, newSnapshotCollector(cfg),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// snapshotCollector turns the state of the moment into gauges.
type snapshotCollector struct {
	cfg                                                  Config
	up, state, generation, dials, registrations, streams *prometheus.Desc
	inFlight, capacity, available, lingering, draining   *prometheus.Desc
	rtt, begins, ends                                    *prometheus.Desc
	degraded, queued, written, lost                      *prometheus.Desc // of the journal
}

func newSnapshotCollector(cfg Config) *snapshotCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("iop_node_"+name, help, labels, nil)
	}
	return &snapshotCollector{
		cfg:           cfg,
		up:            desc("link_up", "1 while the link serves or drains.", "edge"),
		state:         desc("link_state", "1 for the state in which the link is.", "edge", "state"),
		generation:    desc("link_generation", "Generation of the current or last connection.", "edge"),
		dials:         desc("link_dials_total", "Dials to the edge.", "edge"),
		registrations: desc("link_registrations_total", "Registrations that the edge accepted.", "edge"),
		streams:       desc("link_open_streams", "Work streams that are open.", "edge"),
		rtt:           desc("link_rtt_seconds", "Round trip of the last heartbeat.", "edge"),
		inFlight:      desc("adapter_in_flight", "Executions in work.", "edge", "adapter"),
		capacity:      desc("adapter_capacity", "Places, less those lost to executions that don't stop.", "edge", "adapter"),
		available:     desc("adapter_available", "1 if the provider answered when it was last asked.", "edge", "adapter"),
		lingering:     desc("lingering", "Ended executions whose answer wasn't taken yet.", "edge"),
		draining:      desc("draining", "1 while the node takes no new work.", "edge"),
		degraded:      desc("store_degraded", "1 while the journal can't be written."),
		queued:        desc("store_queued", "Rows that wait to be written to the journal."),
		written:       desc("store_written_total", "Rows written to the journal."),
		// Of the same name as the edge's: one rule watches both.
		begins: prometheus.NewDesc("iop_identity_not_before_seconds",
			"When a certificate began that this program relies on, in Unix time.", []string{"what"}, nil),
		ends: prometheus.NewDesc("iop_identity_not_after_seconds",
			"When a certificate ends that this program relies on, in Unix time.", []string{"what"}, nil),
		lost: desc("store_lost_total", "Rows that the journal's full queue dropped."),
	}
}

// Describe implements prometheus.Collector.
func (c *snapshotCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *snapshotCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, l := range c.cfg.Links() {
		s := string(l.State)
		gauge(c.up, flag(s == "serving" || s == "draining"), l.Edge)
		gauge(c.state, 1, l.Edge, s)
		gauge(c.generation, float64(l.Generation), l.Edge)
		ch <- prometheus.MustNewConstMetric(c.dials, prometheus.CounterValue, float64(l.Dials), l.Edge)
		ch <- prometheus.MustNewConstMetric(c.registrations, prometheus.CounterValue, float64(l.Registrations), l.Edge)
		gauge(c.streams, float64(l.Mux.OpenStreams), l.Edge)
		gauge(c.rtt, float64(l.Mux.RTT)/float64(time.Second), l.Edge)
	}
	for _, w := range c.cfg.Work() {
		gauge(c.lingering, float64(w.Lingering), w.Edge)
		gauge(c.draining, flag(w.Draining), w.Edge)
		for _, a := range w.Adapters {
			gauge(c.inFlight, float64(a.InFlight), w.Edge, a.Name)
			gauge(c.capacity, float64(a.Capacity), w.Edge, a.Name)
			gauge(c.available, flag(a.Caps.Available), w.Edge, a.Name)
		}
	}
	if c.cfg.Certificates != nil {
		for what, v := range c.cfg.Certificates() {
			gauge(c.begins, float64(v.Begins.Unix()), what)
			gauge(c.ends, float64(v.Ends.Unix()), what)
		}
	}
	c.collectStore(ch)
}

func (c *snapshotCollector) collectStore(ch chan<- prometheus.Metric) {
	if c.cfg.Store == nil {
		return
	}
	h := c.cfg.Store()
	ch <- prometheus.MustNewConstMetric(c.degraded, prometheus.GaugeValue, flag(h.Degraded))
	ch <- prometheus.MustNewConstMetric(c.queued, prometheus.GaugeValue, float64(h.Queued))
	ch <- prometheus.MustNewConstMetric(c.written, prometheus.CounterValue, float64(h.Written))
	ch <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(h.Lost))
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
