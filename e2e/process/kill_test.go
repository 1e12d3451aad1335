//go:build e2e

package process

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
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
	p := startProvider(t, n.inNode(), n.nodeSide())
	s := newSiteIn(t, n.settle(procs.SiteConfig{
		Adapters: "[" + adapter("work", p.url(), 8) + ", " + adapter("one", p.url(), 1) + "]",
		Routes:   "[{model: work, adapter: work, target: m}, {model: one, adapter: one, target: m}]",
		Edge:     fmt.Sprintf("timers: {%s, drain: %s}", quickTimers, f.drain),
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
		if retry := c.header.Get("X-Should-Retry"); want.status == 502 && c.code() != "upstream_connect" && retry != "false" {
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

// works sends one more request, which must be served.
func (m *matrix) works() {
	m.t.Helper()
	c := m.site.begin("a request after the fault", "work", modeBulk)
	m.begun++
	c.await(m.t, limit).whole(m.t)
	if got := c.header.Get("X-Iop-Node"); got != procs.NodeID {
		m.t.Errorf("served by %q", got)
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
	for _, f := range slices.Concat(kills(), leavers(), pauses(), terms()) {
		t.Run(f.name, func(t *testing.T) { newMatrix(t, f, nil).rounds() })
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

// all gives every phase the same verdict but for those named.
func all(v verdict, but map[phase]verdict) map[phase]verdict {
	want := map[phase]verdict{}
	for _, p := range phases {
		want[p] = v
	}
	for p, other := range but {
		want[p] = other
	}
	return want
}

var (
	cutV    = verdict{kind: isCut}
	goneV   = verdict{kind: isGone}
	servedV = verdict{kind: isServed}
	eitherV = verdict{kind: isEither}
	leftV   = verdict{kind: hasLeft}
)

func kills() []fault {
	lost := refusedWith(502, "node_lost")
	truncated := refusedWith(502, "upstream_truncated")
	return []fault{
		{
			name: "node SIGKILL", rounds: 8, within: promise, edgeSurvives: true,
			strike: func(m *matrix) time.Time {
				m.raceEnd()
				from := time.Now()
				m.Node.Kill()
				return from
			},
			want: map[phase]verdict{queued: servedV, preByte: lost, midStream: cutV, atEnd: eitherV, noStream: lost},
			repair: func(m *matrix) {
				m.holder.await(m.t, limit).cut(m.t)
				m.note("places", eventually(m.t, promise, "no place is held", func() bool { return m.metric("iop_places_in_flight") == 0 }))
				m.note("provider", m.provider.awaitOpen(0, promise))
				m.restartNode()
			},
		},
		{
			name: "edge SIGKILL", rounds: 8, within: promise, nodeSurvives: true,
			strike: func(m *matrix) time.Time {
				m.raceEnd()
				from := time.Now()
				m.Edge.Kill()
				return from
			},
			want: all(goneV, map[phase]verdict{atEnd: eitherV}),
			repair: func(m *matrix) {
				m.note("provider", m.provider.awaitOpen(0, promise))
				m.note("node", eventually(m.t, promise, "the node runs nothing", func() bool { return m.nodeStatus().held() == 0 }))
				m.begun = 0
				m.restartEdge()
			},
		},
		{
			name: "provider SIGKILL", rounds: 8, within: promise, edgeSurvives: true, nodeSurvives: true, keeps: true,
			strike: func(m *matrix) time.Time {
				m.raceEnd()
				from := time.Now()
				m.provider.Kill()
				return from
			},
			// The kernel may have taken the queued caller's connection for a provider that was already dying.
			want: map[phase]verdict{queued: refusedWith(502, "upstream_connect", "upstream_truncated"), preByte: truncated, midStream: cutV, atEnd: eitherV, noStream: truncated},
			repair: func(m *matrix) {
				m.holder.await(m.t, limit).cut(m.t)
				m.note("places", m.awaitFree(promise))
				m.provider.restart()
				eventually(m.t, limit, "the adapters are there again", func() bool {
					n := m.node()
					return n.State == "ready" && n.Adapters[0].Available && n.Adapters[1].Available
				})
			},
		},
	}
}

// raceEnd lets the answer that is at its end go on in the very moment of the fault, in every round but the first.
func (m *matrix) raceEnd() {
	if m.round > 0 {
		go func() { _, _ = tryGet(m.provider.dial, m.provider.addr, "/test/release-end") }() // ends with the provider's answer or its death
	}
}

func leavers() []fault {
	var rows []fault
	for _, how := range []struct {
		name  string
		reset bool
	}{{"callers leave with FIN", false}, {"callers leave with RST", true}} {
		rows = append(rows, fault{
			name: how.name, rounds: 8, within: promise, edgeSurvives: true, nodeSurvives: true, keeps: true,
			strike: func(m *matrix) time.Time {
				from := time.Now()
				m.calls[queued].leave(how.reset) // first: nobody must get the holder's place
				eventually(m.t, promise, "nobody waits", func() bool { return m.metric("iop_queue_length") == 0 })
				m.note("queue", time.Since(from))
				from = time.Now()
				m.holder.leave(how.reset)
				for _, c := range m.calls {
					c.leave(how.reset)
				}
				return from
			},
			want: all(leftV, nil),
			repair: func(m *matrix) {
				m.note("provider", m.provider.awaitOpen(0, promise))
				m.note("places", m.awaitFree(promise))
				if gone := m.provider.state().Gone; gone != 5*(m.round+1) {
					m.t.Errorf("the provider saw %d callers leave in %d rounds", gone, m.round+1)
				}
				for _, e := range m.Edge.Entries("run ended")[m.begun-6:] {
					if e.Str("code") != "client_gone" {
						m.t.Errorf("a caller left, and its run ended as %v", e)
					}
				}
			},
		})
	}
	return rows
}

func pauses() []fault {
	signal := func(m *matrix, p *procs.Process, s syscall.Signal) {
		m.t.Helper()
		if err := p.Signal(s); err != nil {
			m.t.Fatal(err)
		}
	}
	lost := refusedWith(502, "node_lost")
	short := func(p func(m *matrix) *procs.Process) func(m *matrix) time.Time {
		return func(m *matrix) time.Time {
			signal(m, p(m), syscall.SIGSTOP)
			<-time.After(dead / 2)
			signal(m, p(m), syscall.SIGCONT)
			return time.Now()
		}
	}
	edge, node := func(m *matrix) *procs.Process { return m.Edge }, func(m *matrix) *procs.Process { return m.Node }
	return []fault{
		{name: "node SIGSTOP for less than the dead limit", rounds: 1, want: all(servedV, nil), strike: short(node), keeps: true},
		{name: "edge SIGSTOP for less than the dead limit", rounds: 1, want: all(servedV, nil), strike: short(edge), keeps: true},
		{
			name: "node SIGSTOP for more than the dead limit", rounds: 2, within: dead + time.Second, edgeSurvives: true, nodeSurvives: true,
			strike: func(m *matrix) time.Time {
				from := time.Now()
				signal(m, m.Node, syscall.SIGSTOP)
				return from
			},
			want: map[phase]verdict{queued: servedV, preByte: lost, midStream: cutV, atEnd: cutV, noStream: lost},
			repair: func(m *matrix) {
				m.holder.await(m.t, limit).cut(m.t)
				eventually(m.t, promise, "no place is held", func() bool { return m.metric("iop_places_in_flight") == 0 })
				signal(m, m.Node, syscall.SIGCONT)
				from := time.Now()
				// The queued caller's request may have come already: it begins after the others are gone.
				eventually(m.t, limit, "the provider was left", func() bool { return m.provider.state().Gone == 5*(m.round+1) })
				m.note("provider after SIGCONT", time.Since(from))
			},
		},
		{
			name: "edge SIGSTOP for more than the dead limit", rounds: 2, within: promise, edgeSurvives: true, nodeSurvives: true,
			strike: func(m *matrix) time.Time {
				from := time.Now()
				signal(m, m.Edge, syscall.SIGSTOP)
				m.provider.awaitOpen(0, dead+time.Second) // the node gives up by itself
				m.note("provider", time.Since(from))
				signal(m, m.Edge, syscall.SIGCONT)
				return time.Now()
			},
			want:   map[phase]verdict{queued: servedV, preByte: lost, midStream: cutV, atEnd: cutV, noStream: lost},
			repair: func(m *matrix) { m.holder.await(m.t, limit).cut(m.t) },
		},
	}
}

// terms are the drains. (TU-30)
func terms() []fault {
	const grace = time.Second
	term := func(p func(m *matrix) *procs.Process) func(m *matrix) time.Time {
		return func(m *matrix) time.Time {
			from := time.Now()
			if err := p(m).Signal(syscall.SIGTERM); err != nil {
				m.t.Fatal(err)
			}
			return from
		}
	}
	edge, node := func(m *matrix) *procs.Process { return m.Edge }, func(m *matrix) *procs.Process { return m.Node }
	return []fault{
		{
			name: "node SIGTERM", rounds: 2, within: promise, edgeSurvives: true, strike: term(node), want: all(servedV, nil),
			repair: func(m *matrix) {
				m.note("draining", m.awaitNode("draining", promise))
				for c := range m.others() {
					m.releaseUntil(c)
					c.whole(m.t)
				}
				m.exits(m.Node, 0)
				m.restartNode()
			},
		},
		{
			name: "node SIGTERM and nothing ends", rounds: 2, drain: grace, within: grace + time.Second, edgeSurvives: true, strike: term(node),
			want: map[phase]verdict{queued: servedV, preByte: refusedWith(503, "node_draining"), midStream: cutV, atEnd: cutV,
				noStream: refusedWith(503, "node_draining")},
			repair: func(m *matrix) {
				m.exits(m.Node, 0)
				m.provider.awaitOpen(0, promise)
				m.restartNode()
			},
		},
		{
			name: "edge SIGTERM", rounds: 2, within: promise, nodeSurvives: true, strike: term(edge),
			want: all(servedV, map[phase]verdict{queued: refusedWith(503, "edge_draining")}),
			repair: func(m *matrix) {
				for c := range m.others() {
					m.releaseUntil(c)
					c.whole(m.t)
				}
				m.exits(m.Edge, 0)
				m.oneEndEach()
				m.begun = 0
				m.restartEdge()
			},
		},
		{
			name: "edge SIGTERM and nothing ends", rounds: 2, drain: grace, within: grace + time.Second, nodeSurvives: true, strike: term(edge),
			want: map[phase]verdict{queued: refusedWith(503, "edge_draining"), preByte: refusedWith(503, "edge_draining"), midStream: cutV,
				atEnd: cutV, noStream: refusedWith(503, "edge_draining")},
			repair: func(m *matrix) {
				m.exits(m.Edge, 0)
				m.provider.awaitOpen(0, promise)
				m.oneEndEach()
				m.begun = 0
				m.restartEdge()
			},
		},
	}
}

// others are the calls that aren't in the queue, the holder among them.
func (m *matrix) others() func(yield func(*call) bool) {
	return func(yield func(*call) bool) {
		for _, c := range []*call{m.holder, m.calls[preByte], m.calls[midStream], m.calls[atEnd], m.calls[noStream]} {
			if !yield(c) {
				return
			}
		}
	}
}

// releaseUntil lets the provider go on until the call has ended.
func (m *matrix) releaseUntil(c *call) {
	m.t.Helper()
	eventually(m.t, limit, c.name+" ends", func() bool {
		if !c.over() {
			m.provider.release()
		}
		return c.over()
	})
}

// exits waits for the end of a program and checks its exit code.
func (m *matrix) exits(p *procs.Process, code int) {
	m.t.Helper()
	select {
	case <-p.Done():
	case <-time.After(limit):
		m.t.Fatalf("%s didn't end", p.Name)
	}
	if got := p.ExitCode(); got != code {
		m.t.Errorf("%s ended with %d, want %d", p.Name, got, code)
	}
}
