package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// mixed is an edge with a node for each of several kinds of providers, which all have the same models.
type mixed struct {
	*harness.Edge
	nodes     []string
	kinds     []kind
	providers []*fakeprovider.Provider
}

func newMixed(t *testing.T, places int, names ...string) *mixed {
	t.Helper()
	m := &mixed{}
	var records []string
	for i, name := range names {
		k := kinds()[slices.IndexFunc(kinds(), func(k kind) bool { return k.name == name })]
		provider := fakeprovider.New(t, behindLists(ok))
		m.kinds, m.providers = append(m.kinds, k), append(m.providers, provider)
		m.nodes = append(m.nodes, []string{"box", "second", "third"}[i])
		records = append(records, fmt.Sprintf("[{name: gpu, %s, base_url: %q, max_concurrency: %d}]", k.adapter, provider.URL(), places))
	}
	o := harness.Options{Adapters: records[0]}
	for i, record := range records[1:] {
		o.MoreNodes += strings.Repeat(", ", min(i, 1)) + harness.Record(m.nodes[i+1], record)
	}
	m.Edge = harness.StartEdge(t, o)
	for _, id := range m.nodes {
		harness.StartNodeAs(t, harness.TokenOf(id), m.Addr.Nodes.String(), "{probe_interval: 1h}")
		m.AwaitReady(id)
	}
	return m
}

// at is the pair of a caller and the node that served it.
func (m *mixed) at(s speech, a *harness.Answer) (*pair, error) {
	i := slices.Index(m.nodes, a.Header.Get("X-IOP-Node"))
	if i < 0 {
		return nil, fmt.Errorf("no node served it: %s", brief(a))
	}
	return &pair{speech: s, kind: m.kinds[i]}, nil
}

func (m *mixed) says(script fakeprovider.Script) {
	for _, p := range m.providers {
		p.Use(behindLists(script))
	}
}

// A model that providers of different dialects have is asked for in any dialect: each request goes by whichever node has
// a place, as it is or as a run, and every answer says the same.
func TestMixedPools(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"openai", "ollama"}, {"anthropic", "openai"}, {"ollama", "anthropic", "openai with messages"}} {
		t.Run(strings.Join(names, ","), func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, 1, names...)
			for _, s := range speeches() {
				m.eachServes(t, s)
			}
		})
	}
}

// eachServes asks as often as there are nodes. Each provider answers when all of them have a request: each gets one.
func (m *mixed) eachServes(t *testing.T, s speech) {
	t.Helper()
	said := sayings()["a call after words"]
	if s.path == "/api/generate" {
		said = sayings()["reasoning"]
	}
	var together sync.WaitGroup
	together.Add(len(m.nodes))
	m.says(func(x *fakeprovider.Exchange) {
		together.Done()
		together.Wait()
		fakeprovider.Speak(said)(x)
	})
	served := make([]string, len(m.nodes))
	all(len(m.nodes), func(i int) {
		q := chatOf(i%2 == 0)
		a, err := harness.Ask(m.HTTP(), s.request(q), limit)
		if err != nil {
			t.Error(err)
			return
		}
		p, err := m.at(s, a)
		if err != nil {
			t.Error(err)
			return
		}
		h, err := p.read(a, q.Stream, !p.tunnel())
		if err != nil {
			t.Errorf("%s to %s: %v", s.name, p.kind.name, err)
			return
		}
		same(t, s.name+" to "+p.kind.name, h, p.understood(said, q))
		served[i] = p.kind.name
	})
	slices.Sort(served)
	if len(slices.Compact(served)) != len(m.nodes) {
		t.Errorf("%s: only %v served", s.name, served)
	}
	m.AwaitIdle(limit)
}

// What no run can carry goes only to a node whose provider speaks the caller's dialect, and waits for it although another
// one is idle.
func TestMixedPoolsKeepWhatNoRunCarries(t *testing.T) {
	t.Parallel()
	m := newMixed(t, 1, "anthropic", "ollama")
	other := m.providers[0]
	for _, s := range speeches() {
		if s.name == "runs" || s.name == "Anthropic" { // the first is none, the other is carried by both
			continue
		}
		h := newHold()
		m.says(h.script)
		aliens := aliens(s.path)
		answers := make(chan *harness.Answer, len(aliens))
		for _, each := range aliens {
			go func() {
				a, err := harness.Ask(m.HTTP(), harness.Post(s.path, each.body), limit)
				if err != nil {
					t.Error(err)
				}
				answers <- a
			}()
		}
		await(t, h.arrived, "the first one at the provider")
		m.AwaitQueued(len(aliens)-1, limit)
		h.let(t, len(aliens))
		for range aliens {
			if a := await(t, answers, "an answer"); a == nil || a.StatusCode != 200 || a.Header.Get("X-IOP-Node") != "second" {
				t.Errorf("%s: %s", s.name, brief(a))
			}
		}
	}
	if n := len(requests(other)); n != 0 {
		t.Errorf("the other provider saw %d requests", n)
	}
}
