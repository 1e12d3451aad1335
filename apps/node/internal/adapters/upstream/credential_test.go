package upstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/upstream"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

// testKey is a credential that does what a test says.
type testKey struct {
	key   string
	bind  error
	send  func(write func([]byte) error) error // nil: write the key
	bound []string
	sent  int
}

func (k *testKey) Field() (name, prefix string) { return "Authorization", "Bearer " }
func (k *testKey) Bind(origin, method, path string) error {
	k.bound = append(k.bound, origin+" "+method+" "+path)
	return k.bind
}
func (k *testKey) Send(write func([]byte) error) error {
	k.sent++
	if k.send != nil {
		return k.send(write)
	}
	return write([]byte(k.key))
}

func roots(p *fakeprovider.Provider) func(*upstream.Config) {
	return func(c *upstream.Config) { c.RootCAs = p.Roots() }
}

// E36: the key's field is the last of the head, whatever the lengths of head, key and body, and the body is whole.
func TestTheKeyIsLastInTheHead(t *testing.T) {
	p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
	c := client(t, p.URL()+"/v1", roots(p))
	for _, keyLength := range []int{8, 48, 1024, 1025, 4096} {
		for _, pad := range []int{0, 5000, 40_000} {
			for _, body := range []int{0, 13, 100_000, -100_000} { // negative: chunked
				t.Run(fmt.Sprint(keyLength, "/", pad, "/", body), func(t *testing.T) {
					before := len(p.Exchanges())
					key := &testKey{key: strings.Repeat("k", keyLength)}
					text := strings.Repeat("b", max(body, -body))
					req := adaptertest.Post("/v1/chat/completions", text)
					if body < 0 {
						req.ContentLength = -1
					}
					req.Header["X-Pad"] = []string{strings.Repeat("p", pad)}
					req.Credential = key
					if _, err := adaptertest.Do(t, t.Context(), c, req); err != nil {
						t.Fatal(err)
					}
					seen := p.Exchanges()[before:]
					if len(seen) != 1 || string(seen[0].Received()) != text {
						t.Fatalf("%d requests, %d bytes of body", len(seen), len(seen[0].Received()))
					}
					if !bytes.HasSuffix(seen[0].Head, []byte("\r\nAuthorization: Bearer "+key.key+"\r\n\r\n")) {
						t.Errorf("the head ends with %q", seen[0].Head[len(seen[0].Head)-60:])
					}
					if want := p.URL() + " POST /v1/chat/completions"; len(key.bound) != 1 || key.bound[0] != want || key.sent != 1 {
						t.Errorf("bound to %q, sent %d times", key.bound, key.sent)
					}
				})
			}
		}
	}
}

// E18, E16: a credential that refuses, or that isn't opened, sends nothing, and the failure is its own.
func TestARefusedKeySendsNothing(t *testing.T) {
	refused := &execution.Failure{Code: execution.CodeCredentialRefused, NothingSent: true}
	for name, k := range map[string]struct {
		key  testKey
		want execution.Code
	}{
		"bind":       {testKey{bind: refused}, execution.CodeCredentialRefused},
		"send":       {testKey{send: func(func([]byte) error) error { return refused }}, execution.CodeCredentialRefused},
		"not opened": {testKey{send: func(func([]byte) error) error { return nil }}, execution.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
			req := chat()
			req.Credential = &k.key
			_, err := adaptertest.Do(t, t.Context(), client(t, p.URL(), roots(p)), req)
			if code := adaptertest.Code(t, err); code != k.want {
				t.Errorf("ended with %v", err)
			}
			if k.want == execution.CodeCredentialRefused && !errors.Is(err, error(refused)) {
				t.Errorf("ended with %v, which isn't the credential's own", err)
			}
			if k.key.bind != nil && k.key.sent != 0 {
				t.Error("opened after it had refused")
			}
			p.Close()
			if n := len(p.Exchanges()); n != 0 {
				t.Errorf("the provider saw %d requests", n)
			}
		})
	}
}

// A credential is told of a provider without TLS; one that would have it isn't asked for its key.
func TestNoKeyInPlain(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "application/json", "{}"))
	key := &testKey{key: "sk-canary"}
	req := chat()
	req.Credential = key
	_, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), req)
	if adaptertest.Code(t, err) != execution.CodeCredentialRefused || key.sent != 0 || len(key.bound) != 1 {
		t.Errorf("%v; sent %d times, bound %q", err, key.sent, key.bound)
	}
	if opened, _ := p.Connections(); opened != 0 {
		t.Errorf("%d connections", opened)
	}
}

// A request that is cancelled while its key is about to be written ends with the cancel's cause, and without the key.
func TestCancelBeforeTheKeyIsWritten(t *testing.T) {
	p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
	ctx, cancel := context.WithCancelCause(t.Context())
	req := chat()
	var wrote error
	req.Credential = &testKey{send: func(write func([]byte) error) error {
		cancel(execution.CauseAPI)
		for wrote == nil { // until the connection is gone
			wrote = write([]byte("k"))
		}
		return wrote
	}}
	_, err := adaptertest.Do(t, ctx, client(t, p.URL(), roots(p)), req)
	if err != error(execution.CauseAPI) || wrote == nil {
		t.Errorf("ended with %v", err)
	}
}

// The writes are those that leave nothing behind: the head without the key, then pieces of the key that are no longer
// than it and fit in one record, then the rest.
func TestAKeyIsWrittenInShortPieces(t *testing.T) {
	p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
	r := newRelay(t, p.Addr())
	for _, k := range []struct{ pad, key int }{{0, 48}, {0, 4096}, {900, 4096}, {5000, 4096}} {
		req := chat()
		req.Header["X-Pad"] = []string{strings.Repeat("p", k.pad)}
		req.Credential = &testKey{key: strings.Repeat("k", k.key)}
		c := client(t, "https://"+r.addr, roots(p))
		if _, err := adaptertest.Do(t, t.Context(), c, req); err != nil {
			t.Fatal(err)
		}
		c.Close()
		head := len(p.Exchanges()[len(p.Exchanges())-1].Head) - k.key - len("\r\n\r\n")
		got := r.records()
		for sum := 0; sum < head; got = got[1:] { // the head may take several records
			sum += got[0]
		}
		pieces := got[:len(got)-1]
		sum := 0
		for _, n := range pieces {
			sum += n
			if n > min(head, 1024) {
				t.Errorf("head of %d, key of %d: a piece of %d", head, k.key, n)
			}
		}
		if sum != k.key || got[len(got)-1] != len("\r\n\r\n")+len(`{"model":"m"}`) {
			t.Errorf("head of %d, key of %d: records of %v after the head", head, k.key, got)
		}
	}
}

// relay passes connections on to a provider and keeps what clients sent.
type relay struct {
	addr string
	mu   sync.Mutex
	sent bytes.Buffer // of the last connection
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: l.Addr().String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.pass(c, to) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return r
}

func (r *relay) pass(c net.Conn, to string) {
	defer c.Close()
	p, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.sent.Reset()
	r.mu.Unlock()
	answered := make(chan struct{})
	go func() { // ends with the provider's end, which follows the client's
		defer close(answered)
		_, _ = io.Copy(c, p)
	}()
	_, _ = io.Copy(io.MultiWriter(r, p), c)
	_ = p.Close()
	<-answered
}

// Write implements io.Writer for what a client sent.
func (r *relay) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent.Write(b)
}

// records returns the lengths of what TLS 1.3 carried in each record of the last connection, after the handshake.
func (r *relay) records() (lengths []int) {
	const header, application, overhead = 5, 23, 1 + 16
	r.mu.Lock()
	defer r.mu.Unlock()
	for b := r.sent.Bytes(); len(b) >= header; {
		n := int(b[3])<<8 | int(b[4])
		if b[0] == application {
			lengths = append(lengths, n-overhead)
		}
		b = b[min(header+n, len(b)):]
	}
	return lengths[1:] // the first is the handshake's end
}

// The answer to a request with a key is asked for as it is, whatever the caller takes: the edge has to search it. (found by attack)
func TestAnAnswerWithAKeyIsNotCompressed(t *testing.T) {
	p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
	req := chat()
	req.Header["Accept-Encoding"], req.Header["accept-encoding"] = []string{"gzip", "br"}, []string{"deflate"}
	req.Credential = &testKey{key: "sk-canary"}
	if _, err := adaptertest.Do(t, t.Context(), client(t, p.URL(), roots(p)), req); err != nil {
		t.Fatal(err)
	}
	if got := p.Exchanges()[0].Header["Accept-Encoding"]; len(got) != 1 || got[0] != "identity" {
		t.Errorf("asked for %q", got)
	}
}

// E36: a caller's own key doesn't go along in the query, nor in a field that some servers take for the key's. (found by attack)
func TestNoKeyOfTheCallersGoesAlong(t *testing.T) {
	p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
	c := client(t, p.URL(), roots(p))
	key := &testKey{key: "sk-canary"}
	req := chat()
	req.Query, req.Credential = "alt=sse&%6Bey=callers", key
	if _, err := adaptertest.Do(t, t.Context(), c, req); adaptertest.Code(t, err) != execution.CodeBadRequest || len(key.bound) != 0 {
		t.Errorf("ended with %v, bound %d times", err, len(key.bound))
	}
	req = chat()
	req.Query, req.Credential = "alt=sse", key
	for _, name := range []string{"X_Api_Key", "x-Api_key", "Ocp-Apim-Subscription-Key", "x-litellm-API-key"} {
		req.Header[name] = []string{"callers"}
	}
	if _, err := adaptertest.Do(t, t.Context(), c, req); err != nil {
		t.Fatal(err)
	}
	if seen := p.Exchanges(); len(seen) != 1 || bytes.Contains(seen[0].Head, []byte("callers")) {
		t.Errorf("%d requests, the last with %q", len(seen), seen[0].Head)
	}
}
