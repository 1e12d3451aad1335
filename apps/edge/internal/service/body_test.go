package service

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// watched is a body that knows whether it may still be read.
type watched struct {
	*bytes.Reader
	over  atomic.Bool
	after atomic.Int64 // reads after the run's end
}

func (b *watched) ReadAt(p []byte, off int64) (int, error) {
	if b.over.Load() {
		b.after.Add(1)
	}
	return b.Reader.ReadAt(p, off)
}

func random(n int) []byte {
	p := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(p)
	return p
}

// Bodies of every size arrive whole, those that the driver writes and those that have a goroutine of their own.
func TestRequestBodies(t *testing.T) {
	for _, size := range []int{0, 1, transport.MaxBody - 1, transport.MaxBody, transport.MaxBody + 1, oneFlush, inlineBody, inlineBody + 1, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			var got [sha256.Size]byte
			r := newRig(t, setup{work: func(w *work) {
				w.accept()
				got = sha256.Sum256(w.input())
				w.head(200)
				w.end(0)
			}})
			tunnel, body := r.tunnel("run-1", ""), random(size)
			if size > 0 {
				tunnel.Body = bytes.NewReader(body)
			}
			o, _ := r.run(tunnel)
			n := r.node("a", 1)
			n.await("open", func() bool { return len(n.opens) == 1 })
			if !o.OK() || o.BytesIn != int64(size) || got != sha256.Sum256(body) || n.opens[0].GetTunnel().GetContentLength() != int64(size) {
				t.Errorf("%+v, content_length %d", o, n.opens[0].GetTunnel().GetContentLength())
			}
			r.idle()
		})
	}
}

// HT-13: the provider answers before it has read a big upload. The answer reaches the caller, nobody reads the body
// afterwards, and the place is free.
func TestEarlyAnswer(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		r := newRig(t, setup{work: func(w *work) {
			w.accept()
			w.head(413)
			w.body("too much")
			w.end(8)
		}})
		tunnel, body := r.tunnel("run-1", ""), &watched{Reader: bytes.NewReader(random(20 << 20))}
		tunnel.Body = body
		since := time.Now()
		o, c := r.run(tunnel)
		body.over.Store(true)
		if !o.OK() || o.Status != 413 || c.text() != "too much" {
			t.Errorf("%+v, %q", o, c.text())
		}
		if took := time.Since(since); took > 0 {
			t.Errorf("it took %v", took)
		}
		r.idle()
		if n := body.after.Load(); n != 0 {
			t.Errorf("the body was read %d times after the run's end", n)
		}
	})
}

// protocol.md 3.4 row 3: a big body is refused while it is being written. The writer ends, and the next attempt sends
// the whole body from its beginning.
func TestRefusedWhileSending(t *testing.T) {
	var got [sha256.Size]byte
	r := newRig(t, setup{nodes: []string{"a", "b"}, work: func(w *work) {
		if w.attempt == 1 {
			w.reject(execution.CodeAdapterBusy, true)
			return
		}
		w.accept()
		got = sha256.Sum256(w.input())
		w.head(200)
		w.end(0)
	}})
	tunnel, body := r.tunnel("run-1", ""), random(8<<20)
	tunnel.Body = bytes.NewReader(body)
	if o, _ := r.run(tunnel); !o.OK() || o.Attempts != 2 || got != sha256.Sum256(body) {
		t.Errorf("%+v", o)
	}
	r.idle()
}

// The caller leaves while its big body is being written to a node that doesn't read.
func TestCallerLeavesWhileSending(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		proceed := make(chan struct{})
		r := newRig(t, setup{work: func(w *work) { w.accept(); <-proceed }})
		tunnel, body := r.tunnel("run-1", ""), &watched{Reader: bytes.NewReader(random(8 << 20))}
		tunnel.Body = body
		p := r.submit(tunnel, &recorder{})
		untilAccepted(r, p)
		since := time.Now()
		p.leave()
		o := r.outcome(p)
		body.over.Store(true)
		if took := time.Since(since); code(o) != execution.CodeClientGone || took > 0 {
			t.Errorf("%v after %v", o.Failure, took)
		}
		close(proceed)
		r.idle()
		if n := body.after.Load(); n != 0 {
			t.Errorf("the body was read %d times after the run's end", n)
		}
	})
}

// slowBody takes its time in one read.
type slowBody struct {
	*bytes.Reader
	reading, proceed chan struct{}
	once             sync.Once
}

func (b *slowBody) ReadAt(p []byte, off int64) (int, error) {
	b.once.Do(func() { close(b.reading); <-b.proceed })
	return b.Reader.ReadAt(p, off)
}

// The body belongs to the caller of SubmitProviderTunnel again when it returns, so it doesn't return while the body is
// being read.
func TestOutcomeWaitsForTheBody(t *testing.T) {
	r := newRig(t, setup{work: func(w *work) { w.reject(execution.CodeBadRequest, true) }})
	tunnel := r.tunnel("run-1", "")
	body := &slowBody{Reader: bytes.NewReader(random(2 * inlineBody)), reading: make(chan struct{}), proceed: make(chan struct{})}
	tunnel.Body = body
	p := r.submit(tunnel, &recorder{})
	<-body.reading
	select {
	case o := <-p.done:
		t.Errorf("%v while the body is being read", o.Failure)
	case <-time.After(short):
	}
	close(body.proceed)
	if o := r.outcome(p); code(o) != execution.CodeBadRequest {
		t.Errorf("%v", o.Failure)
	}
	r.idle()
}

// brokenBody can't be read back from some offset on.
type brokenBody struct {
	*bytes.Reader
	from  int64
	panic bool
}

func (b *brokenBody) ReadAt(p []byte, off int64) (int, error) {
	if off < b.from {
		return b.Reader.ReadAt(p, off)
	}
	if b.panic {
		panic("a bug")
	}
	return 0, errors.New("a disk's own words")
}

// A body that can't be read back is the edge's failure, and its reason stays inside.
func TestBrokenBody(t *testing.T) {
	for _, size := range []int{40_000, 2 * inlineBody} {
		for _, bug := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d panic %v", size, bug), func(t *testing.T) {
				r := newRig(t, setup{work: func(w *work) { w.accept(); w.input() }})
				tunnel := r.tunnel("run-1", "")
				tunnel.Body = &brokenBody{Reader: bytes.NewReader(random(size)), from: 20_000, panic: bug}
				o, _ := r.run(tunnel)
				if code(o) != execution.CodeInternal || o.Failure.Origin != execution.OriginEdge || strings.Contains(o.Failure.Text, "disk") {
					t.Errorf("%v", o.Failure)
				}
				if cause := r.node("a", 1).awaitCancel("run-1"); cause != pb.CancelCause_CANCEL_CAUSE_API {
					t.Errorf("the node was told %v", cause)
				}
				r.idle()
			})
		}
	}
}

// A head that no message can carry is the caller's fault, and costs nothing.
func TestHeadTooLargeForTheWire(t *testing.T) {
	r := newRig(t, setup{work: func(w *work) { w.answer("x") }})
	tunnel := r.tunnel("run-1", "body")
	tunnel.Header.Set("X-Big", strings.Repeat("x", transport.MaxOpen))
	o, _ := r.run(tunnel)
	if code(o) != execution.CodeBadRequest || o.Failure.Origin != execution.OriginCaller || r.node("a", 1).openCount() != 0 {
		t.Errorf("%v", o.Failure)
	}
	r.idle()
	if o, _ := r.run(r.tunnel("run-2", "")); !o.OK() {
		t.Error(o.Failure)
	}
}

// What the node is asked for is what the caller and the configuration said.
func TestOpenSaysEverything(t *testing.T) {
	r := newRig(t, setup{route: ", first_byte: 7s, idle: 3s, deadline: 60s", work: func(w *work) { w.answer("x") }})
	tunnel := r.tunnel("run-1", "body")
	tunnel.Query, tunnel.SessionID, tunnel.Deadline = "a=1%202", "s-1", 30*time.Second
	tunnel.Header = map[string][]string{"Accept": {"a", "b"}, "X-Obs": {"\xff\x00"}}
	if o, _ := r.run(tunnel); !o.OK() {
		t.Fatal(o.Failure)
	}
	open := r.node("a", 1).opens[0]
	got := open.GetTunnel()
	slices.SortFunc(got.Headers, func(a, b *pb.Header) int {
		return strings.Compare(a.Name+string(a.Value), b.Name+string(b.Value))
	})
	if d := got.DeadlineMs; d <= 0 || d > 30_000 {
		t.Errorf("deadline_ms %d", d)
	}
	got.DeadlineMs = 0
	want := &pb.WorkOpen{ConnectionGeneration: 1, Attempt: 1, Work: &pb.WorkOpen_Tunnel{Tunnel: &pb.ProviderTunnelRequest{
		RunId: "run-1", Adapter: "p", Method: "POST", Path: "/v1/chat/completions", Query: "a=1%202",
		Headers: []*pb.Header{
			{Name: "Accept", Value: []byte("a")}, {Name: "Accept", Value: []byte("b")}, {Name: "X-Obs", Value: []byte("\xff\x00")},
		},
		ContentLength: 4, AdapterRevision: 1, FirstByteMs: 7000, IdleMs: 3000, Target: "p", SessionId: "s-1", Route: "m",
		PrincipalRef: "anonymous",
	}}}
	if diff := cmp.Diff(want, open, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// Response headers keep their values, their order under a name, and bytes that aren't UTF-8.
func TestResponseHead(t *testing.T) {
	r := newRig(t, setup{work: func(w *work) {
		w.accept()
		w.head(206, &pb.Header{Name: "set-cookie", Value: []byte("a")}, &pb.Header{Name: "X-One", Value: []byte("\xe9")},
			&pb.Header{Name: "Set-Cookie", Value: []byte("b")})
		w.end(0)
	}})
	o, c := r.run(r.tunnel("run-1", ""))
	if !o.OK() || c.status != 206 || !slices.Equal(c.header["Set-Cookie"], []string{"a", "b"}) || c.header.Get("X-One") != "\xe9" {
		t.Errorf("%+v, header %q", o, c.header)
	}
	r.idle()
}

// Pieces that are at hand together are flushed together, and a piece with nothing behind it at once.
func TestFlushes(t *testing.T) {
	body := func(p string) *pb.ProviderTunnelFrame {
		return &pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Body{Body: []byte(p)}}
	}
	head := &pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Head{Head: &pb.TunnelHead{Status: 200}}}
	usage := &pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Usage{Usage: &pb.Usage{}}}
	failure := &pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Error{Error: &pb.Failure{Code: pb.FailureCode_FAILURE_CODE_UPSTREAM_TRUNCATED}}}
	for _, c := range []struct {
		name  string
		burst []*pb.ProviderTunnelFrame
		then  func(w *work)
		code  execution.Code
		reach int // bytes that must be with the caller before then
	}{
		{name: "a piece alone", burst: []*pb.ProviderTunnelFrame{head, body("a")}, then: func(w *work) { w.end(1) }, reach: 1},
		{name: "many at once", burst: []*pb.ProviderTunnelFrame{head, body("a"), body("b"), body("c")}, then: func(w *work) { w.end(3) }, reach: 3},
		{name: "usage behind the last", burst: []*pb.ProviderTunnelFrame{head, body("a"), usage}, then: func(w *work) { w.end(1) }, reach: 1},
		// ST-12, ST-13: what came before the failure belongs to the caller.
		{name: "failure behind the last", burst: []*pb.ProviderTunnelFrame{head, body("a"), failure}, code: execution.CodeUpstreamTruncated, reach: 1},
		{name: "failure behind the head", burst: []*pb.ProviderTunnelFrame{head, failure}, code: execution.CodeUpstreamTruncated},
	} {
		t.Run(c.name, func(t *testing.T) {
			onFakeTime(t, func(t *testing.T) { // a piece isn't held back for long
				proceed := make(chan struct{})
				r := newRig(t, setup{work: func(w *work) {
					w.accept()
					w.together(c.burst...)
					if c.then != nil {
						<-proceed
						c.then(w)
					}
				}})
				sink := &recorder{}
				p := r.submit(r.tunnel("run-1", ""), sink)
				if c.then != nil {
					r.poll("everything is flushed", func() bool { return sink.flushed() == c.reach })
					close(proceed)
				}
				o := r.outcome(p)
				if code(o) != c.code || sink.flushed() != c.reach || len(sink.flushes) == 0 {
					t.Errorf("%v, flushes %v", o.Failure, sink.flushes)
				}
				if c.name == "many at once" && len(sink.flushes) > 2 {
					t.Errorf("flushes %v: the pieces were at hand together", sink.flushes)
				}
				r.idle()
			})
		})
	}
}

// flushed returns how many bytes were flushed.
func (c *recorder) flushed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.flushes) == 0 {
		return 0
	}
	return c.flushes[len(c.flushes)-1]
}

// CP-16: each of many parallel runs sees its own mark and nobody else's, in header, body and usage.
func TestNothingIsMixedUp(t *testing.T) {
	runs := 500
	if testing.Short() {
		runs = 100
	}
	r := newRig(t, setup{nodes: []string{"a", "b"}, capacity: 64, route: ", queue: {depth: 1000}", work: func(w *work) {
		w.accept()
		mark := w.input()
		w.head(200, &pb.Header{Name: "X-Mark", Value: mark})
		for _, b := range mark {
			w.body(string(b))
		}
		w.usage(int64(len(mark)), int64(mark[0]))
		w.end(int64(len(mark)))
	}})
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() {
			mark := strings.Repeat(string(rune('a'+i%26)), 1+i%40) + fmt.Sprint(i)
			o, c := r.run(r.tunnel(fmt.Sprintf("run-%d", i), mark))
			if !o.OK() || c.text() != mark || c.header.Get("X-Mark") != mark || *o.Usage.Input != int64(len(mark)) || *o.Usage.Output != int64(mark[0]) {
				t.Errorf("run %d: %v, %q, %q", i, o.Failure, c.text(), mark)
			}
		})
	}
	wg.Wait()
	r.idle()
}

// A big response arrives byte for byte.
func TestBigResponse(t *testing.T) {
	data := random(5<<20 + 17)
	r := newRig(t, setup{work: func(w *work) {
		w.accept()
		w.head(200)
		for p := data; len(p) > 0; {
			n := min(len(p), transport.MaxBody)
			w.body(string(p[:n]))
			p = p[n:]
		}
		w.end(int64(len(data)))
	}})
	h := sha256.New()
	c := &recorder{onBody: func(p []byte) error { _, err := h.Write(p); return err }}
	o := r.outcome(r.submit(r.tunnel("run-1", ""), c))
	if want := sha256.Sum256(data); !o.OK() || o.BytesOut != int64(len(data)) || !bytes.Equal(h.Sum(nil), want[:]) {
		t.Errorf("%+v", o)
	}
	r.idle()
}
