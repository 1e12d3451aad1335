package admission

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/execution"
)

// Issue 9: budgets hold under concurrency: what runs counts with what it is expected to use, and what has ended with what it used.
func TestTokensPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Quotas
		limit := Quota{TokensPerMinute: 960}
		var left []func(int64)
		for {
			leave, f := q.Enter("p", limit, 100) // expected: 356 each
			if f != nil {
				break
			}
			left = append(left, leave)
		}
		if len(left) != 2 {
			t.Fatalf("%d at once", len(left))
		}
		if f := overLimit(t, &q, limit, "limits.tokens_per_minute"); f.RetryAfter != 2*time.Second {
			t.Errorf("retry after %v", f.RetryAfter)
		}
		left[0](900)
		left[0](900) // once only
		time.Sleep(20 * time.Second)
		left[1](70)
		if f := overLimit(t, &q, limit, "960 tokens a minute"); f.RetryAfter != 41*time.Second {
			t.Errorf("retry after %v", f.RetryAfter)
		}
		time.Sleep(40 * time.Second)
		leave, f := q.Enter("p", limit, 100)
		if f != nil {
			t.Fatal(f)
		}
		leave(0) // nothing was sent
		time.Sleep(time.Minute)
		leave, f = q.Enter("p", Quota{TokensPerMinute: 10}, 100) // more than all, and alone
		if f != nil {
			t.Fatal(f)
		}
		overLimit(t, &q, Quota{TokensPerMinute: 10}, "tokens_per_minute")
		leave(500)
		time.Sleep(time.Minute)
		q.mu.Lock()
		defer q.mu.Unlock()
		if u := q.usage["p"]; u != nil {
			if u.forget(time.Now()); !u.tokens.idle() {
				t.Errorf("%+v is left", u.tokens)
			}
		}
	})
}

func TestTokensPerDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // at midnight UTC, 2000-01-01
		var q Quotas
		var mu sync.Mutex
		today := int64(0)
		limit := Quota{TokensPerDay: 10_000, SpentToday: func() int64 { mu.Lock(); defer mu.Unlock(); return today }}
		time.Sleep(6 * time.Hour)
		var group sync.WaitGroup
		refused := make(chan *execution.Failure, 1000)
		for range 1000 {
			group.Go(func() {
				leave, f := q.Enter("p", limit, 1)
				if f != nil {
					refused <- f
					return
				}
				time.Sleep(time.Second)
				mu.Lock()
				today += 257
				mu.Unlock()
				leave(257)
			})
		}
		group.Wait()
		if today > 10_000 || today < 9_000 || len(refused) == 0 {
			t.Errorf("%d of 10,000 used, %d refused", today, len(refused))
		}
		if f := <-refused; f.RetryAfter < 17*time.Hour || f.RetryAfter > 18*time.Hour+time.Second {
			t.Errorf("retry after %v", f.RetryAfter)
		}
		today = 0 // the ledger begins a new day
		if _, f := q.Enter("p", limit, 1); f != nil {
			t.Error(f)
		}
	})
}
