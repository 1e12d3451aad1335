package upstream_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// body is a request body that counts what happens to it.
type body struct {
	io.Reader
	closed atomic.Int32
}

func (b *body) Close() error {
	b.closed.Add(1)
	return nil
}

func upload(r io.Reader, length int64) (*execution.TunnelRequest, *body) {
	b := &body{Reader: r}
	req := adaptertest.Post("/v1/chat/completions", "")
	req.Body, req.ContentLength = b, length
	return req, b
}

func junk(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(uint64(n), 9))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// HT-08, HT-09, HT-10: the body arrives as it was, with its one length, whatever its size.
func TestRequestBodies(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "ok"))
	c := client(t, p.URL())
	for _, n := range []int{0, 1, 4096, 16 << 10, 32<<10 - 200, 32 << 10, 32<<10 + 1, 100_000, 12 << 20} {
		for _, known := range []bool{true, false} {
			want, length := junk(n), int64(n)
			if !known {
				length = -1
			}
			req, b := upload(bytes.NewReader(want), length)
			if _, err := adaptertest.Do(t, t.Context(), c, req); err != nil {
				t.Fatalf("%d bytes, length known %v: %v", n, known, err)
			}
			got := p.Exchanges()
			x := got[len(got)-1]
			if sha256.Sum256(x.Received()) != sha256.Sum256(want) {
				t.Errorf("%d bytes, length known %v: another body arrived", n, known)
			}
			if len(x.Header["Content-Length"]) == 1 != known || strings.Contains(string(x.Head), "chunked") == known {
				t.Errorf("%d bytes, length known %v: framing %q", n, known, x.Head)
			}
			if b.closed.Load() != 1 {
				t.Errorf("body closed %d times", b.closed.Load())
			}
		}
	}
}

func TestRequestBodyInSmallPieces(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "ok"))
	want := junk(100_000)
	for _, length := range []int64{int64(len(want)), -1} {
		req, _ := upload(oneByOne{bytes.NewReader(want)}, length)
		if _, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), req); err != nil {
			t.Fatal(err)
		}
		if got := p.Exchanges(); !bytes.Equal(got[len(got)-1].Received(), want) {
			t.Error("another body arrived")
		}
	}
}

// oneByOne reads a few bytes at a time.
type oneByOne struct{ io.Reader }

func (r oneByOne) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), 97)]) }

// endless is a body that never ends until it is closed.
type endless struct{ closed chan struct{} }

func (e *endless) Read(p []byte) (int, error) {
	select {
	case <-e.closed:
		return 0, errors.New("closed")
	default:
		return len(p), nil
	}
}

func (e *endless) Close() error {
	close(e.closed)
	return nil
}

// stuck is a body of which nothing comes any more.
type stuck struct {
	first  io.Reader
	closed chan struct{}
}

func (s *stuck) Read(p []byte) (int, error) {
	if n, _ := s.first.Read(p); n > 0 {
		return n, nil
	}
	<-s.closed
	return 0, errors.New("closed")
}

func (s *stuck) Close() error {
	close(s.closed)
	return nil
}

// HT-13: an answer before the body was read, on connections that the provider then closes or leaves unread.
func TestEarlyAnswer(t *testing.T) {
	answers := map[string]fakeprovider.Script{
		"and close": func(x *fakeprovider.Exchange) {
			x.Begin(413, "Content-Length: 9", "Connection: close")
			x.Print("too large")
			x.Close()
		},
		"and leave": func(x *fakeprovider.Exchange) {
			x.Begin(413, "Content-Length: 9")
			x.Print("too large")
			x.ReadBody(-1) // until the node closes
			x.Close()
		},
		"after some": func(x *fakeprovider.Exchange) {
			x.ReadBody(1 << 20)
			x.Begin(413, "Content-Length: 9")
			x.Print("too large")
			x.Close()
		},
	}
	for name, script := range answers {
		t.Run(name, func(t *testing.T) {
			p := fakeprovider.New(t, script)
			req := adaptertest.Post("/v1/chat/completions", "")
			req.Body, req.ContentLength = &endless{make(chan struct{})}, 1<<40
			r, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), withTimers(req, patience.Limit, patience.Limit)) // neither is waited for
			if err != nil || r.Status() != 413 || string(r.Bytes()) != "too large" {
				t.Errorf("%v, %d %q", err, r.Status(), r.Bytes())
			}
		})
	}
}

// The limit on the answer's head ends with the head, also when the request's last byte leaves after it.
func TestEarlyStreamOutlivesTheFirstByteLimit(t *testing.T) {
	patience.Widen(t, 100*time.Millisecond, func(limit time.Duration) bool {
		p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
			x.BeginStream(200, "text/event-stream")
			x.Chunk("data: 1\n\n")
			x.Body()
			if x.Pause(3 * limit) {
				x.Chunk("data: 2\n\n")
				x.EndChunks()
			}
		})
		req, _ := upload(bytes.NewReader(junk(4<<20)), 4<<20)
		_, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), withTimers(req, limit, 0))
		t.Log(err)
		return err == nil
	})
}

// A provider that closes under a request and says nothing: not nothing_sent, never sent again.
func TestProviderStopsTakingTheRequest(t *testing.T) {
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
		x.ReadBody(1 << 20)
		x.Close()
	})
	req := adaptertest.Post("/v1/chat/completions", "")
	req.Body, req.ContentLength = &endless{make(chan struct{})}, 1<<40
	_, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), req)
	if f := failure(t, err); f.Code != execution.CodeUpstreamTruncated || f.NothingSent {
		t.Errorf("%+v", f)
	}
	if n := len(p.Exchanges()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// A provider that accepts and never reads doesn't hold the request for ever.
func TestProviderThatNeverReads(t *testing.T) {
	hold := make(chan struct{})
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) { <-hold; x.Close() })
	defer close(hold)
	req := adaptertest.Post("/v1/chat/completions", "")
	req.Body, req.ContentLength = &endless{make(chan struct{})}, 1<<40
	_, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), withTimers(req, 200*time.Millisecond, 0))
	if f := failure(t, err); f.Code != execution.CodeFirstByteTimeout || f.NothingSent {
		t.Errorf("%+v", f)
	}
}

// The request's own body ends early or fails: the provider doesn't get a request that looks whole.
func TestRequestBodyThatFails(t *testing.T) {
	overload := execution.Failf(execution.CodeProtocol, execution.OriginEdge, "out of order")
	cases := map[string]struct {
		length int64
		body   io.Reader
		code   execution.Code
		sent   bool
	}{
		"small, short":   {10, strings.NewReader("abc"), execution.CodeBadRequest, false},
		"small, failing": {10, io.MultiReader(strings.NewReader("abc"), failing{overload}), execution.CodeProtocol, false},
		"large, short":   {1 << 20, bytes.NewReader(junk(100_000)), execution.CodeBadRequest, true},
		"large, failing": {1 << 20, io.MultiReader(bytes.NewReader(junk(100_000)), failing{overload}), execution.CodeProtocol, true},
		"chunked, error": {-1, io.MultiReader(bytes.NewReader(junk(100_000)), failing{errors.New("x")}), execution.CodeInternal, true},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			whole := make(chan bool, 1)
			p := fakeprovider.New(t, func(x *fakeprovider.Exchange) { x.Body(); whole <- x.Whole(); x.Close() })
			req, b := upload(k.body, k.length)
			_, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), req)
			f := failure(t, err)
			if f.Code != k.code || f.NothingSent == k.sent {
				t.Errorf("%+v", f)
			}
			if k.code == execution.CodeBadRequest && !strings.Contains(f.Text, " of ") {
				t.Errorf("text %q has no numbers", f.Text)
			}
			if k.sent {
				if <-whole {
					t.Error("provider took the request for whole")
				}
			} else if opened, _ := p.Connections(); opened != 0 {
				t.Error("a connection was made")
			}
			if b.closed.Load() != 1 {
				t.Errorf("body closed %d times", b.closed.Load())
			}
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// Cancel wakes the exchange wherever it is.
func TestCancelWhileTheRequestIsSent(t *testing.T) {
	hold := make(chan struct{})
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) { <-hold; x.Close() })
	defer close(hold)
	bodies := map[string]func() (io.ReadCloser, int64){
		"nothing of a small body": func() (io.ReadCloser, int64) {
			return &stuck{strings.NewReader(""), make(chan struct{})}, 10
		},
		"part of a large body": func() (io.ReadCloser, int64) {
			return &stuck{bytes.NewReader(junk(64 << 10)), make(chan struct{})}, 1 << 20
		},
		"provider doesn't read": func() (io.ReadCloser, int64) { return &endless{make(chan struct{})}, 1 << 40 },
	}
	for name, make := range bodies {
		t.Run(name, func(t *testing.T) {
			req := adaptertest.Post("/v1/chat/completions", "")
			req.Body, req.ContentLength = make()
			ctx, cancel := context.WithCancelCause(t.Context())
			timer := time.AfterFunc(50*time.Millisecond, func() { cancel(execution.CauseClientGone) })
			defer timer.Stop()
			if _, err := adaptertest.Do(t, ctx, client(t, p.URL()), req); err != execution.CauseClientGone {
				t.Error(err)
			}
		})
	}
}

func TestCancelledBeforeItBegan(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "ok"))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(execution.CauseDeadline)
	req, b := upload(strings.NewReader("{}"), 2)
	if _, err := adaptertest.Do(t, ctx, client(t, p.URL()), req); err != execution.CauseDeadline {
		t.Error(err)
	}
	if opened, _ := p.Connections(); opened != 0 || b.closed.Load() != 1 {
		t.Error(opened, b.closed.Load())
	}
}
