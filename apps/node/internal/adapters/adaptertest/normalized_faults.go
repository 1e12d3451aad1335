package adaptertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// refusals: a status that is no success is an upstream_error with it, with what the provider says and when it wants to
// be asked again. (ST-21)
func (s *runs) refusals(t *testing.T) {
	p := fakeprovider.New(t, nil)
	a := s.adapter(t, p)
	for _, status := range []int{301, 400, 401, 403, 404, 413, 422, 429, 500, 501, 502, 503, 529, 599} {
		for name, script := range map[string]fakeprovider.Script{
			"whole":   fakeprovider.Answer(status, "application/json", `{"error":{"message":"because"}}`, "Retry-After: 7"),
			"cut":     fakeprovider.Raw(fmt.Appendf(nil, "HTTP/1.1 %d X\r\nRetry-After: 7\r\nContent-Length: 99\r\n\r\n{\"error\":\"because\"}", status)),
			"endless": endlessly(status, "because"),
		} {
			p.Use(script)
			got, r, err := Execute(t, t.Context(), a, Ask("m", "hi"))
			f, ok := errors.AsType[*execution.Failure](err)
			if !ok || got.Code != execution.CodeUpstreamError || f.UpstreamStatus != status || f.RetryAfter != 7*time.Second ||
				!strings.Contains(f.Text, "because") || !strings.Contains(f.Text, fmt.Sprint(status)) || f.NothingSent || len(r.Events()) != 0 {
				t.Errorf("%d, %s: %+v, %d events", status, name, err, len(r.Events()))
			}
		}
	}
}

// endlessly answers with a status and a text that never ends.
func endlessly(status int, text string) fakeprovider.Script {
	return func(x *fakeprovider.Exchange) {
		x.Body()
		x.Begin(status, "Retry-After: 7", "Content-Type: text/plain")
		for err := error(nil); err == nil; {
			_, err = x.Write([]byte(text + strings.Repeat(" ", 4000)))
		}
		x.Close()
	}
}

// cancel: wherever the run is, with the cause that was given; the provider's connection ends. (CA-01)
func (s *runs) cancel(t *testing.T) {
	for name, script := range map[string]fakeprovider.Script{
		"before the head":  fakeprovider.Silent(""),
		"after the head":   fakeprovider.Silent(s.head()),
		"inside an event":  fakeprovider.Silent(s.head() + chunked(s.Say("a")+s.Say("b")[:9])),
		"in a stream":      fakeprovider.Endless(time.Millisecond, s.Say("a")),
		"before its end":   fakeprovider.Silent(s.head() + chunked(s.Say("a"))),
		"inside a refusal": fakeprovider.Silent("HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\n{"),
	} {
		for _, cause := range []execution.CancelCause{execution.CauseAPI, execution.CauseDeadline} {
			p := fakeprovider.New(t, script)
			ctx, cancel := context.WithCancelCause(t.Context())
			r, done := NewEventRecorder(), make(chan error, 1)
			a := s.adapter(t, p)
			go func() {
				_, err := ExecuteWith(t, ctx, a, Ask("m", "hi"), r)
				done <- err
			}()
			Until(t, func() bool { return len(p.Exchanges()) == 1 })
			if strings.HasPrefix(name, "in a") || strings.HasPrefix(name, "before its") || name == "inside an event" {
				r.Wait(t, 2)
			}
			cancel(cause)
			if err := patience.Receive(t, name, done); err != cause {
				t.Errorf("%s: %v, want %v", name, err, cause)
			}
			Until(t, func() bool { _, open := p.Connections(); return open == 0 })
		}
	}
}

// silence: the limits are kept, each with its code, and the emitter's time isn't the provider's. (CP-14)
func (s *runs) silence(t *testing.T) {
	const limit = 60 * time.Millisecond
	for name, k := range map[string]struct {
		first string
		want  execution.Code
	}{
		"no head":       {"", execution.CodeFirstByteTimeout},
		"a head":        {s.head(), execution.CodeIdleTimeout},
		"half an event": {s.head() + chunked(s.Say("a")[:7]), execution.CodeIdleTimeout},
		"an event":      {s.head() + chunked(s.Say("a")), execution.CodeIdleTimeout},
	} {
		p := fakeprovider.New(t, fakeprovider.Silent(k.first))
		req := Ask("m", "hi")
		req.Timers = execution.Timers{FirstByte: waitLimit, Idle: limit}
		if k.want == execution.CodeFirstByteTimeout {
			req.Timers.FirstByte = limit
		}
		if got, _, err := Execute(t, t.Context(), s.adapter(t, p), req); got.Code != k.want || got.Usage != "" || got.Finish != "" {
			t.Errorf("%s: %v, %+v", name, err, got)
		}
		Until(t, func() bool { _, open := p.Connections(); return open == 0 })
	}
	p := fakeprovider.New(t, s.whole(s.Say("a")+s.Say("b")+s.End))
	patience.Widen(t, limit, func(limit time.Duration) bool {
		r := NewEventRecorder()
		r.OnEvent = func(n int) error {
			if n == 2 {
				<-time.After(3 * limit)
			}
			return nil
		}
		req := Ask("m", "hi")
		req.Timers = execution.Timers{Idle: limit}
		got, err := ExecuteWith(t, t.Context(), s.adapter(t, p), req, r)
		t.Logf("a slow emitter: %v, %+v", err, got)
		return err == nil && got.Text == "ab"
	})
}

// emitter: its error ends the run at any event, comes back, and the provider isn't left running.
func (s *runs) emitter(t *testing.T) {
	enough := errors.New("enough")
	for n := 1; n <= 4; n++ {
		for name, script := range map[string]fakeprovider.Script{
			"whole":   s.whole(s.Say("a") + s.Say("b") + s.Say("c") + s.End),
			"endless": fakeprovider.Endless(time.Millisecond, s.Say("a")),
		} {
			p := fakeprovider.New(t, script)
			r := NewEventRecorder()
			r.OnEvent = func(k int) error {
				if k == n {
					return enough
				}
				return nil
			}
			if _, err := ExecuteWith(t, t.Context(), s.adapter(t, p), Ask("m", "hi"), r); err != enough || len(r.Events()) != n {
				t.Errorf("%s, event %d: %v after %d events, want the emitter's own error", name, n, err, len(r.Events()))
			}
			Until(t, func() bool { _, open := p.Connections(); return open == 0 })
		}
	}
}

// garbage: no panic, no hang, and never a completion. (faults row 22)
func (s *runs) garbage(t *testing.T) {
	p := fakeprovider.New(t, nil)
	a := s.adapter(t, p)
	stream, plain := "HTTP/1.1 200 OK\r\nContent-Type: "+s.ContentType+"\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
	for _, prefix := range []string{
		"", "HTTP/1.1 ", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\n", stream, stream + s.Say("a"), plain, plain + "{", plain + `{"choices":[`,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 500 X\r\n\r\n", stream + s.Say("a")[:len(s.Say("a"))/2],
	} {
		for seed := range uint64(30) {
			p.Use(fakeprovider.Garbage(prefix, seed))
			ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
			got, _, err := Execute(t, ctx, a, Ask("m", "hi"))
			cancel()
			switch got.Code {
			case execution.CodeUpstreamError, execution.CodeUpstreamTruncated, execution.CodeAdapterDecode:
			default:
				t.Errorf("%q and garbage %d: %v (%v)", prefix, seed, got.Code, err)
			}
		}
	}
	for name, body := range map[string]string{
		"a web page": "<html><body>sign in</body></html>", "not an object": s.Say("a") + "data: 7\n\n",
		"half a JSON": s.Say("a") + "data: {\"choices\":[{\n\n", "words": "hello\n\nworld\n\n",
	} {
		p.Use(fakeprovider.Answer(200, "text/html", body))
		if got, _, err := Execute(t, t.Context(), a, Ask("m", "hi")); got.Code != execution.CodeAdapterDecode && got.Code != execution.CodeUpstreamTruncated {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// requests: what no provider could make sense of is refused before anything is sent.
func (s *runs) requests(t *testing.T) {
	p := fakeprovider.New(t, s.whole(s.Say("a")+s.End))
	a := s.adapter(t, p)
	for name, spoil := range map[string]func(*execution.Request){
		"no messages": func(r *execution.Request) { r.Messages = nil },
		"no target":   func(r *execution.Request) { r.Target = "" },
		"a role":      func(r *execution.Request) { r.Messages[0].Role = "root" },
		"an image": func(r *execution.Request) {
			r.Messages[0].Parts[0] = execution.Part{Image: &execution.Image{MediaType: "text/html"}}
		},
	} {
		req := Ask("m", "hi")
		spoil(req)
		got, r, err := Execute(t, t.Context(), a, req)
		if f, ok := errors.AsType[*execution.Failure](err); !ok || got.Code != execution.CodeBadRequest || !f.NothingSent || len(r.Events()) != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(p.Exchanges()); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

// secrets: neither what is asked nor what is answered reaches a log, and no failure repeats a key. (CR-03, E44)
func (s *runs) secrets(t *testing.T) {
	var logged lockedBuffer
	p := fakeprovider.New(t, nil)
	a := s.at(t, p.URL(), zerolog.New(&logged).Level(zerolog.TraceLevel))
	for _, script := range []fakeprovider.Script{
		s.whole(s.Say("canary-answer") + s.End), s.whole(s.Say("canary-answer")),
		fakeprovider.Answer(401, "application/json", `{"error":{"message":"Incorrect API key provided: sk-canary-0123456789."}}`, "X-Canary: canary-header"),
		fakeprovider.Answer(200, "application/json", `{"error":"Authorization: Bearer canary-0123456789"}`),
		fakeprovider.Answer(200, s.ContentType, "data: canary\n\n"),
		fakeprovider.Answer(200, "application/json", "{canary"),
		fakeprovider.CutAfter([]byte("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ncanary-answer"), 1000, true),
		fakeprovider.Raw([]byte("canary-answer")), fakeprovider.Silent(""),
	} {
		p.Use(script)
		req := Ask("m", "canary-prompt")
		req.Timers = execution.Timers{FirstByte: 50 * time.Millisecond, Idle: 50 * time.Millisecond}
		if _, _, err := Execute(t, t.Context(), a, req); err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("a failure repeats what was sent: %v", err)
		}
	}
	if strings.Contains(logged.String(), "canary") {
		t.Errorf("logged: %s", logged.String())
	}
}

// atOnce: runs side by side get their own answers.
func (s *runs) atOnce(t *testing.T) {
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
		_, mark, _ := strings.Cut(string(x.Body()), "mark<")
		mark, _, _ = strings.Cut(mark, ">")
		x.BeginStream(200, s.ContentType)
		for range 20 {
			x.Chunk(s.Say(mark))
		}
		x.Chunk(s.End)
		x.EndChunks()
	})
	a := s.adapter(t, p)
	var workers sync.WaitGroup
	for i := range 32 {
		workers.Go(func() {
			for j := range 10 {
				mark := fmt.Sprintf("%d-%d ", i, j)
				got, _, err := Execute(t, t.Context(), a, Ask("m", "mark<"+mark+">"))
				if err != nil || got.Text != strings.Repeat(mark, 20) {
					t.Errorf("%s: %v, %q", mark, err, got.Text)
				}
			}
		})
	}
	workers.Wait()
}

// connect: a provider that isn't there was sent nothing, so that another node may try. (CP-12)
func (s *runs) connect(t *testing.T) {
	gone := fakeprovider.New(t, nil)
	gone.Close()
	_, _, err := Execute(t, t.Context(), s.adapter(t, gone), Ask("m", "hi"))
	if f, ok := errors.AsType[*execution.Failure](err); !ok || f.Code != execution.CodeUpstreamConnect || !f.NothingSent {
		t.Errorf("%v", err)
	}
}
