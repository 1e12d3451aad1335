package leasetest

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"iop/apps/node/internal/nodetest"
)

// providerMode in the environment makes this test's binary a provider: in a process of its own, since one that gets a
// key has it in its memory.
const providerMode = "IOP_LEASETEST_PROVIDER"

// mask is what keys are hidden under, so that who looks for one doesn't have it.
const mask = 0x80

func masked(b []byte) []byte {
	out := make([]byte, len(b))
	for i, c := range b {
		out[i] = c ^ mask
	}
	return out
}

// event is one piece of an answer in the OpenAI dialect.
const event = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}` + "\n\n"

const lastEvents = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` +
	"\n\ndata: [DONE]\n\n"

// serveProvider is a provider over TLS until its standard input ends. Its first line says where it is. What it answers
// is what the request's X-Scenario asks for.
func serveProvider() {
	var mu sync.Mutex
	var shown []string // the Authorization fields, masked, in hex
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			w.WriteHeader(http.StatusUnauthorized)
			return
		case "/shown":
			mu.Lock()
			defer mu.Unlock()
			_, _ = io.WriteString(w, strings.Join(shown, "\n"))
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		shown = append(shown, hex.EncodeToString(masked([]byte(strings.Join(r.Header.Values("Authorization"), ",")))))
		mu.Unlock()
		answer(w, r)
	}))
	fmt.Println(s.URL)
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.CloseClientConnections()
}

func answer(w http.ResponseWriter, r *http.Request) {
	flush := w.(http.Flusher).Flush
	events := 1
	switch r.Header.Get("X-Scenario") {
	case "unauthorized":
		http.Error(w, `{"error":{"message":"no"}}`, http.StatusUnauthorized)
		return
	case "redirect":
		http.Redirect(w, r, "https://127.0.0.1:1/v1/chat/completions", http.StatusTemporaryRedirect)
		return
	case "reset":
		reset(w)
		return
	case "whole":
		_, _ = io.WriteString(w, "{}")
		return
	case "sse":
		events = 200
	case "endless":
		events = 1 << 30
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range events {
		if _, err := io.WriteString(w, event); err != nil {
			return
		}
		flush()
		if i > 0 && events > 200 {
			<-r.Context().Done()
			return
		}
	}
	_, _ = io.WriteString(w, lastEvents)
}

// reset ends the connection in a way that its peer can't take for an end.
func reset(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	tcp := conn.(interface{ NetConn() net.Conn }).NetConn().(*net.TCPConn)
	_ = tcp.SetLinger(0)
	_ = tcp.Close()
}

// provider is a provider in a process of its own.
type provider struct{ url string }

// startProvider starts one; it ends with the test.
func startProvider(t testing.TB) *provider {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), providerMode+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	line := make(chan string, 1)
	go func() { // ends with the line, or with the process
		text, _ := bufio.NewReader(out).ReadString('\n')
		line <- text
	}()
	url := strings.TrimSpace(nodetest.Receive(t, "the provider's address", line))
	if url == "" {
		t.Fatal("the provider didn't start")
	}
	return &provider{url}
}

// shown returns the Authorization fields that the provider saw, masked.
func (p *provider) shown(t testing.TB) (fields [][]byte) {
	t.Helper()
	resp, err := http.Get(p.url + "/shown")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		field, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		fields = append(fields, field)
	}
	return fields
}
