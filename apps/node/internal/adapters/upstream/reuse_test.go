package upstream_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/upstream"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

// design §6: which connections carry another request.
func TestReuse(t *testing.T) {
	whole := fakeprovider.Answer(200, "application/json", "{}")
	cases := map[string]struct {
		script fakeprovider.Script
		want   int // connections for 3 requests
	}{
		"whole":       {whole, 1},
		"stream":      {fakeprovider.Events(0, "data: [DONE]\n\n"), 3},
		"says close":  {fakeprovider.Answer(200, "application/json", "{}", "Connection: close"), 3},
		"until close": {fakeprovider.Raw([]byte("HTTP/1.1 200 OK\r\n\r\n{}")), 3},
		"HTTP/1.0":    {func(x *fakeprovider.Exchange) { x.Body(); x.Print("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}") }, 3},
		"refusal":     {fakeprovider.Answer(400, "application/json", "{}"), 3},
		"more than said": {func(x *fakeprovider.Exchange) {
			x.Body()
			x.Print("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray")
		}, 3},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			p := fakeprovider.New(t, k.script)
			c := client(t, p.URL())
			c.KeepIdle(time.Minute)
			for range 3 {
				if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
					t.Fatal(err)
				}
			}
			if opened, _ := p.Connections(); opened != k.want {
				t.Errorf("%d connections, want %d", opened, k.want)
			}
		})
	}
}

// provider notes 1: a real server's stream says keep-alive and closes; the request after it isn't lost.
func TestNoRequestIsLostAfterStreams(t *testing.T) {
	f, err := fakeprovider.LoadFixture("llamacpp-0.7.0/keep-alive-stream-twice")
	if err != nil {
		t.Fatal(err)
	}
	p := fakeprovider.New(t, f.Replay(0))
	c := client(t, p.URL())
	for i := range 200 {
		if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
}

// Provider notes 1, met by hand behind TLS: the same server closes after its stream there, too. A connection that stays open is
// used again all the same.
func TestNoRequestIsLostAfterStreamsOverTLS(t *testing.T) {
	const mark = "data: [DONE]\n\n"
	var late atomic.Int64
	var failed int64
	p := fakeprovider.NewTLS(t, func(x *fakeprovider.Exchange) {
		x.Body()
		x.BeginStream(200, "text/event-stream", "Keep-Alive: timeout=5, max=100")
		x.Chunk(mark)
		ended := time.Now()
		x.EndChunks()
		x.Close()
		if time.Since(ended) >= upstream.StreamRest { // the machine stood still: the connection may have been used by then
			late.Add(1)
		}
	})
	c := client(t, p.URL(), func(cfg *upstream.Config) { cfg.RootCAs = p.Roots() })
	for i := range 100 {
		if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
			failed++
			t.Logf("request %d: %v", i, err)
		}
	}
	adaptertest.Until(t, func() bool { return failed <= late.Load() })
	honest := fakeprovider.NewTLS(t, fakeprovider.Events(0, mark))
	c = client(t, honest.URL(), func(cfg *upstream.Config) { cfg.RootCAs = honest.Roots() })
	var opened, last int
	adaptertest.Until(t, func() bool { // a connection is used again
		if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
			t.Fatal(err)
		}
		last = opened
		opened, _ = honest.Connections()
		return opened == last
	})
}

// HT-14: the provider closes idle connections 5 ms after each answer. No request is executed twice, and hardly one is
// lost; a retry of what may have been executed is nobody's business here.
func TestIdleConnectionsThatTheProviderCloses(t *testing.T) {
	for name, pause := range map[string]time.Duration{"back to back": 0, "at the limit": 5 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
				x.IdleLimit(5 * time.Millisecond)
				x.Reply(200, "text/plain", "ok")
			})
			c := client(t, p.URL())
			const requests = 500
			failed := 0
			for i := range requests {
				req := adaptertest.Post("/v1/chat/completions", fmt.Sprintf(`{"id":%d}`, i))
				req.Header.Set("Idempotency-Key", fmt.Sprint(i))
				if _, err := adaptertest.Do(t, t.Context(), c, req); err != nil {
					failed++
					if f := failure(t, err); f.Code != execution.CodeUpstreamTruncated || f.NothingSent {
						t.Errorf("request %d: %+v", i, f)
					}
				}
				if pause > 0 {
					<-time.After(pause)
				}
			}
			seen := map[string]int{}
			for _, x := range p.Exchanges() {
				seen[string(x.Received())]++
			}
			for id, n := range seen {
				if n > 1 {
					t.Errorf("%s was executed %d times", id, n)
				}
			}
			opened, _ := p.Connections()
			t.Logf("%d of %d failed, %d connections", failed, requests, opened)
			if failed > requests/10 { // it is most of them, if nobody looks
				t.Errorf("%d of %d failed", failed, requests)
			}
		})
	}
}

// A connection that the provider has closed isn't written to.
func TestClosedConnectionIsNotUsed(t *testing.T) {
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
		x.IdleLimit(time.Millisecond)
		x.Reply(200, "text/plain", "ok")
	})
	for range 5 {
		c := client(t, p.URL())
		c.KeepIdle(time.Minute)
		for range 2 {
			if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
				t.Error(err)
			}
			waitOpen(t, p, 0)
		}
	}
}

// A provider that closes after each answer without saying so costs at most one request, not some of every hundred.
func TestProviderThatClosesUnannounced(t *testing.T) {
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) { x.Reply(200, "text/plain", "ok"); x.Close() })
	c := client(t, p.URL())
	c.KeepIdle(time.Minute)
	failed := 0
	for range 300 {
		if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
			failed++
		}
	}
	if failed > 1 {
		t.Errorf("%d of 300 failed", failed)
	}
}

// protocol §8, "net/http replays a POST": the provider executes and drops the kept connection.
func TestNothingIsSentTwice(t *testing.T) {
	for _, method := range []string{"POST", "GET"} {
		p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
			if x.Number > 1 {
				x.Body()
				x.Close()
				return
			}
			x.Reply(200, "text/plain", "ok")
		})
		c := client(t, p.URL())
		c.KeepIdle(time.Minute)
		for i := range 2 {
			req := adaptertest.Get("/v1/models")
			req.Method = method
			req.Header.Set("Idempotency-Key", "k")
			_, err := adaptertest.Do(t, t.Context(), c, req)
			if i == 0 && err != nil {
				t.Fatal(err)
			}
			if i == 1 {
				if f := failure(t, err); f.Code != execution.CodeUpstreamTruncated || f.NothingSent {
					t.Errorf("%+v", f)
				}
			}
		}
		if n := len(p.Exchanges()); n != 2 {
			t.Errorf("%s: provider saw %d requests, want 2", method, n)
		}
	}
}

// An idle connection doesn't stay for longer than it is useful, and none outlives the client.
func TestIdleConnectionsAreClosed(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "ok"))
	if _, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), chat()); err != nil {
		t.Fatal(err)
	}
	waitOpen(t, p, 0)
	c := client(t, p.URL())
	c.KeepIdle(time.Minute)
	if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
		t.Fatal(err)
	}
	waitOpen(t, p, 1)
	c.Close()
	waitOpen(t, p, 0)
	if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
		t.Fatal("a closed client still serves what is in flight: ", err)
	}
	waitOpen(t, p, 0)
}

func TestIdleConnectionsAreFew(t *testing.T) {
	gate := make(chan struct{})
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) { x.Body(); <-gate; x.Reply(200, "text/plain", "ok") })
	c := client(t, p.URL(), func(cfg *upstream.Config) { cfg.MaxConcurrency = 2 })
	c.KeepIdle(time.Minute)
	var running sync.WaitGroup
	for range 6 {
		running.Go(func() {
			if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
				t.Error(err)
			}
		})
	}
	func() {
		defer close(gate)
		adaptertest.Until(t, func() bool { return len(p.Exchanges()) == 6 })
	}()
	running.Wait()
	adaptertest.Until(t, func() bool { _, open := p.Connections(); return open <= 2 })
}

func waitOpen(t *testing.T, p *fakeprovider.Provider, want int) {
	t.Helper()
	adaptertest.Until(t, func() bool { _, open := p.Connections(); return open == want })
}

// CP-15: cancel, idle limit and the provider's end in the same moment, 32 at a time; the others are not touched.
func TestEveryEndAtOnce(t *testing.T) {
	const meet = 4 * time.Millisecond
	text := strings.Repeat("data: x\n\n", 500)
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
		switch string(x.Body()) {
		case "whole":
			x.Reply(200, "text/plain", text)
		case "meet":
			x.BeginStream(200, "text/event-stream")
			x.Chunk("data: 1\n\n")
			if x.Pause(meet) {
				x.EndChunks()
			}
		}
	})
	c := client(t, p.URL(), func(cfg *upstream.Config) { cfg.MaxConcurrency = 32 })
	rounds := make(chan int, 1000)
	for i := range cap(rounds) {
		rounds <- i
	}
	close(rounds)
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for i := range rounds {
				if i%2 == 0 {
					meetOnce(t, c, meet)
					continue
				}
				r, err := adaptertest.Do(t, t.Context(), c, adaptertest.Post("/v1/chat/completions", "whole"))
				if err != nil || sha256.Sum256(r.Bytes()) != sha256.Sum256([]byte(text)) {
					t.Errorf("round %d: %v, %d bytes", i, err, len(r.Bytes()))
				}
			}
		})
	}
	workers.Wait()
}

func meetOnce(t *testing.T, c tunneler, meet time.Duration) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	r := adaptertest.NewRecorder()
	r.OnBody = func(int) error {
		time.AfterFunc(meet, func() { cancel(execution.CauseClientGone) })
		return nil
	}
	err := adaptertest.DoWith(t, ctx, c, withTimers(adaptertest.Post("/v1/chat/completions", "meet"), time.Minute, meet), r)
	switch code := adaptertest.Code(t, err); code {
	case execution.CodeOK, execution.CodeClientGone, execution.CodeIdleTimeout:
	default:
		t.Errorf("ended as %v: %v", code, err)
	}
}

// An error of the sink ends the exchange and comes back as it is.
func TestSinkThatHasEnough(t *testing.T) {
	enough := errors.New("enough")
	for _, where := range []string{"head", "body"} {
		gone := make(chan struct{})
		p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
			fakeprovider.Endless(time.Millisecond, "data: 1\n\n")(x)
			close(gone)
		})
		r := adaptertest.NewRecorder()
		if where == "head" {
			r.OnHead = func(int) error { return enough }
		} else {
			r.OnBody = func(int) error { return enough }
		}
		if err := adaptertest.DoWith(t, t.Context(), client(t, p.URL()), chat(), r); err != enough {
			t.Errorf("%s: %v", where, err)
		}
		<-gone
	}
}
