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

	requests  *prometheus.CounterVec   // route, node, adapter, code
	refused   *prometheus.CounterVec   // code
	queue     *prometheus.HistogramVec // route
	duration  *prometheus.HistogramVec // route, node, adapter
	firstByte *prometheus.HistogramVec
	bytesIn   *prometheus.CounterVec
	bytesOut  *prometheus.CounterVec
	tokens    *prometheus.CounterVec // route, node, adapter, kind

	mu      sync.RWMutex
	handles map[place]*handles
}

// place is what most series are labelled with.
type place struct{ route, node, adapter string }

// handles are the series of one place, looked up once: by name they cost more than a request may.
type handles struct {
	ok, bytesIn, bytesOut            prometheus.Counter
	queue, duration, firstByte       prometheus.Observer
	input, output, cached, reasoning prometheus.Counter
}

// NewMetrics returns metrics in a registry of their own. version names the program's.
func NewMetrics(version string, s Sources) *Metrics {
	waits := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	whole := append(append([]float64{}, waits...), 600, 1800)
	labels := []string{"route", "node", "adapter"}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		handles:  map[place]*handles{},
		requests: counter("iop_requests_total", "Requests that ended, by how.", append(labels, "code")...),
		refused:  counter("iop_refused_total", "Requests that ended without a place, by why.", "code"),
		queue:    histogram("iop_queue_seconds", "Time from submission to the last place.", waits, "route"),
		duration: histogram("iop_request_duration_seconds", "Time from submission to the end.", whole, labels...),
		firstByte: histogram("iop_first_byte_seconds", "Time from submission to the response's head.", waits,
			labels...),
		bytesIn:  counter("iop_request_body_bytes_total", "Bytes of request bodies.", labels...),
		bytesOut: counter("iop_response_body_bytes_total", "Bytes of response bodies that callers took.", labels...),
		tokens:   counter("iop_tokens_total", "Tokens that providers told of, by kind.", append(labels, "kind")...),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "iop_build_info", Help: "1, labelled with the version."},
		[]string{"version"})
	build.WithLabelValues(version).Set(1)
	m.registry.MustRegister(m.requests, m.refused, m.queue, m.duration, m.firstByte, m.bytesIn, m.bytesOut, m.tokens, build,
		newGauges(s), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
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
	code := execution.CodeOK
	if o.Failure == nil {
		h.ok.Inc()
	} else {
		code = o.Failure.Code
		m.requests.WithLabelValues(at.route, at.node, at.adapter, code.String()).Inc()
	}
	if o.Attempts == 0 && code != execution.CodeOK {
		m.refused.WithLabelValues(code.String()).Inc()
	}
	h.duration.Observe(o.Duration.Seconds())
	h.bytesIn.Add(float64(max(o.BytesIn, 0)))
	h.bytesOut.Add(float64(max(o.BytesOut, 0)))
	if o.Attempts > 0 {
		h.queue.Observe(o.Queued.Seconds())
	}
	if o.FirstByte > 0 {
		h.firstByte.Observe(o.FirstByte.Seconds())
	}
	count(h.input, o.Usage.Input)
	count(h.output, o.Usage.Output)
	count(h.cached, o.Usage.Cached)
	count(h.reasoning, o.Usage.Reasoning)
}

// count adds a number that is known and makes sense; a provider may say anything.
func count(c prometheus.Counter, n *int64) {
	if n != nil && *n > 0 {
		c.Add(float64(*n))
	}
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
	tokens := func(kind string) prometheus.Counter {
		return m.tokens.WithLabelValues(p.route, p.node, p.adapter, kind)
	}
	return &handles{
		ok:        m.requests.WithLabelValues(p.route, p.node, p.adapter, execution.CodeOK.String()),
		bytesIn:   m.bytesIn.WithLabelValues(p.route, p.node, p.adapter),
		bytesOut:  m.bytesOut.WithLabelValues(p.route, p.node, p.adapter),
		queue:     m.queue.WithLabelValues(p.route),
		duration:  m.duration.WithLabelValues(p.route, p.node, p.adapter),
		firstByte: m.firstByte.WithLabelValues(p.route, p.node, p.adapter),
		input:     tokens("input"), output: tokens("output"), cached: tokens("cached"), reasoning: tokens("reasoning"),
	}
}
