package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"iop/apps/node/internal/nodetest"
	"iop/packages/go/config"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// edge is a fake Edge's node listener.
type edge struct {
	*nodetest.Listener
	t testing.TB
}

// newEdge projects one adapter that works and two that don't.
func newEdge(t testing.TB) *edge {
	t.Helper()
	e := &edge{nodetest.Listen(t), t}
	e.Adapters = append(e.Adapters,
		&pb.AdapterConfig{Name: "odd", Kind: "martian", MaxConcurrency: 1, AdapterRevision: 1},
		&pb.AdapterConfig{Name: "bad", Kind: "openai", BaseUrl: "::not a url", MaxConcurrency: 1, AdapterRevision: 1})
	return e
}

func (e *edge) addr() string { return e.Addr() }

// accept registers the next connection and confirms its Ready.
func (e *edge) accept() (*nodetest.EdgeSide, *pb.RegisterRequest) {
	e.t.Helper()
	side, req, ready := e.Accept()
	for i, want := range []bool{true, false, false} {
		if a := ready.GetAdapters()[i]; a.GetAvailable() != want || (a.GetReason() != "") == want {
			e.t.Errorf("adapter %d = %v", i, a)
		}
	}
	return side, req
}

// start runs a node and returns what ends it and its result.
func start(t testing.TB, cfg *config.Node, opts Options) (drain context.CancelFunc, kill func(), done chan error) {
	t.Helper()
	opts.Log = zerolog.Nop()
	if os.Getenv("IOP_TEST_LOG") != "" {
		opts.Log = zerolog.New(zerolog.NewTestWriter(t))
	}
	ctx, drain := context.WithCancel(context.Background())
	killed := make(chan struct{})
	kill = func() { close(killed) }
	opts.Kill = killed
	done = make(chan error, 1)
	ended := make(chan struct{})
	go func() { defer close(ended); done <- Run(ctx, cfg, opts) }()
	t.Cleanup(func() {
		drain()
		nodetest.Receive(t, "Run returns", ended)
	})
	return drain, kill, done
}

func nodeConfig(edges ...string) *config.Node {
	return &config.Node{Edges: edges, Token: config.NewSecret("t"), Timers: config.NodeTimers{
		BackoffStart: time.Millisecond, BackoffMax: 10 * time.Millisecond, Drain: 5 * time.Second, AdapterStop: nodetest.Limit}}
}

func chat(e *nodetest.EdgeSide, runID string) *nodetest.Tunnel {
	open := e.TunnelOpen(runID)
	body := `{"model":"loopback","messages":[{"role":"user","content":"hello"}]}`
	open.GetTunnel().ContentLength = int64(len(body))
	open.GetTunnel().Headers = []*pb.Header{{Name: "Content-Type", Value: []byte("application/json")}}
	return e.Open(open).Body([]byte(body)).End()
}

// A whole node with the real adapters: an answer comes through, the admin listener shows it, and the end is clean.
func TestRun(t *testing.T) {
	e := newEdge(t)
	cfg := nodeConfig(e.addr(), strings.ToUpper(e.addr()), " "+e.addr()) // E29: one edge named thrice is one link
	cfg.Admin.Listen = "127.0.0.1:0"
	ready, admin := make(chan string, 10), make(chan net.Addr, 1)
	drain, _, done := start(t, cfg, Options{Version: "1.2.3", OnReady: func(edge string) { ready <- edge }, OnAdmin: func(a net.Addr) { admin <- a }})
	side, req := e.accept()
	if req.GetSoftwareVersion() != "1.2.3" {
		t.Errorf("registration = %v", req)
	}
	if got := nodetest.Receive(t, "OnReady", ready); got != e.addr() {
		t.Errorf("OnReady(%q), want %q", got, e.addr())
	}
	got := chat(side, "r1").Collect()
	if got.Head.GetStatus() != 200 || !json.Valid(got.Body) || got.End == nil {
		t.Errorf("got %q %v %q %v %v", got.Kinds, got.Head, got.Body, got.Error, got.Rejected)
	}
	side.RunEnd("r1")
	base := fmt.Sprint("http://", nodetest.Receive(t, "OnAdmin", admin))
	for path, want := range map[string]string{
		"/healthz":         "ok",
		"/metrics":         `iop_node_executions_total{adapter="a",code="ok",status="complete"} 1`,
		"/admin/v1/status": `"state":"serving"`,
	} {
		if body := fetch(t, base+path); !strings.Contains(body, want) {
			t.Errorf("%s lacks %s:\n%s", path, want, body)
		}
	}
	if body := fetch(t, base+"/admin/v1/status"); strings.Count(body, `"edge":"`+e.addr()+`","state"`) != 1 {
		t.Errorf("not one link: %s", body)
	}
	drain()
	side.Goodbye()
	if err := nodetest.Receive(t, "Run", done); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: nodetest.Limit}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

// Two Edges are two links; the loss of one doesn't touch the other, and both drain.
func TestRunWithTwoEdges(t *testing.T) {
	e1, e2 := newEdge(t), newEdge(t)
	drain, _, done := start(t, nodeConfig(e1.addr(), e2.addr()), Options{})
	side1, req1 := e1.accept()
	side2, req2 := e2.accept()
	if string(req1.GetInstanceId()) != string(req2.GetInstanceId()) {
		t.Error("one process shows two instance ids")
	}
	side1.Link.Close(transport.ReasonLost)
	if got := chat(side2, "r1").Collect(); got.End == nil {
		t.Errorf("the other edge: %q %v %v", got.Kinds, got.Error, got.Err)
	}
	side1, req1 = e1.accept()
	if req1.GetLastGeneration() != 1 {
		t.Errorf("registration = %v", req1)
	}
	if got := chat(side1, "r2").Collect(); got.End == nil {
		t.Errorf("after the reconnect: %q %v %v", got.Kinds, got.Error, got.Err)
	}
	drain()
	side1.Goodbye()
	side2.Goodbye()
	if err := nodetest.Receive(t, "Run", done); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// TU-30: the second signal ends at once although an answer takes its time.
func TestRunKilled(t *testing.T) {
	e := newEdge(t)
	cfg := nodeConfig(e.addr())
	cfg.Timers.Drain = 2 * nodetest.Limit // nothing waits for this
	drain, kill, done := start(t, cfg, Options{})
	side, _ := e.accept()
	side.Open(func() *pb.WorkOpen { // a body that never comes keeps the execution going
		open := side.TunnelOpen("r1")
		open.GetTunnel().ContentLength = 10
		return open
	}()).Accepted()
	drain()
	side.Status("draining", func(s *pb.NodeStatus) bool { return s.GetDraining() })
	kill()
	if g := side.Goodbye(); g.GetCode() != pb.GoodbyeCode_GOODBYE_CODE_KILLED {
		t.Errorf("goodbye = %v", g)
	}
	if err := nodetest.Receive(t, "Run", done); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// A signal before the edge was ever reached.
func TestRunStopsWhileDialing(t *testing.T) {
	e := newEdge(t)
	e.Close()
	drain, _, done := start(t, nodeConfig(e.addr()), Options{})
	drain()
	if err := nodetest.Receive(t, "Run", done); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// What can't start says why.
func TestRunRefusesToStart(t *testing.T) {
	if err := Run(context.Background(), nodeConfig(), Options{}); err == nil || !strings.Contains(err.Error(), "edges") {
		t.Errorf("without an edge: %v", err)
	}
	taken := newEdge(t)
	cfg := nodeConfig("127.0.0.1:1")
	cfg.Admin.Listen = taken.addr()
	if err := Run(context.Background(), cfg, Options{}); err == nil || !strings.Contains(err.Error(), "admin.listen") {
		t.Errorf("with a taken admin port: %v", err)
	}
}
