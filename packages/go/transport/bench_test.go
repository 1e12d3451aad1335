package transport

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/yamux"
)

func plainConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.EnableKeepAlive = false
	cfg.LogOutput = io.Discard
	cfg.MaxStreamWindowSize = streamWindow
	cfg.StreamOpenTimeout = 0
	cfg.AcceptBacklog = acceptBacklog
	return cfg
}

// plainPair is the multiplexer over the bare connection: what the coalescing conn is measured against.
func plainPair(b *testing.B) (client, server *yamux.Session) {
	a, c := tcpPair(b)
	server, err := yamux.Server(a, plainConfig())
	if err != nil {
		b.Fatal(err)
	}
	client, err = yamux.Client(c, plainConfig())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// BenchmarkPingPong sends 64 bytes to and fro on each of n streams.
func BenchmarkPingPong(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(name("plain", n), func(b *testing.B) { benchPlainPing(b, n) })
		b.Run(name("link", n), func(b *testing.B) { benchLinkPing(b, n) })
	}
}

func name(kind string, n int) string {
	if n == 1 {
		return kind + "/1"
	}
	return kind + "/64"
}

func share(b *testing.B, n int, each func()) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				each()
			}
		})
	}
	wg.Wait()
}

func benchPlainPing(b *testing.B, n int) {
	client, server := plainPair(b)
	go func() {
		for {
			st, err := server.AcceptStream()
			if err != nil {
				return
			}
			go io.Copy(struct{ io.Writer }{st}, struct{ io.Reader }{st})
		}
	}()
	streams := make(chan *yamux.Stream, n)
	for range n {
		st, err := client.OpenStream()
		if err != nil {
			b.Fatal(err)
		}
		streams <- st
	}
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range n {
		st := <-streams
		wg.Go(func() {
			buf := make([]byte, 64)
			for left.Add(-1) >= 0 {
				if _, err := st.Write(buf); err != nil {
					b.Error(err)
					return
				}
				if _, err := io.ReadFull(st, buf); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// echo answers each input body with a body of the same bytes.
func echo(s *Stream) {
	if _, err := s.ReadOpen(1e10); err != nil {
		return
	}
	for seq := uint64(1); ; seq++ {
		in, err := s.ReadInput()
		if err != nil {
			return
		}
		if s.AppendBody(seq, in.Body) != nil || s.Flush() != nil {
			return
		}
	}
}

func benchLinkPing(b *testing.B, n int) {
	p := startTCP(b, echo)
	streams := make(chan *Stream, n)
	for range n {
		streams <- p.open(b, context.Background())
	}
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range n {
		s := <-streams
		wg.Go(func() {
			buf := make([]byte, 56) // 64 with its headers
			for seq := uint64(1); left.Add(-1) >= 0; seq++ {
				if s.AppendBody(seq, buf) != nil || s.Flush() != nil {
					b.Error("write")
					return
				}
				if _, err := s.ReadTunnel(); err != nil {
					b.Error(err)
					return
				}
			}
			s.Close()
		})
	}
	wg.Wait()
}

// BenchmarkOpen opens a stream, sends an open, gets an accepted and an end, and closes.
func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(name("link", n), func(b *testing.B) {
			p := startTCP(b, func(s *Stream) {
				if _, err := s.ReadOpen(1e10); err != nil {
					return
				}
				s.Append(accepted(1))
				s.Append(end(2, 0))
				s.Flush()
				lingerUntilEOF(s)
			})
			b.ReportAllocs()
			b.ResetTimer()
			share(b, n, func() {
				s := p.open(b, context.Background())
				for {
					f, err := s.ReadTunnel()
					if err != nil {
						b.Error(err)
						return
					}
					if f.Msg.GetEnd() != nil {
						break
					}
				}
				s.Close()
			})
		})
	}
}

// BenchmarkBulk moves one big body one way.
func BenchmarkBulk(b *testing.B) {
	b.Run("plain", func(b *testing.B) {
		client, server := plainPair(b)
		go func() {
			st, err := server.AcceptStream()
			if err != nil {
				return
			}
			buf := make([]byte, MaxBody)
			for {
				if _, err := st.Write(buf); err != nil {
					return
				}
			}
		}()
		st, err := client.OpenStream()
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, MaxBody)
		b.SetBytes(MaxBody)
		b.ResetTimer()
		for b.Loop() {
			if _, err := io.ReadFull(st, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("link", func(b *testing.B) {
		p := startTCP(b, pump)
		s := p.open(b, context.Background())
		b.SetBytes(MaxBody)
		b.ResetTimer()
		for b.Loop() {
			if _, err := s.ReadTunnel(); err != nil {
				b.Fatal(err)
			}
		}
		s.Close()
	})
}

// pump sends bodies until it is stopped.
func pump(s *Stream) {
	if _, err := s.ReadOpen(1e10); err != nil {
		return
	}
	go func() { lingerUntilEOF(s); s.Cancel() }()
	buf := make([]byte, MaxBody)
	for seq := uint64(1); ; seq++ {
		if s.AppendBody(seq, buf) != nil || s.Flush() != nil {
			return
		}
	}
}

// BenchmarkBodyFrame counts allocations per body frame: both sides together. The multiplexer makes one at each side;
// ours must be none (TestBodyFrameAllocs).
func BenchmarkBodyFrame(b *testing.B) {
	for _, size := range []int{64, 4 << 10, MaxBody} {
		b.Run(byteName(size), func(b *testing.B) {
			p := startTCP(b, func(s *Stream) {
				if _, err := s.ReadOpen(1e10); err != nil {
					return
				}
				go func() { lingerUntilEOF(s); s.Cancel() }()
				buf := make([]byte, size)
				for seq := uint64(1); ; seq++ {
					if s.AppendBody(seq, buf) != nil || s.Flush() != nil {
						return
					}
				}
			})
			s := p.open(b, context.Background())
			b.ReportAllocs()
			b.SetBytes(int64(size))
			b.ResetTimer()
			for b.Loop() {
				if _, err := s.ReadTunnel(); err != nil {
					b.Fatal(err)
				}
			}
			s.Close()
		})
	}
}

func byteName(n int) string {
	switch n {
	case 64:
		return "64B"
	case 4 << 10:
		return "4KiB"
	}
	return "16KiB"
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// BenchmarkMemory reports what an idle stream and an idle link cost, both ends together.
func BenchmarkMemory(b *testing.B) {
	b.Run("stream", func(b *testing.B) {
		for b.Loop() {
			p := startTCP(b, func(s *Stream) {
				if _, err := s.ReadOpen(1e10); err != nil {
					return
				}
				s.Write(accepted(1))
				lingerUntilEOF(s)
			})
			const n = 1000
			before := heap()
			streams := make([]*Stream, n)
			for i := range streams {
				streams[i] = p.open(b, context.Background())
				if _, err := streams[i].ReadTunnel(); err != nil {
					b.Fatal(err)
				}
				go streams[i].ReadTunnel() // waits, until the stream is closed
			}
			b.ReportMetric(float64(heap()-before)/n, "B/stream")
			for _, s := range streams {
				s.Close()
			}
			p.edge.Close(ReasonClosed)
			<-p.edgeDone
		}
	})
	b.Run("link", func(b *testing.B) {
		for b.Loop() {
			const n = 100
			conns := make([][2]net.Conn, n)
			for i := range conns {
				conns[i][0], conns[i][1] = tcpPair(b)
			}
			before := heap()
			pairs := make([]*linkPair, n)
			for i, c := range conns {
				pairs[i] = startPair(b, c[0], c[1], testConfig(), nil)
			}
			after := heap()
			b.ReportMetric(float64(after-before)/n, "B/link")
			for _, p := range pairs {
				p.edge.Close(ReasonClosed)
				<-p.edgeDone
			}
		}
	})
}
