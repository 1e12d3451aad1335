package admin

import (
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
)

// mostSeries bounds how many combinations of route, node and adapter have series of their own. Their names come from
// the configuration, but a configuration can be large, and each has dozens of series.
const mostSeries = 1000

// other is the label of what is beyond.
const other = "other"

// Metrics counts how requests end, and shows the state of the Edge when it is asked. It implements service.Observer.
type Metrics struct {
	registry *prometheus.Registry
	offered  func(nodeID, adapter, target string) string

	requests   *prometheus.CounterVec   // route, node, adapter, code
	admissions *prometheus.CounterVec   // outcome
	quotas     *prometheus.CounterVec   // principal
	queue      *prometheus.HistogramVec // route
	duration   *prometheus.HistogramVec // route, node, adapter
	firstByte  *prometheus.HistogramVec
	bytesIn    *prometheus.CounterVec
	bytesOut   *prometheus.CounterVec
	tokens     *prometheus.CounterVec // route, model, node, adapter, kind
	unknown    *prometheus.CounterVec // route, node, adapter
	reloads    *reloads

	mu      sync.RWMutex
	handles map[place]*handles
	counted map[counted]prometheus.Counter
}

// place is what most series are labelled with.
type place struct{ route, node, adapter string }

// counted is what tokens of one kind are labelled with.
type counted struct {
	place
	model, kind string
}

// handles are the series of one place, looked up once: by name they cost more than a request may.
type handles struct {
	ok, bytesIn, bytesOut, unknown prometheus.Counter
	queue, duration, firstByte     prometheus.Observer
}

// NewMetrics returns metrics in a registry of their own. version names the program's.
func NewMetrics(version string, s Sources) *Metrics {
	waits := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	whole := append(append([]float64{}, waits...), 600, 1800)
	labels := []string{"route", "node", "adapter"}
	m := &Metrics{
		registry:   prometheus.NewRegistry(),
		offered:    s.Offered,
		handles:    map[place]*handles{},
		counted:    map[counted]prometheus.Counter{},
		requests:   counter("iop_requests_total", "Requests that ended, by how.", append(labels, "code")...),
		admissions: counter("iop_admissions_total", "Requests by what came of asking for a place: immediate, waited, or why there was none.", "outcome"),
		quotas:     counter("iop_quota_refusals_total", "Requests that were over their principal's own limits.", "principal"),
		queue:      histogram("iop_queue_seconds", "Time that requests waited, until their last place or until they gave up.", waits, "route"),
		duration:   histogram("iop_request_duration_seconds", "Time from submission to the end.", whole, labels...),
		firstByte:  histogram("iop_first_byte_seconds", "Time from submission to the response's head, or a run's first event.", waits, labels...),
		bytesIn:    counter("iop_request_body_bytes_total", "Bytes of request bodies.", labels...),
		bytesOut:   counter("iop_response_body_bytes_total", "Bytes of response bodies that callers took.", labels...),
		tokens:     counter("iop_tokens_total", "Tokens that providers told of, by model and kind.", "route", "model", "node", "adapter", "kind"),
		unknown:    counter("iop_usage_unknown_total", "Requests that succeeded and whose provider told no tokens.", labels...),
		reloads:    newReloads(),
	}
	for _, turnedAway := range []execution.Code{execution.CodeQueueTimeout, execution.CodeQueueFull, execution.CodeNoNode} {
		m.admissions.WithLabelValues(turnedAway.String()) // 0 and not absent, so that the first one is seen as a change
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "iop_build_info", Help: "1, labelled with the version."},
		[]string{"version"})
	build.WithLabelValues(version).Set(1)
	m.registry.MustRegister(m.requests, m.admissions, m.quotas, m.queue, m.duration, m.firstByte, m.bytesIn, m.bytesOut, m.tokens,
		m.unknown, m.reloads.results, m.reloads.last, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(groups(&s)...)
	return m
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

func (m *Metrics) serve(w http.ResponseWriter, r *http.Request) {
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// Ended implements service.Observer.
func (m *Metrics) Ended(o *service.Outcome) {
	at := place{node: o.NodeID, adapter: o.Adapter}
	if o.Route != nil {
		at.route = o.Route.Model // never the model that was asked for: callers choose that
	}
	at, h := m.at(at)
	if o.Failure == nil {
		h.ok.Inc()
	} else {
		m.requests.WithLabelValues(at.route, at.node, at.adapter, o.Failure.Code.String()).Inc()
	}
	m.admitted(o, h)
	h.duration.Observe(o.Duration.Seconds())
	h.bytesIn.Add(float64(max(o.BytesIn, 0)))
	h.bytesOut.Add(float64(max(o.BytesOut, 0)))
	if o.FirstByte > 0 {
		h.firstByte.Observe(o.FirstByte.Seconds())
	}
	m.used(o, at, h)
}

// admitted counts what came of asking for a place.
func (m *Metrics) admitted(o *service.Outcome, h *handles) {
	switch {
	case o.Attempts > 0 && o.Queued > 0:
		m.admissions.WithLabelValues("waited").Inc()
	case o.Attempts > 0:
		m.admissions.WithLabelValues("immediate").Inc()
	case o.Failure != nil:
		m.admissions.WithLabelValues(o.Failure.Code.String()).Inc()
	}
	switch {
	case o.Attempts > 0:
		h.queue.Observe(o.Queued.Seconds())
	case o.Code() == execution.CodeQueueTimeout:
		h.queue.Observe(o.Duration.Seconds())
	case o.Code() == execution.CodeLimitExceeded && o.Principal != "":
		m.overQuota(o.Principal).Inc()
	}
}

// overQuota returns the series of a principal. Principals come from the configuration, which may change often.
func (m *Metrics) overQuota(principal string) prometheus.Counter {
	return m.series(counted{kind: "quota", model: principal}, func(c counted) prometheus.Counter {
		return m.quotas.WithLabelValues(c.model)
	})
}

// used counts tokens. What a provider didn't tell isn't 0: it is counted as unknown.
func (m *Metrics) used(o *service.Outcome, at place, h *handles) {
	u := &o.Usage
	if !u.Known() {
		if o.OK() && o.Attempts > 0 && o.Status < http.StatusBadRequest {
			h.unknown.Inc()
		}
		return
	}
	model := m.model(o)
	m.count(at, model, "input", u.Input)
	m.count(at, model, "output", u.Output)
	m.count(at, model, "cached", u.Cached)
	m.count(at, model, "reasoning", u.Reasoning)
}

// model names the model of a request by what the configuration or a provider calls it: callers may ask some providers
// for any name.
func (m *Metrics) model(o *service.Outcome) string {
	switch {
	case o.Route != nil && o.Route.Target != "":
		return o.Route.Target
	case o.Route != nil && o.Route.Model != "*":
		return o.Route.Model
	case m.offered != nil:
		if name := m.offered(o.NodeID, o.Adapter, o.Target); name != "" {
			return name
		}
	}
	return other
}

// count adds a number that is known and makes sense; a provider may say anything.
func (m *Metrics) count(at place, model, kind string, n *int64) {
	if n == nil || *n < 0 {
		return
	}
	m.series(counted{at, model, kind}, func(c counted) prometheus.Counter {
		return m.tokens.WithLabelValues(c.route, c.model, c.node, c.adapter, c.kind)
	}).Add(float64(*n))
}

// series returns a counter, made by resolve when it is new. Beyond mostSeries there is one for all others.
func (m *Metrics) series(of counted, resolve func(counted) prometheus.Counter) prometheus.Counter {
	m.mu.RLock()
	c, full := m.counted[of], len(m.counted) >= mostSeries
	m.mu.RUnlock()
	if c != nil {
		return c
	}
	if full {
		of.place, of.model = place{other, other, other}, other
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c = m.counted[of]; c == nil {
		c = resolve(of)
		m.counted[of] = c
	}
	return c
}

// at returns the series of a place, and the labels that they have.
func (m *Metrics) at(p place) (place, *handles) {
	m.mu.RLock()
	h, full := m.handles[p], len(m.handles) >= mostSeries
	m.mu.RUnlock()
	if h != nil {
		return p, h
	}
	if full {
		p = place{other, other, other}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if h = m.handles[p]; h == nil {
		h = m.resolve(p)
		m.handles[p] = h
	}
	return p, h
}

func (m *Metrics) resolve(p place) *handles {
	return &handles{
		ok:        m.requests.WithLabelValues(p.route, p.node, p.adapter, execution.CodeOK.String()),
		bytesIn:   m.bytesIn.WithLabelValues(p.route, p.node, p.adapter),
		bytesOut:  m.bytesOut.WithLabelValues(p.route, p.node, p.adapter),
		unknown:   m.unknown.WithLabelValues(p.route, p.node, p.adapter),
		queue:     m.queue.WithLabelValues(p.route),
		duration:  m.duration.WithLabelValues(p.route, p.node, p.adapter),
		firstByte: m.firstByte.WithLabelValues(p.route, p.node, p.adapter),
	}
}

// reloads counts what came of reloading the configuration.
type reloads struct {
	results *prometheus.CounterVec // result
	last    prometheus.Gauge
}

// The results of a reload.
const (
	reloadOK        = "ok"
	reloadUnchanged = "unchanged"
	reloadRefused   = "refused"
)

// newReloads counts the start as a success: the configuration was read then.
func newReloads() *reloads {
	r := &reloads{
		results: counter("iop_config_reloads_total", "Tries to reload the configuration, by what came of them.", "result"),
		last: prometheus.NewGauge(prometheus.GaugeOpts{Name: "iop_config_last_reload_success_timestamp_seconds",
			Help: "When the configuration was last read and found right."}),
	}
	for _, result := range []string{reloadOK, reloadUnchanged, reloadRefused} {
		r.results.WithLabelValues(result) // 0 and not absent, so that the first one is seen as a change
	}
	r.last.SetToCurrentTime()
	return r
}

// Reloaded counts a try to reload the configuration: err is why it was refused, changed whether it says something new.
func (m *Metrics) Reloaded(changed bool, err error) {
	result := reloadUnchanged
	switch {
	case err != nil:
		m.reloads.results.WithLabelValues(reloadRefused).Inc()
		return
	case changed:
		result = reloadOK
	}
	m.reloads.results.WithLabelValues(result).Inc()
	m.reloads.last.SetToCurrentTime()
}
