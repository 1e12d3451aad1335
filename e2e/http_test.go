package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// ok is a provider's plain answer.
func ok(x *fakeprovider.Exchange) { x.Reply(200, "application/json", `{"object":"chat.completion"}`) }

// HT-01
func TestHopByHopHeadersStop(t *testing.T) {
	t.Parallel()
	hop := []string{"Connection: keep-alive, X-Hop", "X-Hop: 1", "TE: trailers", "Keep-Alive: timeout=5",
		"Proxy-Authorization: Basic eA==", "Proxy-Connection: keep-alive", "Upgrade: h2c", "Trailer: X-Late"}
	r := newRig(t, func(x *fakeprovider.Exchange) {
		x.Reply(200, "application/json", "{}", append(hop, "X-End: kept", "Proxy-Authenticate: Basic")...)
	}, setup{})
	a := r.ask(chat(append(hop, "X-End: kept")...))
	wantWhole(t, a, 200, "{}")
	sent := r.seen()[0].Header
	for _, name := range []string{"Connection", "X-Hop", "Te", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Upgrade",
		"Trailer", "Proxy-Authenticate"} {
		if v, there := sent[name]; there {
			t.Errorf("the provider got %s: %q", name, v)
		}
		if v, there := a.Header[name]; there {
			t.Errorf("the caller got %s: %q", name, v)
		}
	}
	if sent.Get("X-End") != "kept" || a.Header.Get("X-End") != "kept" {
		t.Errorf("X-End stopped: %v, %v", sent, a.Header)
	}
}

// HT-03
func TestOldCallerGetsAPlainBody(t *testing.T) {
	t.Parallel()
	body := strings.Repeat(delta("tick"), 50) + done
	r := newRig(t, fakeprovider.Raw(stream("text/event-stream", delta("tick"), body[len(delta("tick")):])), setup{})
	c := r.dial()
	c.Send(fmt.Sprintf("POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(chatBody), chatBody))
	response := c.Head(limit, http.MethodPost)
	got, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("the connection doesn't end in order: %v", err)
	}
	sameBody(t, got, body)
	head, rest, _ := bytes.Cut(c.Raw(), []byte("\r\n\r\n"))
	if countFold(head, "\r\nTransfer-Encoding:") != 0 || !bytes.Equal(rest, []byte(body)) {
		t.Errorf("head:\n%s", head)
	}
}

// HT-03 and the reliability contract: what has no length can only be cut by a reset.
func TestOldCallerSeesThatAnAnswerWasCut(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	r := newRig(t, f.script, setup{})
	c := r.dial()
	c.Send(fmt.Sprintf("POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(chatBody), chatBody))
	f.begin(t, "text/event-stream")
	response := c.Head(limit, http.MethodPost)
	f.chunk(t, delta("tick"))
	c.Expect(response.Body, delta("tick"), limit)
	f.step(t, func(x *fakeprovider.Exchange) { x.Close() })
	if rest, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("the cut answer ends in order, after %q", rest)
	}
}

// HT-05
func TestExpectContinueIsAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t, ok, setup{})
	body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("x", 2<<20))
	head, _, _ := strings.Cut(harness.Post(chatPath, body, "Expect: 100-continue"), "\r\n\r\n")
	c := r.dial()
	c.Send(head + "\r\n\r\n")
	if interim := c.Head(limit, http.MethodPost); interim.StatusCode != http.StatusContinue {
		t.Fatalf("got %d before the body was sent", interim.StatusCode)
	}
	c.Send(body)
	response, _, err := c.Response(limit)
	if response.StatusCode != 200 || err != nil {
		t.Errorf("got %d, %v", response.StatusCode, err)
	}
	seen := r.seen()
	if len(seen) != 1 {
		t.Fatalf("the provider saw %d requests", len(seen))
	}
	sameBody(t, seen[0].Received(), body)
	if seen[0].Header.Get("Expect") != "" {
		t.Error("the provider was asked to continue, too")
	}
}

// framing returns how a request that the provider saw is framed.
func framing(x *fakeprovider.Exchange) (lengths, encodings int) {
	return countFold(x.Head, "\r\nContent-Length:"), countFold(x.Head, "\r\nTransfer-Encoding:")
}

// HT-08
func TestRequestKeepsItsLength(t *testing.T) {
	t.Parallel()
	r := newRig(t, ok, setup{})
	body := fmt.Sprintf(`{"model":"m","pad":%q}`, strings.Repeat("x", 4096-len(`{"model":"m","pad":""}`)))
	wantWhole(t, r.ask(harness.Post(chatPath, body)), 200, `{"object":"chat.completion"}`)
	if got := r.seen()[0]; !bytes.Contains(got.Head, []byte("\r\nContent-Length: 4096\r\n")) || countFold(got.Head, "Transfer-Encoding") != 0 {
		t.Errorf("the provider got\n%s", got.Head)
	}

	chunked := "POST " + chatPath + " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
	for rest := body; rest != ""; rest = rest[min(len(rest), 1000):] {
		piece := rest[:min(len(rest), 1000)]
		chunked += fmt.Sprintf("%x;ext=1\r\n%s\r\n", len(piece), piece)
	}
	wantWhole(t, r.ask(chunked+"0\r\nX-Trailer: 1\r\n\r\n"), 200, `{"object":"chat.completion"}`)
	got := r.seen()[1]
	sameBody(t, got.Received(), body)
	if lengths, encodings := framing(got); lengths+encodings != 1 {
		t.Errorf("the provider got\n%s", got.Head)
	}
}

// HT-09
func TestRenamedModelChangesNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t, ok, setup{Options: harness.Options{Routes: `[{model: alias, adapter: gpu, target: "org/real-\u00e9"}]`}})
	for before, after := range map[string]string{
		"{ \"model\"\t:\r\n \"alias\" ,\"n\":1.0e0 }\n":                "{ \"model\"\t:\r\n \"org/real-é\" ,\"n\":1.0e0 }\n",
		`{"a":{"model":"alias"},"messages":["alias"],"model":"alias"}`: `{"a":{"model":"alias"},"messages":["alias"],"model":"org/real-é"}`,
		`{"mod\u0065l":"\u0061lias","x":"\u0000"}`:                     `{"mod\u0065l":"org/real-é","x":"\u0000"}`,
	} {
		n := len(r.seen())
		wantWhole(t, r.ask(harness.Post(chatPath, before)), 200, `{"object":"chat.completion"}`)
		got := r.seen()[n]
		sameBody(t, got.Received(), after)
		lengths, encodings := framing(got)
		if lengths != 1 || encodings != 0 || got.Header.Get("Content-Length") != fmt.Sprint(len(after)) {
			t.Errorf("the provider got %d bytes behind\n%s", len(after), got.Head)
		}
	}

	n := len(r.seen())
	for name, request := range map[string]string{
		"two lengths":         harness.Post(chatPath, chatBody, "Content-Length: 5"),
		"length and encoding": harness.Post(chatPath, chatBody, "Transfer-Encoding: gzip, chunked"),
		"odd length":          strings.Replace(harness.Post(chatPath, chatBody), "Content-Length: ", "Content-Length: +", 1),
	} {
		a, err := harness.Ask(r.HTTP(), request, limit)
		if err != nil || a.StatusCode/100 != 4 && a.StatusCode != http.StatusNotImplemented {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
	if got := r.seen(); len(got) != n {
		t.Errorf("the provider got %s", got[n].Head)
	}
}

// HT-10
func TestBigBodiesUpToTheLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, ok, setup{places: 1, Options: harness.Options{Limits: "{body: 16MiB}"}})
	image := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("a picture "), 9<<17))
	body := `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}}]}]}`
	if len(body) < 12<<20 || len(body) > 16<<20 {
		t.Fatalf("the body is %d bytes", len(body))
	}
	wantWhole(t, r.ask(harness.Post(chatPath, body)), 200, `{"object":"chat.completion"}`)
	if got := sum(r.seen()[0].Received()); got != sum(body) {
		t.Errorf("the provider got %s, want %s", got, sum(body))
	}

	for name, request := range map[string]string{
		"length": harness.Post(chatPath, body+strings.Repeat(" ", 5<<20)),
		"chunks": "POST " + chatPath + " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
			strings.Repeat("100000\r\n"+strings.Repeat(" ", 1<<20)+"\r\n", 17) + "0\r\n\r\n",
	} {
		a := r.ask(request)
		if a.StatusCode != http.StatusRequestEntityTooLarge || a.Header.Get("Content-Type") != "application/json" ||
			!bytes.Contains(a.Bytes, []byte("16777216")) || !bytes.Contains(a.Bytes, []byte(`"body_too_large"`)) {
			t.Errorf("%s: %d %v %s", name, a.StatusCode, a.Header, a.Bytes)
		}
	}
	if n := len(r.seen()); n != 1 || r.InFlight() != 0 {
		t.Errorf("the provider saw %d requests, %d places are held", n, r.InFlight())
	}
}

// HT-13, from a provider that closes and from one that leaves the upload standing
func TestEarlyAnswerEndsTheUpload(t *testing.T) {
	for name, after := range map[string]func(*fakeprovider.Exchange, <-chan struct{}){
		"closes": func(*fakeprovider.Exchange, <-chan struct{}) {},
		"waits":  func(_ *fakeprovider.Exchange, over <-chan struct{}) { <-over },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			over, answered := make(chan struct{}), make(chan time.Time, 1)
			defer close(over)
			r := newRig(t, func(x *fakeprovider.Exchange) { // the body isn't read
				x.Begin(413, "Content-Type: application/json", "Content-Length: 19")
				x.Print(`{"error":"too big"}`)
				answered <- time.Now()
				after(x, over)
				x.Close()
			}, setup{})
			body := fmt.Sprintf(`{"model":"m","pad":%q}`, strings.Repeat("x", 20<<20))
			a := r.ask(harness.Post(chatPath, body))
			if took := time.Since(await(t, answered, "the provider's answer")); took > limit/2 {
				t.Errorf("the answer took %v", took)
			}
			wantWhole(t, a, 413, `{"error":"too big"}`)
			r.idle() // although the provider has taken nothing of the upload
		})
	}
}

// HT-14
func TestIdleConnectionsThatTheProviderCloses(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(x *fakeprovider.Exchange) {
		x.IdleLimit(5 * time.Millisecond)
		ok(x)
	}, setup{})
	const posts = 500
	failed := 0
	for i := range posts {
		<-time.After(time.Duration(i%8) * time.Millisecond) // around the moment at which the provider closes
		a := r.ask(harness.Post(chatPath, chatBody, fmt.Sprintf("X-Number: %d", i), "Idempotency-Key: k"))
		if a.StatusCode == 200 && a.Cut == nil {
			continue
		}
		failed++
		if a.StatusCode != 502 || !bytes.Contains(a.Bytes, []byte(`"code":"upstream_`)) {
			t.Errorf("post %d: %d %s", i, a.StatusCode, a.Bytes)
		}
	}
	times := map[string]int{}
	for _, x := range r.seen() {
		times[x.Header.Get("X-Number")]++
	}
	for number, n := range times {
		if n > 1 {
			t.Errorf("post %s was executed %d times", number, n)
		}
	}
	if failed > posts/10 { // it would be many, if nobody looked whether a connection is closed
		t.Errorf("%d of %d failed", failed, posts)
	}
}

// HT-16
func TestBasePathIsJoinedOnce(t *testing.T) {
	for _, base := range []string{"", "/", "/v1", "/v1/"} {
		t.Run("base "+base, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, ok, setup{base: base})
			wantWhole(t, r.ask(harness.Post(chatPath+"?x=1%202&y=%2F..;", chatBody)), 200, `{"object":"chat.completion"}`)
			if got := r.seen()[0].Target; got != chatPath+"?x=1%202&y=%2F..;" {
				t.Errorf("the provider got %s", got)
			}
		})
	}
}
