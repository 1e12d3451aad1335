package transport

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/router"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a link whose dials come out of a channel, with an executor whose one adapter is scripted.
type rig struct {
	t       testing.TB
	link    *Link
	x       *node.Executor
	adapter *nodetest.Adapter
	dials   chan net.Conn // the edge's ends
	ready   chan string
	ended   chan struct{} // Run returned
	kill    context.CancelFunc
	slept   atomic.Int64
	late    lateCounter
	down    atomic.Bool // dials fail
}

type lateCounter struct {
	mu sync.Mutex
	by map[string]int
}

func (l *lateCounter) Ended(node.Ended)       {}
func (l *lateCounter) Refused(execution.Code) {}
func (l *lateCounter) Late(kind string)       { l.mu.Lock(); defer l.mu.Unlock(); l.by[kind]++ }
func (l *lateCounter) of(kind string) int     { l.mu.Lock(); defer l.mu.Unlock(); return l.by[kind] }

// quick are timers for tests on real time: a lost link is dialed again at once.
func quick(c *Config) {
	c.Timers = Timers{Handshake: nodetest.Limit, BackoffStart: time.Millisecond, BackoffMax: 4 * time.Millisecond,
		BackoffReset: time.Hour, BackoffPermanent: 20 * time.Millisecond, Drain: nodetest.Limit, Stop: nodetest.Limit,
		Leave: 2 * nodetest.Limit, SleepTick: time.Millisecond}
	c.Mux.Part = 2 * nodetest.Limit
}

func newRig(t testing.TB, adapter *nodetest.Adapter, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, adapter: adapter, dials: make(chan net.Conn, 100), ready: make(chan string, 100), ended: make(chan struct{}),
		late: lateCounter{by: map[string]int{}}}
	r.x = node.New(node.Config{
		Edge: "edge:1", Router: router.New(), Observer: &r.late, Log: testLog(t),
		Build: func(router.Spec) (execution.Provider, error) { return adapter, nil },
	})
	cfg := Config{
		Edge: "edge:1", Token: config.NewSecret("token-1"), InstanceID: [16]byte{1, 2, 3}, Version: "9.9", Executor: r.x,
		Log: testLog(t), OnReady: func(edge string) { r.ready <- edge },
		Slept: func() time.Duration { return time.Duration(r.slept.Load()) },
		Dial:  r.dialTCP,
	}
	quick(&cfg)
	for _, c := range change {
		c(&cfg)
	}
	r.link = New(cfg)
	ctx, kill := context.WithCancel(context.Background())
	r.kill = kill
	go func() {
		defer close(r.ended)
		r.link.Run(ctx)
	}()
	t.Cleanup(r.stop)
	return r
}

// stop ends the link as a second signal does, and waits for everything.
func (r *rig) stop() {
	r.kill()
	<-r.ended
	ctx, cancel := context.WithTimeout(context.Background(), nodetest.Limit)
	defer cancel()
	r.x.Close(ctx)
	for {
		select {
		case c := <-r.dials:
			c.Close()
		default:
			return
		}
	}
}

func testLog(t testing.TB) zerolog.Logger {
	if os.Getenv("IOP_TEST_LOG") == "" {
		return zerolog.Nop()
	}
	return zerolog.New(zerolog.NewTestWriter(t))
}

func (r *rig) dialTCP(context.Context, string) (net.Conn, error) {
	if r.down.Load() {
		return nil, fmt.Errorf("connection refused")
	}
	edge, local := nodetest.ConnPair(r.t)
	r.dials <- edge
	return local, nil
}

// hello waits for the next dial and reads its registration.
func (r *rig) hello() (net.Conn, *pb.RegisterRequest) {
	r.t.Helper()
	conn := nodetest.Receive(r.t, "a dial", r.dials)
	req := new(pb.RegisterRequest)
	if err := transport.ReadMessage(conn, transport.MaxRegisterRequest, req); err != nil {
		r.t.Fatal(err)
	}
	return conn, req
}

// projection names one adapter "a".
func projection(n uint64) *pb.NodeConfigPayload {
	return &pb.NodeConfigPayload{Projection: n, Adapters: []*pb.AdapterConfig{
		{Name: "a", Kind: "fake", MaxConcurrency: 4, AdapterRevision: 1}}}
}

func acceptance(generation uint64, p *pb.NodeConfigPayload) *pb.RegisterResponse {
	return &pb.RegisterResponse{Accepted: true, Protocol: 1, NodeId: "gpu-1", ConnectionGeneration: generation,
		EdgeId: "edge", EdgeInstance: []byte{9}, Config: p}
}

// answer waits for the next dial and answers its registration.
func (r *rig) answer(resp *pb.RegisterResponse) (net.Conn, *pb.RegisterRequest) {
	r.t.Helper()
	conn, req := r.hello()
	if err := transport.WriteMessage(conn, resp); err != nil {
		r.t.Fatal(err)
	}
	return conn, req
}

// accept registers the next dial; the node hasn't said Ready yet.
func (r *rig) accept(generation uint64) (*nodetest.EdgeSide, *pb.RegisterRequest) {
	r.t.Helper()
	conn, req := r.answer(acceptance(generation, projection(1)))
	return nodetest.NewEdgeSide(r.t, conn, generation, transport.Config{}), req
}

// serve registers the next dial and confirms its Ready.
func (r *rig) serve(generation uint64) *nodetest.EdgeSide {
	r.t.Helper()
	edge, _ := r.accept(generation)
	ready := edge.Ready()
	edge.Link.SendReadyAck(ready.GetProjection(), true)
	nodetest.Receive(r.t, "OnReady", r.ready)
	return edge
}

// heard waits until the node has taken all that edge sent before: a message that has no business there is counted. The
// probe alone wouldn't do, which any byte of the node answers; but what was sent before it went out before it.
func (r *rig) heard(edge *nodetest.EdgeSide) {
	r.t.Helper()
	before := r.late.of("control")
	probe, cancel := context.WithTimeout(context.Background(), nodetest.Limit)
	defer cancel()
	if err := edge.Link.Probe(probe); err != nil {
		r.t.Fatal(err)
	}
	edge.Link.SendRunEndedAck("nobody")
	// What it sent before counts, too, where it has no business.
	nodetest.Eventually(r.t, "the node has heard all", func() bool { return r.late.of("control") > before })
}

func (r *rig) state(want State) {
	r.t.Helper()
	nodetest.Eventually(r.t, "state "+string(want), func() bool { return r.link.Status().State == want })
}

func (r *rig) exits() {
	r.t.Helper()
	nodetest.Receive(r.t, "Run returns", r.ended)
	if s := r.link.Status(); s.State != StateStopped {
		r.t.Errorf("state %s after Run", s.State)
	}
}
