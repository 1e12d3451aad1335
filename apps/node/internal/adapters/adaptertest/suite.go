package adaptertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// Build returns the adapter under test for a provider at url. It logs to log.
type Build func(t testing.TB, url string, log zerolog.Logger) execution.Provider

// Dialect is what the suite has to know of an adapter's dialect.
type Dialect struct {
	// Request returns a request that generates, with a body of the test's.
	Request func(body string) *execution.TunnelRequest
	// Owns reports whether a recorded request belongs to the dialect.
	Owns func(method, path string) bool
	// Plain and Stream name a recorded whole answer and a recorded streamed one, small enough to be cut at every byte.
	Plain, Stream string
}

// OpenAI is the dialect of the openai kind.
func OpenAI() Dialect {
	return Dialect{
		Request: func(body string) *execution.TunnelRequest { return Post("/v1/chat/completions", body) },
		Owns: func(_, path string) bool {
			switch path {
			case "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/models":
				return true
			}
			return strings.HasPrefix(path, "/v1/models/")
		},
		Plain:  "llamacpp-0.7.0/chat-stop",
		Stream: "llamacpp-0.7.0/keep-alive-stream-twice",
	}
}

// Run runs the suite against adapters whose provider is elsewhere.
func Run(t *testing.T, build Build, d Dialect) {
	s := &suite{build: build, dialect: d}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"probe", s.probe}, {"recordings", s.recordings}, {"splits", s.splits}, {"cut anywhere", s.cutAnywhere},
		{"cancel", s.cancel}, {"silence", s.silence}, {"sink", s.sink}, {"garbage", s.garbage}, {"secrets", s.secrets},
		{"at once", s.atOnce}, {"connect", s.connect}, {"keys", s.keys},
	} {
		t.Run(part.name, part.run)
	}
}

// RunRecordings holds that every recorded answer to a request that owns is true of arrives byte for byte, whatever
// dialect it is of.
func RunRecordings(t *testing.T, build Build, owns func(method, path string) bool) {
	(&suite{build: build, dialect: Dialect{Owns: owns}}).recordings(t)
}

type suite struct {
	build   Build
	dialect Dialect
}

// adapter returns an adapter of p that carries tunnels.
func (s *suite) adapter(t *testing.T, p *fakeprovider.Provider) execution.Tunneler {
	t.Helper()
	return s.at(t, p.URL(), zerolog.Nop())
}

func (s *suite) at(t *testing.T, url string, log zerolog.Logger) execution.Tunneler {
	t.Helper()
	a, ok := s.build(t, url, log).(execution.Tunneler)
	if !ok {
		t.Fatal("the adapter doesn't carry tunnels")
	}
	t.Cleanup(a.Close)
	return a
}

// probe: it is bounded, it never generates, and a provider that isn't there is no error.
func (s *suite) probe(t *testing.T) {
	gone := fakeprovider.New(t, nil)
	gone.Close()
	for name, p := range map[string]*fakeprovider.Provider{
		"silent": fakeprovider.New(t, fakeprovider.Silent("")), "gone": gone,
		"half":    fakeprovider.New(t, fakeprovider.Silent("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")),
		"garbage": fakeprovider.New(t, fakeprovider.Garbage("", 1)),
		"endless": fakeprovider.New(t, fakeprovider.Endless(0, strings.Repeat("x", 64<<10))),
		"failing": fakeprovider.New(t, fakeprovider.Answer(500, "text/plain", "no")),
	} {
		var got execution.Capabilities
		quick := false
		for range 5 { // a machine that stands still makes one of them slow
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			began := time.Now()
			got = s.adapter(t, p).Probe(ctx)
			cancel()
			if quick = time.Since(began) < 2*time.Second; quick {
				break
			}
		}
		if got.Available || got.Reason == "" || got.Version == "" || !quick {
			t.Errorf("%s: %+v, bounded %v", name, got, quick)
		}
		for _, x := range p.Exchanges() {
			if x.Method != http.MethodGet {
				t.Errorf("%s: the probe sent %s %s", name, x.Method, x.Target)
			}
		}
	}
}

// recordings: every recorded answer of the dialect arrives byte for byte, and one that was cut ends as truncated.
// (faults rows 19 and 20, ST-18: an engine that dies inside a clean stream is a clean end for a tunnel)
func (s *suite) recordings(t *testing.T) {
	all, err := fakeprovider.LoadFixtures(s.dialect.Owns)
	if err != nil || len(all) < 10 {
		t.Fatal(len(all), err)
	}
	for _, f := range all {
		t.Run(f.Name, func(t *testing.T) {
			sent, body, err := f.Parsed()
			if err != nil {
				t.Fatal(err)
			}
			status, header, want, whole, err := f.Answer()
			if err != nil {
				t.Fatal(err)
			}
			p := fakeprovider.New(t, f.Replay(0))
			req := Post(sent.URL.EscapedPath(), string(body))
			req.Method, req.Query, req.Header = sent.Method, sent.URL.RawQuery, sent.Header
			if len(body) == 0 {
				req.Body, req.ContentLength = nil, 0
			}
			r, err := Do(t, t.Context(), s.adapter(t, p), req)
			code := execution.CodeOK
			if !whole {
				code = execution.CodeUpstreamTruncated
			}
			if got := Code(t, err); got != code || r.Status() != status || !bytes.Equal(r.Bytes(), want) {
				t.Errorf("ended as %v (%v), status %d, %d bytes of %d", got, err, r.Status(), len(r.Bytes()), len(want))
			}
			if h := r.Header(); h.Get("Content-Type") != header.Get("Content-Type") || h.Get("Content-Length") != header.Get("Content-Length") || h.Get("Keep-Alive") != "" {
				t.Errorf("head %v, recorded %v", h, header)
			}
			if x := p.Exchanges(); len(x) != 1 || !bytes.Equal(x[0].Received(), body) || x[0].Target != sent.RequestURI {
				t.Errorf("%d requests arrived, or another one", len(x))
			}
		})
	}
}

func (s *suite) load(t *testing.T, name string) (f *fakeprovider.Fixture, response, body []byte) {
	t.Helper()
	f, err := fakeprovider.LoadFixture(name)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, r := range f.Parts[0].Reads {
		n += r.N
	}
	_, _, body, _, err = f.Answer()
	if err != nil {
		t.Fatal(err)
	}
	return f, f.Response[:n], body
}

// splits: how the answer is cut into writes doesn't matter. (ST-03, ST-24)
func (s *suite) splits(t *testing.T) {
	for _, name := range []string{s.dialect.Plain, s.dialect.Stream} {
		_, response, want := s.load(t, name)
		p := fakeprovider.New(t, nil)
		var first execution.Usage
		for seed := range uint64(100) {
			p.Use(fakeprovider.Pieces(response, seed))
			// This provider closes after an answer that doesn't say so: no connection may be left from before.
			r, err := Do(t, t.Context(), s.adapter(t, p), s.dialect.Request("{}"))
			if err != nil || !bytes.Equal(r.Bytes(), want) {
				t.Fatalf("%s, seed %d: %v, %d bytes of %d", name, seed, err, len(r.Bytes()), len(want))
			}
			if got := r.Counted(); seed == 0 {
				first = got
			} else if fmt.Sprint(deref(got)) != fmt.Sprint(deref(first)) {
				t.Errorf("%s, seed %d: usage %v, before %v", name, seed, deref(got), deref(first))
			}
		}
	}
}

// deref makes a usage comparable; -1 is unknown.
func deref(u execution.Usage) (out [4]int64) {
	for i, n := range []*int64{u.Input, u.Output, u.Cached, u.Reasoning} {
		out[i] = -1
		if n != nil {
			out[i] = *n
		}
	}
	return out
}

// cutAnywhere: a provider that dies after k bytes, for every k: never a success, and never a byte that it didn't send.
// (faults row 19)
func (s *suite) cutAnywhere(t *testing.T) {
	for _, name := range []string{s.dialect.Plain, s.dialect.Stream} {
		_, response, want := s.load(t, name)
		head := bytes.Index(response, []byte("\r\n\r\n")) + 4
		p := fakeprovider.New(t, nil)
		a := s.adapter(t, p)
		for k := range len(response) {
			p.Use(fakeprovider.CutAfter(response, k, false))
			r, err := Do(t, t.Context(), a, s.dialect.Request("{}"))
			if code := Code(t, err); code != execution.CodeUpstreamTruncated {
				t.Fatalf("%s cut after %d of %d bytes: %v (%v)", name, k, len(response), code, err)
			}
			if (r.Status() != 0) != (k >= head) || !bytes.HasPrefix(want, r.Bytes()) || r.Counted().Known() {
				t.Fatalf("%s cut after %d bytes (head %d): status %d, body %q", name, k, head, r.Status(), r.Bytes())
			}
			if f := err.(*execution.Failure); f.NothingSent {
				t.Fatal("the request was sent")
			}
		}
	}
}

// cancel: wherever the exchange is, with the cause that was given; the provider's connection ends.
func (s *suite) cancel(t *testing.T) {
	head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, script := range map[string]fakeprovider.Script{
		"before the head": fakeprovider.Silent(""),
		"inside the head": fakeprovider.Silent("HTTP/1.1 200"),
		"after the head":  fakeprovider.Silent(head),
		"in the body":     fakeprovider.Silent(head + "9\r\ndata: 1\n\n\r\n"),
		"in a stream":     fakeprovider.Endless(time.Millisecond, "data: 1\n\n"),
	} {
		for _, cause := range []execution.CancelCause{execution.CauseClientGone, execution.CauseDeadline, execution.CauseLinkLost} {
			p := fakeprovider.New(t, script)
			a := s.adapter(t, p)
			ctx, cancel := context.WithCancelCause(t.Context())
			r, done := NewRecorder(), make(chan error, 1)
			go func() { done <- DoWith(t, ctx, a, s.dialect.Request("{}"), r) }()
			switch name {
			case "in the body", "in a stream":
				r.WaitBody(t, 1)
			case "after the head":
				<-r.Headed()
			default:
				Until(t, func() bool { return len(p.Exchanges()) == 1 })
			}
			cancel(cause)
			if err := patience.Receive(t, name, done); err != cause {
				t.Errorf("%s: %v, want %v", name, err, cause)
			}
			Until(t, func() bool { _, open := p.Connections(); return open == 0 })
		}
	}
}

// silence: the limits are kept, each with its code, and none runs while there is none. (faults rows 17 and 18)
func (s *suite) silence(t *testing.T) {
	const limit = 50 * time.Millisecond
	head := "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"
	for _, k := range []struct {
		first string
		limit execution.Timers
		want  execution.Code
	}{
		{"", execution.Timers{FirstByte: limit}, execution.CodeFirstByteTimeout},
		{head, execution.Timers{Idle: limit}, execution.CodeIdleTimeout},
	} {
		p := fakeprovider.New(t, fakeprovider.Silent(k.first))
		req := s.dialect.Request("{}")
		req.Timers = k.limit
		_, err := Do(t, t.Context(), s.adapter(t, p), req)
		if got := Code(t, err); got != k.want {
			t.Errorf("%v, want %v", err, k.want)
		}
		Until(t, func() bool { _, open := p.Connections(); return open == 0 })
	}
}

// sink: its error ends the exchange, comes back, and the provider isn't left running.
func (s *suite) sink(t *testing.T) {
	enough := errors.New("enough")
	p := fakeprovider.New(t, fakeprovider.Endless(time.Millisecond, "data: 1\n\n"))
	r := NewRecorder()
	r.OnBody = func(int) error { return enough }
	if err := DoWith(t, t.Context(), s.adapter(t, p), s.dialect.Request("{}"), r); !errors.Is(err, enough) {
		t.Errorf("%v, want the sink's own error", err)
	}
	Until(t, func() bool { _, open := p.Connections(); return open == 0 })
}

// garbage: no panic, no hang, and an outcome that is one. (faults row 22)
func (s *suite) garbage(t *testing.T) {
	p := fakeprovider.New(t, nil)
	a := s.adapter(t, p)
	for _, prefix := range []string{
		"", "HTTP/1.1 ", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"usage\":{",
		"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\n\r\n",
	} {
		for seed := range uint64(30) {
			p.Use(fakeprovider.Garbage(prefix, seed))
			ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
			_, err := Do(t, ctx, a, s.dialect.Request("{}"))
			cancel()
			Code(t, err)
		}
	}
}

// secrets: what the caller authenticates with reaches neither the provider nor a log, and neither does the content of
// a request or an answer reach a log. (CR-03, E44)
func (s *suite) secrets(t *testing.T) {
	var logged lockedBuffer
	p := fakeprovider.New(t, nil)
	a := s.at(t, p.URL(), zerolog.New(&logged).Level(zerolog.TraceLevel))
	for _, script := range []fakeprovider.Script{
		fakeprovider.Answer(200, "application/json", `{"x":"canary-answer"}`, "X-Canary: canary-header"),
		fakeprovider.Answer(500, "text/plain", "canary-answer"),
		fakeprovider.CutAfter([]byte("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ncanary-answer"), 1000, true),
		fakeprovider.Raw([]byte("canary-answer")),
		fakeprovider.Silent(""),
	} {
		p.Use(script)
		req := s.dialect.Request(`{"content":"canary-prompt"}`)
		req.Query = "canary-query=1"
		req.Timers = execution.Timers{FirstByte: 50 * time.Millisecond, Idle: 50 * time.Millisecond}
		for _, name := range []string{"Authorization", "x-api-key", "API-KEY", "Cookie", "Proxy-Authorization", "X-Goog-Api-Key"} {
			req.Header[name] = []string{"canary-key"}
		}
		if _, err := Do(t, t.Context(), a, req); err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("a failure repeats what was sent: %v", err)
		}
	}
	if strings.Contains(logged.String(), "canary") {
		t.Errorf("logged: %s", logged.String())
	}
	for _, x := range p.Exchanges() {
		if strings.Contains(string(x.Head), "canary-key") {
			t.Errorf("the caller's key reached the provider: %q", x.Head)
		}
	}
}

// lockedBuffer is a buffer that several goroutines may log to.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// atOnce: requests that run side by side get their own answers.
func (s *suite) atOnce(t *testing.T) {
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
		mark := string(x.Body())
		x.BeginStream(200, "text/event-stream")
		for range 20 {
			x.Chunk("data: " + mark + "\n\n")
		}
		x.EndChunks()
	})
	a := s.adapter(t, p)
	var workers sync.WaitGroup
	for i := range 32 {
		workers.Go(func() {
			for j := range 10 {
				mark := fmt.Sprintf("%d-%d", i, j)
				r, err := Do(t, t.Context(), a, s.dialect.Request(mark))
				if want := strings.Repeat("data: "+mark+"\n\n", 20); err != nil || string(r.Bytes()) != want {
					t.Errorf("%s: %v, %q", mark, err, r.Bytes())
				}
			}
		})
	}
	workers.Wait()
}

// connect: a provider that isn't there was sent nothing, so that another node may try. (faults row 21, CP-12)
func (s *suite) connect(t *testing.T) {
	gone := fakeprovider.New(t, nil)
	gone.Close()
	_, err := Do(t, t.Context(), s.adapter(t, gone), s.dialect.Request("{}"))
	if f, ok := errors.AsType[*execution.Failure](err); !ok || f.Code != execution.CodeUpstreamConnect || !f.NothingSent {
		t.Errorf("%v", err)
	}
}
