package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"iop/packages/go/config"
)

// plan is what an edge's configuration says; a reload changes it.
type plan struct {
	capacity [][2]int // of adapters a and b by node, 0 = it isn't there
	version  []int    // of a node's provider: another is another address
	enabled  []bool
	pinned   int // the node of the model "pinned"
	depth    int
	wait     time.Duration
}

func drawPlan(d dice, nodes int) *plan {
	p := &plan{pinned: d.IntN(nodes), depth: d.among(1, 12), wait: d.between(2*time.Second, 60*time.Second)}
	for range nodes {
		c := [2]int{pick(d, 1, 1, 2, 3, 8), 0}
		if d.chance(50) {
			c[1] = d.among(1, 4)
		}
		p.capacity, p.version, p.enabled = append(p.capacity, c), append(p.version, 0), append(p.enabled, true)
	}
	p.capacity[0][1] = max(p.capacity[0][1], 1) // so that both names are known
	return p
}

// change is what a reload brings.
func (p *plan) change(d dice) string {
	i := d.IntN(len(p.capacity))
	switch d.IntN(6) {
	case 0:
		p.capacity[i][0] = d.among(1, 8)
		return fmt.Sprintf("node%d has %d places", i, p.capacity[i][0])
	case 1:
		if i > 0 {
			p.capacity[i][1] = d.among(0, 4)
		}
		return fmt.Sprintf("node%d has %d places at b", i, p.capacity[i][1])
	case 2:
		p.pinned = i
		return fmt.Sprintf("pinned goes to node%d", i)
	case 3:
		p.enabled[i] = !p.enabled[i]
		return fmt.Sprintf("node%d is enabled: %v", i, p.enabled[i])
	case 4:
		p.version[i]++
		return fmt.Sprintf("node%d has another provider", i)
	}
	p.depth, p.wait = d.among(1, 12), d.between(2*time.Second, 60*time.Second)
	return fmt.Sprintf("queues of %d for %v", p.depth, p.wait)
}

// calm is the plan for the end: everybody may come back.
func (p *plan) calm() {
	for i := range p.enabled {
		p.enabled[i] = true
	}
}

// edge makes the configuration.
func (p *plan) edge(dir string, nodes int) *config.Edge {
	e := &config.Edge{
		Mode: "dev", StateDir: dir, Listen: config.Listen{Nodes: "nodes", HTTP: "http"},
		Limits: config.Limits{Body: 64 << 20, BodyInMemory: 256 << 10, BodyMemory: 512 << 20, Header: 32 << 10, Connections: 4096,
			SlowAnswers: 256, Unregistered: 128, Handshakes: 64},
		Timers: edgeTimers,
	}
	for i := range nodes {
		id := fmt.Sprintf("node%d", i)
		n := config.NodeRecord{ID: id, Enabled: p.enabled[i], TokenHashes: []config.TokenHash{{SHA256: hexHash(tokenOf(id))}}}
		for k, name := range []string{"a", "b"} {
			if c := p.capacity[i][k]; c > 0 {
				n.Adapters = append(n.Adapters, config.Adapter{Name: name, Kind: "openai", MaxConcurrency: c,
					BaseURL: fmt.Sprintf("http://provider-%d.%s", p.version[i], id)})
			}
		}
		e.Nodes = append(e.Nodes, n)
	}
	queue := config.Queue{Depth: p.depth, Wait: p.wait}
	e.Routes = []config.Route{
		{Model: "any", Queue: queue},
		{Model: "pinned", Adapter: "a", Nodes: []string{fmt.Sprintf("node%d", p.pinned)}, Queue: queue},
		{Model: "fast", Adapter: "a", FailFast: true, Queue: config.Queue{Depth: 2, Wait: p.wait}},
		{Model: "other", Adapter: "b", Queue: queue, FirstByte: 20 * time.Second, Idle: 20 * time.Second, Deadline: 70 * time.Second},
	}
	for i, id := range principals {
		e.Principals = append(e.Principals, config.Principal{ID: id, Weight: 1 + i, KeyHashes: []string{hexHash("key of " + id)}})
	}
	return e
}

func hexHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

var edgeTimers = config.EdgeTimers{
	Heartbeat: 30 * time.Second, Dead: 45 * time.Second, Handshake: 10 * time.Second, Probe: 3 * time.Second, ReadyLimit: 60 * time.Second,
	ControlOpen: 5 * time.Second, DispatchLimit: 10 * time.Second, ConfirmLimit: 60 * time.Second, WriteIdle: writeIdle,
	TerminalWait: 10 * time.Second, StreamReset: 10 * time.Second, Drain: 30 * time.Second, HeaderRead: 10 * time.Second,
	DetachedLimit: 3 * time.Minute,
}
