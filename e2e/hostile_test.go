package e2e

import (
	"fmt"
	"testing"
	"time"

	"iop/e2e/harness"
)

// README, promise 7: a route's queue is as deep as it says, whatever names its callers think of. With "*" each name had a
// queue of its own, so that nothing bounded how many wait.
func TestOneQueueForAllNamesOfARoute(t *testing.T) {
	const depth, callers = 4, 40
	e := harness.StartEdge(t, harness.Options{Routes: fmt.Sprintf(`[{model: "*", queue: {depth: %d, wait: 1m}}]`, depth)})
	answers := make(chan *harness.Answer, callers)
	for i := range callers {
		go func() {
			body := fmt.Sprintf(`{"model":"m%d","messages":[]}`, i)
			a, err := harness.Ask(e.HTTP(), harness.Post(chatPath, body), time.Minute)
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	for range callers - depth {
		if a := await(t, answers, "a caller is refused"); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
			t.Errorf("%d, Retry-After %q", a.StatusCode, a.Header.Get("Retry-After"))
		}
	}
	e.AwaitQueued(depth, limit)
	e.Term() // those who wait are told
	for range depth {
		await(t, answers, "the rest is refused")
	}
}
