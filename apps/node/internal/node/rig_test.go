package node_test

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/router"
	"iop/apps/node/internal/store"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an executor with one scripted adapter "a", connected to an edge.
type rig struct {
	*nodetest.EdgeSide
	t       testing.TB
	x       *node.Executor
	router  *router.Router
	adapter *nodetest.Adapter
	session *node.Session
	mux     *transport.Link
	seen    *observer
	offers  []pb.Feature     // what both sides offered
	lender  *nodetest.Lender // nil = leases aren't negotiated
}

type setup struct {
	timers   node.Timers
	capacity int
	build    func(router.Spec) (execution.Provider, error)
	adapters []*pb.AdapterConfig
	journal  *store.Journal
	retain   func(time.Duration, int)
	features []pb.Feature
	before   func(*node.Executor) // called before the first connection
	log      zerolog.Logger
	lender   *nodetest.Lender
}

// observer records what an executor tells.
type observer struct {
	mu      sync.Mutex
	ended   []node.Ended
	refused []execution.Code
	late    map[string]int
	hook    func(node.Ended) // called first; set before anything runs
}

func (o *observer) Ended(e node.Ended) {
	if o.hook != nil {
		o.hook(e)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = append(o.ended, e)
}
func (o *observer) Refused(c execution.Code) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refused = append(o.refused, c)
}
func (o *observer) Late(kind string) { o.mu.Lock(); defer o.mu.Unlock(); o.late[kind]++ }

func (o *observer) lateOf(kind string) int { o.mu.Lock(); defer o.mu.Unlock(); return o.late[kind] }

// newRig connects with generation 7 and applies projection 1.
func newRig(t testing.TB, adapter *nodetest.Adapter, change ...func(*setup)) *rig {
	t.Helper()
	s := setup{capacity: 4, features: node.Features(), log: zerolog.Nop()}
	s.build = func(router.Spec) (execution.Provider, error) { return adapter, nil }
	for _, c := range change {
		c(&s)
	}
	if os.Getenv("IOP_TEST_LOG") != "" {
		s.log = zerolog.New(zerolog.NewTestWriter(t))
	}
	r := &rig{t: t, router: router.New(), adapter: adapter, seen: &observer{late: map[string]int{}}, offers: s.features, lender: s.lender}
	r.x = node.New(node.Config{Edge: "edge:1", Router: r.router, Build: s.build, Timers: s.timers, Observer: r.seen, Log: s.log,
		Journal: s.journal, Retain: s.retain})
	if s.before != nil {
		s.before(r.x)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), nodetest.Limit)
		defer cancel()
		r.x.Close(ctx)
		if ctx.Err() != nil {
			t.Error("an adapter is still running")
		}
	})
	adapters := s.adapters
	if adapters == nil {
		adapters = []*pb.AdapterConfig{{Name: "a", Kind: "fake", MaxConcurrency: int32(s.capacity), AdapterRevision: 1}}
	}
	p := &pb.NodeConfigPayload{Projection: 1, Adapters: adapters}
	if r.lender != nil {
		p = r.lender.Extend(p)
	}
	r.connect(7, p)
	return r
}

// connect makes a new connection and waits for its Ready. The old one is left as it is.
func (r *rig) connect(generation uint64, p *pb.NodeConfigPayload) *pb.Ready {
	r.t.Helper()
	edge, local := nodetest.ConnPair(r.t)
	r.attach(generation, local)
	r.EdgeSide = nodetest.NewEdgeSide(r.t, edge, generation, transport.Config{})
	r.session.Apply(context.Background(), p)
	r.session.Serve()
	return r.Ready()
}

// attach runs the node's end of a connection, as a link does.
func (r *rig) attach(generation uint64, local net.Conn) {
	h := &handler{}
	mux := transport.NewNodeLink(local, transport.Config{Log: zerolog.Nop()}, h)
	session := r.x.NewSession(mux, generation, r.offers...)
	if r.lender != nil {
		session.UseLeases(r.lender.Guard, r.lender.Now)
	}
	h.session, h.mux = session, mux
	r.mux, r.session = mux, session
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		go func() { <-mux.Down(); session.End() }()
		_ = mux.Run(context.Background())
	}()
	r.t.Cleanup(func() { mux.Close(transport.ReasonClosed); <-ended })
}

type handler struct {
	session *node.Session
	mux     *transport.Link
}

func (h *handler) Work(s *transport.Stream) { h.session.Work(s) }
func (h *handler) Control(m *pb.EdgeControl) {
	switch v := m.GetMessage().(type) {
	case *pb.EdgeControl_Cancel:
		h.session.Cancel(v.Cancel)
	case *pb.EdgeControl_RunEndedAck:
		h.session.Acknowledged(v.RunEndedAck.GetRunIds())
	case *pb.EdgeControl_CredentialRevoked:
		if ack := h.session.Revoked(v.CredentialRevoked); ack != nil {
			h.mux.SendRevokeAck(ack)
		}
	}
}

// inFlight is the number of places that are held.
func (r *rig) inFlight() int { return r.router.Snapshot("edge:1")[0].InFlight }

// atRest fails the test unless everything is given back.
func (r *rig) atRest() {
	r.t.Helper()
	nodetest.Eventually(r.t, "the node is at rest", func() bool {
		s := r.x.Snapshot()
		streams := r.mux.Status().OpenStreams
		if r.mux.Err() != nil {
			streams = 0
		}
		return len(s.Running) == 0 && s.Lingering == 0 && r.inFlight() == 0 && streams == 0
	})
	if n := r.router.LateReleases(); n != 0 {
		r.t.Errorf("%d places were given back twice", n)
	}
}

// again cuts the connection and makes the next one.
func (r *rig) again() *pb.Ready {
	r.t.Helper()
	r.Link.Close(transport.ReasonLost)
	<-r.mux.Down()
	return r.connect(r.Generation+1, &pb.NodeConfigPayload{Projection: 1, Adapters: []*pb.AdapterConfig{
		{Name: "a", Kind: "fake", MaxConcurrency: int32(r.router.Snapshot("edge:1")[0].Capacity), AdapterRevision: 1}}})
}

// rejects checks that a stream is answered with one rejection, and that the provider isn't called.
func (r *rig) rejects(tn *nodetest.Tunnel, code execution.Code) {
	r.t.Helper()
	calls := r.adapter.Calls.Load()
	got := tn.Collect()
	if got.Kinds != "r" || got.Rejected.GetFailure().GetCode() != pb.FailureCode(code) || !got.Rejected.GetNeverStarted() {
		r.t.Errorf("got %q %v (%v), want a rejection with %s", got.Kinds, got.Rejected, got.Err, code)
	}
	if n := r.adapter.Calls.Load(); n != calls {
		r.t.Errorf("the provider was called for rejected work")
	}
}

// inside waits until the provider is at work on n executions: accepted may be said before it is called.
func (r *rig) inside(n int) {
	r.t.Helper()
	nodetest.Eventually(r.t, "the provider is at work", func() bool { _, now := r.adapter.Peak(); return int(now) == n })
}

func timers(change func(*node.Timers)) func(*setup) { return func(s *setup) { change(&s.timers) } }

func capacity(n int) func(*setup) { return func(s *setup) { s.capacity = n } }

const soon = 30 * time.Millisecond
