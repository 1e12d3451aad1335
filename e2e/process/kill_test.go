//go:build e2e

package process

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/e2e/procs"
)

// The kill matrix: every program that can die, stop or leave, while there is a caller in each phase of a request. One
// fault hits all phases at once.

// phase is where a caller is when the fault comes.
type phase string

const (
	queued    phase = "queued"
	preByte   phase = "before the first byte"
	midStream phase = "mid-stream"
	atEnd     phase = "at the end"
	noStream  phase = "not streaming"
)

var phases = []phase{queued, preByte, midStream, atEnd, noStream}

// verdict is how a call must end.
type verdict struct {
	kind   verdictKind
	status int
	codes  []string
}

type verdictKind string

const (
	isCut     verdictKind = "cut"
	isRefused verdictKind = "refused"
	isGone    verdictKind = "gone"     // without an answer: there is nobody left to give one
	isServed  verdictKind = "served"   // not hit, or waits until all is well again: it gets a whole answer
	isEither  verdictKind = "either"   // the answer and its end race the fault: whole or cut
	hasLeft   verdictKind = "has left" // the caller itself went
)

func refusedWith(status int, codes ...string) verdict {
	return verdict{kind: isRefused, status: status, codes: codes}
}

// fault is one row of the matrix.
type fault struct {
	name   string
	rounds int
	drain  time.Duration // of both programs; 0 = 30 s
	// strike does it, and returns the moment from which the promise counts.
	strike func(m *matrix) time.Time
	within time.Duration
	want   map[phase]verdict
	// repair brings back what is gone. Calls that must be served still wait.
	repair func(m *matrix)
	// survives names whose goroutines and descriptors are counted over all rounds.
	edgeSurvives, nodeSurvives bool
	// keeps says that the link isn't lost.
	keeps bool
	// deadLinks has the links of the row die soon of silence.
	deadLinks bool
}

// matrix is a running site with its provider.
type matrix struct {
	*site
	fault    fault
	provider *provider
	round    int
	holder   *call // keeps the only place that the queued caller wants
	calls    map[phase]*call
	begun    int // calls since this edge was started
	slowest  map[string]time.Duration
	network  *network // nil = loopback
}

// newMatrix starts what a row needs, with edge and node in a network or, without one, on loopback.
func newMatrix(t *testing.T, f fault, n *network) *matrix {
	if f.drain == 0 {
		f.drain = 30 * time.Second
	}
	timers := ""
	if f.deadLinks {
		timers = quickTimers + ", "
	}
	p := startProvider(t, n.inNode(), n.nodeSide())
	s := newSiteIn(t, n.settle(procs.SiteConfig{
		Adapters: "[" + adapter("work", p.url(), 8) + ", " + adapter("one", p.url(), 1) + "]",
		Routes:   "[{model: work, adapter: work, target: m}, {model: one, adapter: one, target: m}]",
		Edge:     fmt.Sprintf("timers: {%sdrain: %s}", timers, f.drain),
		Node:     fmt.Sprintf(quickNode, f.drain),
	}), n.edgeSide(), n.nodeSide())
	return &matrix{site: s, fault: f, provider: p, slowest: map[string]time.Duration{}, network: n}
}

// begin brings one caller into each phase.
func (m *matrix) begin() {
	m.t.Helper()
	m.holder = m.site.begin("the holder", "one", modeStream)
	m.holder.awaitText(m.t, "data:")
	m.calls = map[phase]*call{
		queued:    m.site.begin(string(queued), "one", modeSilent),
		preByte:   m.site.begin(string(preByte), "work", modeSilent),
		midStream: m.site.begin(string(midStream), "work", modeStream),
		atEnd:     m.site.begin(string(atEnd), "work", modeAtEnd),
		noStream:  m.site.begin(string(noStream), "work", modeJSON),
	}
	m.begun += 6
	m.calls[midStream].awaitText(m.t, `"n":3,`)
	m.calls[atEnd].awaitText(m.t, "[DONE]")
	m.provider.awaitOpen(5, limit)
	eventually(m.t, limit, "one caller waits", func() bool { return m.metric("iop_queue_length") == 1 })
}

// note keeps the longest of what was promised.
func (m *matrix) note(what string, took time.Duration) {
	m.slowest[what] = max(m.slowest[what], took)
}

// judge waits for the ends that the fault itself brings.
func (m *matrix) judge(from time.Time) {
	m.t.Helper()
	deadline := time.Until(from.Add(m.fault.within))
	for _, p := range phases {
		c, want := m.calls[p], m.fault.want[p]
		if want.kind == isServed {
			if c.over() {
				m.t.Fatalf("%s ended although it was to wait: %s", p, c)
			}
			continue
		}
		if want.kind == hasLeft {
			c.await(m.t, limit)
			continue
		}
		c.await(m.t, max(deadline, 0)+50*time.Millisecond)
		m.note(string(p), c.ended.Sub(from))
		if took := c.ended.Sub(from); took > m.fault.within {
			m.t.Errorf("%s ended after %v, promised within %v", p, took, m.fault.within)
		}
		m.check(c, want)
	}
}

func (m *matrix) check(c *call, want verdict) {
	m.t.Helper()
	switch want.kind {
	case isCut:
		c.cut(m.t)
	case isRefused:
		c.refused(m.t, want.status, want.codes...)
		if retry := c.header.Get("X-Should-Retry"); c.status == 502 && c.code() != "upstream_connect" && retry != "false" {
			m.t.Errorf("an SDK would run the prompt again: %s", c)
		}
	case isGone:
		if c.err == nil {
			m.t.Errorf("an answer from a dead edge: %s", c)
		} else if c.status != 0 {
			c.cut(m.t)
		}
	case isServed:
		c.whole(m.t)
	case isEither:
		if c.err == nil {
			c.whole(m.t)
		} else {
			c.cut(m.t)
		}
	}
}

// serve lets the provider go on until every call that is to be served has its whole answer.
func (m *matrix) serve() {
	m.t.Helper()
	for _, p := range append([]phase{""}, phases...) {
		c, want := m.calls[p], m.fault.want[p]
		if p == "" {
			c, want = m.holder, m.fault.want[midStream]
		}
		if want.kind != isServed {
			continue
		}
		eventually(m.t, limit, c.name+" is served", func() bool {
			if !c.over() {
				m.provider.release()
			}
			return c.over()
		})
		m.check(c, want)
	}
}

// works sends a further request to each adapter, which must be served. So neither fails often enough in a row to be taken
// out for a while.
func (m *matrix) works() {
	m.t.Helper()
	for _, model := range []string{"work", "one"} {
		c := m.site.begin("a request after the fault", model, modeBulk)
		m.begun++
		c.await(m.t, limit).whole(m.t)
		if got := c.header.Get("X-Iop-Node"); got != procs.NodeID {
			m.t.Errorf("served by %q", got)
		}
	}
}

// oneEndEach checks that the edge that is up ended every run once.
func (m *matrix) oneEndEach() {
	m.t.Helper()
	var ended []procs.Entry
	eventually(m.t, limit, "every run has its line", func() bool {
		ended = m.Edge.Entries("run ended")
		return len(ended) >= m.begun
	})
	seen := map[string]bool{}
	for _, e := range ended {
		if id := e.Str("run_id"); id == "" || seen[id] {
			m.t.Errorf("a second end of run %q", id)
		}
		seen[e.Str("run_id")] = true
	}
	if len(ended) != m.begun {
		m.t.Errorf("%d ends of %d runs", len(ended), m.begun)
	}
}

// run is one round.
func (m *matrix) run() {
	m.t.Helper()
	generation := m.node().Generation
	m.begin()
	from := m.fault.strike(m)
	m.judge(from)
	if m.fault.repair != nil {
		m.fault.repair(m)
	}
	m.serve()
	m.works()
	m.settled()
	if left := m.provider.state().Open; left != 0 {
		m.t.Errorf("the provider still answers %d requests", left)
	}
	if now := m.node().Generation; !m.fault.keeps && now <= generation || m.fault.keeps && now != generation {
		m.t.Errorf("the generation was %d and is %d", generation, now)
	}
	m.oneEndEach()
}

// TU-17, TU-01, TU-30; rows 1 to 4, 10, 11, 15, 16, 19 of the fault catalogue.
func TestKillMatrix(t *testing.T) {
	for _, f := range slices.Concat(kills(), leavers(), pauses(), nodeTerms(), edgeTerms()) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			newMatrix(t, f, nil).rounds()
		})
	}
}

// rounds runs all rounds of the row; what survives them must not have grown.
func (m *matrix) rounds() {
	m.t.Helper()
	var edge, node size
	for m.round = range m.fault.rounds {
		m.run()
		if m.round == 0 {
			edge, node = m.edgeSize(), m.nodeSize()
		}
	}
	if m.fault.edgeSurvives {
		sameSize(m.t, "the edge", edge, m.edgeSize)
	}
	if m.fault.nodeSurvives {
		sameSize(m.t, "the node", node, m.nodeSize)
	}
	var figures []string
	for what, took := range m.slowest {
		figures = append(figures, fmt.Sprintf("%s %.1f ms", what, float64(took.Microseconds())/1000))
	}
	slices.Sort(figures)
	m.t.Logf("slowest of %d rounds: %s", m.fault.rounds, strings.Join(figures, ", "))
}
