// Bench measures what the way through Edge and Node costs: the same fake provider is reached directly, through
// httputil.ReverseProxy and through the two programs, in slices that follow each other in one run, so that each figure
// can be read as a ratio on a noisy machine. It prints a Markdown report; with -gate it fails when a figure misses the
// first column of the numbers to reach.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"iop/e2e/procs"
)

func main() {
	bin := flag.String("bin", "bin", "directory of iop-edge and iop-node")
	slice := flag.Duration("slice", 2*time.Second, "length of one slice of load")
	rounds := flag.Int("rounds", 3, "slices of each way, interleaved")
	gate := flag.Bool("gate", false, "exit 1 when a figure misses its goal")
	role := flag.String("role", "", "internal: be the provider or the proxy")
	target := flag.String("target", "", "internal: the proxy's target")
	flag.Parse()
	if *role != "" {
		fail(serveRole(*role, *target))
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	missed, err := run(ctx, *bin, *slice, *rounds)
	fail(err)
	if *gate && missed > 0 {
		fail(fmt.Errorf("%d figures miss their goal", missed))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string, slice time.Duration, rounds int) (missed int, err error) {
	b, err := newBench(ctx, bin)
	if err != nil {
		return 0, err
	}
	defer b.stop()
	r := &report{}
	r.title(fmt.Sprintf("IOP beside direct and httputil.ReverseProxy (%s, %d cores, %s)", runtime.Version(), runtime.NumCPU(),
		time.Now().UTC().Format(time.DateOnly)))
	for _, part := range []func(context.Context, *report, time.Duration, int) error{
		b.requests, b.streams, b.paced, b.idle, b.farAway, b.thinLink,
	} {
		if err := part(ctx, r, slice, rounds); err != nil {
			return 0, err
		}
	}
	r.goals()
	fmt.Print(r.String())
	return r.missed, nil
}

// bench holds the processes.
type bench struct {
	dir                         string
	bin                         string
	provider, proxy, edge, node *procs.Process
	edgeNodes                   string // where nodes dial
	ways                        []way
}

// way is one way to reach the provider.
type way struct {
	name string
	addr string
}

func newBench(ctx context.Context, bin string) (*bench, error) {
	dir, err := os.MkdirTemp("", "iop-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{dir: dir, bin: bin}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var direct, proxied procs.Entry
	if b.provider, direct, err = startAndWait(ctx, "provider", self, "-role", "provider"); err != nil {
		return nil, err
	}
	if b.proxy, proxied, err = startAndWait(ctx, "proxy", self, "-role", "proxy", "-target", direct.Str("http")); err != nil {
		return nil, err
	}
	if err := b.startIOP(ctx, direct.Str("http")); err != nil {
		return nil, err
	}
	entry, err := b.edge.Wait(ctx, "edge is listening", 1)
	if err != nil {
		return nil, err
	}
	b.ways = []way{{"direct", direct.Str("http")}, {"ReverseProxy", proxied.Str("http")}, {"IOP", entry.Str("http")}}
	return b, nil
}

func startAndWait(ctx context.Context, name, path string, args ...string) (*procs.Process, procs.Entry, error) {
	p, err := procs.Start(ctx, name, path, args...)
	if err != nil {
		return nil, nil, err
	}
	wait, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	entry, err := p.Wait(wait, name+" is listening", 1)
	return p, entry, err
}

const edgeConfig = `mode: dev
listen: {nodes: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0"}
state_dir: ./state
nodes:
  - id: bench
    token_hashes: [{file: ./node.token.sha256}]
    adapters: [{name: provider, kind: openai, base_url: "http://%s", max_concurrency: 2000}]
routes:
  - {model: bench, adapter: provider, target: bench, queue: {depth: 2000, wait: 30s}}
log: {level: info, format: json}
`

const nodeConfig = `edges: [%q]
token: file:./node.token
data_dir: ./data
log: {level: info, format: json}
`

func (b *bench) startIOP(ctx context.Context, provider string) error {
	token, err := procs.Start(ctx, "token", filepath.Join(b.bin, "iop-edge"), "token", "new", "bench",
		"--hash-file", filepath.Join(b.dir, "node.token.sha256"), "--token-file", filepath.Join(b.dir, "node.token"))
	if err != nil {
		return err
	}
	<-token.Done()
	config := filepath.Join(b.dir, "edge.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, edgeConfig, provider), 0o600); err != nil {
		return err
	}
	var listening procs.Entry
	if b.edge, listening, err = startAndWait(ctx, "edge", filepath.Join(b.bin, "iop-edge"), "serve", "-c", config); err != nil {
		return err
	}
	b.edgeNodes = listening.Str("nodes")
	b.node, err = b.startNode(ctx, b.edgeNodes)
	return err
}

// startNode starts the node against an address: the edge's own, or that of a path to it.
func (b *bench) startNode(ctx context.Context, edge string) (*procs.Process, error) {
	config := filepath.Join(b.dir, "node.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, nodeConfig, edge), 0o600); err != nil {
		return nil, err
	}
	seen := b.edge.Count("node is ready")
	node, err := procs.Start(ctx, "node", filepath.Join(b.bin, "iop-node"), "serve", "-c", config)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, err = b.edge.Wait(wait, "node is ready", seen+1)
	return node, err
}

func (b *bench) stop() {
	for _, p := range []*procs.Process{b.node, b.edge} {
		if p != nil {
			_ = p.Stop(15 * time.Second) // the figures are out
		}
	}
	for _, p := range []*procs.Process{b.proxy, b.provider} {
		if p != nil {
			p.Kill()
		}
	}
	os.RemoveAll(b.dir)
}

// request builds a chat request whose user field tells the fake provider what to do.
func request(what string) []byte {
	body := fmt.Sprintf(`{"model":"bench","stream":%v,"user":%q,"messages":[{"role":"user","content":"What is the answer, please? It matters."}]}`,
		strings.HasPrefix(what, "sse"), what)
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
}
