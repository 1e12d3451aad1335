package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
)

func fieldsOf(head string) []string {
	lines := strings.Split(strings.TrimSuffix(head, "\r\n\r\n"), "\r\n")
	return lines[1:]
}

// HT-01, E35: what belongs to one connection stays there, in both directions.
func TestHopByHop(t *testing.T) {
	g := start(t, open(), nil)
	g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
		return respond(sink, 200, http.Header{"Connection": {"keep-alive, X-Hop", "x-other"}, "X-Hop": {"1"}, "X-Other": {"2"},
			"Te": {"trailers"}, "Keep-Alive": {"timeout=5, max=100"}, "Proxy-Authenticate": {"Basic"}, "Upgrade": {"h2c"},
			"Trailer": {"X-T"}, "Transfer-Encoding": {"chunked"}, "Content-Type": {"application/json"}, "X-Kept": {"3"}}, "{}")
	})
	c := g.dial()
	c.post("Connection: keep-alive, X-Hop\r\nconnection: x-OTHER\r\nX-Hop: 1\r\nX-Other: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\n"+
		"Proxy-Authorization: Basic eA==\r\nProxy-Connection: close\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nX-Kept: 1\r\n", small)
	head := c.head()
	got := g.last().Header
	for _, name := range []string{"Connection", "X-Hop", "X-Other", "Te", "Keep-Alive", "Proxy-Authorization",
		"Proxy-Connection", "Upgrade", "Http2-Settings", "Trailer", "Transfer-Encoding", "Content-Length", "Host"} {
		if values, ok := got[name]; ok {
			t.Errorf("the provider would see %s: %q", name, values)
		}
	}
	for _, name := range []string{"Connection", "X-Hop", "X-Other", "Te", "Keep-Alive", "Proxy-Authenticate", "Upgrade", "Trailer"} {
		if strings.Contains(head, "\r\n"+name+":") {
			t.Errorf("the caller sees %s: %q", name, head)
		}
	}
	if got.Get("X-Kept") != "1" || !strings.Contains(head, "X-Kept: 3") {
		t.Error("an ordinary header was lost")
	}
}

// HT-03: an HTTP/1.0 caller gets no chunks, and the end of the connection is the end of the body.
func TestHTTP10Caller(t *testing.T) {
	g := start(t, open(), nil)
	g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
		return respond(sink, 200, http.Header{"Content-Type": {"text/event-stream"}}, "data: 1\n\n", "data: 2\n\n")
	})
	c := g.dial()
	c.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + itoa(len(small)) + "\r\n\r\n" + small)
	head := c.head()
	body, err := io.ReadAll(c.r)
	if strings.Contains(head, "Transfer-Encoding") || string(body) != "data: 1\n\ndata: 2\n\n" || err != nil {
		t.Errorf("%q %q %v", head, body, err)
	}
}

// ST-13 for HTTP/1.0: a cut answer must not look whole, so the connection is reset.
func TestHTTP10CutIsReset(t *testing.T) {
	g := start(t, open(), nil)
	read := make(chan struct{})
	g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
		if err := errors.Join(sink.Head(200, http.Header{}), sink.Body([]byte("part"), true)); err != nil {
			t.Error(err)
		}
		<-read // a reset may throw away what the caller hasn't read
		return &service.Outcome{HeadSent: true, Failure: execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "cut")}
	})
	c := g.dial()
	c.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + itoa(len(small)) + "\r\n\r\n" + small)
	c.head()
	p := make([]byte, 4)
	if _, err := io.ReadFull(c.r, p); err != nil || string(p) != "part" {
		t.Fatalf("%q %v", p, err)
	}
	close(read)
	if _, err := c.r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a cut answer ended with %v", err)
	}
}

// ST-11: a declared length stays, an unknown one isn't invented, and both framings never stand together.
func TestResponseFraming(t *testing.T) {
	g := start(t, open(), nil)
	pieces := slices.Repeat([]string{"data: {}\n\n"}, 20)
	for _, length := range []string{"200", ""} {
		g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
			h := http.Header{"Content-Type": {"text/event-stream"}, "Transfer-Encoding": {"chunked"}}
			if length != "" {
				h["Content-Length"] = []string{length}
			}
			return respond(sink, 200, h, pieces...)
		})
		c := g.dial()
		c.post("", small)
		resp, body := c.response()
		if body != strings.Join(pieces, "") {
			t.Errorf("body %q", body)
		}
		if has := resp.Header.Get("Content-Length"); has != length || len(resp.TransferEncoding) > 0 == (length != "") {
			t.Errorf("Content-Length %q, Transfer-Encoding %q", has, resp.TransferEncoding)
		}
	}
}

// ST-11: an answer in chunks that is whole at once, so that nothing was flushed before its end, gets no length either.
func TestShortChunkedAnswerStaysChunked(t *testing.T) {
	g := start(t, open(), nil)
	for _, body := range []string{"data: [DONE]\n\n", ""} {
		g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
			err := errors.Join(sink.Head(200, http.Header{"Content-Type": {"text/event-stream"}}), sink.Body([]byte(body), false), sink.End())
			if err != nil {
				t.Error(err)
			}
			return &service.Outcome{HeadSent: true, Status: 200}
		})
		c := g.dial()
		c.post("", small)
		resp, got := c.response()
		if got != body || resp.Header.Get("Content-Length") != "" || !slices.Equal(resp.TransferEncoding, []string{"chunked"}) {
			t.Errorf("%q: %q, Content-Length %q, Transfer-Encoding %q", body, got, resp.Header.Get("Content-Length"), resp.TransferEncoding)
		}
	}
}

// ST-13: what came before the cut arrives, nothing is added, and the end is no end.
func TestCutAnswerAborts(t *testing.T) {
	g := start(t, open(), nil)
	for _, length := range []string{"160", ""} { // ST-12: 159 of 160
		for _, flush := range []bool{true, false} {
			g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
				h := http.Header{"Content-Type": {"text/event-stream"}}
				if length != "" {
					h["Content-Length"] = []string{length}
				}
				err := errors.Join(sink.Head(200, h), sink.Body([]byte(strings.Repeat("x", 159)), flush))
				if err != nil {
					t.Error(err)
				}
				return &service.Outcome{HeadSent: true, Failure: execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "cut")}
			})
			c := g.dial()
			c.post("", small)
			resp, err := http.ReadResponse(c.r, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if len(body) != 159 || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("length %q, flush %v: %d bytes, %v", length, flush, len(body), err)
			}
		}
	}
}

// The sink itself holds a provider to its declared length.
func TestDeclaredLength(t *testing.T) {
	g := start(t, open(), nil)
	for name, tt := range map[string]struct {
		length []string
		body   string
		code   execution.Code
		begun  bool
	}{
		"short":    {[]string{"3"}, "ab", execution.CodeUpstreamTruncated, true},
		"long":     {[]string{"3"}, "abcd", execution.CodeProtocol, true},
		"two":      {[]string{"3", "4"}, "abc", execution.CodeProtocol, false},
		"negative": {[]string{"-3"}, "abc", execution.CodeProtocol, false},
		"words":    {[]string{"three"}, "abc", execution.CodeProtocol, false},
	} {
		t.Run(name, func(t *testing.T) {
			code := make(chan execution.Code, 1)
			g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
				o := respond(sink, 200, http.Header{"Content-Length": tt.length}, tt.body)
				code <- o.Failure.Code
				return o
			})
			c := g.dial()
			c.post("", small)
			resp, err := http.ReadResponse(c.r, nil)
			if err != nil && tt.begun {
				t.Fatal(err)
			}
			if got := <-code; got != tt.code {
				t.Errorf("code %v", got)
			}
			if tt.begun {
				if _, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("the answer looks whole: %v", err)
				}
			} else if resp.StatusCode != 502 {
				t.Error(resp.Status)
			}
		})
	}
}

// ST-01, ST-02, ST-06: a piece is with the caller before the next one exists, whatever the content type; so is the head.
func TestPiecesArriveAsTheyCome(t *testing.T) {
	g := start(t, open(), nil)
	for _, kind := range []string{"text/event-stream", "application/x-ndjson", "application/json", "text/plain"} {
		next := make(chan struct{})
		g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
			err := errors.Join(sink.Head(200, http.Header{"Content-Type": {kind}, "X-Accel-Buffering": {"no"}, "Cache-Control": {"no-cache"}}),
				sink.Body(nil, true))
			for range 5 {
				<-next
				err = errors.Join(err, sink.Body([]byte(": ping\n\n"), true))
			}
			if err = errors.Join(err, sink.End()); err != nil {
				t.Error(err)
			}
			return &service.Outcome{HeadSent: true}
		})
		c := g.dial()
		c.post("", small)
		head := c.head()
		for _, field := range []string{"X-Accel-Buffering: no", "Cache-Control: no-cache", "Content-Type: " + kind} {
			if strings.Count(head, "\r\n"+field+"\r\n") != 1 {
				t.Errorf("%q isn't there once: %q", field, head)
			}
		}
		for range 5 {
			next <- struct{}{}
			chunk := make([]byte, len("8\r\n: ping\n\n\r\n"))
			if _, err := io.ReadFull(c.r, chunk); err != nil || string(chunk) != "8\r\n: ping\n\n\r\n" {
				t.Fatalf("%q %v", chunk, err)
			}
		}
		if rest, err := io.ReadAll(io.LimitReader(c.r, 5)); string(rest) != "0\r\n\r\n" {
			t.Errorf("end %q %v", rest, err)
		}
	}
}

// Every field of the provider once, nothing invented, nothing that could end a field or become a trailer; what only the
// edge can say is the edge's.
func TestResponseHeader(t *testing.T) {
	g := start(t, open(), nil)
	g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
		sink.Placed(service.Placement{Node: "gpu-0", Queued: 0})
		sink.Placed(service.Placement{Node: "gpu-1", Queued: time.Second})
		return respond(sink, 200, http.Header{"Date": {"Sun, 29 Nov 2026 13:06:29 GMT"}, "Server": {"llama.cpp"}, "Set-Cookie": {"a=1", "b=2"},
			"X-Request-Id": {"req_upstream"}, "X-Iop-Node": {"forged"}, "Access-Control-Allow-Origin": {"*"}, "Trailer:X-T": {"t"},
			"Bad Name": {"x"}, "X-Split": {"a\r\nX-Injected: 1"}, "openai-processing-ms": {"5"}, "X-Iop-Queue-Ms": {"7"}}, "{}")
	})
	c := g.dial()
	c.post("X-Request-Id: mine\r\n", small)
	fields := fieldsOf(c.head())
	slices.Sort(fields)
	want := []string{"Transfer-Encoding: chunked", "Date: Sun, 29 Nov 2026 13:06:29 GMT", "Openai-Processing-Ms: 5", "Server: llama.cpp",
		"Set-Cookie: a=1", "Set-Cookie: b=2", "X-Iop-Node: gpu-1", "X-Iop-Provider-Request-Id: req_upstream", "X-Iop-Queue-Ms: 1000",
		"X-Iop-Run-Id: " + g.last().RunID, "X-Request-Id: mine"}
	slices.Sort(want)
	if !slices.Equal(fields, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(fields, "\n"), strings.Join(want, "\n"))
	}
}

func TestResponsesWithoutBody(t *testing.T) {
	g := start(t, open(), nil)
	for _, status := range []int{204, 304} {
		g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
			return respond(sink, status, http.Header{"Content-Length": {"5"}}, "")
		})
		c := g.dial()
		c.post("", small)
		if resp, body := c.response(); resp.StatusCode != status || body != "" {
			t.Errorf("%s %q", resp.Status, body)
		}
		c.post("", small) // the connection is still in step
		if resp, _ := c.response(); resp.StatusCode != status {
			t.Error(resp.Status)
		}
	}
	for _, status := range []int{0, 99, 100, 101, 103, 1000} { // E38, E39
		g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
			return respond(sink, status, http.Header{}, "")
		})
		resp, body := g.ask("", small)
		wantError(t, resp, body, 502, "protocol")
	}
}

func TestPanicAfterTheHead(t *testing.T) {
	g := start(t, open(), nil)
	g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
		_ = sink.Head(200, http.Header{})
		_ = sink.Body([]byte("part"), true)
		panic("a bug")
	})
	c := g.dial()
	c.post("", small)
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); string(body) != "part" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q %v", body, err)
	}
}
