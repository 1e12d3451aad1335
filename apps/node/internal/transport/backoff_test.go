package transport

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func newBackoff(random func() float64) *backoff {
	return &backoff{start: time.Second, max: 30 * time.Second, permanent: 5 * time.Minute, random: random}
}

// Faults §2: full jitter, the bound doubles from 1 s to 30 s.
func TestBackoffBounds(t *testing.T) {
	b := newBackoff(func() float64 { return 1 })
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		if got := b.next(); got != want*time.Second {
			t.Errorf("try %d: at most %v, want %v", i, got, want*time.Second)
		}
	}
	b.stable()
	if got := b.next(); got != time.Second {
		t.Errorf("after a stable link: %v", got)
	}
	low := newBackoff(func() float64 { return 0 })
	if got := low.next(); got != 0 {
		t.Errorf("least wait: %v", got)
	}
	for range 10_000 { // the bound doesn't overflow
		low.next()
	}
	if low.random = func() float64 { return 1 }; low.next() != 30*time.Second {
		t.Error("after many tries the bound isn't 30 s")
	}
}

func TestBackoffOfRefusals(t *testing.T) {
	for _, r := range []float64{0, 0.5, 1} {
		b := newBackoff(func() float64 { return r })
		if got := b.refused(retryable, 3*time.Second); got < 3*time.Second || got > 4*time.Second {
			t.Errorf("retryable, asked for 3 s: %v", got)
		}
		if got := b.refused(retryable, 0); got > 2*time.Second {
			t.Errorf("retryable, nothing asked for: %v", got)
		}
		if got := b.refused(permanent, 0); got < 4*time.Minute || got > 5*time.Minute {
			t.Errorf("permanent: %v", got)
		}
		if got := b.refused(permanent, 10*time.Minute); got < 10*time.Minute || got > 11*time.Minute {
			t.Errorf("permanent, asked for 10 min: %v", got)
		}
		if got := b.refused(retryable, 1000*time.Hour); got > 2*time.Hour {
			t.Errorf("an edge that asks for weeks: %v", got)
		}
		for i, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute} {
			if got := b.refused(configuration, 0); got < want*9/10 || got > want {
				t.Errorf("configuration, time %d: %v, want about %v", i, got, want)
			}
		}
		b.registered()
		if got := b.refused(configuration, 0); got > 30*time.Second {
			t.Errorf("configuration after a registration: %v", got)
		}
	}
}

// TU-23: no two nodes share a sequence of waits, and what an edge asks all of its nodes for doesn't bring them back in
// the same moment.
func TestNoTwoNodesWaitAlike(t *testing.T) {
	const nodes = 50
	sequences := map[string]bool{}
	buckets := map[time.Duration]int{}
	for range nodes {
		b := newBackoff(rand.Float64)
		sequence := ""
		for range 5 {
			sequence += fmt.Sprint(b.next(), " ")
		}
		sequences[sequence] = true
		buckets[b.refused(retryable, 5*time.Second).Truncate(100*time.Millisecond)]++
	}
	if len(sequences) != nodes {
		t.Errorf("%d different sequences of %d nodes", len(sequences), nodes)
	}
	for at, n := range buckets {
		if n > nodes/2 {
			t.Errorf("%d of %d nodes come back within 100 ms of %v", n, nodes, at)
		}
	}
}
