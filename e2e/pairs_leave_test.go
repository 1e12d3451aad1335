package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// ticking is a provider that streams one piece of text every few milliseconds until its client leaves, in the dialect
// of the path. It tells when that was.
func ticking(pause time.Duration, gone chan<- time.Time) fakeprovider.Script {
	s := &fakeprovider.Said{Model: "m", Pieces: []fakeprovider.Piece{{Text: "tick"}}, Finish: "stop"}
	return fakeprovider.Breaks(s, func(d fakeprovider.Dialect) int { return before(d) - 1 }, func(x *fakeprovider.Exchange, d fakeprovider.Dialect) {
		q := chatOf(true)
		n := before(d) - 2 // where the piece of text stands
		for x.Pause(pause) {
			x.Chunk(d.Stream(s, q)[n])
		}
		gone <- time.Now()
		x.Close()
	})
}

// CA-01, CA-02, CA-04: a caller that leaves ends its request everywhere within a second, in the middle of a stream, before
// its first byte, and in the queue, where the provider never hears of it. Its place is free.
func TestPairsLoseTheirCallers(t *testing.T) {
	t.Parallel()
	eachPair(t, harness.Options{}, 1, func(t *testing.T, p *pair) {
		gone := make(chan time.Time, 1)
		p.says(ticking(5*time.Millisecond, gone))
		c := p.dial()
		c.Send(p.request(chatOf(true)))
		body := c.Head(limit, "POST").Body
		heardOf := ""
		for buffer := make([]byte, 4096); strings.Count(heardOf, "tick") < 3; {
			n, err := body.Read(buffer)
			if heardOf += string(buffer[:n]); err != nil {
				t.Fatalf("%v after %q", err, heardOf)
			}
		}
		p.leaves(t, c, gone, true)

		for _, stream := range []bool{true, false} {
			arrived := make(chan struct{})
			p.says(func(x *fakeprovider.Exchange) {
				x.Body()
				close(arrived)
				<-x.Gone()
				gone <- time.Now()
				x.Close()
			})
			c := p.dial()
			c.Send(p.request(chatOf(stream)))
			await(t, arrived, "the request at the provider")
			waiting := p.dial()
			waiting.Send(p.request(chatOf(stream)))
			p.AwaitQueued(1, limit)
			waiting.Close()
			p.AwaitQueued(0, leaves)
			p.leaves(t, c, gone, stream)
		}
		if n := len(p.seen()); n != 3 {
			t.Errorf("the provider saw %d requests; who left the queue is none of them", n)
		}
		p.works(t)
	})
}

// leaves lets a caller go and checks who notices.
func (p *pair) leaves(t *testing.T, c *harness.Caller, gone <-chan time.Time, reset bool) {
	t.Helper()
	left := time.Now()
	if reset {
		c.Reset()
	} else {
		c.Close()
	}
	if took := await(t, gone, "the provider sees the caller leave").Sub(left); took > leaves {
		t.Errorf("the provider's connection was closed after %v", took)
	}
	p.idle()
	p.AwaitEnded(limit)
	ended := p.Log.Entries("run ended")
	wantLog(t, ended[len(ended)-1], map[string]any{"code": "client_gone", "origin": "caller"})
}

// CA-05, CA-07: callers that leave at any moment, from their first byte to their answer's last one. Each run has one end;
// no provider is called after it, no place is kept, and the neighbours' answers are whole.
func TestPairsLoseTheirCallersAtAnyMoment(t *testing.T) {
	t.Parallel()
	eachPair(t, harness.Options{}, 8, func(t *testing.T, p *pair) {
		s := sayings()["two calls, mixed"]
		if p.path == "/api/generate" {
			s = sayings()["reasoning"]
		}
		p.says(func(x *fakeprovider.Exchange) {
			x.Pause(time.Millisecond)
			fakeprovider.Speak(s)(x)
		})
		const rounds, callers = 6, 8
		all(callers, func(i int) {
			random := rand.New(rand.NewPCG(uint64(i), 5))
			for range rounds {
				q := chatOf(random.IntN(2) == 0)
				if i%2 == 0 {
					p.stays(t, s, q)
				} else {
					p.flees(q, time.Duration(random.Int64N(int64(6*time.Millisecond))))
				}
			}
		})
		p.idle()
		p.AwaitEnded(limit)
		ends, runs := map[string]int{}, map[any]bool{}
		lines := p.Log.Entries("run ended")
		for _, line := range lines {
			ends[fmt.Sprint(line["code"])]++
			runs[line["run_id"]] = true
		}
		if len(runs) != len(lines) || ends["ok"]+ends["client_gone"] != len(lines) || ends["ok"] < rounds*callers/2 {
			t.Errorf("%d runs ended %d times, as %v", len(runs), len(lines), ends)
		}
	})
}

// stays asks and reads to the end.
func (p *pair) stays(t *testing.T, s *fakeprovider.Said, q *fakeprovider.Asked) {
	a, err := harness.Ask(p.HTTP(), p.request(q), limit)
	if err != nil {
		t.Error(err)
		return
	}
	h, err := p.read(a, q.Stream, !p.tunnel())
	if err != nil {
		t.Error(err)
	}
	same(t, "who stays", h, p.understood(s, q))
}

// flees asks and is gone after a moment.
func (p *pair) flees(q *fakeprovider.Asked, after time.Duration) {
	c := p.dial()
	c.Send(p.request(q))
	<-time.After(after)
	c.Reset()
}
