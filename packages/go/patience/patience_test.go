package patience

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestUntilWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		Until(t, "nine tenths of the limit are over", func() bool { return time.Since(began) > Limit*9/10 })
		late := make(chan int)
		time.AfterFunc(Limit*9/10, func() { late <- 7 })
		if got := Receive(t, "a late value", late); got != 7 {
			t.Errorf("received %d", got)
		}
	})
}

// A limit that was too short is tripled; one that was kept up with is the last.
func TestWiden(t *testing.T) {
	var tried []time.Duration
	Widen(t, time.Second, func(limit time.Duration) bool {
		tried = append(tried, limit)
		return len(tried) == 3
	})
	if want := []time.Duration{time.Second, 3 * time.Second, 9 * time.Second}; !slices.Equal(tried, want) {
		t.Errorf("tried %v, want %v", tried, want)
	}
}
