package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge"
	"iop/packages/go/config"
	"iop/packages/go/patience"
	"iop/packages/go/tracing"
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
	More       string          // further lines of the edge's file
	Tracing    *tracing.Config // of both; they call themselves "edge" and "node"
}

// Edge is an edge that runs in this process.
type Edge struct {
	t    testing.TB
	Dir  string
	Log  *Log
	Addr edge.Addrs
	run  *runner
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
	case <-time.After(patience.Limit):
		t.Fatal("the program didn't end in time when it was killed")
	}
	return r.err
}

// traced is the configuration as one of the programs has it.
func traced(c *tracing.Config, service string) *tracing.Config {
	if c == nil {
		return nil
	}
	own := *c
	own.Service = service
	return &own
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
	n := startNode(t, token, []string{dial}, o.NodeTimers, o.Tracing)
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
		"routes: " + routes + "\n" + section("principals", o.Principals) + section("timers", o.Timers) + section("limits", o.Limits) + o.More
	return StartEdgeWith(t, dir, text, edge.Options{Tracing: traced(o.Tracing, "edge")})
}

// StartEdgeWith starts an edge whose file edge.yaml in dir has this text. Of opts, what the harness needs itself is its own.
func StartEdgeWith(t testing.TB, dir, text string, opts edge.Options) *Edge {
	t.Helper()
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
		opts.Log, opts.Kill = zerolog.New(e.Log).Level(zerolog.DebugLevel), kill
		opts.OnListen = func(a edge.Addrs) { listening <- a }
		return edge.Run(ctx, cfg, opts)
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
	case <-time.After(patience.Limit):
		t.Fatal("the edge doesn't listen")
	}
	return e
}

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
	return get(e.t, "http://"+e.Addr.Admin.String()+path)
}

// get returns the body of a 200. It keeps no connection, so that none outlives its program.
func get(t testing.TB, url string) []byte {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience.Limit}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d %v\n%s", url, response.StatusCode, err, body)
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

// AwaitEnded waits until every run has its outcome, and with it its line in the log: a place is free before that.
func (e *Edge) AwaitEnded(limit time.Duration) {
	e.t.Helper()
	Until(e.t, limit, "every run has its outcome", func() bool { return e.Metric("iop_runs_live") == 0 })
}

// AwaitReady waits until the node takes work.
func (e *Edge) AwaitReady(id string) {
	e.t.Helper()
	Until(e.t, patience.Limit, "node "+id+" is ready", func() bool { return e.Node(id).State == "ready" })
}

// Metric is the sum of a metric's samples in /metrics.
func (e *Edge) Metric(name string) float64 {
	e.t.Helper()
	sum, found := 0.0, false
	for line := range strings.Lines(string(e.Admin("/metrics"))) {
		sample, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(sample, "{"); bare != name {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			e.t.Fatalf("metric %s: %v", name, err)
		}
		sum, found = sum+n, true
	}
	if !found {
		e.t.Fatalf("there is no metric %s", name)
	}
	return sum
}

// Queued is how many requests wait for a place.
func (e *Edge) Queued() int {
	e.t.Helper()
	return int(e.Metric("iop_queue_length"))
}

// AwaitQueued waits until n requests wait for a place.
func (e *Edge) AwaitQueued(n int, limit time.Duration) {
	e.t.Helper()
	Until(e.t, limit, fmt.Sprintf("%d requests wait", n), func() bool { return e.Queued() == n })
}
