package transport

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"iop/apps/node/internal/nodetest"
	"iop/packages/go/config"
)

// proxyThat answers one connection, and returns its address and what it was asked.
func proxyThat(t *testing.T, answer string) (addr string, asked <-chan string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	said := make(chan string, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		head := make([]byte, 0, 1024)
		for !strings.HasSuffix(string(head), "\r\n\r\n") {
			b := make([]byte, 1)
			if _, err := c.Read(b); err != nil {
				break
			}
			head = append(head, b...)
		}
		said <- string(head)
		_, _ = io.WriteString(c, answer)
		_, _ = io.Copy(c, c) // the tunnel: an echo
	}()
	return ln.Addr().String(), said
}

// Issue 9: a node behind a proxy reaches its edge by CONNECT; whatever isn't a tunnel is an error that says what to do, and shows
// no credentials.
func TestThroughProxy(t *testing.T) {
	addr, asked := proxyThat(t, "HTTP/1.1 200 Connection established\r\nVia: p\r\n\r\n")
	c, err := ThroughProxy(addr, config.NewSecret("user:pass"))(t.Context(), "edge.example:7443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := "CONNECT edge.example:7443 HTTP/1.1\r\nHost: edge.example:7443\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n\r\n"
	if got := nodetest.Receive(t, "the request", asked); got != want {
		t.Errorf("asked %q", got)
	}
	if _, err := io.WriteString(c, "ping"); err != nil {
		t.Fatal(err)
	}
	if b := make([]byte, 4); true {
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "ping" {
			t.Errorf("%q, %v", b, err)
		}
	}
	for answer, says := range map[string]string{
		"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n": "proxy_credentials",
		"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n":                     "does it allow that port?",
		"HTTP/1.1 200 OK\r\n\r\nhello":                                            "before the node has",
		"SSH-2.0-x\r\n\r\n":                                                       "is it an HTTP proxy?",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 1<<20) + "\r\n\r\n":        "read its answer",
	} {
		addr, _ := proxyThat(t, answer)
		if _, err := ThroughProxy(addr, config.NewSecret("user:pass"))(t.Context(), "edge.example:7443"); err == nil || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "pass") {
			t.Errorf("%.40q: %v, want %q", answer, err, says)
		}
	}
	addr, _ = proxyThat(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := ThroughProxy(addr, config.Secret{})(ctx, "edge.example:7443"); err == nil {
		t.Error("a silent proxy is waited for for ever")
	}
}
