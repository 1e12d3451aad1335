package admission

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/execution"
)

func overLimit(t *testing.T, q *Quotas, limit Quota, word string) *execution.Failure {
	t.Helper()
	leave, f := q.Enter("p", limit, 0)
	if leave != nil || f == nil || f.Code != execution.CodeLimitExceeded || !f.NothingSent || !strings.Contains(f.Text, word) {
		t.Fatalf("%+v, want a limit_exceeded about %s", f, word)
	}
	return f
}

// CP-06: a hundred at once against a limit of ten admit ten.
func TestQuotaIsExact(t *testing.T) {
	for name, limit := range map[string]Quota{"concurrency": {Concurrency: 10}, "requests_per_minute": {RequestsPerMinute: 10}} {
		t.Run(name, func(t *testing.T) {
			var (
				q        Quotas
				group    sync.WaitGroup
				admitted atomic.Int64
			)
			for range 100 {
				group.Go(func() {
					if _, f := q.Enter("p", limit, 0); f == nil {
						admitted.Add(1)
					} else if f.Code != execution.CodeLimitExceeded || f.RetryAfter < time.Second {
						t.Errorf("%+v", f)
					}
				})
			}
			group.Wait()
			if n := admitted.Load(); n != 10 {
				t.Errorf("%d of 100 were admitted, want 10", n)
			}
			if _, f := q.Enter("another", limit, 0); f != nil {
				t.Errorf("a principal paid for another: %v", f)
			}
		})
	}
}

func TestQuotaOfAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Quotas
		limit := Quota{RequestsPerMinute: 3}
		enter := func() {
			t.Helper()
			leave, f := q.Enter("p", limit, 0)
			if f != nil {
				t.Fatal(f)
			}
			leave(0)
		}
		for range 3 {
			enter()
			time.Sleep(10 * time.Second)
		}
		if f := overLimit(t, &q, limit, "requests_per_minute"); f.RetryAfter != 31*time.Second { // rounded up: then it certainly works
			t.Errorf("retry after %v", f.RetryAfter)
		}
		time.Sleep(30 * time.Second)
		enter()
		overLimit(t, &q, limit, "requests_per_minute")
		if f := overLimit(t, &q, Quota{RequestsPerMinute: 2}, "2 requests a minute"); f.RetryAfter != 21*time.Second { // a limit that was lowered
			t.Errorf("retry after %v", f.RetryAfter)
		}
		time.Sleep(2 * time.Minute)
		enter()
		for range 1000 { // nothing piles up
			time.Sleep(20 * time.Second)
			enter()
		}
		if n := cap(q.usage["p"].begun); n > 64 {
			t.Errorf("room for %d beginnings is kept", n)
		}
	})
}

func TestQuotaOfConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Quotas
		limit := Quota{Concurrency: 2}
		one, _ := q.Enter("p", limit, 0)
		two, _ := q.Enter("p", limit, 0)
		overLimit(t, &q, limit, "concurrency")
		if q.InUse()["p"] != 2 {
			t.Errorf("%v in use", q.InUse())
		}
		time.Sleep(40 * time.Second)
		one(0)
		one(0) // once is enough
		three, f := q.Enter("p", limit, 0)
		if f != nil {
			t.Fatal(f)
		}
		if f := overLimit(t, &q, limit, "concurrency"); f.RetryAfter < 2*time.Second { // what requests take is learned
			t.Errorf("retry after %v", f.RetryAfter)
		}
		two(0)
		three(0)
		if len(q.usage) != 0 {
			t.Errorf("%d principals are remembered of whom nothing is left to know", len(q.usage))
		}
		if _, f := q.Enter("p", Quota{}, 0); f != nil || len(q.usage) != 0 {
			t.Error("a principal without limits is counted")
		}
	})
}
