// Package patience is how tests wait for what must happen, on machines that stand still for seconds, and how they count
// what is allocated beside others that allocate. It is for tests only, and says nothing about speed: what must be quick
// is tested on fake time, in a synctest bubble.
package patience

import (
	"runtime"
	"testing"
	"time"
)

// Limit bounds every wait. A test that meets it has found something that doesn't happen at all.
const Limit = 30 * time.Second

// Until polls until ok, and fails the test when that takes longer than Limit.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(Limit); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("still not after %v: %s\n%s", Limit, what, Stacks())
		}
	}
}

// Receive waits for a value of ch, or its close, and fails the test when that takes longer than Limit.
func Receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("not within %v: %s\n%s", Limit, what, Stacks())
		panic("unreachable")
	}
}

// Widen calls try with a limit that grows until try reports that the machine kept up with it. It is for what can't be
// had on fake time: a limit that is meant to pass while something waits, and was over before that had begun, proves
// nothing. What a try that kept up finds is the test's result.
func Widen(t testing.TB, limit time.Duration, try func(limit time.Duration) (keptUp bool)) {
	t.Helper()
	for ; limit < 2*Limit; limit *= 3 {
		if try(limit) {
			return
		}
		t.Logf("the machine didn't keep up with a limit of %v", limit)
	}
	t.Fatal("the machine kept up with none of the limits")
}

// Stacks are what all goroutines do.
func Stacks() []byte {
	buf := make([]byte, 1<<16)
	return buf[:runtime.Stack(buf, true)]
}
