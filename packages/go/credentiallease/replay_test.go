package credentiallease

import (
	"encoding/binary"
	"runtime"
	"testing"

	"pgregory.net/rapid"
)

func leaseID(n int) (id [leaseIDSize]byte) {
	// Ids are random: a counter would flatter the map.
	binary.LittleEndian.PutUint64(id[:], uint64(n)*0x9e3779b97f4a7c15)
	binary.LittleEndian.PutUint64(id[8:], uint64(n)*0xd1342543de82ef95)
	return id
}

// 10,000 live entries take less than 2 MiB, and the largest set is bounded too.
func TestReplayMemory(t *testing.T) {
	for _, c := range []struct{ entries, most int }{{10_000, 2 << 20}, {DefaultMaxReplay, 6 << 20}} {
		if got := replayBytes(t, c.entries); got > c.most {
			t.Errorf("%d entries take %d bytes, more than %d", c.entries, got, c.most)
		}
	}
}

func replayBytes(t testing.TB, entries int) int {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := &replaySet{max: entries}
	for i := range entries {
		check(t, s.reserve(leaseID(i), edgeTime+int64(i), at(edgeTime)))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	wantRefusal(t, s.reserve(leaseID(entries), edgeTime, at(edgeTime)), ReplayCacheFull, FieldNone)
	return int(after.HeapAlloc) - int(before.HeapAlloc)
}

// E12, E13: against a model that forgets nothing. A clock that steps back lets nothing in twice.
func TestReplayModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 6
		s, accepted := &replaySet{max: most}, map[int]bool{}
		now := edgeTime
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(-20_000, 40_000).Draw(t, "passes")
			n := rapid.IntRange(0, 12).Draw(t, "lease")
			// As Guard does: what has ended, and what ends too far ahead, doesn't get here.
			ends := edgeTime + int64(n)*30_000
			if ends <= now || ends > now+MaxTTL.Milliseconds() {
				continue
			}
			err := s.reserve(leaseID(n), ends, at(now))
			switch {
			case err == nil && accepted[n]:
				t.Fatalf("lease %d is accepted twice", n)
			case err == nil:
				accepted[n] = true
			case err == error(Refusal{Reason: Replayed}) && !accepted[n]:
				t.Fatalf("lease %d is new and counts as replayed", n)
			}
			if len(s.seen) > most || len(s.seen) != len(s.ends) {
				t.Fatalf("%d ids, %d ends", len(s.seen), len(s.ends))
			}
		}
		s.forget(at(edgeTime + 1_000_000))
		if len(s.seen)+len(s.ends) != 0 {
			t.Fatalf("%d ids are never forgotten", len(s.seen))
		}
	})
}

// An id is kept five seconds over its end, and a lease that ended before the horizon isn't taken again.
func TestReplayHorizon(t *testing.T) {
	s := &replaySet{max: 10}
	check(t, s.reserve(leaseID(1), edgeTime+1000, at(edgeTime)))
	s.forget(at(edgeTime + 5999))
	wantRefusal(t, s.reserve(leaseID(1), edgeTime+1000, at(edgeTime+5999)), Replayed, FieldNone)
	s.forget(Time{Earliest: edgeTime + 1_000_000})
	wantRefusal(t, s.reserve(leaseID(1), edgeTime+1000, at(edgeTime)), Replayed, FieldNone)
	s.forget(at(edgeTime + 6000))
	wantRefusal(t, s.reserve(leaseID(1), edgeTime+1000, at(edgeTime)), Expired, FieldNone)
	check(t, s.reserve(leaseID(2), maxInt64, at(edgeTime)))
}
