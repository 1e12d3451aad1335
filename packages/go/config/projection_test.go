package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// leased is a file with two nodes and what is between them and a key; each case changes one word of it.
const leased = `mode: managed
tls: {cert: c, key: k, ca: a, trust_domain: t.example}
nodes:
- {id: n, token_hashes: [{sha256: ` + hashA + `}], adapters: [{name: h, kind: openai, base_url: "https://h"}, {name: h2, kind: openai, base_url: "https://h"}]}
- {id: m, token_hashes: [{sha256: ` + hashB + `}], adapters: [{name: h, kind: openai, base_url: "https://h"}]}
profiles:
- {id: p, origin: "https://h", paths: [POST /a, POST /b]}
- {id: q, origin: "https://h", paths: [POST /a]}
- {id: unused, origin: "https://h", paths: [POST /a]}
slots:
- {id: s, source: env:X, profile: p, nodes: [n]}
- {id: s2, source: env:X, profile: q, nodes: [n]}
- {id: unrouted, source: env:X, profile: p, nodes: []}
routes:
- {model: a, slot: s, adapter: h, target: t}
- {model: b, slot: s2, adapter: h, fail_fast: false}
- {model: c, adapter: h}
- {model: "*"}
`

// revisions are the numbers of a state as a line: routes a, b, c, profiles p and q, projections n and m.
func revisions(s *State) string {
	return fmt.Sprint(s.RouteRevision("a"), s.RouteRevision("b"), s.RouteRevision("c"), s.ProfileRevision("p"), s.ProfileRevision("q"),
		s.Projection("n").Number, s.Projection("m").Number)
}

func TestProjectionOfSlots(t *testing.T) {
	s := NewState(parse(t, leased), 100, nil)
	n, m := s.Projection("n"), s.Projection("m")
	if got := fmt.Sprint(n.Slots, n.Routes); got != "[s s2] [{a 100 h t s p} {b 100 h  s2 q}]" {
		t.Error(got)
	}
	if len(n.Profiles) != 2 || n.Profiles[0].ID != "p" || n.Profiles[0].Origin != "https://h:443" || n.Profiles[1].Revision != 100 {
		t.Errorf("%+v", n.Profiles)
	}
	if len(m.Slots)+len(m.Routes)+len(m.Profiles) != 0 || len(m.Adapters) != 1 {
		t.Errorf("a node that no slot lists is told of keys: %+v", m)
	}
	if s.Slot("s2").Profile != "q" || s.Profile("q").ID != "q" || len(s.Slots()) != 3 || s.Slot("x") != nil || s.Profile("x") != nil {
		t.Error("look-ups")
	}
	if s.RouteRevision("anything") != 100 || s.ProfileRevision("x") != 0 || NewState(parse(t, "mode: dev\n"), 1, nil).RouteRevision("a") != 0 {
		t.Error("revisions of what isn't there")
	}
}

// E9, E10: what a key is used for has a number that grows when it changes, and never otherwise.
func TestRevisionsOfSlots(t *testing.T) {
	first := NewState(parse(t, leased), 100, nil)
	for _, c := range []struct{ was, is, want string }{
		{"", "", "100 100 100 100 100 100 100"},
		{"target: t}", "target: u}", "101 100 100 100 100 101 100"},
		{"slot: s, adapter: h,", "slot: s, adapter: h2,", "101 100 100 100 100 101 100"},
		{"slot: s2, adapter", "slot: s, adapter", "100 101 100 100 100 101 100"},
		{"profile: q", "profile: p", "100 101 100 100 100 101 100"},
		{"fail_fast: false", "fail_fast: true", "100 100 100 100 100 100 100"},
		{"{model: c, adapter: h}", "{model: c, target: x}", "100 100 101 100 100 100 100"},
		{"paths: [POST /a, POST /b]", "paths: [POST /a]", "100 100 100 101 100 101 100"},
		{"id: q, origin: \"https://h\"", "id: q, origin: \"https://h\", scheme: ''", "100 100 100 100 101 101 100"},
		{"id: unused, origin: \"https://h\"", "id: unused, origin: \"https://g\"", "100 100 100 100 100 100 100"},
		{"nodes: [n]}\n- {id: s2", "nodes: [n, m]}\n- {id: s2", "100 100 100 100 100 100 101"},
		{"nodes: []", "nodes: [n]", "100 100 100 100 100 101 100"},
		{"source: env:X, profile: q", "source: env:Y, profile: q", "100 100 100 100 100 100 100"},
	} {
		changed := strings.Replace(leased, c.was, c.is, 1)
		if changed == leased && c.was != "" {
			t.Errorf("%q isn't there", c.was)
		}
		s := NewState(parse(t, changed), 101, first)
		if got := revisions(s); got != c.want {
			t.Errorf("%s → %s: %s, want %s", c.was, c.is, got, c.want)
		}
		// As it was at first is another change, and nothing of the first numbers comes back.
		back := NewState(parse(t, leased), 102, s)
		if got, want := revisions(back), strings.ReplaceAll(c.want, "101", "102"); got != want {
			t.Errorf("%s → %s and back: %s, want %s", c.was, c.is, got, want)
		}
	}
}

// A node that leaves a slot is told nothing of it any more, and the one that stays keeps its numbers.
func TestNodeLeavesASlot(t *testing.T) {
	both := strings.ReplaceAll(leased, "nodes: [n]", "nodes: [n, m]")
	s := NewState(parse(t, both), 1, nil)
	if p := s.Projection("m"); !slices.Equal(p.Slots, []string{"s", "s2"}) || len(p.Routes) != 2 || len(p.Profiles) != 2 {
		t.Errorf("%+v", p)
	}
	next := NewState(parse(t, leased), 2, s)
	if p := next.Projection("m"); p.Number != 2 || len(p.Slots)+len(p.Routes)+len(p.Profiles) != 0 {
		t.Errorf("%+v", p)
	}
	if next.Projection("n") != s.Projection("n") {
		t.Error("the other node has another projection")
	}
}
