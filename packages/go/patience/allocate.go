package patience

import (
	"runtime"
	"testing"
	"time"
)

// counts is how often a count of allocations is repeated. The runtime counts for the whole process, and what earlier
// tests left behind allocates too (a link that closes, a timer): it can only add, and ends.
const counts = 20

// Allocations fails the test when f, called runs times, allocates more than most times a run. f must do the same each
// time: the least of several counts is what counts.
func Allocations(t testing.TB, most float64, runs int, f func()) {
	t.Helper()
	least(t, most, "allocations", func() float64 { return testing.AllocsPerRun(runs, f) })
}

// Allocated fails the test when f allocates more than most bytes. f must do the same each time.
func Allocated(t testing.TB, most int, f func()) {
	t.Helper()
	least(t, float64(most), "bytes allocated", func() float64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc - before.TotalAlloc)
	})
}

func least(t testing.TB, most float64, of string, count func() float64) {
	t.Helper()
	fewest := count()
	for range counts - 1 {
		if fewest <= most {
			return
		}
		time.Sleep(10 * time.Millisecond) // so that what others do may end
		fewest = min(fewest, count())
	}
	if fewest > most {
		t.Errorf("%.0f %s, at most %.0f are enough", fewest, of, most)
	}
}
