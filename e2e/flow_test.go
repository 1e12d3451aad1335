package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// bulk answers with n bytes of a known length, made as they go.
func bulk(seed uint64, n int) fakeprovider.Script {
	piece := noise(seed, 64<<10)
	return func(x *fakeprovider.Exchange) {
		x.Body()
		x.Begin(200, "Content-Type: application/octet-stream", fmt.Sprintf("Content-Length: %d", n))
		for rest := n; rest > 0; rest -= len(piece) {
			if _, err := x.Write(piece[:min(rest, len(piece))]); err != nil {
				break
			}
		}
	}
}

// bulkSum is the sum of what bulk sends.
func bulkSum(seed uint64, n int) string {
	piece, h := noise(seed, 64<<10), sha256.New()
	for rest := n; rest > 0; rest -= len(piece) {
		h.Write(piece[:min(rest, len(piece))])
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// rest reads a response to its end and sums it up.
func (b *follower) rest(t *testing.T, within time.Duration) string {
	t.Helper()
	_ = b.SetReadDeadline(time.Now().Add(within))
	h := sha256.New()
	if _, err := io.Copy(h, b.response.Body); err != nil {
		t.Fatalf("the response ended with %v", err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// stalled asks for a body and reads nothing of it.
func stalled(t *testing.T, l *linked, body string) *follower {
	t.Helper()
	return follow(t, l.HTTP(), body, "")
}

// TU-06: the link crawls for a while in the middle of twenty streams. Each of them ends whole, or as a failure at both
// ends; none is left.
func TestThrottledLink(t *testing.T) {
	t.Parallel()
	const s, size, callers = scale(10), 400 << 10, 20
	there, crawling := make(chan struct{}, callers), make(chan struct{})
	l := newLinked(t, s, func(x *fakeprovider.Exchange) {
		x.Body()
		x.BeginStream(200, "text/plain", "Connection: close")
		for i := 0; i < size/(4<<10) && x.Pause(2*time.Millisecond); i++ {
			if i == size/(4<<10)/2 { // none ends before the link crawls
				there <- struct{}{}
				select {
				case <-crawling:
				case <-x.Gone():
				}
			}
			x.Chunk(string(noise(6, 4<<10)))
		}
		x.EndChunks()
		x.Close()
	}, setup{places: callers})
	whole := strings.Repeat(string(noise(6, 4<<10)), size/(4<<10))
	var ends [2]atomic.Int64
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		all(callers, func(int) {
			start := time.Now()
			a, err := harness.Ask(l.HTTP(), chat(), s.of(60*time.Second)+late)
			switch {
			case err != nil:
				t.Error(err)
			case a.Cut == nil && a.StatusCode == 200:
				sameBody(t, a.Bytes, whole)
				ends[0].Add(1)
			default:
				between(t, "a failed stream", time.Since(start), 0, s.of(15*time.Second+dead)+late)
				if a.StatusCode == 200 && !strings.HasPrefix(whole, string(a.Bytes)) {
					t.Error("what came before the cut isn't the beginning")
				}
				ends[1].Add(1)
			}
		})
	}()
	for range callers {
		await(t, there, "all streams are in their middle")
	}
	l.relay.Throttle(1 << 10)
	close(crawling)
	<-time.After(s.of(15 * time.Second))
	l.relay.Throttle(0)
	await(t, answered, "every stream has ended")
	t.Logf("%d whole, %d failed", ends[0].Load(), ends[1].Load())
	harness.Until(t, limit, "the provider has no connection", func() bool { _, open := l.provider.Connections(); return open == 0 })
}

// TU-08, faults row 14: one caller reads nothing of 100 MiB, others stream over the same link. They don't notice, what
// is held for the one is bounded, and later it gets every byte.
func TestSlowCallerHoldsUpNobody(t *testing.T) { // not parallel: it looks at the heap and at the clock
	const size = 100 << 20
	huge := bulk(8, size)
	tick := fakeprovider.Events(10*time.Millisecond, strings.Split(strings.Repeat(delta("tick")+"|", 50), "|")[:50]...)
	l := newLinked(t, 1, func(x *fakeprovider.Exchange) {
		if strings.Contains(string(x.Body()), "huge") {
			huge(x)
			return
		}
		tick(x)
	}, setup{places: 21})
	before := heap()
	slow := stalled(t, l, `{"model":"huge"}`)
	generation := l.Node("box").Generation
	all(20, func(int) {
		start := time.Now()
		a, err := harness.Ask(l.HTTP(), chat(), limit)
		if err != nil || a.Cut != nil || string(a.Bytes) != strings.Repeat(delta("tick"), 50) {
			t.Errorf("beside the slow caller: %v %s", err, brief(a))
			return
		}
		// Fifty events, one each 10 ms: a stream that waits for the slow one wouldn't move at all.
		between(t, "a stream beside the slow caller", time.Since(start), 0, 500*time.Millisecond+late)
	})
	// The window and its doubled buffer at the edge, and some change.
	if held := int64(heap()) - int64(before); held > 8<<20 {
		t.Errorf("the slow caller costs %d MiB", held>>20)
	}
	if got := slow.rest(t, time.Minute); got != bulkSum(8, size) {
		t.Error("the slow caller got other bytes")
	}
	if n := l.Node("box"); n.Generation != generation {
		t.Error("the link was lost")
	}
}

// protocol.md §8 "gate deadlock", §3.4 row 1: three callers that read nothing, five that read all they can. The five
// get their bytes as if they were alone, give or take.
func TestStalledCallersDontStopTheLink(t *testing.T) { // not parallel: it looks at the clock
	const size = 24 << 20
	l := newLinked(t, 1, bulk(3, size), setup{places: 8})
	want := bulkSum(3, size)
	five := func() time.Duration {
		start := time.Now()
		all(5, func(int) {
			a, err := harness.Ask(l.HTTP(), chat(), time.Minute)
			if err != nil || a.Cut != nil || fmt.Sprintf("%x", sha256.Sum256(a.Bytes)) != want {
				t.Errorf("a live caller: %v", err)
			}
		})
		return time.Since(start)
	}
	five()
	alone := five()
	slow := []*follower{stalled(t, l, chatBody), stalled(t, l, chatBody), stalled(t, l, chatBody)}
	beside := five()
	t.Logf("alone %v, beside three stalled callers %v", alone, beside)
	between(t, "five beside three", beside, 0, 4*alone+late)
	for _, c := range slow {
		if got := c.rest(t, time.Minute); got != want {
			t.Error("a stalled caller got other bytes")
		}
	}
}

// protocol.md §8 "place confirmed behind a slow caller" and "Close destroys data": the provider has ended, and the rest
// of its answer lies in the window of a caller that reads nothing. The place is free for the next caller at once,
// although the run isn't over. The first one reads when more than stream_reset has passed, and gets every byte.
func TestPlaceIsFreeBehindASlowCaller(t *testing.T) {
	t.Parallel()
	slowFor(t, streamReset+time.Second)
}

// The same for a caller that takes a minute.
func TestLongSlowCaller(t *testing.T) {
	long(t, "a caller that reads nothing for a minute")
	slowFor(t, time.Minute)
}

func slowFor(t *testing.T, stall time.Duration) {
	var size atomic.Int64
	l := newLinked(t, 1, func(x *fakeprovider.Exchange) {
		if strings.Contains(string(x.Body()), "slow") {
			bulk(9, int(size.Load()))(x)
			return
		}
		x.Reply(200, "text/plain", "next")
	}, setup{places: 1, Options: harness.Options{Timers: "{write_idle: 3m}"}}) // the caller is slow, not gone
	ended := func(c *follower) bool {
		return logged(l.Log, func(line map[string]any) bool { return line["message"] == "run ended" && line["run_id"] == c.runID() }) > 0
	}
	// How much the sockets between edge and caller hold is the kernel's secret. The size grows by less than the
	// stream's window, until an answer is one that doesn't fit the sockets and does fit the window beside them.
	for size.Store(900 << 10); ; size.Add(700 << 10) {
		slow := stalled(t, l, `{"model":"slow"}`)
		harness.Until(t, limit, "the provider has ended", func() bool { return len(l.node.Status().Running) == 0 })
		quiet := time.NewTimer(300 * time.Millisecond)
		for over := false; !over && !ended(slow); {
			select {
			case <-quiet.C:
				over = true
			case <-time.After(5 * time.Millisecond):
			}
		}
		if ended(slow) {
			slow.Close()
			continue
		}
		start := time.Now()
		if a := l.ask(chat()); a.StatusCode != 200 || string(a.Bytes) != "next" {
			t.Fatalf("%d %s", a.StatusCode, a.Bytes)
		}
		between(t, "the next request on the one place", time.Since(start), 0, 100*time.Millisecond+late)
		if ended(slow) { // only now: the next request proves nothing
			slow.Close()
			continue
		}
		<-time.After(time.Until(start.Add(stall)))
		if got := slow.rest(t, limit); got != bulkSum(9, int(size.Load())) {
			t.Error("the slow caller got other bytes")
		}
		wantLog(t, l.Log.Ended(t, slow.runID()), map[string]any{"code": "ok", "bytes_out": float64(size.Load())})
		return
	}
}

// protocol.md §8 "Close destroys data": a stream goes on for longer than stream_reset after its request was sent and
// ended.
func TestStreamOutlivesTheEndOfItsRequest(t *testing.T) {
	t.Parallel()
	const s = scale(20)
	l := newLinked(t, s, fakeprovider.Events(s.of(2*time.Second), strings.Split(strings.Repeat(delta("x")+"|", 20), "|")[:20]...),
		setup{scaled: []string{"stream_reset"}})
	start := time.Now()
	a := l.ask(chat())
	if a.Cut != nil || string(a.Bytes) != strings.Repeat(delta("x"), 20) {
		t.Errorf("%v, %d bytes", a.Cut, len(a.Bytes))
	}
	if took := time.Since(start); took < s.of(3*streamReset) {
		t.Errorf("the stream took %v, it proves nothing", took)
	}
}

// TU-13: the provider sends and closes at once, many times, to callers that read slowly, too; and the node is told to
// stop right after the end. Nobody lacks the tail.
func TestTailIsNotLost(t *testing.T) {
	t.Parallel()
	const size = 300 << 10
	l := newLinked(t, 1, bulk(13, size), setup{})
	want := bulkSum(13, size)
	for i := range 200 {
		if a := l.ask(chat()); a.Cut != nil || fmt.Sprintf("%x", sha256.Sum256(a.Bytes)) != want {
			t.Fatalf("answer %d: %v, %d bytes", i, a.Cut, len(a.Bytes))
		}
	}
	for i := range 5 {
		callers := []*follower{stalled(t, l, chatBody), stalled(t, l, chatBody)}
		harness.Until(t, limit, "the provider has ended", func() bool { return len(l.node.Status().Running) == 0 })
		l.node.Term()
		for _, c := range callers {
			if got := c.rest(t, limit); got != want {
				t.Errorf("round %d: a caller lacks bytes", i)
			}
		}
		if err := l.node.Stop(limit); err != nil {
			t.Error(err)
		}
		l.node = harness.StartNode(t, l.relay.Addr(), soon)
		l.AwaitReady("box")
	}
}

// protocol.md §8 "timers without an owner": the caller stalls for much longer than the provider may be idle. That is
// the caller's time, not the provider's: no idle_timeout, and every byte arrives.
func TestStalledCallerIsNotAnIdleProvider(t *testing.T) {
	t.Parallel()
	const size = 32 << 20 // more than windows and sockets hold
	l := newLinked(t, 1, bulk(14, size), setup{Options: harness.Options{
		Routes: `[{model: "*", idle: 1500ms, first_byte: 1m}]`}})
	c := stalled(t, l, chatBody)
	<-time.After(2 * 1500 * time.Millisecond)
	if n := len(l.node.Status().Running); n != 1 {
		t.Fatalf("%d executions run; the provider isn't held up, so this proves nothing", n)
	}
	if got := c.rest(t, time.Minute); got != bulkSum(14, size) {
		t.Error("the caller got other bytes")
	}
	wantLog(t, l.Log.Ended(t, c.runID()), map[string]any{"code": "ok"})
}

// bodies is a site at which large request bodies wait for one place.
type bodies struct {
	*linked
	h       *hold
	request string
	conns   []*harness.Caller // the first one holds the place, the others wait
}

// fill sends requests until the budget is used up.
func (b *bodies) fill(t *testing.T, fit int) {
	t.Helper()
	for len(b.conns) < fit {
		c := b.dial()
		c.Send(b.request)
		if b.conns = append(b.conns, c); len(b.conns) == 1 {
			await(t, b.h.arrived, "the first request at the provider")
		}
		harness.Until(t, limit, "the request waits", func() bool { return b.Queued() == len(b.conns)-1 })
	}
}

// served sends a further request, which must find place and budget.
func (b *bodies) served(t *testing.T) {
	t.Helper()
	c := b.dial()
	defer c.Close()
	c.Send(b.request)
	await(t, b.h.arrived, "a further request at the provider")
	b.h.let(t, 1)
	if response, _, err := c.Response(limit); err != nil || response.StatusCode != 200 {
		t.Errorf("a further request: %v %v", response, err)
	}
}

// protocol.md §8 "request body", HT-10, CA-04: twenty large bodies want one place. They are in files, not in memory,
// what is over the budget is refused, and who leaves, while sending or while waiting, gives everything back.
func TestWaitingBodiesAreBounded(t *testing.T) { // not parallel: it looks at the heap and at descriptors
	const size, callers, fit = 8 << 20, 20, 12
	b := &bodies{h: newHold(), request: harness.Post(chatPath, `{"model":"m","x":"`+strings.Repeat("x", size-20)+`"}`)}
	b.linked = newLinked(t, 1, b.h.script, setup{places: 1, Options: harness.Options{
		Limits: fmt.Sprintf("{body: %d, body_memory: %d}", size, fit*size+size/2)}})
	before, files := heap(), descriptors(t)
	b.fill(t, fit)
	for range callers - fit {
		a, err := harness.Ask(b.HTTP(), b.request, limit)
		if err != nil || a.StatusCode != 503 || code(a) != "overloaded" || a.Header.Get("Retry-After") == "" {
			t.Errorf("a body over the budget: %v %s", err, brief(a))
		}
	}
	if grown := int64(heap()) - int64(before); grown > 24<<20 {
		t.Errorf("%d bodies of %d MiB take %d MiB of memory", fit, size>>20, grown>>20)
	}

	b.conns[1].Reset()
	harness.Until(t, limit, "a waiting caller's leave is noticed", func() bool { return b.Queued() == fit-2 })
	partial := b.dial() // leaves while its body is being read
	partial.Send(b.request[:size/2])
	partial.Reset()
	for _, c := range b.conns[2:] {
		c.Reset()
	}
	harness.Until(t, limit, "nobody waits", func() bool { return b.Queued() == 0 })
	b.h.let(t, 1)
	if response, _, err := b.conns[0].Response(limit); err != nil || response.StatusCode != 200 {
		t.Errorf("the first request: %v %v", response, err)
	}
	b.conns[0].Close()
	harness.Until(t, limit, "no file is left", func() bool { return descriptors(t) <= files })
	b.served(t)
	b.served(t)
	if n := len(b.seen()); n != 3 {
		t.Errorf("the provider saw %d requests", n)
	}
}

// descriptors is how many files and sockets the process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return math.MinInt // not here
	}
	return len(names)
}

// protocol.md §8 "net/http replays a POST": the provider takes a request on a kept connection, executes it, and drops
// the connection without an answer. The caller learns of it; the request isn't sent again.
func TestNothingIsReplayed(t *testing.T) {
	t.Parallel()
	l := newLinked(t, 1, func(x *fakeprovider.Exchange) {
		if x.Body(); x.Header.Get("X-Second") != "" {
			x.Close()
			return
		}
		x.Reply(200, "application/json", "{}")
	}, setup{})
	plain := `{"model":"m"}` // doesn't stream, so the connection may be kept
	for i := range 20 {
		if a := l.ask(harness.Post(chatPath, plain)); a.StatusCode != 200 {
			t.Fatalf("%d %s", a.StatusCode, a.Bytes)
		}
		a := l.ask(harness.Post(chatPath, plain, "X-Second: yes", fmt.Sprintf("Idempotency-Key: %d", i), "X-Idempotency-Key: x"))
		if a.StatusCode != 502 || code(a) != "upstream_truncated" && code(a) != "upstream_error" {
			t.Errorf("%d %s", a.StatusCode, a.Bytes)
		}
	}
	keys := map[string]int{}
	for _, x := range l.seen() {
		if key := x.Header.Get("Idempotency-Key"); key != "" {
			keys[key]++
		}
	}
	for key, n := range keys {
		if n != 1 {
			t.Errorf("request %s was executed %d times", key, n)
		}
	}
	if len(keys) != 20 {
		t.Errorf("%d requests were executed", len(keys))
	}
}
