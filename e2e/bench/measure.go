package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// interleaved runs rounds of slices, each way after the other, and returns the sum of each way's slices. around is
// called before and after each slice of the last way (IOP), to read what its processes used.
func (b *bench) interleaved(ctx context.Context, what string, sse bool, concurrency int, slice time.Duration, rounds int, around func(begin bool)) []*result {
	results := make([]*result, len(b.ways))
	for i := range results {
		results[i] = &result{}
		load(ctx, b.ways[i].addr, request(what), sse, concurrency, 200*time.Millisecond) // warm up
	}
	for range rounds {
		for i, w := range b.ways {
			last := i == len(b.ways)-1
			if last && around != nil {
				around(true)
			}
			results[i].add(load(ctx, w.addr, request(what), sse, concurrency, slice))
			if last && around != nil {
				around(false)
			}
		}
	}
	return results
}

// meter adds up what edge and node used during the slices of IOP.
type meter struct {
	b                   *bench
	cpu                 time.Duration
	edgeCalls, nodeIO   int64
	beganCPU            time.Duration
	beganEdge, beganNod int64
}

func (m *meter) around(begin bool) {
	edge, node := m.b.site.Edge.Pid(), m.b.site.Node.Pid()
	if begin {
		m.beganCPU, m.beganEdge, m.beganNod = cpu(edge, node), ioCalls(edge), ioCalls(node)
		return
	}
	m.cpu += cpu(edge, node) - m.beganCPU
	m.edgeCalls += ioCalls(edge) - m.beganEdge
	m.nodeIO += ioCalls(node) - m.beganNod
}

func (b *bench) requests(ctx context.Context, r *report, slice time.Duration, rounds int) error {
	r.head("Requests that don't stream", "concurrent", "way", "requests/s", "to direct", "to ReverseProxy", "p50 µs", "p99 µs",
		"added p50 µs", "added p99 µs", "CPU µs/request edge+node", "read+write calls/request edge, node", "errors")
	for _, concurrency := range []int{1, 16, 64, 128} {
		m := &meter{b: b}
		results := b.interleaved(ctx, "json", false, concurrency, slice, rounds, m.around)
		for i, res := range results {
			row := []string{fmt.Sprint(concurrency), b.ways[i].name, f0(res.rps()), f2(res.rps() / results[0].rps()), f2(res.rps() / results[1].rps()),
				us(res.p(0.5)), us(res.p(0.99)), us(res.p(0.5) - results[0].p(0.5)), us(res.p(0.99) - results[0].p(0.99)), "", "", fmt.Sprint(res.errors)}
			if i == 2 {
				n := max(1, res.requests)
				perRequest := float64(m.cpu.Microseconds()) / float64(n)
				edge, node := float64(m.edgeCalls)/float64(n), float64(m.nodeIO)/float64(n)
				row[9], row[10] = f0(perRequest), fmt.Sprintf("%.1f, %.1f", edge, node)
				switch concurrency {
				case 1:
					r.goal("added p50 at 1 concurrent, ms", float64((res.p(0.5)-results[0].p(0.5)).Microseconds())/1000, 0.5, false)
				case 64:
					r.goal("requests/s against ReverseProxy at 64 concurrent", res.rps()/results[1].rps(), 0.56, true)
					r.goal("CPU per request, edge + node, at 64 concurrent, µs", perRequest, 200, false)
					r.goal("read and write calls per request at 64 concurrent, edge", edge, 8, false)
					r.goal("read and write calls per request at 64 concurrent, node", node, 8, false)
				}
			}
			r.row(row...)
			if res.err != nil {
				r.note(fmt.Sprintf("%s at %d: first error: %v", b.ways[i].name, concurrency, res.err))
			}
		}
	}
	return nil
}

func (b *bench) streams(ctx context.Context, r *report, slice time.Duration, rounds int) error {
	r.head("Streams of 100 chunks, as fast as they go", "concurrent", "way", "chunks/s", "to direct", "to ReverseProxy", "first byte p50 µs", "errors")
	for _, concurrency := range []int{1, 16, 64, 128} {
		results := b.interleaved(ctx, "sse 100 0", true, concurrency, slice, rounds, nil)
		for i, res := range results {
			first := time.Duration(0)
			if len(res.firsts) > 0 {
				first = res.firsts[len(res.firsts)/2]
			}
			r.row(fmt.Sprint(concurrency), b.ways[i].name, f0(res.chunkRate()), f2(res.chunkRate()/results[0].chunkRate()),
				f2(res.chunkRate()/results[1].chunkRate()), us(first), fmt.Sprint(res.errors))
			if res.err != nil {
				r.note(fmt.Sprintf("%s at %d: first error: %v", b.ways[i].name, concurrency, res.err))
			}
		}
		if concurrency == 16 {
			r.goal("streamed chunks/s against direct, 16 streams", results[2].chunkRate()/results[0].chunkRate(), 0.50, true)
		}
	}
	return nil
}

func (b *bench) paced(ctx context.Context, r *report, slice time.Duration, rounds int) error {
	r.head("64 streams of 50 chunks, 10 ms apart", "way", "chunks", "CPU µs/chunk edge+node", "errors")
	m := &meter{b: b}
	m.around(true)
	res := load(ctx, b.ways[2].addr, request("sse 50 10"), true, 64, 2*slice)
	m.around(false)
	perChunk := float64(m.cpu.Microseconds()) / float64(max(1, res.chunks))
	r.row("IOP", fmt.Sprint(res.chunks), f0(perChunk), fmt.Sprint(res.errors))
	r.goal("CPU per paced chunk, edge + node, µs", perChunk, 60, false)
	return nil
}

// idle opens a thousand streams that give one chunk and then wait, and looks at the memory of both programs.
func (b *bench) idle(ctx context.Context, r *report, _ time.Duration, _ int) error {
	const streams = 1000
	r.head("1,000 open streams", "open", "errors", "resident MiB edge+node before", "with them", "KiB a stream")
	before := rss(b.site.Edge.Pid(), b.site.Node.Pid())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	opened := make(chan error, streams)
	for range streams {
		wg.Go(func() { opened <- holdStream(ctx, b.ways[2].addr) })
	}
	errs := 0
	for range streams {
		if err := <-opened; err != nil {
			errs++
			r.note("first error: " + err.Error())
		}
	}
	with := rss(b.site.Edge.Pid(), b.site.Node.Pid())
	cancel()
	r.row(fmt.Sprint(streams-errs), fmt.Sprint(errs), f0(mib(before)), f0(mib(with)), f0(float64(with-before)/1024/streams))
	r.goal("1,000 open SSE streams, edge + node resident, MiB", mib(with), 130, false)
	r.goal("errors among them", float64(errs), 0, false)
	return nil
}

// holdStream opens a stream, waits for its first chunk and keeps it open until ctx ends.
func holdStream(ctx context.Context, addr string) error {
	c := &client{addr: addr}
	opened := make(chan error, 1)
	go func() { // ends when ctx closes the connection
		opened <- c.open(request("sse 2 60000"))
		<-ctx.Done()
		c.close()
	}()
	return <-opened
}

// farAway puts 50 ms of round trip between node and edge.
func (b *bench) farAway(ctx context.Context, r *report, _ time.Duration, _ int) error {
	return b.through(ctx, 25*time.Millisecond, 0, func() error {
		r.head("Node 50 ms away", "what", "figure")
		var best reply
		for range 10 {
			c := &client{addr: b.ways[2].addr}
			got, err := c.do(request("sse 1 0"), true)
			c.close()
			if err != nil {
				return err
			}
			if best.firstByte == 0 || got.firstByte < best.firstByte {
				best = got
			}
		}
		r.row("open to first byte, best of 10", fmt.Sprintf("%.1f ms", ms(best.firstByte)))
		r.goal("50 ms round trip: open to first byte, round trips", ms(best.firstByte)/50, 1.1, false)
		one := load(ctx, b.ways[2].addr, request("body 33554432"), false, 1, 3*time.Second)
		if one.err != nil {
			return one.err
		}
		rate := float64(one.bytes) / one.seconds / 1e6
		r.row("one body of 32 MiB", f1(rate)+" MB/s")
		r.goal("50 ms round trip: one big body, MB/s", rate, 13, true)
		many := load(ctx, b.ways[2].addr, request("body 33554432"), false, 16, 3*time.Second)
		r.row("16 bodies of 32 MiB at once", f1(float64(many.bytes)/many.seconds/1e6)+" MB/s")
		return many.err
	})
}

// thinLink puts 100 Mbit/s and 20 ms between them, fills it with eight bulk answers and asks small questions beside.
func (b *bench) thinLink(ctx context.Context, r *report, _ time.Duration, _ int) error {
	return b.through(ctx, 10*time.Millisecond, 100_000_000/8, func() error {
		r.head("100 Mbit/s, 20 ms, 8 bulk answers", "what", "figure")
		bulk := make(chan *result, 1)
		go func() { bulk <- load(ctx, b.ways[2].addr, request("body 16777216"), false, 8, 6*time.Second) }()
		select {
		case <-time.After(2 * time.Second): // the bulk is under way
		case <-ctx.Done():
		}
		small := load(ctx, b.ways[2].addr, request("json"), false, 1, 4*time.Second)
		all := <-bulk
		r.row("bulk", f1(float64(all.bytes)/all.seconds/1e6)+" MB/s")
		r.row("small request beside it, p50", fmt.Sprintf("%.0f ms", ms(small.p(0.5))))
		r.row("small request beside it, p99", fmt.Sprintf("%.0f ms", ms(small.p(0.99))))
		r.goal("100 Mbit/s, 8 bulk: a small request's round trip, ms", ms(small.p(0.5)), 80, false)
		return small.err
	})
}

// through runs measure with the node dialing the edge across a path, and puts the near node back afterwards.
func (b *bench) through(ctx context.Context, delay time.Duration, rate int64, measure func() error) error {
	if err := b.site.Node.Stop(15 * time.Second); err != nil {
		return err
	}
	p, err := newPath(b.site.Nodes, delay, rate)
	if err != nil {
		return err
	}
	defer p.close()
	if err := b.site.StartNode(ctx, p.addr(), ""); err != nil {
		return err
	}
	return measure()
}
