package httpapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
)

// pipes is a listener whose connections are pipes: they have deadlines, but no buffers, and live on fake time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// onFakeTime serves a handler over one pipe inside a synctest bubble.
func onFakeTime(t *testing.T, test func(t *testing.T, g *rig, c *caller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newHandler(t, open(), nil)
		l := &pipes{conns: make(chan net.Conn, 1), done: make(chan struct{})}
		server := NewServer(ServerConfig{Handler: g.handler, Log: zerolog.New(g.log)})
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()
		ours, theirs := net.Pipe()
		l.conns <- theirs
		test(t, g, &caller{t: t, Conn: ours, r: bufio.NewReader(ours)})
		_ = ours.Close()
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
		time.Sleep(time.Second) // net/http waits a moment before it closes a connection whose request it didn't read
	})
}

func within(t *testing.T, since time.Time, least, most time.Duration) {
	t.Helper()
	if took := time.Since(since); took < least || took > most {
		t.Errorf("took %v, want %v to %v", took, least, most)
	}
}

func TestSlowHeadIsCut(t *testing.T) {
	onFakeTime(t, func(t *testing.T, _ *rig, c *caller) {
		start, done := time.Now(), make(chan struct{})
		go func() {
			defer close(done)
			for _, b := range []byte("POST /v1/chat/completions HTTP/1.1\r\n") {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		_, err := io.ReadAll(c.r)
		within(t, start, 10*time.Second, 11*time.Second)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("the connection ended with %v", err)
		}
		<-done
	})
}

// A body may pause, and it may come slowly; neither for long.
func TestSlowBodyIsCut(t *testing.T) {
	for name, tt := range map[string]struct {
		first, piece int           // bytes
		every        time.Duration // between pieces
		pieces       int
		text         string
		after        time.Duration // of the last piece
	}{
		"pause":             {1 << 20, 100, 50 * time.Second, 15, "nothing of it came for 1m0s", 60 * time.Second},
		"trickle":           {1, 100, time.Second, 30, "slower than 1024 bytes a second", 0},
		"nothing":           {0, 0, 0, 0, "slower than 1024 bytes a second", 30 * time.Second},
		"runs out of speed": {40 << 10, 100, time.Second, 43, "slower than 1024 bytes a second", 0},
	} {
		t.Run(name, func(t *testing.T) {
			onFakeTime(t, func(t *testing.T, g *rig, c *caller) {
				c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\n" + strings.Repeat(" ", tt.first))
				for range tt.pieces {
					time.Sleep(tt.every)
					c.send(strings.Repeat(" ", tt.piece))
				}
				start := time.Now()
				resp, body := c.response()
				if message := wantError(t, resp, body, 408, "client_slow"); !strings.Contains(message, tt.text) {
					t.Error(message)
				}
				within(t, start, tt.after, tt.after+2*time.Second)
				if len(g.tunnels()) != 0 || g.handler.BodyBytes() != 0 {
					t.Error("it took part in something")
				}
			})
		})
	}
}

// A body that comes just as fast as it must is taken, however long that takes.
func TestSteadyBodyIsTaken(t *testing.T) {
	onFakeTime(t, func(t *testing.T, g *rig, c *caller) {
		text := small + strings.Repeat(" ", 300<<10)
		c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + itoa(len(text)) + "\r\n\r\n")
		for len(text) > 0 {
			time.Sleep(time.Second)
			n := min(len(text), 1100)
			c.send(text[:n])
			text = text[n:]
		}
		if resp, body := c.response(); resp.StatusCode != 200 {
			t.Errorf("%s %s", resp.Status, body)
		}
	})
}

// Who is refused by its head doesn't get to keep the connection by never sending the body, and learns why.
func TestRefusedWithoutBody(t *testing.T) {
	for _, request := range []string{"POST /v1/nothing", "GET /v1/models", "PUT /v1/models"} {
		onFakeTime(t, func(t *testing.T, _ *rig, c *caller) {
			start := time.Now()
			c.send(request + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
			resp, _ := c.response()
			if !resp.Close {
				t.Errorf("%s: the connection is kept though its next request can't be found", resp.Status)
			}
			within(t, start, 0, 6*time.Second)
			if _, err := c.r.ReadByte(); err == nil {
				t.Error("something came")
			}
			within(t, start, 0, 12*time.Second)
		})
	}
}

// ST-16: a generation may take as long as it takes, and so may a pause in it.
func TestLongGenerationIsNotCut(t *testing.T) {
	long := func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
		err := sink.Head(200, http.Header{"Content-Type": {"text/event-stream"}})
		for i := range 40 {
			time.Sleep(time.Duration(5+10*i) * time.Second) // up to six minutes of nothing
			err = errors.Join(err, sink.Body([]byte("data: x\n\n"), true))
		}
		err = errors.Join(err, sink.End())
		return &service.Outcome{HeadSent: true, Failure: execution.AsFailure(err, execution.OriginEdge)}
	}
	onFakeTime(t, func(t *testing.T, g *rig, c *caller) {
		g.answer(long)
		for range 2 { // the connection's second response isn't cut by the first one's limit
			c.post("", small)
			if resp, body := c.response(); resp.StatusCode != 200 || body != strings.Repeat("data: x\n\n", 40) {
				t.Errorf("%s, %d bytes", resp.Status, len(body))
			}
			time.Sleep(90 * time.Second)
		}
		if server := NewServer(ServerConfig{Handler: g.handler}); server.WriteTimeout != 0 || server.ReadTimeout != 0 {
			t.Error("a limit on whole requests or responses")
		}
	})
}

// E42: a caller that stops taking is client_slow after the limit of one write, in the sink's word and in the run's cause;
// net/http alone would call it gone.
func TestSlowCallerIsCut(t *testing.T) {
	type end struct {
		err   error
		cause error
	}
	onFakeTime(t, func(t *testing.T, g *rig, c *caller) {
		ended := make(chan end, 1)
		g.answer(func(ctx context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
			err := sink.Head(200, http.Header{})
			for err == nil {
				err = sink.Body(make([]byte, 1<<10), true)
				time.Sleep(time.Second)
			}
			<-ctx.Done()
			ended <- end{err, context.Cause(ctx)}
			return &service.Outcome{HeadSent: true, Failure: execution.AsFailure(err, execution.OriginEdge)}
		})
		c.post("", small)
		c.head()
		start := time.Now()
		got := <-ended
		within(t, start, 58*time.Second, 63*time.Second)
		var f *execution.Failure
		if !errors.As(got.err, &f) || f.Code != execution.CodeClientSlow || got.cause != execution.CauseClientSlow {
			t.Errorf("sink: %v, cause: %v", got.err, got.cause)
		}
	})
}

// A caller that leaves during the response is client_gone.
func TestCallerGoneWhileStreaming(t *testing.T) {
	onFakeTime(t, func(t *testing.T, g *rig, c *caller) {
		causes := make(chan error, 2)
		g.answer(func(ctx context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
			err := sink.Head(200, http.Header{})
			for err == nil {
				err = sink.Body([]byte("data: x\n\n"), true)
				time.Sleep(100 * time.Millisecond)
			}
			causes <- err
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return &service.Outcome{HeadSent: true, Failure: execution.AsFailure(err, execution.OriginEdge)}
		})
		c.post("", small)
		c.head()
		left := time.Now()
		_ = c.Close()
		var f *execution.Failure
		if err := <-causes; !errors.As(err, &f) || f.Code != execution.CodeClientGone {
			t.Errorf("sink: %v", err)
		}
		if cause := <-causes; cause != execution.CauseClientGone {
			t.Errorf("cause: %v", cause)
		}
		within(t, left, 0, time.Second)
	})
}

// A caller that leaves with its whole answer doesn't wait for the node's last word, and the run doesn't for ever.
func TestCallerGoneWithTheWholeAnswer(t *testing.T) {
	onFakeTime(t, func(t *testing.T, g *rig, c *caller) {
		cause := make(chan error, 1)
		g.answer(func(ctx context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
			if err := errors.Join(sink.Head(200, http.Header{"Content-Length": {"2"}}), sink.Body([]byte("ok"), true)); err != nil {
				t.Error(err)
			}
			<-ctx.Done() // no last word comes
			cause <- context.Cause(ctx)
			return &service.Outcome{HeadSent: true}
		})
		c.post("", small)
		c.response()
		left := time.Now()
		_ = c.Close()
		if got := <-cause; got != execution.CauseClientGone {
			t.Errorf("cause %v", got)
		}
		within(t, left, lastWord, lastWord+time.Second)
	})
}

// A caller that leaves in the middle of its body gets no answer and is no bad request.
func TestCallerGoneWhileSending(t *testing.T) {
	onFakeTime(t, func(t *testing.T, g *rig, c *caller) {
		c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
		_ = c.Close()
		synctest.Wait()
		got := g.outcomes()
		if len(got) != 1 || got[0].Failure == nil || got[0].Failure.Code != execution.CodeClientGone {
			t.Errorf("outcomes %+v", got)
		}
	})
}

func TestIdleConnectionIsClosed(t *testing.T) {
	onFakeTime(t, func(t *testing.T, _ *rig, c *caller) {
		c.post("", small)
		c.response()
		start := time.Now()
		if _, err := c.r.ReadByte(); err == nil {
			t.Error("something came")
		}
		within(t, start, 119*time.Second, 121*time.Second)
	})
}
