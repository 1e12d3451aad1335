package service

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// discard is a caller that takes everything.
type discard struct{ bytes int }

func (d *discard) Placed(Placement) {}

func (d *discard) Head(int, http.Header) error { return nil }

func (d *discard) Body(p []byte, _ bool) error { d.bytes += len(p); return nil }

func (d *discard) End() error { return nil }

// BenchmarkTunnel is one tunnel from submission to outcome over a real link on loopback, the fake node's part
// included: its allocations are those of both ends. frames is the number of body frames in the response; allocs/frame
// compares the two.
func BenchmarkTunnel(b *testing.B) {
	for _, frames := range []int{1, 101} {
		for _, size := range []int{64, 16 << 10} {
			b.Run(fmt.Sprintf("frames=%d/size=%d", frames, size), func(b *testing.B) { benchTunnel(b, frames, size) })
		}
	}
}

func benchTunnel(b *testing.B, frames, size int) {
	piece := []byte(strings.Repeat("x", min(size, 16320)))
	r := newRig(b, setup{capacity: 64, service: Config{Recent: 1024}, work: func(w *work) {
		w.accept()
		w.input()
		w.head(200)
		for range frames {
			w.seq++
			_ = w.AppendBody(w.seq, piece)
			_ = w.Flush()
		}
		w.end(int64(frames * len(piece)))
	}})
	var id atomic.Int64
	tunnel := r.tunnel("", strings.Repeat("y", 1000))
	b.ReportAllocs()
	for b.Loop() {
		t := *tunnel
		t.RunID = fmt.Sprintf("run-%d", id.Add(1))
		c := &discard{}
		if o := r.svc.SubmitProviderTunnel(context.Background(), &t, c); !o.OK() || c.bytes != frames*len(piece) {
			b.Fatal(o.Failure)
		}
	}
}

// The edge's own share of a body frame allocates nothing; what is left is the multiplexer's.
func BenchmarkFrame(b *testing.B) {
	const perRun = 1000
	piece := []byte(strings.Repeat("x", 200))
	r := newRig(b, setup{work: func(w *work) {
		w.accept()
		w.head(200)
		for range perRun {
			w.seq++
			_ = w.AppendBody(w.seq, piece)
			_ = w.Flush()
		}
		w.end(perRun * int64(len(piece)))
	}})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	runs := 0
	for b.Loop() {
		runs++
		o := r.svc.SubmitProviderTunnel(context.Background(), r.tunnel(fmt.Sprintf("run-%d", runs), ""), &discard{})
		if !o.OK() {
			b.Fatal(o.Failure)
		}
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(runs*perRun), "allocs/frame")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(runs*perRun), "ns/frame")
}

// BenchmarkTunnelParallel keeps 64 runs in flight.
func BenchmarkTunnelParallel(b *testing.B) {
	r := newRig(b, setup{capacity: 256, service: Config{Recent: 1024}, route: ", queue: {depth: 1000}", work: func(w *work) {
		w.accept()
		w.input()
		w.head(200)
		w.body("0123456789abcdef")
		w.end(16)
	}})
	var id atomic.Int64
	tunnel := r.tunnel("", strings.Repeat("y", 1000))
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			t := *tunnel
			t.RunID = fmt.Sprintf("run-%d", id.Add(1))
			if o := r.svc.SubmitProviderTunnel(context.Background(), &t, &discard{}); !o.OK() {
				b.Error(o.Failure)
			}
		}
	})
}
