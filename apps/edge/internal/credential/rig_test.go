package credential

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/patience"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	keyA = "sk-canary-A0123456789+/abcdef"
	keyB = "sk-canary-B9876543210+/fedcba"
)

// rig is a store with one slot, "main", from a file, and what it needs.
type rig struct {
	t      testing.TB
	dir    string
	file   string // of the slot's key
	state  atomic.Pointer[config.State]
	broken func(step string) error // of the disk; nil = nothing
	store  *Store
	log    *logs
	bus    *events.Bus
	heard  *events.Subscription

	mu     sync.Mutex
	pushes []Push
	asked  [][]string
	told   chan Push
}

// logs is a log that may be read while it is written.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newRig prepares everything and opens nothing.
func newRig(t testing.TB) *rig {
	t.Helper()
	dir := t.TempDir()
	check(t, os.Chmod(dir, 0o700))
	r := &rig{t: t, dir: dir, file: filepath.Join(dir, "main.key"), log: &logs{}, bus: events.NewBus(), told: make(chan Push, 1024)}
	r.heard = r.bus.Subscribe(4096)
	t.Cleanup(r.heard.Close)
	r.put(keyA)
	r.configure(nil)
	return r
}

// put writes the slot's key as an operator would.
func (r *rig) put(value string) {
	r.t.Helper()
	check(r.t, os.WriteFile(r.file+".next", []byte(value+"\n"), 0o600))
	check(r.t, os.Rename(r.file+".next", r.file))
}

func (r *rig) edge() *config.Edge {
	return &config.Edge{
		Mode: "managed", StateDir: filepath.Join(r.dir, "state"),
		Nodes: []config.NodeRecord{
			{ID: "gpu-1", Adapters: []config.Adapter{{Name: "hosted", Kind: "openai", BaseURL: "https://api.example.com/v1"}}},
			{ID: "gpu-2", Adapters: []config.Adapter{{Name: "hosted", Kind: "openai", BaseURL: "https://api.example.com/v1"}}},
		},
		Routes: []config.Route{{Model: "fast", Adapter: "hosted", Target: "gpt", Slot: "main"}},
		Profiles: []config.Profile{{ID: "openai", Origin: "https://api.example.com:443",
			Paths: []string{"POST /v1/chat/completions", "POST /v1/embeddings"}, Header: "Authorization", Scheme: "Bearer"}},
		Slots: []config.Slot{{ID: "main", Source: config.SecretSource{Kind: config.SourceFile, Name: r.file}, Profile: "openai",
			Nodes: []string{"gpu-1"}, Refresh: 30 * time.Second, StaleMax: 5 * time.Minute}},
		Lease: config.Lease{TTL: time.Minute},
	}
}

// configure puts a configuration in force; change may alter it first.
func (r *rig) configure(change func(e *config.Edge)) {
	e := r.edge()
	if change != nil {
		change(e)
	}
	prev := r.state.Load()
	version := uint64(1)
	if prev != nil {
		version = prev.Version + 1
	}
	r.state.Store(config.NewState(e, version, prev))
}

func (r *rig) tryOpen() (*Store, error) {
	cfg := Config{
		State: r.state.Load, EdgeID: "edge-a", Dir: filepath.Join(r.dir, "state"), SigningKey: filepath.Join(r.dir, "state", "lease.key"),
		Events: r.bus, Log: zerolog.New(r.log).Level(zerolog.TraceLevel), AckWait: patience.Limit,
	}
	resolver := newResolver()
	resolver.limit = patience.Limit
	return open(cfg, disk{step: func(name string) error {
		if r.broken == nil {
			return nil
		}
		return r.broken(name)
	}}, resolver)
}

// open opens the store, anew if it was open.
func (r *rig) open() *Store {
	r.t.Helper()
	s, err := r.tryOpen()
	check(r.t, err)
	s.quiet = 0 // every event is told
	s.OnChange(func(nodes []string, p Push) {
		r.mu.Lock()
		r.pushes, r.asked = append(r.pushes, p), append(r.asked, nodes)
		r.mu.Unlock()
		r.told <- p
	})
	r.store = s
	return s
}

func opened(t testing.TB) *rig {
	t.Helper()
	r := newRig(t)
	r.open()
	return r
}

// running has the store run until the test ends.
func (r *rig) running() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		r.store.Run(ctx)
	}()
	r.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// recipient is a node's proven key, made once for all tests: making one costs more than anything else here.
func recipient(t testing.TB, node string, generation uint64) (credentiallease.Recipient, *credentiallease.RecipientKey) {
	t.Helper()
	k, err := credentiallease.NewRecipientKey()
	check(t, err)
	tr := credentiallease.Transcript{NodeID: node, EdgeID: "edge-a", Generation: generation}
	tr.Exporter[0] = 1
	c, err := credentiallease.NewChallenge(k.Public(), tr)
	check(t, err)
	proof, err := k.Prove(c.Enc(), tr)
	check(t, err)
	to, err := c.Confirm(proof)
	check(t, err)
	return to, k
}

func (r *rig) order(to credentiallease.Recipient, run string) Order {
	state := r.state.Load()
	return Order{
		Principal: "team", Route: state.Route("fast"), RunID: run, Attempt: 1, NodeID: to.NodeID(), Generation: to.Generation(),
		Projection: state.Projection(to.NodeID()).Number, Recipient: to, Proven: true,
		Adapter: &state.Projection(to.NodeID()).Adapters[0].Adapter, Target: "gpt", Method: "POST", Path: "/v1/chat/completions",
	}
}

// lend issues a lease that has to be issued.
func (r *rig) lend(to credentiallease.Recipient, run string) *Lease {
	r.t.Helper()
	l, f := r.store.Issue(r.order(to, run))
	if f != nil {
		r.t.Fatalf("%v, %+v", f, f.Lease)
	}
	r.t.Cleanup(l.Close)
	return l
}

// refused issues a lease that has to be refused, and returns why.
func (r *rig) refused(o Order) string {
	r.t.Helper()
	l, f := r.store.Issue(o)
	if f == nil {
		l.Void()
		l.Close()
		return ""
	}
	return credentiallease.Refusal{Reason: credentiallease.Reason(f.Lease.Reason), Field: credentiallease.Field(f.Lease.Field)}.String()
}

func (r *rig) status() SlotStatus {
	r.t.Helper()
	all := r.store.Status()
	if len(all) == 0 {
		r.t.Fatal("no slot")
	}
	return all[0]
}

// kinds are the events so far that aren't steps of runs.
func (r *rig) kinds() map[events.Kind]int {
	n := map[events.Kind]int{}
	for {
		select {
		case e := <-r.heard.C:
			n[e.Kind]++
		default:
			return n
		}
	}
}

var errBroken = errors.New("no space left on device")

func without(t testing.TB, what, text string, canaries ...string) {
	t.Helper()
	for _, c := range canaries {
		for i := 0; i+6 <= len(c); i++ { // CR-08: no run of six characters
			if strings.Contains(text, c[i:i+6]) {
				t.Fatalf("%s has a part of a key in it", what)
			}
		}
	}
}

// node is a node's side of a connection: what it was told, and what it does with leases.
type node struct {
	guard *credentiallease.Guard
	rig   *rig
	to    credentiallease.Recipient
}

func (r *rig) node(id string, generation uint64) *node {
	r.t.Helper()
	to, k := recipient(r.t, id, generation)
	g, err := credentiallease.NewGuard(credentiallease.Config{NodeID: id, EdgeID: "edge-a", Generation: generation})
	check(r.t, err)
	n := &node{guard: g, rig: r, to: to}
	g.UseRecipient(k, n.now())
	n.project()
	return n
}

func (n *node) now() credentiallease.Time {
	ms := time.Now().UnixMilli()
	return credentiallease.Time{Earliest: ms, Latest: ms, Synced: true}
}

// project has the node take in what it is to be told now.
func (n *node) project() {
	n.rig.t.Helper()
	p := n.rig.state.Load().Projection(n.to.NodeID())
	out := credentiallease.Projection{Number: p.Number, Keys: n.rig.store.Keys(), Slots: n.rig.store.Slots(p.Slots)}
	for _, route := range p.Routes {
		out.Routes = append(out.Routes, credentiallease.Revision{Name: route.Name, Number: route.Revision})
	}
	for _, profile := range p.Profiles {
		out.Profiles = append(out.Profiles, credentiallease.Revision{Name: profile.ID, Number: profile.Revision})
	}
	check(n.rig.t, n.guard.Project(out))
}

// use verifies a lease and sends its key; it returns the key, or why not.
func (n *node) use(l *Lease, run string) (string, error) {
	h, err := n.guard.Verify(l.Wire(), credentiallease.Binding{
		Principal: "team", Route: "fast", Slot: "main", Profile: "openai", Adapter: "hosted", Target: "gpt", RunID: run, Attempt: 1,
		Header: "Authorization", Scheme: "Bearer", Origin: "https://api.example.com:443", Method: "POST", Path: "/v1/chat/completions",
	}, n.now())
	if err != nil {
		return "", err
	}
	defer h.End()
	if err := errors.Join(h.Admit(), h.Arm()); err != nil {
		return "", err
	}
	var got string
	err = h.Redeem(make([]byte, credentiallease.MaxSecret), n.now, func(secret []byte) error {
		got = string(secret)
		return nil
	})
	return got, err
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	patience.Until(t, what, ok)
}
