package upstream_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/upstream"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// blackHole returns the URL of a listener that nobody serves: the handshake neither succeeds nor fails.
func blackHole(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return "https://" + l.Addr().String()
}

// notTLS returns the https:// URL of a listener that answers in plain text.
func notTLS(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	}()
	return "https://" + l.Addr().String()
}

func raw(s string) fakeprovider.Script { return fakeprovider.Raw([]byte(s)) }

const hint = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"

// E38, E39: answers that can't be passed on.
func TestAnswersRefused(t *testing.T) {
	cases := map[string]struct {
		answer string
		code   execution.Code
	}{
		"101":             {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", execution.CodeUpstreamError},
		"status 099":      {"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n", execution.CodeUpstreamError},
		"status 600":      {"HTTP/1.1 600 High\r\nContent-Length: 0\r\n\r\n", execution.CodeUpstreamError},
		"status 999":      {"HTTP/1.1 999 High\r\nContent-Length: 0\r\n\r\n", execution.CodeUpstreamError},
		"HTTP/2":          {"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", execution.CodeUpstreamError},
		"not HTTP":        {"SSH-2.0-OpenSSH_9.6\r\n\r\n", execution.CodeUpstreamError},
		"two lengths":     {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", execution.CodeUpstreamError},
		"negative length": {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", execution.CodeUpstreamError},
		"NUL in a header": {"HTTP/1.1 200 OK\r\nX-A: a\x00b\r\nContent-Length: 0\r\n\r\n", execution.CodeUpstreamError},
		"5000 hints":      {strings.Repeat(hint, 5000), execution.CodeUpstreamError},
		"6 hints":         {strings.Repeat(hint, 6) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", execution.CodeUpstreamError},
		"head of 128 KiB": {"HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 128<<10) + "\r\n\r\n", execution.CodeUpstreamError},
		"endless line":    {"HTTP/1.1 200 OK\r\n" + strings.Repeat("a", 256<<10), execution.CodeUpstreamError},
		"nothing":         {"", execution.CodeUpstreamTruncated},
		"half a head":     {"HTTP/1.1 200 OK\r\nContent-Le", execution.CodeUpstreamTruncated},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			p := fakeprovider.New(t, raw(k.answer))
			r, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), chat())
			f := failure(t, err)
			if f.Code != k.code || f.NothingSent || r.Status() != 0 {
				t.Errorf("%+v, status %d", f, r.Status())
			}
			if n := len(p.Exchanges()); n != 1 {
				t.Errorf("provider saw %d requests", n)
			}
		})
	}
}

func TestAnswersPassed(t *testing.T) {
	cases := map[string]struct {
		answer, body string
		status       int
	}{
		"100 first":         {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", 200},
		"length and chunks": {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello", 200},
		"5 hints first":     {strings.Repeat(hint, 5) + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", 200},
		"until close":       {"HTTP/1.1 200 OK\r\n\r\nto the end", "to the end", 200},
		"HTTP/1.0":          {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", 200},
		"204":               {"HTTP/1.1 204 No Content\r\n\r\n", "", 204},
		"trailers":          {"HTTP/1.1 200 OK\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n", "ok", 200},
		"599":               {"HTTP/1.1 599 Odd\r\nContent-Length: 0\r\n\r\n", "", 599},
		"equal lengths":     {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", "ok", 200},
		"chunk extension":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\n\r\n", "ok", 200},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			p := fakeprovider.New(t, raw(k.answer))
			r, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), chat())
			if err != nil || r.Status() != k.status || string(r.Bytes()) != k.body {
				t.Errorf("%v, status %d, %q", err, r.Status(), r.Bytes())
			}
			h := r.Header()
			if h.Get("Transfer-Encoding") != "" || h.Get("Trailer") != "" {
				t.Errorf("framing was passed on: %v", h)
			}
		})
	}
	// ST-11, E39: where both were sent only one may be left, and the chunks won.
	p := fakeprovider.New(t, raw(cases["length and chunks"].answer))
	if r, _ := adaptertest.Do(t, t.Context(), client(t, p.URL()), chat()); r.Header().Get("Content-Length") != "" {
		t.Error("Content-Length beside chunks was passed on")
	}
}

func TestHeadHasALengthAndNoBody(t *testing.T) {
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) { x.Begin(200, "Content-Length: 622") })
	c := client(t, p.URL())
	for range 2 {
		req := adaptertest.Get("/v1/models")
		req.Method = "HEAD"
		r, err := adaptertest.Do(t, t.Context(), c, req)
		if err != nil || r.Header().Get("Content-Length") != "622" || len(r.Bytes()) != 0 {
			t.Fatal(err, r.Header(), r.Bytes())
		}
	}
}

// ST-12: the text has both numbers.
func TestShortBody(t *testing.T) {
	p := fakeprovider.New(t, raw("HTTP/1.1 200 OK\r\nContent-Length: 160\r\n\r\n"+strings.Repeat("x", 159)))
	r, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), chat())
	f := failure(t, err)
	if f.Code != execution.CodeUpstreamTruncated || !strings.Contains(f.Text, "159 of 160") || f.UpstreamStatus != 200 || f.NothingSent {
		t.Errorf("%+v", f)
	}
	if len(r.Bytes()) != 159 {
		t.Errorf("%d bytes passed", len(r.Bytes()))
	}
}

// ST-13, faults row 19
func TestCutBodies(t *testing.T) {
	events := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("9\r\ndata: 1\n\n\r\n", 3)
	var there chan struct{} // told when all events are
	for name, script := range map[string]fakeprovider.Script{
		"end of connection": fakeprovider.CutAfter([]byte(events), len(events), false),
		"reset": func(x *fakeprovider.Exchange) {
			x.Body()
			x.Print(events)
			<-there // a reset throws away what the kernel hasn't handed over
			x.Reset()
		},
		"no last line": fakeprovider.Raw([]byte(events + "0\r\n")),
	} {
		t.Run(name, func(t *testing.T) {
			there = make(chan struct{}, 1)
			r := adaptertest.NewRecorder()
			r.OnBody = func(total int) error {
				if total == 27 {
					there <- struct{}{}
				}
				return nil
			}
			err := adaptertest.DoWith(t, t.Context(), client(t, fakeprovider.New(t, script).URL()), chat(), r)
			if f := failure(t, err); f.Code != execution.CodeUpstreamTruncated || !strings.Contains(f.Text, "27 bytes") {
				t.Errorf("%+v", f)
			}
			if string(r.Bytes()) != strings.Repeat("data: 1\n\n", 3) {
				t.Errorf("%q", r.Bytes())
			}
		})
	}
	p := fakeprovider.New(t, raw(events+"zz\r\n"))
	_, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), chat())
	if f := failure(t, err); f.Code != execution.CodeUpstreamError {
		t.Errorf("broken chunk: %+v", f)
	}
}

// ST-01, ST-02, ST-06: each piece is passed when it comes, whatever its type.
func TestPiecesArePassedAtOnce(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "application/x-ndjson", "application/json", "text/plain"} {
		t.Run(kind, func(t *testing.T) {
			next := make(chan struct{})
			p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
				x.Body()
				x.BeginStream(200, kind)
				for range 10 {
					x.Chunk(": ping\n\n")
					<-next
				}
				x.EndChunks()
			})
			r, done := adaptertest.NewRecorder(), make(chan error, 1)
			go func() { done <- client(t, p.URL()).Tunnel(t.Context(), chat(), r) }()
			for i := range 10 {
				r.WaitBody(t, (i+1)*len(": ping\n\n"))
				next <- struct{}{}
			}
			if err := <-done; err != nil || r.Pieces() != 10 {
				t.Error(err, r.Pieces())
			}
		})
	}
}

// E40, ST-10: a compressed body is bytes like any other.
func TestGzipIsNotTouched(t *testing.T) {
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	_, _ = zw.Write(make([]byte, 64<<20))
	_ = zw.Close()
	p := fakeprovider.New(t, fakeprovider.Answer(200, "application/json", zipped.String(), "Content-Encoding: gzip"))
	r, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), chat())
	if err != nil || !bytes.Equal(r.Bytes(), zipped.Bytes()) || r.Header().Get("Content-Encoding") != "gzip" || r.Counted().Known() {
		t.Error(err, len(r.Bytes()), r.Header())
	}
	if strings.Contains(string(p.Exchanges()[0].Head), "Accept-Encoding") {
		t.Error("asked for compression that the caller didn't ask for")
	}
}

func withTimers(r *execution.TunnelRequest, firstByte, idle time.Duration) *execution.TunnelRequest {
	r.Timers = execution.Timers{FirstByte: firstByte, Idle: idle}
	return r
}

// faults rows 17 and 18, CP-14
func TestSilence(t *testing.T) {
	const long, short = time.Minute, 60 * time.Millisecond
	head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	drip := func(x *fakeprovider.Exchange) { // a head that never ends is no head, however often a byte comes
		x.Body()
		for x.Print("HTTP/1.1 200 OK\r\nX-A: "); x.Pause(10 * time.Millisecond); {
			x.Print("a")
		}
		x.Close()
	}
	cases := map[string]struct {
		script          fakeprovider.Script
		firstByte, idle time.Duration
		want            execution.Code
	}{
		"before the head": {fakeprovider.Silent(""), short, long, execution.CodeFirstByteTimeout},
		"inside the head": {fakeprovider.Silent("HTTP/1.1 200 OK\r\n"), short, long, execution.CodeFirstByteTimeout},
		"inside a line":   {fakeprovider.Silent("HTTP/1.1 200 OK\r\nContent-"), short, long, execution.CodeFirstByteTimeout},
		"dripping head":   {drip, short, long, execution.CodeFirstByteTimeout},
		"after the head":  {fakeprovider.Silent(head), long, short, execution.CodeIdleTimeout},
		"inside the body": {fakeprovider.Silent(head + "9\r\ndata: 1\n\n\r\n"), long, short, execution.CodeIdleTimeout},
		"before the end":  {fakeprovider.Silent(head + "9\r\ndata: 1\n\n\r\n0\r\n"), long, short, execution.CodeIdleTimeout},
		"inside a chunk":  {fakeprovider.Silent(head + "ff\r\ndata"), long, short, execution.CodeIdleTimeout},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fakeprovider.New(t, k.script)
			_, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), withTimers(chat(), k.firstByte, k.idle))
			if f := failure(t, err); f.Code != k.want || f.NothingSent || !strings.Contains(f.Text, short.String()) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// protocol §8, "timers without an owner": while the caller takes nothing the provider isn't read, and isn't late.
func TestSlowCallerIsNotASilentProvider(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Events(0, "data: 1\n\n", strings.Repeat("x", 1<<20), "data: 3\n\n"))
	patience.Widen(t, 100*time.Millisecond, func(idle time.Duration) bool {
		r := adaptertest.NewRecorder()
		r.OnBody = func(total int) error {
			if total == len("data: 1\n\n") {
				<-time.After(3 * idle)
			}
			return nil
		}
		err := adaptertest.DoWith(t, t.Context(), client(t, p.URL()), withTimers(chat(), idle, idle), r)
		t.Log(err)
		return err == nil
	})
}

// OL-01, ST-16: there is no limit but those that were asked for; a stream may last as long as pieces come.
func TestPiecesKeepAStreamAlive(t *testing.T) {
	events := make([]string, 12)
	for i := range events {
		events[i] = fmt.Sprintf("data: %d\n\n", i)
	}
	patience.Widen(t, 150*time.Millisecond, func(idle time.Duration) bool {
		p := fakeprovider.New(t, fakeprovider.Events(idle/5, events...))
		_, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), withTimers(chat(), idle, idle))
		t.Log(err)
		return err == nil
	})
}

func TestUnlimitedWithoutTimers(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Events(20*time.Millisecond, "data: 1\n\n", "data: 2\n\n"))
	c := client(t, p.URL(), func(cfg *upstream.Config) { cfg.Connect = patience.Limit })
	if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
		t.Error(err)
	}
}
