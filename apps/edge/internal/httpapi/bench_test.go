package httpapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
)

// quiet is a node that answers at once and a writer that keeps nothing: what is left is the surface's own work.
type quiet struct{ header http.Header }

func (quiet) SubmitProviderTunnel(_ context.Context, _ *service.Tunnel, sink service.Sink) *service.Outcome {
	sink.Placed(service.Placement{Node: "gpu-1", Queued: 0})
	err := sink.Head(200, http.Header{"Content-Type": {"application/json"}, "Content-Length": {"2"}})
	if err == nil {
		err = sink.Body([]byte("{}"), true)
	}
	if err != nil || sink.End() != nil {
		panic("sink")
	}
	return &service.Outcome{}
}

func (q quiet) Header() http.Header              { return q.header }
func (quiet) Write(p []byte) (int, error)        { return len(p), nil }
func (quiet) WriteHeader(int)                    {}
func (quiet) FlushError() error                  { return nil }
func (quiet) SetReadDeadline(_ time.Time) error  { return nil }
func (quiet) SetWriteDeadline(_ time.Time) error { return nil }

func BenchmarkTunnel(b *testing.B) {
	text := `{"model":"small","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("hello ", 200) + `"}]}`
	state := config.NewState(keyed(), 1, nil)
	h := New(Config{State: func() *config.State { return state }, Tunnels: quiet{}, Log: zerolog.Nop()})
	body := strings.NewReader(text)
	r := httptest.NewRequest("POST", "/v1/chat/completions", body)
	r.ContentLength = int64(len(text))
	r.Body = io.NopCloser(body)
	r.Header.Set("Authorization", "Bearer "+aliceKey)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "OpenAI/Go")
	b.ReportAllocs()
	for b.Loop() {
		body.Reset(text)
		h.ServeHTTP(quiet{header: http.Header{}}, r)
	}
}

func BenchmarkScan(b *testing.B) {
	text := []byte(`{"model":"small","messages":[{"role":"user","content":"` + strings.Repeat(`hello \"you\" `, 5000) + `"}]}`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (&scanner{piece: text}).request(); err != nil {
			b.Fatal(err)
		}
	}
}
