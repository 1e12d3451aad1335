//go:build e2e

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"iop/e2e/procs"
	"iop/packages/go/config"
)

// member is a further node of a site: its record for the edge's file, and its process.
type member struct {
	id, record, token string
	*procs.Process
}

// newMember makes a node's token and record. It isn't started.
func newMember(id, adapters string) *member {
	token, hash := config.NewToken()
	return &member{id: id, token: token.Reveal(),
		record: fmt.Sprintf("{id: %s, token_hashes: [{sha256: %s}], adapters: %s}", id, hash, adapters)}
}

// start starts the node against a site.
func (m *member) start(s *site, more string) {
	s.t.Helper()
	dir := filepath.Join(s.Dir, m.id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	write(s.t, dir, "node.token", m.token)
	write(s.t, dir, "node.yaml", fmt.Sprintf("edges: [%q]\ntoken: file:./node.token\n%s\n", s.Nodes, more))
	m.Process = start(s.t, m.id, nil, program("iop-node"), "serve", "-c", filepath.Join(dir, "node.yaml"))
}

// ready counts the nodes that take work.
func (s *site) ready() int {
	s.t.Helper()
	n := 0
	for _, v := range s.nodes() {
		if v.State == "ready" {
			n++
		}
	}
	return n
}

// TU-23: a fleet that lost its edge comes back within the promised time and not in step. (Row 34 with 21 processes.)
func TestFleetComesBack(t *testing.T) {
	const fleet = 20
	var members []*member
	var records []string
	for i := range fleet {
		m := newMember(fmt.Sprintf("node-%02d", i), "[{name: loopback, kind: loopback, max_concurrency: 2}]")
		members, records = append(members, m), append(records, m.record)
	}
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 2}]", MoreNodes: records})
	const backoff = "timers: {backoff_start: 500ms, backoff_max: 4s}"
	for _, m := range members {
		m.start(s, backoff)
	}
	eventually(t, limit, "all are ready", func() bool { return s.ready() == fleet+1 })

	s.Edge.Kill()
	// Long enough for several dials, so that what a node has learned to wait shows.
	<-time.After(3 * time.Second)
	from := time.Now()
	s.restartEdge()
	eventually(t, limit, "all are ready again", func() bool { return s.ready() == fleet+1 })
	t.Logf("%d nodes were ready %v after the edge came back", fleet+1, time.Since(from).Round(10*time.Millisecond))

	said(t, s.Edge, "node registered", fleet+1) // the log comes a moment later
	spread(t, s.Edge.Entries("node registered"))
	for _, v := range s.nodes() {
		if v.Generation == 0 || v.Adapters[0].InFlight != 0 {
			t.Errorf("%+v", v)
		}
	}
	waits(t, members)
	for range 2 * fleet { // all of them serve
		if c := s.ask(chat("loopback", "loopback: delay=0s")); c.status != 200 || c.err != nil {
			t.Fatalf("%s", c)
		}
	}
}

// spread checks that registrations don't come in one moment.
func spread(t *testing.T, registered []procs.Entry) {
	t.Helper()
	var at []time.Time
	for _, e := range registered {
		moment, err := time.Parse(time.RFC3339Nano, e.Str("time"))
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, moment)
	}
	slices.SortFunc(at, time.Time.Compare)
	most := 0
	for i := range at {
		n := 0
		for _, other := range at[i:] {
			if other.Sub(at[i]) < 100*time.Millisecond {
				n++
			}
		}
		most = max(most, n)
	}
	took := at[len(at)-1].Sub(at[0])
	t.Logf("%d registrations over %v, at most %d in 100 ms", len(at), took.Round(10*time.Millisecond), most)
	if most > len(at)*3/4 { // in step, it would be all; a machine that stands still makes some come together
		t.Errorf("%d of %d registrations came within 100 ms", most, len(at))
	}
}

// waits checks that no two nodes have the same sequence of waits, and that the waits grow.
func waits(t *testing.T, members []*member) {
	t.Helper()
	seen := map[string]string{}
	for _, m := range members {
		var sequence []string
		for _, e := range m.Entries("no link to the edge") {
			sequence = append(sequence, e.Str("retry_in_ms"))
		}
		key := fmt.Sprint(sequence)
		if other, ok := seen[key]; ok || len(sequence) < 2 {
			t.Errorf("%s waits %v, as %s does", m.id, sequence, other)
		}
		seen[key] = m.id
	}
}

// TU-18: a node that takes nothing more doesn't slow down anybody else.
func TestStuckNodeHoldsNobodyUp(t *testing.T) {
	const stuck = 12 * time.Second // how long who is held up would be
	p := startProvider(t, nil, nil)
	other := newMember("other", "["+adapter("other", p.url(), 64)+"]")
	late := newMember("late", "["+adapter("late", p.url(), 4)+"]")
	s := newSite(t, procs.SiteConfig{
		Adapters:  "[" + adapter("stuck", p.url(), 64) + "]",
		MoreNodes: []string{other.record, late.record},
		Routes:    "[{model: stuck, adapter: stuck, target: m}, {model: other, adapter: other, target: m}]",
		Edge:      fmt.Sprintf("timers: {heartbeat: 3s, dead: %v, dispatch_limit: %v}", stuck, stuck),
	})
	other.start(s, "")
	eventually(t, limit, "both are ready", func() bool { return s.ready() == 2 })

	if err := s.Node.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	big := chatBody(fmt.Sprintf(`{"model":"stuck","messages":[{"role":"user","content":"%0100000d"}]}`, 0))
	var hit, fine []*call
	for i := range 50 {
		hit = append(hit, begin(t, nil, s.HTTP, fmt.Sprintf("stuck %d", i), big))
		fine = append(fine, s.begin(fmt.Sprintf("fine %d", i), "other", modeBulk))
	}
	var slowest time.Duration
	for _, c := range fine {
		c.await(t, limit).whole(t)
		slowest = max(slowest, c.ended.Sub(stopped))
	}
	admin := s.adminTime()
	cancel := s.cancelTime(p)
	from := time.Now()
	late.start(s, "")
	eventually(t, limit, "a further node is ready", func() bool { return s.state("late") == "ready" })
	registration := time.Since(from)
	t.Logf("beside a stuck node: 50 MB in %v, admin at most %v, cancel %v, a node's start and registration %v",
		slowest.Round(time.Millisecond), admin.Round(time.Microsecond), cancel.Round(time.Millisecond), registration.Round(time.Millisecond))
	if slowest > stuck*2/3 || admin > stuck*2/3 || registration > stuck*2/3 {
		t.Error("somebody was held up")
	}
	for _, c := range hit {
		c.await(t, limit)
		if c.status != 502 && c.status != 504 {
			t.Errorf("%s", c)
		}
		if took := c.ended.Sub(stopped); took > stuck+promise {
			t.Errorf("%s ended after %v", c.name, took)
		}
	}
	if err := s.Node.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, limit, "all are ready", func() bool { return s.ready() == 3 })
	s.awaitFree(limit)
}

// adminTime is the longest that the admin API took for one of some answers.
func (s *site) adminTime() time.Duration {
	s.t.Helper()
	var longest time.Duration
	for range 20 {
		from := time.Now()
		s.nodes()
		longest = max(longest, time.Since(from))
	}
	return longest
}

// cancelTime is how long a caller's leaving takes to its provider.
func (s *site) cancelTime(p *provider) time.Duration {
	s.t.Helper()
	leaver := s.begin("a caller that leaves", "other", modeStream)
	leaver.awaitText(s.t, "data:")
	leaver.leave(false)
	return p.awaitOpen(0, promise)
}

// state is a node's state at the edge.
func (s *site) state(id string) string {
	s.t.Helper()
	for _, v := range s.nodes() {
		if v.ID == id {
			return v.State
		}
	}
	return ""
}
