package faultpoint

import (
	"slices"
	"testing"
)

func TestHooks(t *testing.T) {
	var nobody *Hooks
	nobody.At(EdgeSent, "run-1") // nothing happens

	var seen []string
	h := New(func(p Point, id string) { seen = append(seen, string(p)+" "+id) })
	h.At(EdgeSent, "run-1")
	h.At(NodeReady, "edge:1")
	if want := []string{"edge.sent run-1", "node.ready edge:1"}; !slices.Equal(seen, want) {
		t.Errorf("%q were seen, want %q", seen, want)
	}
}

func TestPointsAreDistinct(t *testing.T) {
	all := Points()
	slices.Sort(all)
	if len(slices.Compact(all)) != 21 {
		t.Errorf("the list of points has doubles or a wrong length: %q", all)
	}
}

// What a point costs in production: less than what can be told from nothing.
func BenchmarkNobody(b *testing.B) {
	var h *Hooks
	for b.Loop() {
		h.At(EdgeSent, "run-1")
	}
}

func BenchmarkEmptyLoop(b *testing.B) {
	n := 0
	for b.Loop() {
		n++
	}
}
