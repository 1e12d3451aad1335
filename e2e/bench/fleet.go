package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"iop/e2e/procs"
	"iop/packages/go/config"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// fleetSize is how many nodes register at once.
const fleetSize = 1000

// fleet lets a thousand nodes register at an edge that serves others meanwhile. The nodes are links of this process: what
// is measured is the edge.
func (b *bench) fleet(ctx context.Context, r *report, slice time.Duration, _ int) error {
	records := make([]string, fleetSize)
	for i := range records {
		records[i] = fmt.Sprintf("{id: n%d, token_hashes: [{sha256: %x}], adapters: [{name: idle, kind: loopback}]}", i, config.HashSecret(memberToken(i)))
	}
	site, err := procs.StartSite(ctx, procs.SiteConfig{Bin: b.bin, MoreNodes: records,
		Adapters: fmt.Sprintf(`[{name: provider, kind: openai, base_url: "http://%s", max_concurrency: 64}]`, b.ways[0].addr),
		Routes:   "[{model: bench, adapter: provider, target: bench}]"})
	if err != nil {
		return err
	}
	defer site.Stop()
	quiet := load(ctx, site.HTTP, request("json"), false, 4, slice)
	before := rss(site.Edge.Pid())

	during := make(chan *result, 1)
	busy, calm := context.WithCancel(ctx)
	go func() { during <- load(busy, site.HTTP, request("json"), false, 4, time.Minute) }()
	links, done := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer done()
	began := time.Now()
	if err := joinAll(links, &running, site.Nodes); err != nil {
		calm()
		return err
	}
	if err := allReady(ctx, site.Admin); err != nil {
		calm()
		return err
	}
	took := time.Since(began)
	calm()
	beside := <-during
	with := rss(site.Edge.Pid())

	r.head("1,000 nodes register at once, beside 4 callers", "what", "figure")
	r.row("until all are ready", fmt.Sprintf("%.2f s", took.Seconds()))
	r.row("resident of the edge before, with them", fmt.Sprintf("%.0f, %.0f MiB", mib(before), mib(with)))
	r.row("a connected idle node on the edge", fmt.Sprintf("%.0f KiB", float64(with-before)/1024/fleetSize))
	r.row("small requests before: p50, p99", fmt.Sprintf("%s, %s µs", us(quiet.p(0.5)), us(quiet.p(0.99))))
	r.row("small requests meanwhile: p50, p99", fmt.Sprintf("%s, %s µs", us(beside.p(0.5)), us(beside.p(0.99))))
	r.row("errors meanwhile", fmt.Sprint(beside.errors))
	r.goal("1,000 nodes register, s", took.Seconds(), 10, false)
	r.goal("errors of callers meanwhile", float64(beside.errors), 0, false)
	r.goal("a connected idle node on the edge, KiB", float64(with-before)/1024/fleetSize, 100, false)
	return nil
}

func memberToken(i int) string { return fmt.Sprintf("bench-token-of-member-%d-0123456789", i) }

// joinAll registers every member, 64 at a time as an edge is dialled after an outage, and runs their links until ctx ends.
func joinAll(ctx context.Context, running *sync.WaitGroup, addr string) error {
	turns, failed := make(chan struct{}, 64), make(chan error, fleetSize)
	for i := range fleetSize {
		go func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			failed <- join(ctx, running, addr, i)
		}()
	}
	for range fleetSize {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

func join(ctx context.Context, running *sync.WaitGroup, addr string, i int) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	instance := sha256.Sum256([]byte(memberToken(i)))
	var answer pb.RegisterResponse
	err = transport.WriteMessage(conn, &pb.RegisterRequest{ProtocolMin: transport.ProtocolMin, ProtocolMax: transport.ProtocolMax,
		Token: memberToken(i), InstanceId: instance[:16], SoftwareVersion: "bench"})
	if err == nil {
		err = transport.ReadMessage(conn, transport.MaxRegisterResponse, &answer)
	}
	if err == nil && !answer.GetAccepted() {
		err = fmt.Errorf("the edge refused n%d: %v %s", i, answer.GetReason(), answer.GetReasonText())
	}
	if err != nil {
		conn.Close()
		return err
	}
	link := transport.NewNodeLink(conn, transport.Config{Log: zerolog.Nop()}, idleNode{})
	running.Go(func() { _ = link.Run(ctx) })
	ready := &pb.Ready{Projection: answer.GetConfig().GetProjection()}
	for _, a := range answer.GetConfig().GetAdapters() {
		ready.Adapters = append(ready.Adapters, &pb.AdapterState{Name: a.GetName(), Revision: a.GetAdapterRevision(),
			Available: true, Capacity: a.GetMaxConcurrency(), Version: "bench"})
	}
	link.SendReady(func() *pb.Ready { return ready })
	return nil
}

// idleNode is a node that is never given work.
type idleNode struct{}

// Control implements transport.NodeHandler.
func (idleNode) Control(*pb.EdgeControl) {}

// Work implements transport.NodeHandler.
func (idleNode) Work(s *transport.Stream) { s.Close() }

// allReady waits until the edge shows every member as ready.
func allReady(ctx context.Context, admin string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
		var list struct {
			Nodes []struct{ State string } `json:"nodes"`
		}
		if err := getJSON("http://"+admin+"/admin/v1/nodes", &list); err != nil {
			return err
		}
		ready := 0
		for _, n := range list.Nodes {
			if n.State == "ready" {
				ready++
			}
		}
		if ready == fleetSize+1 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("not every node became ready within a minute")
}

func getJSON(url string, into any) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}
