package admission

import (
	"sync"
	"time"

	"iop/packages/go/execution"
)

// Quota is what one principal may ask for, whatever is free. Zero fields are no limit.
type Quota struct {
	Concurrency       int   // requests at once, those that wait included
	RequestsPerMinute int   // requests that begin within any minute
	TokensPerMinute   int64 // that requests which end within any minute have used, and those that run are expected to use
	TokensPerDay      int64 // the same of a day (UTC)

	// SpentToday returns what the principal has used on this day by requests that have ended; nil = nothing. What a
	// request has used must be in it before the request leaves.
	SpentToday func() int64
}

// none reports that nothing is limited.
func (q *Quota) none() bool {
	return q.Concurrency == 0 && q.RequestsPerMinute == 0 && q.TokensPerMinute == 0 && q.TokensPerDay == 0
}

// spent is what counts against the day's budget.
func (q *Quota) spent() int64 {
	if q.SpentToday == nil {
		return 0
	}
	return q.SpentToday()
}

// quotaWindow is the time over which requests are counted.
const quotaWindow = time.Minute

// Quotas counts what principals ask for and refuses what is over their limits, exactly. The zero value is usable; all
// methods may be called concurrently.
type Quotas struct {
	mu    sync.Mutex
	usage map[string]*quotaUsage
}

type quotaUsage struct {
	live   int
	tokens tokenUsage
	begun  []time.Time   // when requests began, in order
	oldest int           // the first of the last minute
	took   time.Duration // what a request takes, roughly
}

// Enter counts a request of principal, or refuses it: a *execution.Failure of the code limit_exceeded that names the
// limit and when it is worth asking again. input is how many tokens the request has itself, roughly. Leave must be called
// when the request is over, with the tokens that it has used; the first call counts.
func (q *Quotas) Enter(principal string, limit Quota, input int64) (leave func(tokens int64), refusal *execution.Failure) {
	if limit.none() {
		return func(int64) {}, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.usage == nil {
		q.usage = make(map[string]*quotaUsage)
	}
	u := q.usage[principal]
	if u == nil {
		u = &quotaUsage{took: holdFirst}
		q.usage[principal] = u
	}
	now := time.Now()
	u.forget(now)
	if n := limit.Concurrency; n > 0 && u.live >= n {
		return nil, overQuota(u.took/time.Duration(n), "limits.concurrency", "%d requests at once are allowed, and as many are running or waiting", n)
	}
	if n := limit.RequestsPerMinute; n > 0 && u.count() >= n {
		// The one that has to be out of the window before the next may begin.
		free := u.begun[len(u.begun)-n].Add(quotaWindow).Sub(now)
		return nil, overQuota(free, "limits.requests_per_minute", "%d requests a minute are allowed", n)
	}
	expected, refusal := u.tokens.enter(&limit, input, now)
	if refusal != nil {
		return nil, refusal
	}
	u.live++
	if limit.RequestsPerMinute > 0 {
		u.begun = append(u.begun, now)
	}
	left := false // guarded by q.mu
	return func(tokens int64) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !left {
			left = true
			u.tokens.leave(expected, input, tokens, time.Now())
			q.leaveLocked(principal, u, now)
		}
	}, nil
}

func (q *Quotas) leaveLocked(principal string, u *quotaUsage, began time.Time) {
	now := time.Now()
	u.live--
	u.took += (min(now.Sub(began), holdMost) - u.took) / holdParts
	if u.forget(now); u.live == 0 && u.count() == 0 && u.tokens.idle() && q.usage[principal] == u {
		delete(q.usage, principal)
	}
}

func (u *quotaUsage) count() int { return len(u.begun) - u.oldest }

// forget drops what began more than a minute ago.
func (u *quotaUsage) forget(now time.Time) {
	u.tokens.forget(now)
	for u.oldest < len(u.begun) && now.Sub(u.begun[u.oldest]) >= quotaWindow {
		u.oldest++
	}
	if u.oldest > len(u.begun)/2 {
		u.begun = append(u.begun[:0], u.begun[u.oldest:]...)
		u.oldest = 0
	}
}

func overQuota[N int | int64](wait time.Duration, name, format string, limit N) *execution.Failure {
	f := execution.Failf(execution.CodeLimitExceeded, execution.OriginEdge, "this key's %s: "+format, name, limit)
	f.RetryAfter, f.NothingSent = max(wait.Truncate(time.Second)+time.Second, retryLeast), true
	return f
}

// InUse returns how many requests of each principal with a limit run or wait.
func (q *Quotas) InUse() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := make(map[string]int, len(q.usage))
	for principal, u := range q.usage {
		all[principal] = u.live
	}
	return all
}
