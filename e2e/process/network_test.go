//go:build e2e

package process

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"iop/e2e/procs"
)

// network is two network namespaces with one cable between them: the edge lives in one, node and provider in the other.
// It is made of what iproute2 has, so that nothing else is needed: a packet is dropped by sending it to a hardware
// address that nobody has. A nil network is loopback.
type network struct {
	t    *testing.T
	e, n string // names of the namespaces
}

// The ends of the cable. Both namespaces are the test's own, so that the addresses disturb nobody.
const (
	edgeEnd, nodeEnd   = "iop-e", "iop-n"
	edgeAddr, nodeAddr = "10.77.0.1", "10.77.0.2"
	nobodysHardware    = "02:00:00:00:00:99"
)

// newNetwork makes one, or skips the test where that isn't possible.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("network namespaces need ip (iproute2), which isn't installed")
	}
	w := &network{t: t, e: fmt.Sprintf("iop-e-%d", os.Getpid()), n: fmt.Sprintf("iop-n-%d", os.Getpid())}
	for _, name := range []string{w.e, w.n} {
		if text, err := ip("netns", "add", name); err != nil {
			t.Skipf("network namespaces aren't possible here: %v: %s", err, text)
		}
		t.Cleanup(func() { _, _ = ip("netns", "del", name) }) // its processes are gone by then
	}
	w.must("-n", w.e, "link", "add", edgeEnd, "type", "veth", "peer", "name", nodeEnd, "netns", w.n)
	for _, end := range [][3]string{{w.e, edgeEnd, edgeAddr}, {w.n, nodeEnd, nodeAddr}} {
		w.must("-n", end[0], "address", "add", end[2]+"/30", "dev", end[1])
		w.must("-n", end[0], "link", "set", "lo", "up")
		w.must("-n", end[0], "link", "set", end[1], "up")
	}
	return w
}

func ip(args ...string) (string, error) { return output("ip", args...) }

func output(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	text, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return strings.TrimSpace(string(text)), err
}

func (w *network) must(args ...string) {
	w.t.Helper()
	if text, err := ip(args...); err != nil {
		w.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, text)
	}
}

// inEdge and inNode are the prefixes that start a program there.
func (w *network) inEdge() []string {
	if w == nil {
		return nil
	}
	return []string{"ip", "netns", "exec", w.e}
}

func (w *network) inNode() []string {
	if w == nil {
		return nil
	}
	return []string{"ip", "netns", "exec", w.n}
}

// settle puts a site into the network.
func (w *network) settle(c procs.SiteConfig) procs.SiteConfig {
	if w != nil {
		c.EdgePrefix, c.NodePrefix, c.NodesHost = w.inEdge(), w.inNode(), edgeAddr
		c.Edge += "\ninsecure_plaintext: true"
	}
	return c
}

// edgeSide and nodeSide connect from inside a namespace.
func (w *network) edgeSide() dialer {
	if w == nil {
		return nil
	}
	return inside(w.e)
}

func (w *network) nodeSide() dialer {
	if w == nil {
		return nil
	}
	return inside(w.n)
}

// inside returns a dialer whose sockets belong to the namespace: a socket is of the namespace of the thread that makes
// it. The thread isn't given back; it ends with its goroutine.
func inside(name string) dialer {
	return func(addr string) (net.Conn, error) {
		type result struct {
			net.Conn
			error
		}
		made := make(chan result, 1)
		go func() {
			runtime.LockOSThread()
			file, err := os.Open("/run/netns/" + name)
			if err == nil {
				err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
				file.Close()
			}
			if err != nil {
				made <- result{error: err}
				return
			}
			conn, err := net.DialTimeout("tcp", addr, limit)
			made <- result{conn, err}
		}()
		r := <-made
		return r.Conn, r.error
	}
}

// drop loses what the named sides send.
func (w *network) drop(edge, node bool) {
	w.t.Helper()
	if edge {
		w.must("-n", w.e, "neigh", "replace", nodeAddr, "lladdr", nobodysHardware, "dev", edgeEnd, "nud", "permanent")
	}
	if node {
		w.must("-n", w.n, "neigh", "replace", edgeAddr, "lladdr", nobodysHardware, "dev", nodeEnd, "nud", "permanent")
	}
}

// heal ends drop. Either side may not have dropped anything.
func (w *network) heal() {
	w.t.Helper()
	_, _ = ip("-n", w.e, "neigh", "del", nodeAddr, "dev", edgeEnd)
	_, _ = ip("-n", w.n, "neigh", "del", edgeAddr, "dev", nodeEnd)
}

// plug takes the cable out ("down") or puts it back ("up").
func (w *network) plug(state string) {
	w.t.Helper()
	w.must("-n", w.n, "link", "set", nodeEnd, state)
}

// reset makes the kernel of one side abort the link's connection and tell the other side with RST.
func (w *network) reset(in []string, peer string) {
	w.t.Helper()
	if _, err := exec.LookPath("ss"); err != nil {
		w.t.Skip("resets need ss (iproute2), which isn't installed")
	}
	args := append(in[1:], "ss", "-H", "-t", "-n", "-K", "dst", peer)
	if text, err := output(in[0], args...); err != nil || !strings.Contains(text, peer) {
		w.t.Skipf("this kernel doesn't abort connections for ss -K: %v %s", err, text)
	}
}

// Rows 6 to 9 of the fault catalogue and TU-01 on a real network, scaled: the same callers, in every phase.
func TestNetworkFaults(t *testing.T) {
	for _, f := range cables() {
		t.Run(f.name, func(t *testing.T) { newMatrix(t, f, newNetwork(t)).rounds() })
	}
}

func cables() []fault { return slices.Concat(drops(), resets(), unplugged()) }

// gone is what a lost link means to the callers of each phase.
func gone() map[phase]verdict {
	lost := refusedWith(502, "node_lost")
	return map[phase]verdict{queued: servedV, preByte: lost, midStream: cutV, atEnd: cutV, noStream: lost}
}

// left waits until the edge has freed the places of the old link, and the provider was left by the node.
func left(m *matrix) {
	m.holder.await(m.t, limit).cut(m.t)
	// Where the node is back already, the queued caller has its place.
	m.note("places", eventually(m.t, promise, "no place of the old link is held", func() bool { return m.metric("iop_places_in_flight") <= 1 }))
	eventually(m.t, dead+promise, "the provider was left", func() bool { return m.provider.state().Gone == 5*(m.round+1) })
}

func drops() []fault {
	var rows []fault
	for _, d := range []struct {
		name       string
		edge, node bool
	}{{"nothing arrives", true, true}, {"nothing arrives at the node", true, false}, {"nothing arrives at the edge", false, true}} {
		rows = append(rows, fault{
			name: d.name, rounds: 2, within: dead + promise, deadLinks: true, edgeSurvives: true, nodeSurvives: true, want: gone(),
			strike: func(m *matrix) time.Time {
				m.network.drop(d.edge, d.node)
				return time.Now()
			},
			repair: func(m *matrix) {
				left(m)
				m.network.heal()
				m.note("back", m.awaitNode("ready", limit))
			},
		})
	}
	return rows
}

func resets() []fault {
	return []fault{
		{
			name: "the edge's side resets", rounds: 3, within: promise, edgeSurvives: true, nodeSurvives: true, want: gone(), repair: left,
			strike: func(m *matrix) time.Time {
				m.network.reset(m.network.inEdge(), nodeAddr)
				return time.Now()
			},
		},
		{
			// The old connection lives at the edge until the node comes again and it doesn't answer its probe.
			name: "a reset that only the node sees", rounds: 2, within: dead + promise, deadLinks: true, edgeSurvives: true, nodeSurvives: true, want: gone(), repair: left,
			strike: func(m *matrix) time.Time {
				from := time.Now()
				m.network.drop(false, true)
				m.network.reset(m.network.inNode(), edgeAddr)
				m.network.heal()
				return from
			},
		},
		{
			// Row 5: nothing of the node's end arrives, and the rebooted machine knows nothing of its old connection.
			name: "the node loses power and is back", rounds: 2, within: promise, deadLinks: true, edgeSurvives: true, want: gone(), repair: left,
			strike: func(m *matrix) time.Time {
				m.network.plug("down")
				m.Node.Kill()
				m.network.reset(m.network.inNode(), edgeAddr)
				m.network.plug("up")
				from := time.Now()
				m.restartNode()
				m.note("ready again", time.Since(from))
				return from
			},
		},
	}
}

func unplugged() []fault {
	return []fault{
		{
			name: "the cable is out for less than the dead limit", rounds: 1, want: all(servedV, nil), keeps: true, deadLinks: true,
			strike: func(m *matrix) time.Time {
				m.network.plug("down")
				<-time.After(dead / 4)
				m.network.plug("up")
				return time.Now()
			},
		},
		{
			name: "the cable is out for more than the dead limit", rounds: 1, within: dead + promise, deadLinks: true, edgeSurvives: true, nodeSurvives: true, want: gone(),
			strike: func(m *matrix) time.Time {
				m.network.plug("down")
				return time.Now()
			},
			repair: func(m *matrix) {
				left(m)
				m.network.plug("up")
			},
		},
	}
}

// Row 12 (shortened): over 1 Mbit/s, 16 bulk answers are slow and nothing is lost: control gets through beside them, and
// so do small answers.
func TestThinLink(t *testing.T) {
	w := newNetwork(t)
	for _, end := range [][2]string{{w.e, edgeEnd}, {w.n, nodeEnd}} {
		text, err := output("ip", "netns", "exec", end[0], "tc", "qdisc", "add", "dev", end[1], "root", "tbf", "rate", "1mbit", "burst", "4kb", "latency", "400ms")
		if err != nil {
			t.Skipf("a thin link needs tc (iproute2) and the kernel's token bucket: %v: %s", err, text)
		}
	}
	p := startProvider(t, w.inNode(), w.nodeSide())
	s := newSiteIn(t, w.settle(procs.SiteConfig{
		Adapters: "[" + adapter("work", p.url(), 32) + "]", Routes: "[{model: work, adapter: work, target: m}]",
		Edge: "timers: {heartbeat: 500ms, dead: 6s}",
	}), w.edgeSide(), w.nodeSide())
	const bulk, while = 16, 12 * time.Second
	var calls []*call
	for i := range bulk {
		calls = append(calls, s.begin(fmt.Sprintf("bulk %d", i), "work", modeFlood))
	}
	p.awaitOpen(bulk, limit)
	began := time.Now()
	small := s.begin("a small stream", "work", modeStream)
	var roundTrip time.Duration
	for tick := time.NewTicker(100 * time.Millisecond); time.Since(began) < while; <-tick.C {
		roundTrip = max(roundTrip, s.roundTrip())
	}
	leaver := calls[0]
	leaver.leave(false)
	cancel := p.awaitOpen(bulk, 6*time.Second) // the small one is open, too
	got := 0
	for _, c := range calls {
		text := c.text()
		if got += len(text); !beginning(text) {
			t.Errorf("%s lost or changed bytes", c.name)
		}
	}
	gap := small.longestGap()
	rate := float64(got) * 8 / time.Since(began).Seconds() / 1e6
	t.Logf("%.2f Mbit/s of bulk; heartbeats took at most %v, a cancel %v; a small stream's longest gap was %v", rate,
		roundTrip.Round(time.Millisecond), cancel.Round(time.Millisecond), gap.Round(time.Millisecond))
	if roundTrip == 0 || roundTrip > 5*time.Second || gap > 5*time.Second || rate < 0.5 {
		t.Error("the link didn't stay usable")
	}
	if n := s.Edge.Count("node fenced"); n != 0 {
		t.Errorf("the link was lost %d times", n)
	}
	for _, c := range calls[1:] {
		c.leave(false)
	}
	small.leave(false)
	p.awaitOpen(0, limit)
	s.settled()
}

// roundTrip is the time of the node's last heartbeat and its answer.
func (s *site) roundTrip() time.Duration {
	s.t.Helper()
	return time.Duration(s.nodeStatus().Links[0].RTT * float64(time.Millisecond))
}
