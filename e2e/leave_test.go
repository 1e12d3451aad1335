package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	"iop/packages/go/patience"
)

// leaves is how soon a caller that left must be gone everywhere: within a second, on a machine that isn't loaded.
const leaves = time.Second + late/2

// CA-01
func TestCallersLeaveInsideTheirStreams(t *testing.T) {
	for _, n := range []int{1, 50} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			script, gone := endless(20 * time.Millisecond)
			r := newRig(t, script, setup{places: n})
			callers := make([]*harness.Caller, n)
			ids := make([]string, n)
			for i := range callers {
				callers[i] = r.dial()
				callers[i].Send(chat())
			}
			for i, c := range callers {
				response := c.Head(limit, "POST")
				ids[i] = response.Header.Get("X-IOP-Run-Id")
				c.Expect(response.Body, strings.Repeat(delta("tick"), 5), limit)
			}
			left := time.Now()
			for i, c := range callers {
				if i%2 == 0 {
					c.Close()
				} else {
					c.Reset()
				}
			}
			for range callers {
				if took := await(t, gone, "the provider sees the callers leave").Sub(left); took > leaves {
					t.Errorf("the provider's connection was closed after %v", took)
				}
			}
			r.idle()
			for _, id := range ids {
				wantLog(t, r.Log.Ended(t, id), map[string]any{"code": "client_gone", "origin": "caller"})
			}
		})
	}
}

// CA-02, and the same for requests that don't stream
func TestCallerLeavesBeforeTheFirstByte(t *testing.T) {
	for name, body := range map[string]string{"stream": chatBody, "whole": `{"model":"m","messages":[]}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFeed(t)
			r := newRig(t, f.script, setup{places: 1})
			c := r.dial()
			c.Post(chatPath, body)
			await(t, f.begun, "the request at the provider")
			left := time.Now()
			c.Close()
			if took := await(t, f.gone, "the provider sees the caller leave").Sub(left); took > leaves {
				t.Errorf("the provider's connection was closed after %v", took)
			}
			r.idle()
			if n := len(r.seen()); n != 1 {
				t.Errorf("the provider saw %d requests", n)
			}
			r.provider.Use(ok)
			wantWhole(t, r.ask(chat()), 200, `{"object":"chat.completion"}`)
		})
	}
}

// CA-04
func TestQueuedCallersThatLeftAreNotServed(t *testing.T) {
	t.Parallel()
	h := newHold()
	r := newRig(t, h.script, setup{places: 1})
	callers := make([]*harness.Caller, 11) // the first one has the place
	for i := range callers {
		callers[i] = r.dial()
		callers[i].Send(chat(fmt.Sprintf("X-Number: %d", i)))
		if i == 0 {
			await(t, h.arrived, "the first request at the provider")
			continue
		}
		r.AwaitQueued(i, limit)
	}
	for i, c := range callers {
		if i != 0 && i != 3 && i != 8 {
			c.Close()
		}
	}
	r.AwaitQueued(2, leaves)
	h.let(t, 3)
	for _, i := range []int{0, 3, 8} {
		if response, _, err := callers[i].Response(limit); err != nil || response.StatusCode != 200 {
			t.Errorf("caller %d: %v, %v", i, response, err)
		}
	}
	r.idle()
	var order []string
	for _, x := range r.seen() {
		order = append(order, x.Header.Get("X-Number"))
	}
	if fmt.Sprint(order) != "[0 3 8]" {
		t.Errorf("the provider served %v", order)
	}
	r.AwaitEnded(limit)
	gone := 0
	for _, e := range r.Log.Entries("run ended") {
		if e["code"] == "client_gone" && fmt.Sprint(e["node_id"]) == "" {
			gone++
		}
	}
	if gone != 8 {
		t.Errorf("%d runs ended as client_gone without ever having a place", gone)
	}
}

// HT-12
func TestCallerLeavesTheQueueWithABigBody(t *testing.T) {
	t.Parallel()
	h := newHold()
	r := newRig(t, h.script, setup{places: 1})
	busy := r.dial()
	busy.Send(chat())
	await(t, h.arrived, "the first request at the provider")
	for _, size := range []int{200 << 10, 2 << 20} { // in memory, in a file
		stays, leaver := r.dial(), r.dial()
		stays.Send(chat())
		r.AwaitQueued(1, limit)
		leaver.Post(chatPath, fmt.Sprintf(`{"model":"m","pad":%q}`, strings.Repeat("x", size)))
		r.AwaitQueued(2, limit)
		leaver.Close()
		r.AwaitQueued(1, leaves)
		stays.Close()
		r.AwaitQueued(0, leaves)
	}
	h.let(t, 1)
	if response, _, err := busy.Response(limit); err != nil || response.StatusCode != 200 {
		t.Errorf("the busy one got %v, %v", response, err)
	}
	r.idle()
	if n := len(r.seen()); n != 1 {
		t.Errorf("the provider saw %d requests", n)
	}
	harness.Until(t, limit, "no body is held", func() bool { return r.Metric("iop_request_body_held_bytes") == 0 })
}

// Fault 14: a caller that reads nothing slows nobody down, and is given up after write_idle. The provider is told.
func TestSlowCallerDisturbsNobody(t *testing.T) {
	t.Parallel()
	patience.Widen(t, 2*time.Second, func(writeIdle time.Duration) bool { return slowCaller(t, writeIdle) })
}

// slowCaller reports whether others were answered often while the slow caller was there: twice or so, if they waited
// for its end.
func slowCaller(t *testing.T, writeIdle time.Duration) (keptUp bool) {
	gone := make(chan struct{})
	bulk := strings.Repeat("x", 64<<10)
	r := newRig(t, nil, setup{Options: harness.Options{Timers: fmt.Sprintf("{write_idle: %s}", writeIdle)}})
	r.provider.Use(func(x *fakeprovider.Exchange) {
		if x.Header.Get("X-Bulk") == "" {
			fakeprovider.Raw(stream("text/event-stream", delta("quick"), done))(x)
			return
		}
		x.Body()
		x.BeginStream(200, "application/octet-stream")
		for x.Pause(0) { // as fast as it is taken
			x.Chunk(bulk)
		}
		x.Close()
		close(gone)
	})
	slow := r.dial()
	if err := slow.SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	slow.Send(chat("X-Bulk: yes"))
	id := slow.Head(limit, "POST").Header.Get("X-IOP-Run-Id")
	asked := 0 // one after the other, until the slow one is given up
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	tooLate := time.After(writeIdle + limit)
	for ended := false; !ended; <-tick.C {
		wantWhole(t, r.ask(chat()), 200, delta("quick")+done)
		asked++
		select {
		case <-gone:
			ended = true
		case <-tooLate:
			t.Fatal("the caller was never given up")
		default:
		}
	}
	line := r.Log.Ended(t, id)
	wantLog(t, line, map[string]any{"code": "client_slow", "origin": "caller", "status": 200})
	if took := line["duration_ms"].(float64); took < float64(writeIdle.Milliseconds()) {
		t.Errorf("it was given up after %v ms, before write_idle", took)
	}
	r.idle()
	return asked >= 10
}
