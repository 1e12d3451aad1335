package httpapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// certificate writes a self-signed pair for 127.0.0.1 and returns the files and the pool that trusts it.
func certificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	if err := errors.Join(os.WriteFile(certFile, certPEM, 0o600), os.WriteFile(keyFile, keyPEM, 0o600)); err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return certFile, keyFile, pool
}

// startTLS serves a handler over TLS and returns a client for it; http2 or HTTP/1.1.
func startTLS(t *testing.T, http2 bool) (*rig, *http.Client) {
	t.Helper()
	return startTLSOf(t, keyed(), http2)
}

func startTLSOf(t *testing.T, edge *config.Edge, http2 bool) (*rig, *http.Client) {
	t.Helper()
	certFile, keyFile, pool := certificate(t)
	conf, err := LoadTLS(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	g := newHandler(t, edge, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.addr = l.Addr().String()
	g.serve(NewServer(ServerConfig{Handler: g.handler, TLS: conf, Log: zerolog.New(g.log)}), l)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: http2}
	t.Cleanup(tr.CloseIdleConnections)
	return g, &http.Client{Transport: tr, Timeout: patience.Limit}
}

// Over TLS and HTTP/2 a run's answer is as whole, or as cut, as elsewhere.
func TestRunsOverTLS(t *testing.T) {
	for _, http2 := range []bool{true, false} {
		g, client := startTLSOf(t, fleet("openai"), http2)
		s := surfaces()[1]
		ask := func(body string) (*http.Response, string, error) {
			resp, err := client.Post("https://"+g.addr+s.path, "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			return resp, string(text), err
		}
		g.answer(asRun(service.Outcome{FinishReason: "stop"}, text("Hello"), text(" you")))
		if resp, body, err := ask(s.whole); err != nil || !strings.Contains(body, s.text) || resp.ContentLength != int64(len(body)) {
			t.Errorf("http2 %v: %d bytes declared, %s %v", http2, resp.ContentLength, body, err)
		}
		if _, body, err := ask(s.stream); err != nil || !strings.Contains(body, s.end) {
			t.Errorf("http2 %v: %s %v", http2, body, err)
		}
		g.answer(asRun(service.Outcome{Failure: execution.Failf(execution.CodeNodeLost, execution.OriginEdge, "lost")}, text("Hello")))
		if _, body, err := ask(s.stream); err == nil || !strings.Contains(body, s.failed) || strings.Contains(body, s.end) {
			t.Errorf("http2 %v: a cut answer looks whole: %s", http2, body)
		}
	}
}

func TestTLS(t *testing.T) {
	for _, http2 := range []bool{true, false} {
		g, client := startTLS(t, http2)
		post := func() (*http.Response, error) {
			req, err := http.NewRequest("POST", "https://"+g.addr+"/v1/chat/completions?a=b", strings.NewReader(`{"model":"alias"}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+aliceKey)
			return client.Do(req)
		}
		resp, err := post()
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != `{"hello":"you"}` || (resp.ProtoMajor == 2) != http2 {
			t.Errorf("%s %q %v", resp.Proto, body, err)
		}
		if got := g.last(); got.Query != "a=b" || string(got.body) != `{"model":"org/real:7b"}` {
			t.Errorf("%+v", got)
		}
		g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
			err := errors.Join(sink.Head(200, http.Header{}), sink.Body([]byte("part"), true))
			if err != nil {
				t.Error(err)
			}
			return &service.Outcome{HeadSent: true, Failure: execution.Failf(execution.CodeNodeLost, execution.OriginEdge, "lost")}
		})
		if resp, err = post(); err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); string(body) != "part" || err == nil {
			t.Errorf("%s: a cut answer ended with %q %v", resp.Proto, body, err)
		}
		_ = resp.Body.Close()
	}
}

// Over TLS an orderly end is the close_notify: a cut answer to an HTTP/1.0 caller must not have one.
func TestTLSHTTP10CutIsReset(t *testing.T) {
	g, client := startTLS(t, false)
	read := make(chan struct{})
	g.answer(func(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
		_ = errors.Join(sink.Head(200, http.Header{}), sink.Body([]byte("part"), true))
		<-read
		return &service.Outcome{HeadSent: true, Failure: execution.Failf(execution.CodeNodeLost, execution.OriginEdge, "lost")}
	})
	conn, err := tls.Dial("tcp", g.addr, client.Transport.(*http.Transport).TLSClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "POST /v1/chat/completions HTTP/1.0\r\nX-Api-Key: "+aliceKey+"\r\nContent-Length: "+itoa(len(small))+"\r\n\r\n"+small); err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	p := make([]byte, 1)
	for !strings.HasSuffix(seen.String(), "part") {
		if _, err := io.ReadFull(conn, p); err != nil {
			t.Fatal(err)
		}
		seen.Write(p)
	}
	close(read)
	if _, err := conn.Read(p); err == nil || err == io.EOF {
		t.Errorf("a cut answer ended with %v", err)
	}
}

func TestLoadTLSSaysWhat(t *testing.T) {
	if _, err := LoadTLS("/nonexistent/c.pem", "/nonexistent/k.pem"); err == nil || !strings.Contains(err.Error(), "http_tls") {
		t.Errorf("%v", err)
	}
}

// A head that is too long is refused before it is kept.
func TestLongHead(t *testing.T) {
	g := start(t, open(), nil)
	c := g.dial()
	go func() {
		// The refusal may come, and the connection end, before all of it is sent.
		_, _ = io.WriteString(c.Conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 1<<20)+"\r\n\r\n")
	}()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != 431 {
		t.Errorf("%v %v", resp, err)
	}
	if len(g.tunnels()) != 0 {
		t.Error("it went on")
	}
}

// E34: what could end a header is refused by the server already; this is to notice if it no longer were.
func TestBadHeaders(t *testing.T) {
	g := start(t, open(), nil)
	for _, head := range []string{"X: a\x00b", "X: a\x01b", "X Y: z", "X\x00: z", ": z", "X: a\rb", "Host: a/b c"} {
		c := g.dial()
		c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + head + "\r\nContent-Length: 2\r\n\r\n{}")
		if resp, _ := c.response(); resp.StatusCode != 400 {
			t.Errorf("%q: %s", head, resp.Status)
		}
	}
	c := g.dial()
	c.send("PO ST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if resp, _ := c.response(); resp.StatusCode != 400 {
		t.Error(resp.Status)
	}
	if len(g.tunnels()) != 0 {
		t.Error("it went on")
	}
}
