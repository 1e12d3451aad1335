package config

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func parse(t *testing.T, file string) *Edge {
	t.Helper()
	e, err := ParseEdge("edge.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func hexOf(secret string) string {
	sum := HashSecret(secret)
	return fmt.Sprintf("%x", sum)
}

// E27: every record is found, whichever position it has, and nothing else is.
func TestStateLookups(t *testing.T) {
	file := "admin_key_hashes: [" + hexOf("admin") + "]\nnodes:\n"
	for i := range 5 {
		file += fmt.Sprintf("- {id: n%d, token_hashes: [{sha256: %s}, {sha256: %s, not_after: 2026-01-02T00:00:00Z}]}\n",
			i, hexOf(fmt.Sprint("new", i)), hexOf(fmt.Sprint("old", i)))
	}
	file += "principals:\n"
	for i := range 5 {
		file += fmt.Sprintf("- {id: p%d, key_hashes: [%s, %s]}\n", i, hexOf(fmt.Sprint("key", i)), hexOf(fmt.Sprint("key-b", i)))
	}
	s := NewState(parse(t, file+"routes: [{model: m}, {model: '*'}]\n"), 7, nil)
	now := time.Date(2026, 1, 2, 0, 0, 1, 0, time.UTC)
	for i := range 5 {
		id := fmt.Sprint("n", i)
		rec, expired := s.NodeByTokenHash(HashSecret(fmt.Sprint("new", i)), now)
		if rec == nil || rec.ID != id || expired {
			t.Errorf("%s: %v %v", id, rec, expired)
		}
		old := HashSecret(fmt.Sprint("old", i))
		if rec, expired = s.NodeByTokenHash(old, now); rec == nil || rec.ID != id || !expired {
			t.Errorf("%s after its end: %v %v", id, rec, expired)
		}
		if rec, expired = s.NodeByTokenHash(old, now.Add(-time.Minute)); rec == nil || expired {
			t.Errorf("%s before its end: %v %v", id, rec, expired)
		}
		for _, key := range []string{"key", "key-b"} {
			if p := s.PrincipalByKeyHash(HashSecret(fmt.Sprint(key, i))); p == nil || p.ID != fmt.Sprint("p", i) {
				t.Errorf("%s%d: %v", key, i, p)
			}
		}
		if s.Node(id) == nil || s.Projection(id) == nil {
			t.Errorf("%s isn't there", id)
		}
	}
	for _, unknown := range []string{"", "admin", "new5", "n0"} {
		if rec, _ := s.NodeByTokenHash(HashSecret(unknown), now); rec != nil {
			t.Errorf("token %q opens %s", unknown, rec.ID)
		}
		if p := s.PrincipalByKeyHash(HashSecret(unknown)); p != nil {
			t.Errorf("key %q opens %s", unknown, p.ID)
		}
	}
	if !s.AdminKey(HashSecret("admin")) || s.AdminKey(HashSecret("key0")) || s.Anonymous() {
		t.Error("admin keys or anonymous callers")
	}
	if s.Route("m").Model != "m" || s.Route("other").Model != "*" || len(s.Routes()) != 2 || s.Node("x") != nil ||
		s.Projection("x") != nil {
		t.Error("routes")
	}
}

func TestStateWithoutAnything(t *testing.T) {
	s := NewState(parse(t, "mode: dev\n"), 1, nil)
	if rec, _ := s.NodeByTokenHash(HashSecret(""), time.Now()); rec != nil || s.PrincipalByKeyHash([32]byte{}) != nil ||
		s.AdminKey([32]byte{}) || s.Route("m") != nil || !s.Anonymous() {
		t.Error("an empty state lets somebody in")
	}
}

// A projection's number and an adapter's revision grow when their own content changes, and never otherwise.
func TestProjectionNumbers(t *testing.T) {
	node := func(id, adapters string) string {
		return fmt.Sprintf("- {id: %s, token_hashes: [{sha256: %s}], adapters: [%s]}\n", id, hexOf(id), adapters)
	}
	const a, a2, b = "{name: a, kind: loopback}", "{name: a, kind: loopback, max_concurrency: 9}",
		"{name: b, kind: openai, base_url: http://h, options: {x: 1}}"
	var s *State
	for i, step := range []struct {
		nodes       string
		n, m        uint64
		revisions   []uint64
		description string
	}{
		{node("n", a) + node("m", b), 100, 100, []uint64{100}, "first"},
		{node("n", a) + node("m", b) + "routes: [{model: x}]\n", 100, 100, []uint64{100}, "something else changed"},
		{node("m", b) + node("n", a+", "+b), 102, 100, []uint64{100, 102}, "adapter added, nodes swapped"},
		{node("m", b) + node("n", a2+", "+b), 103, 100, []uint64{103, 102}, "adapter changed"},
		{node("m", b) + node("n", b+", "+a2), 104, 100, []uint64{102, 103}, "adapters swapped"},
		{node("n", b), 105, 0, []uint64{102}, "adapter and node removed"},
		{node("n", b+", "+a2) + node("m", b), 106, 106, []uint64{102, 106}, "both back"},
		{node("n", b+", "+a) + node("m", b), 107, 106, []uint64{102, 107}, "adapter as it was at first"},
	} {
		s = NewState(parse(t, "nodes:\n"+step.nodes), 100+uint64(i), s)
		var revisions []uint64
		for _, ad := range s.Projection("n").Adapters {
			revisions = append(revisions, ad.Revision)
		}
		m := uint64(0)
		if p := s.Projection("m"); p != nil {
			m = p.Number
		}
		if n := s.Projection("n").Number; n != step.n || m != step.m || !slices.Equal(revisions, step.revisions) {
			t.Errorf("%s: n %d, m %d, revisions %v; want %d, %d, %v", step.description, n, m, revisions, step.n, step.m, step.revisions)
		}
	}
	if later := NewState(s.Edge, 3, s); later.Version != s.Version+1 {
		t.Errorf("version %d follows %d", later.Version, s.Version)
	}
}

func BenchmarkPrincipalByKeyHash(b *testing.B) {
	e := &Edge{}
	for i := range 100 {
		e.Principals = append(e.Principals, Principal{ID: fmt.Sprint(i), KeyHashes: []string{hexOf(fmt.Sprint(i))}})
	}
	s, sum := NewState(e, 1, nil), HashSecret("50")
	for b.Loop() {
		if s.PrincipalByKeyHash(sum) == nil {
			b.Fatal("not found")
		}
	}
}
