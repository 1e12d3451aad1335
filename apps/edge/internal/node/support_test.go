package node_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/packages/go/config"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// bench is a registry whose scheduler and bus write down what they are told, in one list.
type bench struct {
	*node.Registry
	state atomic.Pointer[config.State]

	mu    sync.Mutex
	told  []string
	seen  []events.Event
	last  map[string]admission.Node // what was published last, by node
	over  map[uint64]bool           // generations that the scheduler was told are over
	held  map[string]bool           // runs with a place, as "generation/run/attempt"
	hook  func(what string)         // called with each line, without the lock
	wrong []string                  // broken promises of the registry to the scheduler
}

func newBench(t testing.TB, recs ...config.NodeRecord) *bench {
	t.Helper()
	gens, err := node.OpenGenerations(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{last: make(map[string]admission.Node), over: make(map[uint64]bool), held: make(map[string]bool)}
	t.Cleanup(func() { gens.Close() })
	b.configure(recs...)
	b.Registry = node.New(node.Config{State: b.state.Load, Scheduler: (*scheduler)(b), Events: (*bus)(b),
		Generations: gens, Log: zerolog.Nop()})
	return b
}

func (b *bench) configure(recs ...config.NodeRecord) {
	old := b.state.Load()
	b.state.Store(config.NewState(&config.Edge{Nodes: recs}, 1, old))
}

func record(id string) config.NodeRecord {
	sum := token(id)
	return config.NodeRecord{ID: id, Enabled: true, TokenHashes: []config.TokenHash{{SHA256: hex.EncodeToString(sum[:])}},
		Labels:   map[string]string{"of": id},
		Adapters: []config.Adapter{{Name: "one", Kind: "loopback", MaxConcurrency: 4}, {Name: "two", Kind: "openai", MaxConcurrency: 2, Targets: []string{"x"}}}}
}

func token(id string) [32]byte { return sha256.Sum256([]byte("token of " + id)) }

// fresh returns a connection that isn't committed.
func (b *bench) fresh(id string) *node.Connection { return b.freshOn(id, closer(func() {})) }

func (b *bench) freshOn(id string, bare io.Closer) *node.Connection {
	g, err := b.Reserve()
	if err != nil {
		panic(err)
	}
	near, far := net.Pipe()
	_ = far.Close()
	c := b.NewConnection(node.Identity{NodeID: id, Generation: g, Token: token(id), Version: "1.2", Remote: "there",
		InstanceID: [16]byte{1, 2, 3}, Since: time.Now()}, b.State().Node(id), b.State().Projection(id), bare)
	c.Link = transport.NewEdgeLink(near, transport.Config{}, deaf{})
	return c
}

// commit returns a committed connection in place of whatever is there.
func (b *bench) commit(t *testing.T, id string) *node.Connection {
	t.Helper()
	var expected uint64
	if cur := b.Current(id); cur != nil {
		expected = cur.Generation
	}
	c := b.fresh(id)
	if err := b.Commit(c, expected); err != nil {
		t.Fatal(err)
	}
	return c
}

type deaf struct{}

func (deaf) Control(*pb.NodeControl) {}

// ready is a node's full state for what it was told.
func (b *bench) ready(id string, models ...string) *pb.Ready {
	p := b.State().Projection(id)
	m := &pb.Ready{Projection: p.Number}
	for _, a := range p.Adapters {
		st := &pb.AdapterState{Name: a.Name, Revision: a.Revision, Available: true, Capacity: int32(a.MaxConcurrency), Version: "7"}
		for _, name := range models {
			st.Models = append(st.Models, &pb.ModelState{Name: name})
		}
		m.Adapters = append(m.Adapters, st)
	}
	return m
}

func (b *bench) note(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	b.mu.Lock()
	b.told = append(b.told, what)
	hook := b.hook
	b.mu.Unlock()
	if hook != nil {
		hook(what)
	}
}

// take returns what was told since the last take.
func (b *bench) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	told := slices.Clone(b.told)
	b.told = nil
	return told
}

// published is what the scheduler was last told of a node.
func (b *bench) published(id string) admission.Node {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last[id]
}

// hold gives a run a place.
func (b *bench) hold(generation uint64, run string, attempt uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[fmt.Sprintf("%d/%s/%d", generation, run, attempt)] = true
}

type bus bench

func (b *bus) Publish(e events.Event) {
	b.mu.Lock()
	b.seen = append(b.seen, e)
	b.mu.Unlock()
	(*bench)(b).note("event %v %s %s %d", e.Kind, e.Code, e.NodeID, e.Generation)
}

type scheduler bench

func (s *scheduler) Publish(n admission.Node) {
	s.mu.Lock()
	if s.over[n.Generation] {
		s.wrong = append(s.wrong, fmt.Sprintf("generation %d was published after its fence", n.Generation))
	}
	s.last[n.ID] = n
	s.mu.Unlock()
	(*bench)(s).note("publish %s %d %v", n.ID, n.Generation, n.Dispatchable)
}

func (s *scheduler) Adopt(id string, generation uint64, runs []admission.Adopted) {
	s.mu.Lock()
	if s.over[generation] {
		s.wrong = append(s.wrong, fmt.Sprintf("generation %d adopted after its fence", generation))
	}
	s.mu.Unlock()
	for _, r := range runs {
		(*bench)(s).hold(generation, r.RunID, r.Attempt)
	}
	(*bench)(s).note("adopt %s %d %d", id, generation, len(runs))
}

func (s *scheduler) Ended(id string, generation uint64, run string, attempt uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprintf("%d/%s/%d", generation, run, attempt)
	known := s.held[key]
	delete(s.held, key)
	return known
}

func (s *scheduler) Fence(id string, generation uint64) {
	s.mu.Lock()
	if s.over[generation] {
		s.wrong = append(s.wrong, fmt.Sprintf("generation %d was fenced twice", generation))
	}
	s.over[generation] = true
	s.mu.Unlock()
	(*bench)(s).note("fence %s %d", id, generation)
}
