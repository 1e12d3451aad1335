package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node"
	"iop/packages/go/config"
	"iop/packages/go/patience"
	"iop/packages/go/tracing"
)

// Node is a node that runs in this process.
type Node struct {
	t     testing.TB
	Log   *Log
	run   *runner
	admin chan net.Addr // one address, put back by whoever takes it
}

// StartNode starts a node with the token of "box" against the address.
func StartNode(t testing.TB, addr, timers string) *Node {
	t.Helper()
	return StartNodeAs(t, token, addr, timers)
}

// StartNodeAs starts a node that shows the given token.
func StartNodeAs(t testing.TB, token, addr, timers string) *Node {
	t.Helper()
	return StartNodeOn(t, token, []string{addr}, timers)
}

// StartNodeOn starts a node that shows the given token to each of several addresses.
func StartNodeOn(t testing.TB, token string, addrs []string, timers string) *Node {
	t.Helper()
	return startNode(t, token, addrs, timers, nil)
}

// StartNodeTraced starts a node that shows the given token, and its spans to whom trace says.
func StartNodeTraced(t testing.TB, token, addr string, trace *tracing.Config) *Node {
	t.Helper()
	return startNode(t, token, []string{addr}, "", trace)
}

func startNode(t testing.TB, token string, addrs []string, timers string, trace *tracing.Config) *Node {
	t.Helper()
	edges, _ := json.Marshal(addrs)
	text := fmt.Sprintf("edges: %s\ntoken: file:./node.token\ndata_dir: ./data\nadmin: {listen: \"127.0.0.1:0\"}\n", edges)
	if timers != "" {
		text += "timers: " + timers + "\n"
	}
	return runNode(t, text, token, trace)
}

// StartNodeWith starts a node whose file node.yaml has this text, beside a file node.token. It exports its spans to whom
// trace says, nil = to nobody.
func StartNodeWith(t testing.TB, text, token string, trace *tracing.Config) *Node {
	t.Helper()
	return runNode(t, text, token, trace)
}

func runNode(t testing.TB, text, token string, trace *tracing.Config) *Node {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"node.yaml": text, "node.token": token} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.LoadNode(filepath.Join(dir, "node.yaml"))
	if err != nil {
		t.Fatalf("the harness wrote a file that doesn't load: %v\n%s", err, text)
	}
	n := &Node{t: t, Log: &Log{}, admin: make(chan net.Addr, 1)}
	n.run = start(func(ctx context.Context, kill <-chan struct{}) error {
		return node.Run(ctx, cfg, node.Options{Log: zerolog.New(n.Log).Level(zerolog.DebugLevel), Kill: kill, Tracing: traced(trace, "node"),
			OnAdmin: func(addr net.Addr) { n.admin <- addr }})
	})
	t.Cleanup(func() {
		_ = n.run.killNow(t) // a test that cares stops it itself
		if t.Failed() {
			t.Logf("the node's log:\n%s", n.Log.Tail(100))
		}
	})
	return n
}

// Stop ends the node as SIGTERM does.
func (n *Node) Stop(limit time.Duration) error { return n.run.stop(n.t, limit) }

// Term begins the node's end as SIGTERM does and doesn't wait.
func (n *Node) Term() { n.run.cancel() }

// Done is closed when the node has ended.
func (n *Node) Done() <-chan struct{} { return n.run.done }

// Kill ends the node as a second signal does.
func (n *Node) Kill() error { return n.run.killNow(n.t) }

// NodeStatus is what a node's own admin listener shows.
type NodeStatus struct {
	Links []struct {
		State       string `json:"state"`
		OpenStreams int    `json:"open_streams"`
	} `json:"links"`
	Adapters []struct {
		Name      string `json:"name"`
		Available bool   `json:"available"`
		Reason    string `json:"reason"`
		InFlight  int    `json:"in_flight"`
		Capacity  int    `json:"capacity"`
	} `json:"adapters"`
	Running []struct {
		RunID string `json:"run_id"`
	} `json:"running"`
	Lingering int `json:"lingering"`
}

// Status asks the node's own admin listener.
func (n *Node) Status() NodeStatus {
	n.t.Helper()
	var status NodeStatus
	if err := json.Unmarshal(n.Admin("/admin/v1/status"), &status); err != nil {
		n.t.Fatal(err)
	}
	return status
}

// Admin asks the node's admin listener.
func (n *Node) Admin(path string) []byte {
	n.t.Helper()
	var addr net.Addr
	select {
	case addr = <-n.admin:
		n.admin <- addr
	case <-time.After(patience.Limit):
		n.t.Fatal("the node's admin listener didn't come within 10 s")
	}
	return get(n.t, "http://"+addr.String()+path)
}

// AwaitIdle waits until the node runs nothing, holds no place and has no work stream left.
func (n *Node) AwaitIdle(limit time.Duration) {
	n.t.Helper()
	Until(n.t, limit, "the node has no execution, no place and no work stream", func() bool {
		s := n.Status()
		held := len(s.Running) + s.Lingering
		for _, a := range s.Adapters {
			held += a.InFlight
		}
		for _, l := range s.Links {
			held += l.OpenStreams
		}
		return held == 0
	})
}
