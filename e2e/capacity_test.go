package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// OL-07
func TestWaitingRequestsAreServedInOrder(t *testing.T) {
	t.Parallel()
	const n = 40
	h := newHold()
	r := newRig(t, h.script, setup{places: 1})
	callers := make([]*harness.Caller, n)
	for i := range callers {
		callers[i] = r.dial()
		callers[i].Send(chat(fmt.Sprintf("X-Number: %d", i)))
		if i == 0 {
			await(t, h.arrived, "the first request at the provider")
			continue
		}
		r.AwaitQueued(i, limit)
	}
	h.let(t, n)
	for i, c := range callers {
		if response, _, err := c.Response(limit); err != nil || response.StatusCode != 200 {
			t.Errorf("caller %d: %v, %v", i, response, err)
		}
	}
	for i, x := range r.seen() {
		if got := x.Header.Get("X-Number"); got != fmt.Sprint(i) {
			t.Errorf("request %s was served as number %d", got, i)
		}
	}
}

// CP-01
func TestPlacesComeBackFromProvidersThatFail(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(x *fakeprovider.Exchange) {
		switch x.Header.Get("X-Mode") {
		case "hang":
			fakeprovider.Silent("")(x)
		case "reset":
			x.Body()
			x.Reset()
		case "502":
			x.Reply(502, "text/plain", "bad gateway")
		case "504":
			x.Reply(504, "text/plain", "gateway timeout")
		default:
			ok(x)
		}
	}, setup{Options: harness.Options{Routes: `[{model: hangs, target: m, first_byte: 200ms}, {model: "*"}]`}})
	modes := []string{"hang", "reset", "502", "504"}
	want := map[string]int{"hang": 504, "reset": 502, "502": 502, "504": 504}
	all(40, func(i int) {
		mode := modes[i%len(modes)]
		body := chatBody
		if mode == "hang" {
			body = `{"model":"hangs","stream":true}`
		}
		a, err := harness.Ask(r.HTTP(), harness.Post(chatPath, body, "X-Mode: "+mode), limit)
		if err != nil || a.StatusCode != want[mode] {
			t.Errorf("%s: %v, %v", mode, a, err)
		}
	})
	all(20, func(int) {
		if a, err := harness.Ask(r.HTTP(), chat(), limit); err != nil || a.StatusCode != 200 {
			t.Errorf("a good one: %v, %v", a, err)
		}
	})
	r.idle()
}

// CP-02
func TestRefusedRequestsTakeNoPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t, ok, setup{places: 1, Options: harness.Options{
		Principals: principals("client-1"), Routes: "[{model: m}]", Limits: "{body: 1MiB}"}})
	const key = "Authorization: Bearer client-1"
	refused := map[string]struct {
		request string
		status  int
	}{
		"unknown model": {harness.Post(chatPath, `{"model":"other"}`, key), 404},
		"no model":      {harness.Post(chatPath, `{"messages":[]}`, key), 400},
		"invalid JSON":  {harness.Post(chatPath, `{"model":"m"`, key), 400},
		"empty body":    {harness.Post(chatPath, ``, key), 400},
		"wrong method":  {"GET " + chatPath + " HTTP/1.1\r\nHost: e\r\n" + key + "\r\n\r\n", 405},
		"too long":      {harness.Post(chatPath, `{"model":"m","pad":"`+strings.Repeat("x", 1<<20)+`"}`, key), 413},
		"unknown key":   {harness.Post(chatPath, chatBody, key+"x"), 401},
		"compressed":    {harness.Post(chatPath, "\x1f\x8b", key, "Content-Encoding: gzip"), 400},
	}
	for name, c := range refused {
		for range 10 {
			if a := r.ask(c.request); a.StatusCode != c.status || a.Header.Get("Content-Type") != "application/json" ||
				!bytes.HasPrefix(a.Bytes, []byte(`{"error":{"message":`)) {
				t.Fatalf("%s: %d %v %s", name, a.StatusCode, a.Header, a.Bytes)
			}
		}
	}
	if n := len(r.seen()); n != 0 || r.InFlight() != 0 {
		t.Errorf("the provider saw %d requests, %d places are held", n, r.InFlight())
	}
	a := r.ask(chat(key))
	wantWhole(t, a, 200, `{"object":"chat.completion"}`)
	if waited := a.Header.Get("X-IOP-Queue-Ms"); len(waited) > 4 { // ten seconds: nothing held the one place
		t.Errorf("the good one waited %s ms", waited)
	}
}

// CP-06
func TestBurstNeverOvershoots(t *testing.T) {
	t.Parallel()
	const places, burst, rounds = 4, 200, 20
	var running, peak atomic.Int64
	full := make(chan struct{}, places) // the first ones wait for each other, so that the peak is reached
	var met atomic.Int64
	r := newRig(t, func(x *fakeprovider.Exchange) {
		now := running.Add(1)
		for seen := peak.Load(); now > seen && !peak.CompareAndSwap(seen, now); seen = peak.Load() {
		}
		x.Body()
		if met.Add(1) == places {
			for range places {
				full <- struct{}{}
			}
		}
		if met.Load() <= places {
			select {
			case <-full:
			case <-x.Gone():
			}
		}
		x.Pause(2 * time.Millisecond)
		running.Add(-1)
		ok(x)
	}, setup{places: places, Options: harness.Options{Routes: `[{model: "*", queue: {depth: 200}}]`}})
	for range rounds {
		all(burst, func(int) {
			if a, err := harness.Ask(r.HTTP(), chat(), limit); err != nil || a.StatusCode != 200 {
				t.Errorf("%v, %v", a, err)
			}
		})
	}
	if peak.Load() != places {
		t.Errorf("the provider saw %d at once, want %d", peak.Load(), places)
	}
	if n := len(r.seen()); n != burst*rounds {
		t.Errorf("the provider saw %d requests, want %d", n, burst*rounds)
	}
}

// CP-08, and what happens beyond the queue
func TestWhatFindsNoPlaceWaits(t *testing.T) {
	t.Parallel()
	h := newHold()
	r := newRig(t, h.script, setup{places: 4, Options: harness.Options{Routes: `[{model: "*", queue: {depth: 6}}]`}})
	answers := make(chan int, 10)
	for range 10 {
		go func() {
			a, err := harness.Ask(r.HTTP(), chat(), limit)
			if err != nil {
				answers <- 0
				return
			}
			answers <- a.StatusCode
		}()
	}
	for range 4 {
		await(t, h.arrived, "four requests at the provider")
	}
	r.AwaitQueued(6, limit)
	a := r.ask(chat())
	if a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || !bytes.Contains(a.Bytes, []byte(`"code":"queue_full"`)) {
		t.Errorf("beyond the queue: %d %v %s", a.StatusCode, a.Header, a.Bytes)
	}
	for _, round := range []struct{ let, next int }{{4, 4}, {4, 2}, {2, 0}} {
		if more := len(h.arrived); more != 0 {
			t.Errorf("%d requests more than places reached the provider", more)
		}
		h.let(t, round.let)
		for range round.next {
			await(t, h.arrived, "the next requests at the provider")
		}
	}
	for range 10 {
		if status := await(t, answers, "an answer"); status != http.StatusOK {
			t.Errorf("got %d", status)
		}
	}
}

// CP-16: 500 streams at once, each with its own mark in header, body and usage.
func TestNothingOfOneRequestShowsInAnother(t *testing.T) {
	t.Parallel()
	const n = 500
	var arrived atomic.Int64
	everyone := make(chan struct{})
	r := newRig(t, func(x *fakeprovider.Exchange) {
		mark := x.Header.Get("X-Mark")
		body := string(x.Body())
		if arrived.Add(1) == n {
			close(everyone)
		}
		select {
		case <-everyone:
		case <-x.Gone():
			return
		}
		var number int
		if _, err := fmt.Sscanf(mark, "mark-%d", &number); err != nil || !strings.Contains(body, mark+".") {
			x.Reply(500, "text/plain", "mark "+mark+" came with "+body)
			return
		}
		x.BeginStream(200, "text/event-stream", "X-Mark: "+mark)
		for range 5 {
			x.Chunk(delta(mark))
		}
		x.Chunk(usage(number, 1) + done)
		x.EndChunks()
	}, setup{places: n})
	ids := make([]string, n)
	all(n, func(i int) {
		mark := fmt.Sprintf("mark-%d", i)
		request := fmt.Sprintf(`{"model":"m","stream":true,"messages":[{"role":"user","content":"%s."}]}`, mark)
		a, err := harness.Ask(r.HTTP(), harness.Post(chatPath, request, "X-Mark: "+mark), limit)
		if err != nil {
			t.Error(err)
			return
		}
		if want := strings.Repeat(delta(mark), 5) + usage(i, 1) + done; a.StatusCode != 200 || a.Cut != nil ||
			a.Header.Get("X-Mark") != mark || string(a.Bytes) != want {
			t.Errorf("%s got %d %v %v\n%s", mark, a.StatusCode, a.Cut, a.Header, a.Bytes)
		}
		ids[i] = a.Header.Get("X-IOP-Run-Id")
	})
	r.idle()
	r.AwaitEnded(limit)
	counts := map[string]string{}
	for _, e := range r.Log.Entries("run ended") {
		counts[fmt.Sprint(e["run_id"])] = fmt.Sprint(e["input_tokens"])
	}
	for i, id := range ids {
		if counts[id] != fmt.Sprint(i) {
			t.Errorf("run %s of number %d has input_tokens %s", id, i, counts[id])
		}
	}
}

// More executions than the node lets linger (256) end while the link stands still. Their ends are late, and whole.
func TestManyEndsAtOnce(t *testing.T) {
	t.Parallel()
	const n = 300
	arrived, finish, finished := make(chan struct{}, n), make(chan struct{}), make(chan struct{}, n)
	l := newLinked(t, 1, func(x *fakeprovider.Exchange) {
		x.Body()
		x.BeginStream(200, "text/event-stream")
		x.Chunk(delta("first"))
		arrived <- struct{}{}
		select {
		case <-finish:
		case <-x.Gone():
			return
		}
		x.Chunk(delta("last"))
		x.EndChunks()
		finished <- struct{}{}
	}, setup{places: n})
	over := make(chan struct{})
	go func() {
		defer close(over)
		all(n, func(int) {
			a, err := harness.Ask(l.HTTP(), chat(), limit)
			if err != nil || a.Cut != nil || string(a.Bytes) != delta("first")+delta("last") {
				t.Errorf("%v, %v, %s", err, a.Cut, a.Bytes)
			}
		})
	}()
	for range n {
		await(t, arrived, "all requests at the provider")
	}
	l.relay.Set(harness.Pause, harness.Pause)
	close(finish)
	for range n {
		await(t, finished, "the end of every answer")
	}
	harness.Until(t, limit, fmt.Sprintf("%d executions have ended at the node", n), func() bool { return len(l.node.Status().Running) == 0 })
	l.relay.Set(harness.Pass, harness.Pass)
	await(t, over, "the callers' answers")
}
