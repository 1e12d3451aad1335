//go:build e2e

package process

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"iop/e2e/procs"
)

// site is an edge and a node as processes, with what the tests ask them.
type site struct {
	*procs.Site
	t        *testing.T
	edgeSide dialer // how to reach the edge's callers' and admin listeners
	nodeSide dialer // how to reach the node's admin listener
}

// quickTimers are the edge's timers of the tests that wait for a dead link: everything else keeps its proportion. The
// others leave them alone, so that nothing but what they are about tells anybody of anything.
const (
	dead        = 4 * time.Second
	quickTimers = "heartbeat: 1s, dead: 4s, probe: 500ms, handshake: 3s"
	quickNode   = `admin: {listen: "127.0.0.1:0"}
timers: {backoff_start: 100ms, backoff_max: 500ms, handshake: 1s, probe_interval: 500ms, drain: %s}`
)

// newSite starts both programs; they are killed at the test's end.
func newSite(t *testing.T, c procs.SiteConfig) *site { return newSiteIn(t, c, nil, nil) }

func newSiteIn(t *testing.T, c procs.SiteConfig, edgeSide, nodeSide dialer) *site {
	t.Helper()
	c.Bin, c.Host = cmp.Or(c.Bin, bin), procs.OwnHost() // whose ports are free when a program starts again
	if c.Node == "" {
		c.Node = fmt.Sprintf(quickNode, "30s")
	}
	started, err := procs.StartSite(background(t), c)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{Site: started, t: t, edgeSide: edgeSide, nodeSide: nodeSide}
	t.Cleanup(func() {
		for _, p := range []*procs.Process{s.Node, s.Edge} {
			p.Kill()
			if t.Failed() {
				t.Logf("%s's log:\n%s", p.Name, tail(p.Log()))
			}
		}
		_ = s.Stop() // removes the files; both have ended
	})
	return s
}

// adapter is one entry of a node's adapters.
func adapter(name, url string, places int) string {
	return fmt.Sprintf("{name: %s, kind: openai, base_url: %q, max_concurrency: %d}", name, url, places)
}

// nodeView is a node as the edge's admin API shows it.
type nodeView struct {
	ID         string `json:"id"`
	State      string `json:"state"`
	Generation uint64 `json:"generation"`
	Adapters   []struct {
		Name      string `json:"name"`
		Available bool   `json:"available"`
		Reason    string `json:"reason"`
		InFlight  int    `json:"in_flight"`
		Capacity  int    `json:"capacity"`
	} `json:"adapters"`
}

// nodes returns every node that the edge knows.
func (s *site) nodes() []nodeView {
	s.t.Helper()
	var answer struct {
		Nodes []nodeView `json:"nodes"`
	}
	if err := json.Unmarshal(get(s.t, s.edgeSide, s.Admin, "/admin/v1/nodes"), &answer); err != nil {
		s.t.Fatal(err)
	}
	return answer.Nodes
}

// node returns the site's own node.
func (s *site) node() nodeView {
	s.t.Helper()
	for _, n := range s.nodes() {
		if n.ID == procs.NodeID {
			return n
		}
	}
	s.t.Fatal("the edge doesn't show its node")
	return nodeView{}
}

// awaitNode waits until the edge shows the node in a state.
func (s *site) awaitNode(state string, within time.Duration) time.Duration {
	s.t.Helper()
	return eventually(s.t, within, "the node is "+state, func() bool { return s.node().State == state })
}

// nodeStatus is what the node's own admin listener shows.
type nodeStatus struct {
	Goroutines int `json:"goroutines"`
	Lingering  int `json:"lingering"`
	Links      []struct {
		State       string  `json:"state"`
		OpenStreams int     `json:"open_streams"`
		RTT         float64 `json:"rtt_ms"`
	} `json:"links"`
	Adapters []struct {
		InFlight int `json:"in_flight"`
	} `json:"adapters"`
	Running []json.RawMessage `json:"running"`
}

// held is how many executions, places and work streams the node has.
func (n nodeStatus) held() int {
	held := n.Lingering + len(n.Running)
	for _, a := range n.Adapters {
		held += a.InFlight
	}
	for _, l := range n.Links {
		held += l.OpenStreams
	}
	return held
}

func (s *site) nodeStatus() nodeStatus {
	s.t.Helper()
	var status nodeStatus
	addr := said(s.t, s.Node, "admin listens", 1).Str("address")
	if err := json.Unmarshal(get(s.t, s.nodeSide, addr, "/admin/v1/status"), &status); err != nil {
		s.t.Fatal(err)
	}
	return status
}

// metric is the sum of a metric's samples at the edge.
func (s *site) metric(name string) float64 {
	s.t.Helper()
	return sample(s.t, string(get(s.t, s.edgeSide, s.Admin, "/metrics")), name)
}

// sample adds a metric's samples up. What has a series for each node or place may have none.
func sample(t *testing.T, text, name string) float64 {
	t.Helper()
	sum, found := 0.0, strings.HasPrefix(name, "iop_places_") || name == "iop_open_streams"
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); bare != name {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("metric %s: %v", name, err)
		}
		sum, found = sum+n, true
	}
	if !found {
		t.Fatalf("there is no metric %s", name)
	}
	return sum
}

// edgeHeld is how many places are held and how many callers wait or run, by the edge's count.
func (s *site) edgeHeld() int {
	s.t.Helper()
	text := string(get(s.t, s.edgeSide, s.Admin, "/metrics"))
	held := sample(s.t, text, "iop_queue_length") + sample(s.t, text, "iop_runs_live") + sample(s.t, text, "iop_places_in_flight")
	return int(held + sample(s.t, text, "iop_places_unconfirmed") + sample(s.t, text, "iop_places_adopted"))
}

// awaitFree waits until the edge holds no place, no waiter and no run, and returns how long that took.
func (s *site) awaitFree(within time.Duration) time.Duration {
	s.t.Helper()
	return eventually(s.t, within, "the edge holds nothing", func() bool { return s.edgeHeld() == 0 })
}

// settled waits until nothing is held anywhere and no work stream is left.
func (s *site) settled() {
	s.t.Helper()
	s.awaitNode("ready", limit)
	s.awaitFree(limit)
	eventually(s.t, limit, "the node holds nothing", func() bool { return s.nodeStatus().held() == 0 })
	eventually(s.t, limit, "no work stream is open", func() bool { return s.metric("iop_open_streams") == 0 })
}

// restartEdge starts the edge again where it was and waits until the node is back.
func (s *site) restartEdge() {
	s.t.Helper()
	if err := s.StartEdge(background(s.t)); err != nil {
		s.t.Fatal(err)
	}
	said(s.t, s.Edge, "node ready", 1)
}

// restartNode starts the node again and waits until it is ready.
func (s *site) restartNode() {
	s.t.Helper()
	if err := s.RestartNode(background(s.t)); err != nil {
		s.t.Fatal(err)
	}
}

// begin sends a chat request to the edge.
func (s *site) begin(name, model, mode string) *call {
	s.t.Helper()
	return begin(s.t, s.edgeSide, s.HTTP, name, chat(model, mode))
}

// ask sends a request to the edge and waits for the end of the answer.
func (s *site) ask(request string) *call {
	s.t.Helper()
	return begin(s.t, s.edgeSide, s.HTTP, "a request", request).await(s.t, limit)
}

// size is what must not grow: goroutines and descriptors of a program.
type size struct{ goroutines, descriptors int }

func (s *site) edgeSize() size {
	s.t.Helper()
	return size{int(s.metric("go_goroutines")), descriptors(s.t, s.Edge)}
}

func (s *site) nodeSize() size {
	s.t.Helper()
	return size{s.nodeStatus().Goroutines, descriptors(s.t, s.Node)}
}

func descriptors(t *testing.T, p *procs.Process) int {
	t.Helper()
	n, err := p.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ownGoroutines is by how much the goroutines that collect an answer may differ between two answers. What leaks does so
// in each round, or for each of its six callers.
const ownGoroutines = 4

// sameSize waits until a program is back to what it was.
func sameSize(t *testing.T, what string, before size, now func() size) {
	t.Helper()
	var last size
	deadline := time.Now().Add(limit)
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		last = now()
		if last.goroutines <= before.goroutines+ownGoroutines && last.descriptors <= before.descriptors {
			t.Logf("%s: %d goroutines, %d descriptors; before %d, %d", what, last.goroutines, last.descriptors, before.goroutines, before.descriptors)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s grew: %d goroutines, %d descriptors; before %d, %d", what, last.goroutines, last.descriptors, before.goroutines, before.descriptors)
		}
	}
}
