package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"time"
)

// The bench program is also its own fake provider and its own reverse proxy, as processes of their own, so that each
// part's CPU and memory can be read apart. A role prints its address as the edge does: one JSON line.

func serveRole(role, target string) error {
	var handler http.Handler
	var config *tls.Config
	switch role {
	case "provider":
		handler = http.HandlerFunc(provide)
	case "provider-tls":
		cert, err := selfSigned(target)
		if err != nil {
			return err
		}
		handler, config = http.HandlerFunc(provide), &tls.Config{Certificates: []tls.Certificate{cert}}
	case "proxy":
		to, err := url.Parse("http://" + target)
		if err != nil {
			return err
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 1024 // the tuned form of perf comparisons
		transport.DisableCompression = true
		handler = &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
			Transport:     transport,
			FlushInterval: -1,
		}
	default:
		return fmt.Errorf("unknown role %q", role)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	line, _ := json.Marshal(map[string]string{"message": role + " is listening", "http": listener.Addr().String()})
	fmt.Fprintf(os.Stderr, "%s\n", line)
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	return (&http.Server{Handler: handler}).Serve(listener)
}

// provide answers like an OpenAI-dialect provider. What it does is in the request's user field:
// "json", or "sse CHUNKS DELAY_MS", or "body BYTES".
func provide(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"object":"list","data":[{"id":"bench","object":"model"}]}`)
		return
	}
	var ask chatRequest
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var kind string
	var count, delay int
	fmt.Sscan(ask.User, &kind, &count, &delay)
	switch kind {
	case "sse":
		stream(w, r, count, time.Duration(delay)*time.Millisecond)
	case "body":
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(count))
		for piece := make([]byte, 64<<10); count > 0; count -= len(piece) {
			piece = piece[:min(len(piece), count)]
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answerTo(&ask)) // a caller that left is nobody's failure
	}
}

// chatRequest and chatAnswer are as much of the API as both ends of a conversation read and write in earnest: neither a
// provider nor a client that doesn't look at its JSON would be one.
type chatRequest struct {
	Model    string        `json:"model"`
	Stream   bool          `json:"stream"`
	User     string        `json:"user"`
	Messages []chatMessage `json:"messages"`
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type chatAnswer struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	} `json:"usage"`
}

type chatChoice struct {
	Index   int         `json:"index"`
	Message chatMessage `json:"message"`
	Finish  string      `json:"finish_reason"`
}

func answerTo(ask *chatRequest) *chatAnswer {
	a := &chatAnswer{ID: "chatcmpl-1", Object: "chat.completion", Created: time.Now().Unix(), Model: ask.Model,
		Choices: []chatChoice{{Message: chatMessage{Role: "assistant", Content: answer}, Finish: "stop"}}}
	a.Usage.Prompt, a.Usage.Completion, a.Usage.Total = 11, 17, 28
	return a
}

const answer = "The answer is forty-two, as it was the last time that somebody asked."

const event = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}` + "\n\n"

func stream(w http.ResponseWriter, r *http.Request, count int, delay time.Duration) {
	w.Header().Set("Content-Type", "text/event-stream")
	flusher := http.NewResponseController(w)
	tick := time.NewTicker(max(delay, time.Nanosecond))
	defer tick.Stop()
	for range count {
		if _, err := io.WriteString(w, event); err != nil || flusher.Flush() != nil {
			return
		}
		if delay > 0 {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
	}
	io.WriteString(w, "data: [DONE]\n\n")
}
