package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// startBounded serves a handler to at most so many connections.
func startBounded(t *testing.T, most int, set func(*Config)) *rig {
	t.Helper()
	g := newHandler(t, open(), set)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.addr = l.Addr().String()
	server := NewServer(ServerConfig{Handler: g.handler, Log: zerolog.New(g.log)})
	b := Bound(server, l, most, zerolog.New(g.log))
	b.(*bounded).tellFor = patience.Limit
	g.serve(server, b)
	return g
}

// One connection too many is refused in words, however early; when another one leaves there is room again.
func TestConnectionsAreBounded(t *testing.T) {
	g := startBounded(t, 2, nil)
	first, second := g.dial(), g.dial()
	for _, c := range []*caller{first, second} {
		c.post("", small)
		if resp, _ := c.response(); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
	}
	for _, sends := range []bool{true, false} {
		c := g.dial()
		if sends {
			c.post("", small)
		}
		resp, body := c.response()
		wantRefusedConnection(t, resp, body)
		if _, err := c.r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("the connection ended with %v", err)
		}
	}
	_ = first.Close()
	// The server learns of it in a moment.
	for end := time.Now().Add(patience.Limit); ; {
		if time.Now().After(end) {
			t.Fatal("there is no room again")
		}
		c := g.dial()
		c.post("", small)
		resp, body := c.response()
		if resp.StatusCode == 200 {
			break
		}
		wantRefusedConnection(t, resp, body)
		_ = c.Close() // who stays is waited for, and only so many are
	}
	second.post("", small) // which none of this has disturbed
	if resp, _ := second.response(); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
	if n := strings.Count(g.log.String(), "limits.connections"); n != 1 {
		t.Errorf("the log says so %d times", n)
	}
}

func wantRefusedConnection(t *testing.T, resp *http.Response, body string) {
	t.Helper()
	if resp.StatusCode != 503 || !resp.Close || resp.Header.Get("Retry-After") == "" || !json.Valid([]byte(body)) || !strings.Contains(body, `"code":"overloaded"`) {
		t.Errorf("%s %v %s", resp.Status, resp.Header, body)
	}
}

// Requests are bounded like connections, since HTTP/2 has many of them on one.
func TestRequestsAreBounded(t *testing.T) {
	g := start(t, open(), func(cfg *Config) { cfg.Limits.Connections = 1 })
	held, proceed := make(chan struct{}), make(chan struct{})
	g.answer(func(context.Context, *service.Tunnel, service.Sink) *service.Outcome {
		close(held)
		<-proceed
		return &service.Outcome{Attempts: 1, Failure: execution.Failf(execution.CodeInternal, execution.OriginEdge, "x")}
	})
	c := g.dial()
	c.post("", small)
	<-held
	resp, body := g.ask("", small)
	wantError(t, resp, body, 503, "overloaded")
	g.answer(hello)
	close(proceed)
	c.response()
	if resp, _ := g.ask("", small); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}
