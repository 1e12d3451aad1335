//go:build e2e

package process

import (
	"syscall"
	"time"

	"iop/e2e/procs"
)

// The rows of the kill matrix.

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
			// The kernel may have taken the queued caller's connection for a provider that was already dying, or a look at
			// the provider came first.
			want: map[phase]verdict{queued: refusedWith(0, "upstream_connect", "upstream_truncated", "adapter_unavailable"), preByte: truncated, midStream: cutV, atEnd: eitherV, noStream: truncated},
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
				said(m.t, m.Edge, "run ended", m.begun)
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

// signal stops a process or lets it go on.
func (m *matrix) signal(p *procs.Process, s syscall.Signal) {
	m.t.Helper()
	if err := p.Signal(s); err != nil {
		m.t.Fatal(err)
	}
}

// short stops a process for less than the dead limit.
func short(p func(m *matrix) *procs.Process) func(m *matrix) time.Time {
	return func(m *matrix) time.Time {
		m.signal(p(m), syscall.SIGSTOP)
		<-time.After(dead / 4)
		m.signal(p(m), syscall.SIGCONT)
		return time.Now()
	}
}

func pauses() []fault {
	lost := refusedWith(502, "node_lost")
	return []fault{
		{name: "node SIGSTOP for less than the dead limit", rounds: 1, want: all(servedV, nil), strike: short(theNode), keeps: true, deadLinks: true},
		{name: "edge SIGSTOP for less than the dead limit", rounds: 1, want: all(servedV, nil), strike: short(theEdge), keeps: true, deadLinks: true},
		{
			name: "node SIGSTOP for more than the dead limit", rounds: 2, within: dead + promise, deadLinks: true, edgeSurvives: true, nodeSurvives: true,
			strike: func(m *matrix) time.Time {
				from := time.Now()
				m.signal(m.Node, syscall.SIGSTOP)
				return from
			},
			want: map[phase]verdict{queued: servedV, preByte: lost, midStream: cutV, atEnd: cutV, noStream: lost},
			repair: func(m *matrix) {
				m.holder.await(m.t, limit).cut(m.t)
				eventually(m.t, promise, "no place is held", func() bool { return m.metric("iop_places_in_flight") == 0 })
				m.signal(m.Node, syscall.SIGCONT)
				from := time.Now()
				// The queued caller's request may have come already: it begins after the others are gone.
				eventually(m.t, limit, "the provider was left", func() bool { return m.provider.state().Gone == 5*(m.round+1) })
				m.note("provider after SIGCONT", time.Since(from))
			},
		},
		{
			name: "edge SIGSTOP for more than the dead limit", rounds: 2, within: promise, deadLinks: true, edgeSurvives: true, nodeSurvives: true,
			strike: func(m *matrix) time.Time {
				from := time.Now()
				m.signal(m.Edge, syscall.SIGSTOP)
				m.provider.awaitOpen(0, dead+promise) // the node gives up by itself
				m.note("provider", time.Since(from))
				m.signal(m.Edge, syscall.SIGCONT)
				return time.Now()
			},
			want:   map[phase]verdict{queued: servedV, preByte: lost, midStream: cutV, atEnd: cutV, noStream: lost},
			repair: func(m *matrix) { m.holder.await(m.t, limit).cut(m.t) },
		},
	}
}

// theEdge and theNode are whom a signal goes to.
func theEdge(m *matrix) *procs.Process { return m.Edge }
func theNode(m *matrix) *procs.Process { return m.Node }

// term tells a program to end, and doesn't wait.
func term(p func(m *matrix) *procs.Process) func(m *matrix) time.Time {
	return func(m *matrix) time.Time {
		from := time.Now()
		if err := p(m).Signal(syscall.SIGTERM); err != nil {
			m.t.Fatal(err)
		}
		return from
	}
}

// grace is the time to drain of those drains that are too short.
const grace = time.Second

// nodeTerms and edgeTerms are the drains. (TU-30)
func nodeTerms() []fault {
	return []fault{
		{
			name: "node SIGTERM", rounds: 2, within: promise, edgeSurvives: true, strike: term(theNode), want: all(servedV, nil),
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
			name: "node SIGTERM and nothing ends", rounds: 2, drain: grace, within: grace + promise, edgeSurvives: true, strike: term(theNode),
			want: map[phase]verdict{queued: servedV, preByte: refusedWith(503, "node_draining"), midStream: cutV, atEnd: cutV,
				noStream: refusedWith(503, "node_draining")},
			repair: func(m *matrix) {
				m.exits(m.Node, 0)
				m.provider.awaitOpen(0, promise)
				m.restartNode()
			},
		},
	}
}

func edgeTerms() []fault {
	return []fault{
		{
			name: "edge SIGTERM", rounds: 2, within: promise, nodeSurvives: true, strike: term(theEdge),
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
			name: "edge SIGTERM and nothing ends", rounds: 2, drain: grace, within: grace + promise, nodeSurvives: true, strike: term(theEdge),
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
