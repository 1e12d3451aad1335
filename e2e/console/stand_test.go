package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// stand stands between a browser and an edge. What it isn't told to answer otherwise goes to the edge.
type stand struct {
	*httptest.Server
	proxy *httputil.ReverseProxy

	mu      sync.Mutex
	answers map[string]http.HandlerFunc // by path below /admin/v1/
	asked   map[string]int
	cut     context.Context // done when all connections are to break
	breakIt context.CancelFunc
}

func newStand(t *testing.T, to string) *stand {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	s := &stand{answers: map[string]http.HandlerFunc{}, asked: map[string]int{}}
	// The Host stays that of the stand, as the origin of the page is.
	s.proxy = &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
		r.Out.Host = r.In.Host
	}, ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog: log.New(io.Discard, "", 0)}
	s.mend()
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() { s.breakIt(); s.Server.CloseClientConnections(); s.Server.Close() })
	return s
}

// ServeHTTP implements http.Handler.
func (s *stand) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/admin/v1/")
	s.mu.Lock()
	s.asked[path]++
	answer, cut := s.answers[path], s.cut
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(cut, cancel)()
	if cut.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	if r = r.WithContext(ctx); answer != nil {
		answer(w, r)
	} else {
		s.proxy.ServeHTTP(w, r)
	}
	if cut.Err() != nil {
		panic(http.ErrAbortHandler) // no clean end
	}
}

// sever breaks all connections, and those that come, until mend.
func (s *stand) sever() { s.breakIt() }

func (s *stand) mend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut, s.breakIt = context.WithCancel(context.Background())
}

// answer sets what a path answers; nil = what the edge does.
func (s *stand) answer(path string, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[path] = h
}

func (s *stand) count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[path]
}

// never doesn't answer before its caller leaves.
func never(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// status answers with an error of the edge's shape.
func status(code int, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = fmt.Fprintf(w, `{"error":{"message":%q,"code":"bad_request","origin":"caller"}}`, message)
	}
}

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}
}

// stream is an event stream with these events, that doesn't end.
func stream(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "retry: 1000\n\n"+strings.Join(events, ""))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// event is one event of a stream.
func event(data string) string { return "data: " + data + "\n\n" }

type object = map[string]any

// snapshot is one with these members in place of an empty edge's.
func snapshot(with object) string {
	s := object{"at": "2026-11-29T12:00:00Z", "event_id": "e-1", "version": "v1.2.0", "reasons": []string{}, "warnings": []string{}, "nodes": []any{},
		"queue": object{"draining": false, "queued": 0, "sets": []any{}, "places": []any{}, "routes": []any{}},
		"slots": []any{},
		"live":  object{"total": 0, "runs": []any{}}, "ended": object{"total": 0, "runs": []any{}}}
	maps.Copy(s, with)
	return encode(s)
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is made of maps and texts
	}
	return string(text)
}
