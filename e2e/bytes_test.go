package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// wantWhole checks an answer that must be exactly what the provider sent, and end cleanly.
func wantWhole(t *testing.T, a *harness.Answer, status int, body string) {
	t.Helper()
	if a.StatusCode != status || a.Cut != nil {
		t.Fatalf("got %d, body ended with %v; want %d and a clean end\n%s", a.StatusCode, a.Cut, status, shorten(a.Bytes))
	}
	sameBody(t, a.Bytes, body)
}

func shorten(p []byte) []byte { return p[:min(len(p), 500)] }

// wantCut checks that an answer has exactly this body and then an aborted connection.
func wantCut(t *testing.T, a *harness.Answer, body string) {
	t.Helper()
	if !errors.Is(a.Cut, io.ErrUnexpectedEOF) {
		t.Fatalf("the body ended with %v, want an aborted connection", a.Cut)
	}
	if bytes.HasSuffix(a.Raw, []byte("0\r\n\r\n")) {
		t.Error("the cut answer ends in a final chunk")
	}
	sameBody(t, a.Bytes, body)
}

// stream is a chunked answer as it stands on the wire, one chunk for each piece.
func stream(contentType string, pieces ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n", contentType)
	for _, p := range pieces {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	b.WriteString("0\r\n\r\n")
	return b.Bytes()
}

// ST-03, raw half
func TestCharactersCutAtEveryByteStayWhole(t *testing.T) {
	t.Parallel()
	body := delta("那个 🌍") + finish + done
	for name, raw := range map[string][]byte{
		"a character a chunk": stream("text/event-stream", strings.Split(body, "")...),
		"a byte a chunk":      stream("text/event-stream", bytewise(body)...),
		"one chunk":           stream("text/event-stream", body),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(x *fakeprovider.Exchange) {
				x.Body()
				for i := range raw { // without Nagle's algorithm each write is a segment
					if _, err := x.Write(raw[i : i+1]); err != nil {
						return
					}
				}
				x.Close()
			}, setup{})
			wantWhole(t, r.ask(chat()), 200, body)
		})
	}
}

func bytewise(s string) []string {
	out := make([]string, len(s))
	for i := range len(s) {
		out[i] = s[i : i+1]
	}
	return out
}

// ST-04, raw half
func TestLongLinePasses(t *testing.T) {
	t.Parallel()
	body := delta(strings.Repeat("0123456789abcdef", 5<<20/16)) + finish + done
	r := newRig(t, fakeprovider.Raw(stream("text/event-stream", body)), setup{})
	wantWhole(t, r.ask(chat()), 200, body)
}

// ST-07, raw half
func TestEventEncodingsAreKept(t *testing.T) {
	t.Parallel()
	lf := delta("a") + delta("b") + usage(11, 7) + finish + done
	r := newRig(t, nil, setup{})
	for name, body := range map[string]string{
		"LF":                   lf,
		"CRLF":                 strings.ReplaceAll(lf, "\n", "\r\n"),
		"CR":                   strings.ReplaceAll(lf, "\n", "\r"),
		"no blank after colon": strings.ReplaceAll(lf, "data: ", "data:"),
		"two data lines":       strings.ReplaceAll(lf, `"choices":[`, "\"choices\":\ndata: ["),
		"a byte order mark":    "\ufeff" + lf,
		"no last blank line":   strings.TrimRight(lf, "\n"),
	} {
		t.Log(name)
		r.provider.Use(fakeprovider.Raw(stream("text/event-stream", body)))
		a := r.ask(chat())
		wantWhole(t, a, 200, body)
		wantLog(t, r.ended(a.Header), map[string]any{"code": "ok"})
	}
}

// ST-11
func TestLengthOrChunksAsTheProviderChose(t *testing.T) {
	t.Parallel()
	body := strings.Repeat(delta("tick"), 20)
	for name, c := range map[string]struct {
		lines  []string
		chunks bool
	}{
		"length": {[]string{fmt.Sprintf("Content-Length: %d", len(body))}, false},
		"chunks": {[]string{"Transfer-Encoding: chunked"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFeed(t)
			r := newRig(t, f.script, setup{})
			caller := r.dial()
			caller.Send(chat())
			f.step(t, func(x *fakeprovider.Exchange) { x.Begin(200, append(c.lines, "Content-Type: text/event-stream")...) })
			response := caller.Head(limit, http.MethodPost)
			for rest := body; rest != ""; rest = rest[len(delta("tick")):] {
				piece := delta("tick")
				f.step(t, func(x *fakeprovider.Exchange) {
					if c.chunks {
						x.Chunk(piece)
					} else {
						x.Print(piece)
					}
				})
				caller.Expect(response.Body, piece, limit)
			}
			if c.chunks {
				f.finish(t)
			}
			if rest, err := io.ReadAll(response.Body); err != nil || len(rest) != 0 {
				t.Errorf("after the last piece: %q, %v", rest, err)
			}
			raw := caller.Raw()
			length, chunked := countFold(raw, "\r\nContent-Length:"), countFold(raw, "\r\nTransfer-Encoding:")
			if c.chunks && (length != 0 || chunked != 1) || !c.chunks && (length != 1 || chunked != 0) {
				t.Errorf("%d lengths and %d transfer encodings", length, chunked)
			}
		})
	}
}

// ST-12
func TestBodyOneByteShort(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("x", 159)
	r := newRig(t, fakeprovider.Raw([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 160\r\nX-Kept: yes\r\n\r\n"+body)), setup{})
	a := r.ask(chat())
	if a.StatusCode != 200 || a.Header.Get("X-Kept") != "yes" || a.ContentLength != 160 {
		t.Errorf("got %d %v", a.StatusCode, a.Header)
	}
	wantCut(t, a, body)
	line := r.ended(a.Header)
	wantLog(t, line, map[string]any{"code": "upstream_truncated", "origin": "provider", "bytes_out": 159})
	if text := fmt.Sprint(line["error"]); !strings.Contains(text, "159") || !strings.Contains(text, "160") {
		t.Errorf("the line doesn't hold both numbers: %s", text)
	}
}

// ST-13
func TestProviderResetsInsideItsStream(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	r := newRig(t, f.script, setup{})
	c := r.dial()
	c.Send(chat())
	f.begin(t, "text/event-stream")
	response := c.Head(limit, http.MethodPost)
	for range 3 { // a reset throws away what isn't read yet, so each event is there before the next
		f.chunk(t, delta("tick"))
		c.Expect(response.Body, delta("tick"), limit)
	}
	f.step(t, func(x *fakeprovider.Exchange) { x.Reset() })
	rest, err := io.ReadAll(response.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || len(rest) != 0 {
		t.Errorf("after the reset came %q and %v; want nothing and an aborted connection", rest, err)
	}
	if raw := c.Raw(); bytes.HasSuffix(raw, []byte("0\r\n\r\n")) {
		t.Errorf("the answer ends cleanly:\n%s", raw)
	}
	wantLog(t, r.ended(response.Header), map[string]any{"code": "upstream_truncated", "status": 200})
}

// ST-18, raw half: the transport was clean, so the tunnel is; what the stream lacks is the caller's to judge.
func TestCleanEndWithoutFinishIsPassedOn(t *testing.T) {
	t.Parallel()
	body := delta("half an") + delta(" answer")
	r := newRig(t, fakeprovider.Raw(stream("text/event-stream", body)), setup{})
	a := r.ask(chat())
	wantWhole(t, a, 200, body)
	line := r.ended(a.Header)
	wantLog(t, line, map[string]any{"code": "ok"})
	noUsage(t, line)
}

// ST-21, fault 20
func TestRefusalsOfTheProviderArePassedOn(t *testing.T) {
	t.Parallel()
	const body = "{\"error\": {\"message\": \"näh\",\"code\":  1}}\r\n "
	r := newRig(t, nil, setup{})
	for _, status := range []int{400, 401, 402, 403, 404, 408, 409, 413, 418, 422, 429, 500, 501, 502, 503, 504, 529} {
		r.provider.Use(fakeprovider.Answer(status, "application/json", body, "Retry-After: 7", "X-Request-Id: theirs"))
		a := r.ask(chat())
		wantWhole(t, a, status, body)
		if a.Header.Get("Retry-After") != "7" || a.Header.Get("Content-Type") != "application/json" ||
			a.Header.Get("X-IOP-Provider-Request-Id") != "theirs" {
			t.Errorf("%d: header %v", status, a.Header)
		}
		wantLog(t, r.ended(a.Header), map[string]any{"code": "ok", "status": status, "attempts": 1})
	}
	if n := len(r.seen()); n != 17 {
		t.Errorf("the provider saw %d requests", n)
	}
}
