package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge"
	"iop/apps/node"
	"iop/packages/go/config"
)

// Options say what the files of an edge and its node hold beyond the least. All of it is YAML.
type Options struct {
	Adapters   string // the node's adapters, a flow sequence
	Routes     string // "" = [{model: "*"}]
	Principals string // "" = none
	Timers     string // the edge's timers, a flow mapping
	Limits     string
	NodeTimers string
	MoreNodes  string // further entries of nodes:, a flow sequence without brackets
	Dial       string // where the node dials; "" = the edge
	NoNode     bool
}

// Edge is an edge that runs in this process.
type Edge struct {
	t    testing.TB
	Dir  string
	Log  *Log
	Addr edge.Addrs
	run  *runner
}

// Node is a node that runs in this process.
type Node struct {
	t   testing.TB
	Log *Log
	run *runner
}

// runner is a program in a goroutine: it ends by Stop (as by SIGTERM), Kill (as by a second signal), or by itself.
type runner struct {
	cancel context.CancelFunc
	kill   chan struct{}
	once   sync.Once
	done   chan struct{}
	err    error // after done
}

func start(run func(ctx context.Context, kill <-chan struct{}) error) *runner {
	ctx, cancel := context.WithCancel(context.Background())
	r := &runner{cancel: cancel, kill: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = run(ctx, r.kill)
	}()
	return r
}

func (r *runner) stop(t testing.TB, limit time.Duration) error {
	r.cancel()
	select {
	case <-r.done:
		return r.err
	case <-time.After(limit):
		t.Errorf("the program didn't end within %v of being told to", limit)
		return r.killNow(t)
	}
}

func (r *runner) killNow(t testing.TB) error {
	r.once.Do(func() { close(r.kill) })
	r.cancel()
	select {
	case <-r.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the program didn't end within 20 s of being killed")
	}
	return r.err
}

const token = "e2e-node-token-0123456789abcdef0123456789abcdef"

// Pair starts an edge and, unless told otherwise, its node "box", and waits until the node is ready. Both end with the
// test.
func Pair(t testing.TB, o Options) (*Edge, *Node) {
	t.Helper()
	e := StartEdge(t, o)
	if o.NoNode {
		return e, nil
	}
	dial := o.Dial
	if dial == "" {
		dial = e.Addr.Nodes.String()
	}
	n := StartNode(t, dial, o.NodeTimers)
	e.AwaitReady("box")
	return e, n
}

// StartEdge starts an edge with one node record, "box".
func StartEdge(t testing.TB, o Options) *Edge {
	t.Helper()
	return StartEdgeIn(t, t.TempDir(), "127.0.0.1:0", o)
}

// StartEdgeIn is StartEdge with a state directory and a node address of the caller's choice: an edge that comes back.
func StartEdgeIn(t testing.TB, dir, nodes string, o Options) *Edge {
	t.Helper()
	section := func(name, text string) string {
		if text == "" {
			return ""
		}
		return name + ": " + text + "\n"
	}
	routes := o.Routes
	if routes == "" {
		routes = `[{model: "*"}]`
	}
	adapters := o.Adapters
	if adapters == "" {
		adapters = "[{name: loopback, kind: loopback, max_concurrency: 4}]"
	}
	more := ""
	if o.MoreNodes != "" {
		more = ", " + o.MoreNodes
	}
	text := fmt.Sprintf("mode: dev\nlisten: {nodes: %q, http: \"127.0.0.1:0\", admin: \"127.0.0.1:0\"}\nstate_dir: ./state\n", nodes) +
		fmt.Sprintf("nodes: [{id: box, token_hashes: [{sha256: %s}], adapters: %s}%s]\n", fmt.Sprintf("%x", config.HashSecret(token)), adapters, more) +
		"routes: " + routes + "\n" + section("principals", o.Principals) + section("timers", o.Timers) + section("limits", o.Limits)
	path := filepath.Join(dir, "edge.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.LoadEdge(path)
	if err != nil {
		t.Fatalf("the harness wrote a file that doesn't load: %v\n%s", err, text)
	}
	e := &Edge{t: t, Dir: dir, Log: &Log{}}
	listening := make(chan edge.Addrs, 1)
	e.run = start(func(ctx context.Context, kill <-chan struct{}) error {
		return edge.Run(ctx, cfg, edge.Options{Log: zerolog.New(e.Log).Level(zerolog.DebugLevel), Kill: kill,
			OnListen: func(a edge.Addrs) { listening <- a }})
	})
	t.Cleanup(func() {
		_ = e.run.killNow(t) // a test that cares stops it itself
		if t.Failed() {
			t.Logf("the edge's log:\n%s", e.Log.Tail(200))
		}
	})
	select {
	case e.Addr = <-listening:
	case <-e.run.done:
		t.Fatalf("the edge ended: %v\n%s", e.run.err, e.Log.Tail(50))
	case <-time.After(10 * time.Second):
		t.Fatal("the edge didn't listen within 10 s")
	}
	return e
}

// StartNode starts a node with the token of "box" against the address.
func StartNode(t testing.TB, addr, timers string) *Node {
	t.Helper()
	return StartNodeAs(t, token, addr, timers)
}

// StartNodeAs starts a node that shows the given token.
func StartNodeAs(t testing.TB, token, addr, timers string) *Node {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("edges: [%q]\ntoken: file:./node.token\ndata_dir: ./data\n", addr)
	if timers != "" {
		text += "timers: " + timers + "\n"
	}
	for name, content := range map[string]string{"node.yaml": text, "node.token": token} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.LoadNode(filepath.Join(dir, "node.yaml"))
	if err != nil {
		t.Fatalf("the harness wrote a file that doesn't load: %v\n%s", err, text)
	}
	n := &Node{t: t, Log: &Log{}}
	n.run = start(func(ctx context.Context, kill <-chan struct{}) error {
		return node.Run(ctx, cfg, node.Options{Log: zerolog.New(n.Log).Level(zerolog.DebugLevel), Kill: kill})
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

// Stop ends the edge as SIGTERM does.
func (e *Edge) Stop(limit time.Duration) error { return e.run.stop(e.t, limit) }

// Term begins the edge's end as SIGTERM does and doesn't wait.
func (e *Edge) Term() { e.run.cancel() }

// Done is closed when the edge has ended.
func (e *Edge) Done() <-chan struct{} { return e.run.done }

// Kill ends the edge as a second signal does.
func (e *Edge) Kill() error { return e.run.killNow(e.t) }

// HTTP is the address of the caller listener.
func (e *Edge) HTTP() string { return e.Addr.HTTP.String() }

// URL is the address of a path on the caller listener.
func (e *Edge) URL(path string) string { return "http://" + e.HTTP() + path }

// NodeState is a node as the admin API shows it.
type NodeState struct {
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

// Node asks the admin API for one node.
func (e *Edge) Node(id string) NodeState {
	e.t.Helper()
	var answer struct {
		Nodes []NodeState `json:"nodes"`
	}
	if err := json.Unmarshal(e.Admin("/admin/v1/nodes"), &answer); err != nil {
		e.t.Fatal(err)
	}
	for _, n := range answer.Nodes {
		if n.ID == id {
			return n
		}
	}
	return NodeState{}
}

// Admin returns the body of a GET on the admin listener.
func (e *Edge) Admin(path string) []byte {
	e.t.Helper()
	response, err := http.Get("http://" + e.Addr.Admin.String() + path)
	if err != nil {
		e.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return body
}

// InFlight is how many places are held in all, by the edge's count.
func (e *Edge) InFlight() int {
	e.t.Helper()
	var answer struct {
		Nodes []NodeState `json:"nodes"`
	}
	if err := json.Unmarshal(e.Admin("/admin/v1/nodes"), &answer); err != nil {
		e.t.Fatal(err)
	}
	held := 0
	for _, n := range answer.Nodes {
		for _, a := range n.Adapters {
			held += a.InFlight
		}
	}
	return held
}

// AwaitIdle waits until no place is held.
func (e *Edge) AwaitIdle(limit time.Duration) {
	e.t.Helper()
	Until(e.t, limit, "all places are free", func() bool { return e.InFlight() == 0 })
}

// AwaitReady waits until the node takes work.
func (e *Edge) AwaitReady(id string) {
	e.t.Helper()
	Until(e.t, 15*time.Second, "node "+id+" is ready", func() bool { return e.Node(id).State == "ready" })
}

// Log collects a program's log lines. It is an io.Writer for zerolog.
type Log struct {
	mu    sync.Mutex
	lines [][]byte
}

// Write takes one line.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, bytes.Clone(p))
	return len(p), nil
}

// Tail returns the last n lines.
func (l *Log) Tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.Join(l.lines[max(0, len(l.lines)-n):], nil))
}

// Contains reports whether text stands anywhere in the log.
func (l *Log) Contains(text string) bool { return bytes.Contains([]byte(l.Tail(1<<30)), []byte(text)) }

// Entries returns the lines with the given message, decoded.
func (l *Log) Entries(message string) []map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []map[string]any
	for _, line := range l.lines {
		entry := map[string]any{}
		if json.Unmarshal(line, &entry) == nil && entry["message"] == message {
			found = append(found, entry)
		}
	}
	return found
}
