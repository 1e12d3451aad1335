package node

import (
	"fmt"
	"testing"
	"time"

	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// CA-05: a tombstone lives 60 s, and there are at most 4096.
func TestTombstones(t *testing.T) {
	var stones tombstones
	now := time.Unix(1000, 0)
	if stones.has("a", now) {
		t.Error("an empty list has one")
	}
	stones.add("a", now)
	stones.add("b", now.Add(time.Second))
	stones.add("a", now.Add(30*time.Second)) // cancelled again: lives on
	for _, c := range []struct {
		id    string
		after time.Duration
		want  bool
	}{
		{"a", 59 * time.Second, true}, {"b", 60 * time.Second, true}, {"a", 60 * time.Second, true},
		{"b", 61 * time.Second, false}, {"a", 89 * time.Second, true}, {"a", 90 * time.Second, false},
	} {
		if got := stones.has(c.id, now.Add(c.after)); got != c.want {
			t.Errorf("%s after %v: %v, want %v", c.id, c.after, got, c.want)
		}
	}
	for i := range maxTombstones + 10 {
		stones.add(fmt.Sprint(i), now)
	}
	if len(stones.until) != maxTombstones || len(stones.order) != maxTombstones {
		t.Errorf("%d, %d tombstones, want %d", len(stones.until), len(stones.order), maxTombstones)
	}
	if stones.has("9", now) || !stones.has("10", now) || !stones.has(fmt.Sprint(maxTombstones+9), now) {
		t.Error("it isn't the oldest that were forgotten")
	}
	if stones.has("10", now.Add(time.Hour)); len(stones.until) != 0 || len(stones.order) != 0 {
		t.Error("expired tombstones are kept")
	}
}

// The wire's numbers are execution's: the bridge converts by number.
func TestWireNumbersAgree(t *testing.T) {
	if len(pb.CancelCause_name) != 9 || len(pb.RunStatus_name) != 5 || len(pb.Origin_name) != 5 {
		t.Error("the wire has values that the bridge doesn't know")
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"abc", 3, "abc"}, {"abc", 2, "ab"}, {"äöü", 3, "ä"}, {"a\xffb", 10, "a\uFFFDb"}, {"\xff\xff", 3, "\uFFFD"}, {"", 0, ""},
	} {
		if got := cut(c.in, c.n); got != c.want {
			t.Errorf("cut(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

// A body that is read in time isn't copied more than needed: the feed of a known length allocates once.
func BenchmarkFeed(b *testing.B) {
	piece, out := make([]byte, transport.MaxBody), make([]byte, 32<<10)
	b.SetBytes(16 * int64(len(piece)))
	b.ReportAllocs()
	for b.Loop() {
		f := newFeed(16 * int64(len(piece)))
		for i := range 16 {
			if failure := f.take(transport.Input{Seq: uint64(i + 1), Body: piece}); failure != nil {
				b.Fatal(failure)
			}
			for n := 0; n < len(piece); {
				k, err := f.Read(out)
				if err != nil {
					b.Fatal(err)
				}
				n += k
			}
		}
	}
}
