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
	"runtime"
	"strings"
	"time"

	"iop/e2e/procs"
)

func main() {
	bin := flag.String("bin", "bin", "directory of iop-edge and iop-node")
	slice := flag.Duration("slice", 2*time.Second, "length of one slice of load")
	rounds := flag.Int("rounds", 3, "slices of each way, interleaved")
	part := flag.String("part", "", "only the parts whose name begins so: requests, streams, paced, idle, far, thin, members, tls, lease")
	gate := flag.Bool("gate", false, "exit 1 when a figure misses its goal")
	role := flag.String("role", "", "internal: be the provider or the proxy")
	target := flag.String("target", "", "internal: the proxy's target, or where the provider writes its certificate")
	flag.Parse()
	if *role != "" {
		fail(serveRole(*role, *target))
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	missed, err := run(ctx, *bin, *part, *slice, *rounds)
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

func run(ctx context.Context, bin, only string, slice time.Duration, rounds int) (missed int, err error) {
	b, err := newBench(ctx, bin)
	if err != nil {
		return 0, err
	}
	defer b.stop()
	r := &report{}
	r.title(fmt.Sprintf("IOP beside direct and httputil.ReverseProxy (%s, %d cores, %s)", runtime.Version(), runtime.NumCPU(),
		time.Now().UTC().Format(time.DateOnly)))
	for _, part := range []struct {
		name string
		run  func(context.Context, *report, time.Duration, int) error
	}{
		{"requests", b.requests}, {"streams", b.streams}, {"paced", b.paced}, {"idle", b.idle}, {"far", b.farAway}, {"thin", b.thinLink},
		{"members", b.fleet}, {"tls", b.encrypted}, {"lease", b.leased},
	} {
		if !strings.HasPrefix(part.name, only) {
			continue
		}
		if err := part.run(ctx, r, slice, rounds); err != nil {
			return 0, err
		}
	}
	r.goals()
	fmt.Print(r.String())
	return r.missed, nil
}

// bench holds the processes.
type bench struct {
	bin             string
	provider, proxy *procs.Process
	site            *procs.Site
	upstream        string // the provider, host:port
	ways            []way
}

// way is one way to reach the provider.
type way struct {
	name string
	addr string
}

func newBench(ctx context.Context, bin string) (*bench, error) {
	b := &bench{bin: bin}
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
	b.ways = []way{{"direct", direct.Str("http")}, {"ReverseProxy", proxied.Str("http")}, {"IOP", b.site.HTTP}}
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

func (b *bench) startIOP(ctx context.Context, provider string) (err error) {
	b.upstream = provider
	b.site, err = procs.StartSite(ctx, b.siteConfig(""))
	return err
}

// siteConfig is a site before the fake provider; managed is the life of its node's certificate, "" = mode dev.
func (b *bench) siteConfig(managed string) procs.SiteConfig {
	return procs.SiteConfig{
		Bin: b.bin, Managed: managed,
		Adapters: fmt.Sprintf(`[{name: provider, kind: openai, base_url: "http://%s", max_concurrency: 2000}]`, b.upstream),
		Routes:   "[{model: bench, adapter: provider, target: bench, queue: {depth: 2000, wait: 30s}}]",
	}
}

func (b *bench) stop() {
	if b.site != nil {
		_ = b.site.Stop() // the figures are out
	}
	for _, p := range []*procs.Process{b.proxy, b.provider} {
		if p != nil {
			p.Kill()
		}
	}
}

// request builds a chat request whose user field tells the fake provider what to do.
func request(what string) []byte {
	body := fmt.Sprintf(`{"model":"bench","stream":%v,"user":%q,"messages":[{"role":"user","content":"What is the answer, please? It matters."}]}`,
		strings.HasPrefix(what, "sse"), what)
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
}
