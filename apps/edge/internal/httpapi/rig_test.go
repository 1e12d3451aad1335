package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

const (
	aliceKey = "sk-iop-alice-0123456789abcdef"
	bobKey   = "sk-iop-bob-fedcba9876543210"
)

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// keyed is a configuration with two principals: alice may use everything, bob only "small".
func keyed() *config.Edge {
	return &config.Edge{
		Principals: []config.Principal{
			{ID: "alice", KeyHashes: []string{hashOf(aliceKey)}},
			{ID: "bob", KeyHashes: []string{hashOf(bobKey)}, Routes: []string{"small"}},
		},
		Routes: []config.Route{{Model: "small"}, {Model: "large"}, {Model: "alias", Target: "org/real:7b"}},
	}
}

// open is a configuration without principals.
func open() *config.Edge {
	e := keyed()
	e.Principals = nil
	return e
}

// script is what a fake node does with a tunnel.
type script func(ctx context.Context, t *service.Tunnel, sink service.Sink) *service.Outcome

// received is a tunnel as a fake node got it.
type received struct {
	service.Tunnel
	body []byte
}

// rig is a handler behind a real server, in front of a script.
type rig struct {
	t       *testing.T
	handler *Handler
	addr    string
	log     *lines

	mu    sync.Mutex
	do    script
	got   []received
	ended []service.Outcome
}

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// SubmitProviderTunnel implements Tunnels: it keeps the request and lets the script answer.
func (g *rig) SubmitProviderTunnel(ctx context.Context, t *service.Tunnel, sink service.Sink) *service.Outcome {
	kept := received{Tunnel: *t}
	kept.Header = t.Header.Clone()
	kept.body, _ = io.ReadAll(io.NewSectionReader(t.Body, 0, t.Body.Size()))
	g.mu.Lock()
	g.got = append(g.got, kept)
	do := g.do
	g.mu.Unlock()
	o := do(ctx, t, sink)
	o.RunID, o.BytesIn = t.RunID, t.Body.Size()
	g.Ended(o)
	return o
}

// Ended implements service.Observer.
func (g *rig) Ended(o *service.Outcome) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = append(g.ended, *o)
}

func (g *rig) tunnels() []received {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got
}

// last returns the only tunnel that reached the node.
func (g *rig) last() received {
	g.t.Helper()
	got := g.tunnels()
	if len(got) != 1 {
		g.t.Fatalf("%d tunnels reached the node, want 1", len(got))
	}
	return got[0]
}

func (g *rig) outcomes() []service.Outcome {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended
}

func (g *rig) answer(do script) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.do = do
}

func newHandler(t *testing.T, edge *config.Edge, set func(*Config)) *rig {
	g := &rig{t: t, log: &lines{}, do: hello}
	state := config.NewState(edge, 1, nil)
	cfg := Config{State: func() *config.State { return state }, Tunnels: g, Observers: []service.Observer{g},
		Log: zerolog.New(g.log), TempDir: t.TempDir()}
	if set != nil {
		set(&cfg)
	}
	g.handler = New(cfg)
	g.handler.lists.keep = 2 * patience.Limit
	return g
}

// start serves a handler on loopback.
func start(t *testing.T, edge *config.Edge, set func(*Config)) *rig {
	t.Helper()
	g := newHandler(t, edge, set)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.addr = l.Addr().String()
	g.serve(NewServer(ServerConfig{Handler: g.handler, Log: zerolog.New(g.log)}), l)
	return g
}

// serve runs a server until the test ends, and waits for its connections' goroutines then.
func (g *rig) serve(server *http.Server, l net.Listener) {
	var conns sync.WaitGroup
	before := server.ConnState
	server.ConnState = func(c net.Conn, state http.ConnState) {
		if before != nil {
			before(c, state)
		}
		switch state {
		case http.StateNew:
			conns.Add(1)
		case http.StateClosed, http.StateHijacked:
			conns.Done()
		}
	}
	done := make(chan error, 1)
	go func() {
		if server.TLSConfig != nil {
			done <- server.ServeTLS(l, "", "")
		} else {
			done <- server.Serve(l)
		}
	}()
	g.t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			g.t.Errorf("serve: %v", err)
		}
		conns.Wait()
	})
}

// hello answers a small JSON response.
func hello(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
	sink.Placed(service.Placement{Node: "gpu-1", Queued: 12 * time.Millisecond, Position: 3})
	return respond(sink, 200, http.Header{"Content-Type": {"application/json"}, "Content-Length": {"15"}}, `{"hello":"you"}`)
}

// respond passes a whole response on, each piece flushed.
func respond(sink service.Sink, status int, h http.Header, pieces ...string) *service.Outcome {
	o := &service.Outcome{NodeID: "gpu-1", Adapter: "vllm", Attempts: 1, Status: status, HeadSent: true}
	err := sink.Head(status, h)
	for _, p := range pieces {
		if err == nil {
			err = sink.Body([]byte(p), true)
		}
		if err == nil {
			o.BytesOut += int64(len(p))
		}
	}
	if err == nil {
		err = sink.End()
	}
	o.Failure = execution.AsFailure(err, execution.OriginEdge)
	return o
}

// fail is a run that failed after attempts places without a head.
func fail(f *execution.Failure, attempts int) script {
	return func(context.Context, *service.Tunnel, service.Sink) *service.Outcome {
		return &service.Outcome{Failure: f, Attempts: attempts}
	}
}

// wantNothingHeld waits until no request body is held any more: a handler returns a moment after its response arrived.
func (g *rig) wantNothingHeld() {
	g.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience.Limit); g.handler.BodyBytes() != 0; <-tick.C {
		if time.Now().After(end) {
			g.t.Fatalf("%d bytes of the budget are still held", g.handler.BodyBytes())
		}
	}
}

// caller is a raw HTTP/1 client on one connection.
type caller struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func (g *rig) dial() *caller {
	g.t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience.Limit)); err != nil {
		g.t.Fatal(err)
	}
	return &caller{t: g.t, Conn: conn, r: bufio.NewReader(conn)}
}

func (c *caller) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.Conn, text); err != nil {
		c.t.Fatal(err)
	}
}

// post sends a chat completion with extra header lines, each ended by CRLF.
func (c *caller) post(headers, body string) {
	c.t.Helper()
	c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers +
		"Content-Length: " + itoa(len(body)) + "\r\n\r\n" + body)
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// head reads a response's head as it came, up to the empty line.
func (c *caller) head() string {
	c.t.Helper()
	var head strings.Builder
	for {
		line, err := c.r.ReadString('\n')
		if err != nil {
			c.t.Fatalf("response head: %v after %q", err, head.String())
		}
		head.WriteString(line)
		if line == "\r\n" {
			return head.String()
		}
	}
}

// response reads one whole response.
func (c *caller) response() (*http.Response, string) {
	c.t.Helper()
	return c.responseTo(http.MethodPost)
}

// responseTo is the same for a request of another method: one to HEAD has no body.
func (c *caller) responseTo(method string) (*http.Response, string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("response body: %v after %q", err, body)
	}
	return resp, string(body)
}

// ask sends one chat completion on a connection of its own.
func (g *rig) ask(headers, body string) (*http.Response, string) {
	g.t.Helper()
	c := g.dial()
	c.post(headers, body)
	return c.response()
}

// wantError checks OpenAI's error shape.
func wantError(t *testing.T, resp *http.Response, body string, status int, code string) (message string) {
	t.Helper()
	var e struct {
		Error struct {
			Message *string `json:"message"`
			Type    *string `json:"type"`
			Param   *string `json:"param"`
			Code    *string `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error.Message == nil || e.Error.Type == nil || e.Error.Code == nil {
		t.Fatalf("status %d, not an error of this dialect: %q (%v)", resp.StatusCode, body, err)
	}
	if resp.StatusCode != status || *e.Error.Code != code {
		t.Errorf("status %d %q, want %d %q: %s", resp.StatusCode, *e.Error.Code, status, code, body)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	if resp.Header.Get("X-Request-Id") == "" {
		t.Error("no X-Request-Id")
	}
	return *e.Error.Message
}
