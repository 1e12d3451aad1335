package main

import (
	"context"
	"fmt"
	"time"

	"iop/e2e/procs"
)

// encrypted compares a site in mode managed with the one in mode dev, which do the same: the difference is TLS on the
// link. What counts is the CPU of a request, edge and node together; on a machine that is full that is its time, too.
func (b *bench) encrypted(ctx context.Context, r *report, slice time.Duration, rounds int) error {
	managed, err := procs.StartSite(ctx, b.siteConfig("1h"))
	if err != nil {
		return err
	}
	defer managed.Stop()
	ways := []struct {
		name string
		site *procs.Site
	}{{"dev", b.site}, {"managed", managed}}
	r.head("TLS on the link: requests that don't stream", "concurrent", "mode", "requests/s", "p50 µs", "p99 µs", "CPU µs/request edge+node", "errors")
	for _, concurrency := range []int{1, 16, 64} {
		results, meters := []*result{{}, {}}, []*meter{{b: &bench{site: b.site}}, {b: &bench{site: managed}}}
		for _, w := range ways {
			load(ctx, w.site.HTTP, request("json"), false, concurrency, 200*time.Millisecond) // warm up
		}
		for range rounds {
			for i, w := range ways {
				meters[i].around(true)
				results[i].add(load(ctx, w.site.HTTP, request("json"), false, concurrency, slice))
				meters[i].around(false)
			}
		}
		cpu := make([]float64, 2)
		for i, res := range results {
			cpu[i] = float64(meters[i].cpu.Microseconds()) / float64(max(1, res.requests))
			r.row(fmt.Sprint(concurrency), ways[i].name, f0(res.rps()), us(res.p(0.5)), us(res.p(0.99)), f0(cpu[i]), fmt.Sprint(res.errors))
		}
		r.goal(fmt.Sprintf("CPU that TLS costs a request at %d concurrent, edge + node, µs", concurrency), cpu[1]-cpu[0], 40, false)
	}
	return nil
}
