package admission

import (
	"time"

	"iop/packages/go/execution"
)

const (
	// answerFirst is how many tokens an answer is expected to have before there were any.
	answerFirst = 256
	// answerParts is how slowly that follows what answers have.
	answerParts = 8
)

// tokenUsage is what a principal's requests use. What a request will use is known only at its end, so what runs counts with
// what it is expected to use: otherwise a budget that is nearly spent would let in as many requests as there is room.
type tokenUsage struct {
	spent    []spending // of the last minute, oldest first
	sum      int64      // of spent
	expected int64      // by what runs
	answer   int64      // what an answer has, roughly; 0 = answerFirst
}

type spending struct {
	at     time.Time
	tokens int64
}

// enter takes in a request, or refuses it. It returns what is expected of it, which leave gives back.
func (u *tokenUsage) enter(limit *Quota, input int64, now time.Time) (int64, *execution.Failure) {
	if limit.TokensPerMinute == 0 && limit.TokensPerDay == 0 {
		return 0, nil
	}
	expected := input + u.answer
	if u.answer == 0 {
		expected += answerFirst
	}
	if n := limit.TokensPerMinute; n > 0 && over(u.sum, u.expected, expected, n) {
		return 0, overQuota(u.free(u.sum+u.expected+expected-n, now), "limits.tokens_per_minute",
			"%d tokens a minute are allowed, and they are used up by what ran and what runs", n)
	}
	if n := limit.TokensPerDay; n > 0 && over(limit.spent(), u.expected, expected, n) {
		day := now.UTC().Truncate(24 * time.Hour)
		return 0, overQuota(day.AddDate(0, 0, 1).Sub(now), "limits.tokens_per_day",
			"%d tokens a day (UTC) are allowed, and they are used up by what ran and what runs", n)
	}
	u.expected += expected
	return expected, nil
}

// over reports whether a request is too much for what is left of a budget. One that runs alone may use more than that:
// what it will use isn't known.
func over(spent, running, expected, limit int64) bool {
	return spent >= limit || running > 0 && spent+running+expected > limit
}

// free is when so many tokens will have left the last minute; a second if that takes what runs to end.
func (u *tokenUsage) free(tokens int64, now time.Time) time.Duration {
	for _, s := range u.spent {
		if tokens -= s.tokens; tokens <= 0 {
			return s.at.Add(quotaWindow).Sub(now)
		}
	}
	return time.Second
}

func (u *tokenUsage) leave(expected, input, tokens int64, now time.Time) {
	u.expected -= expected
	if expected == 0 || tokens <= 0 {
		return
	}
	u.spent = append(u.spent, spending{now, tokens})
	u.sum += tokens
	if u.answer == 0 {
		u.answer = answerFirst
	}
	u.answer = max(1, u.answer+(max(tokens-input, 0)-u.answer)/answerParts)
}

func (u *tokenUsage) forget(now time.Time) {
	old := 0
	for old < len(u.spent) && now.Sub(u.spent[old].at) >= quotaWindow {
		u.sum -= u.spent[old].tokens
		old++
	}
	if old > 0 {
		u.spent = append(u.spent[:0], u.spent[old:]...)
	}
}

func (u *tokenUsage) idle() bool { return len(u.spent) == 0 && u.expected == 0 }
