package upstream_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

// discard is a sink that wants nothing.
type discard struct{}

func (discard) Head(int, http.Header) error { return nil }
func (discard) Body([]byte) error           { return nil }
func (discard) Usage(execution.Usage) error { return nil }

// cheapProvider answers every request with the same bytes at the least cost, so that what is measured is the client.
func cheapProvider(b *testing.B, answer string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go cheapConversation(c, []byte(answer))
		}
	}()
	return "http://" + l.Addr().String()
}

func cheapConversation(c net.Conn, answer []byte) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		for {
			line, err := br.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) == 2 {
				break
			}
		}
		if _, err := br.Discard(requestSize); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

const requestSize = 200

// BenchmarkTunnel compares this package with net/http's Transport, which keeps its connections or doesn't, at 64
// requests at once. cpu-us/op is the CPU of the whole process, the provider's share (the same for all) included.
func BenchmarkTunnel(b *testing.B) {
	body := strings.Repeat("x", 600)
	base := cheapProvider(b, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	c, err := upstream.New(upstream.Config{BaseURL: base, Paths: paths(), MaxConcurrency: 64})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	request := bytes.Repeat([]byte("r"), requestSize)
	b.Run("upstream", func(b *testing.B) {
		measure(b, func() error {
			req := adaptertest.Post("/v1/chat/completions", "")
			req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(request)), requestSize
			req.Timers = execution.Timers{FirstByte: time.Minute, Idle: time.Minute}
			return c.Tunnel(context.Background(), req, discard{})
		})
	})
	for _, fresh := range []bool{false, true} {
		tr := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true, DisableKeepAlives: fresh}
		defer tr.CloseIdleConnections()
		name := map[bool]string{false: "transport", true: "transport-fresh"}[fresh]
		b.Run(name, func(b *testing.B) { measure(b, func() error { return viaTransport(tr, base, request) }) })
	}
}

// BenchmarkStream is one answer of 100 events; ns/op divided by 100 is what an event costs.
func BenchmarkStream(b *testing.B) {
	event := "ed\r\n" + `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" from"}}],"created":1795956714,` +
		`"id":"chatcmpl-jYbDvCxD84v7hLqnn29TjlC3ChYBPTQp","model":"tiny","system_fingerprint":"b11669-Debian","object":"chat.completion.chunk"}` + "\n\n\r\n"
	base := cheapProvider(b, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"+strings.Repeat(event, 100)+"0\r\n\r\n")
	c, err := upstream.New(upstream.Config{BaseURL: base, Paths: paths(), MaxConcurrency: 64})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	request := bytes.Repeat([]byte("r"), requestSize)
	measure(b, func() error {
		req := adaptertest.Post("/v1/chat/completions", "")
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(request)), requestSize
		return c.Tunnel(context.Background(), req, discard{})
	})
}

func viaTransport(tr *http.Transport, base string, request []byte) error {
	req, err := http.NewRequest(http.MethodPost, base+"/v1/chat/completions", io.NopCloser(bytes.NewReader(request)))
	if err != nil {
		return err
	}
	req.ContentLength = requestSize
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// measure runs f b.N times, 64 at once.
func measure(b *testing.B, f func() error) {
	b.Helper()
	b.ReportAllocs()
	before := cpu()
	work := make(chan struct{}, 64)
	var workers sync.WaitGroup
	for range cap(work) {
		workers.Go(func() {
			for range work {
				if err := f(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	workers.Wait()
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-us/op")
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
