// Package clients drives the official clients of three APIs against a real llama-server and a real Ollama, first directly
// and then through Edge and Node. Where the edge carries a request as it is, what a caller sees must be the same; where a
// request goes as a run and its answer is written anew, it must be what the model is known to say. It is a module of its
// own, so that the clients' dependencies stay out of the product's, and it knows nothing of the product but its addresses.
//
// `make test-clients` runs it. IOP_BIN is the directory of the programs, IOP_PROVIDER that of llama-server and its models,
// IOP_OLLAMA that of Ollama, IOP_CACHE where npm's clients are kept. Without the last two their part is skipped.
package clients

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"iop/e2e/procs"
)

// The providers.
const (
	providerLlama  = "llama"
	providerOllama = "ollama"
)

// world is what the tests run against; TestMain makes it once.
type world struct {
	dir                          string              // of llama-server and its models
	llama, slow, vectors, locked string              // addresses of llama-servers, host:port
	mortal                       string              // the address of one that a test starts
	ollama                       *procs.OllamaServer // nil = there is none here
	edge                         string              // of the site whose routes reach all of them
	guarded                      string              // of an edge that wants a key
	models                       []string            // the names of the routes, sorted
	npm                          *npm                // nil = npm's clients can't be had here

	ends []func() error
}

var the world // set once by TestMain before any test

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	bin, provider := os.Getenv("IOP_BIN"), os.Getenv("IOP_PROVIDER")
	if bin == "" || provider == "" {
		fmt.Println("skipped: IOP_BIN and IOP_PROVIDER aren't set; run `make test-clients`")
		return 0
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	code := 1
	err := the.start(ctx, bin, provider)
	if err == nil {
		code = m.Run()
	}
	if err = errors.Join(err, the.stop()); err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	return code
}

func (w *world) start(ctx context.Context, bin, provider string) error {
	for _, server := range []struct {
		addr  *string
		model string
		args  []string
	}{
		// One slot each: an answer doesn't depend on what another slot has in its cache, and a generation that goes on
		// when nobody wants it keeps everyone else out.
		{&w.llama, "tiny.gguf", []string{"-np", "1"}},
		{&w.slow, "slow.gguf", []string{"-np", "1"}},
		{&w.vectors, "tiny.gguf", []string{"-np", "1", "--embeddings", "--pooling", "mean"}},
		{&w.locked, "tiny.gguf", []string{"-np", "1", "--api-key", "the-provider's"}},
	} {
		p, addr, err := procs.Llama(ctx, provider, server.model, server.args...)
		if err != nil {
			return err
		}
		w.ends = append(w.ends, func() error { p.Kill(); return nil })
		*server.addr = addr
	}
	if err := w.startOllama(ctx, provider); err != nil {
		return err
	}
	addr, err := procs.FreeAddr()
	if err != nil {
		return err
	}
	w.dir, w.mortal = provider, addr
	if err := w.startSites(ctx, bin); err != nil {
		return err
	}
	n, err := startNPM(ctx, os.Getenv("IOP_CACHE"))
	if err != nil {
		fmt.Println("skipped: npm's clients, since they can't be had here:", err)
		return nil
	}
	w.npm = n
	w.ends = append(w.ends, n.stop)
	return nil
}

func (w *world) startOllama(ctx context.Context, models string) error {
	dir := os.Getenv("IOP_OLLAMA")
	if _, err := os.Stat(filepath.Join(dir, "ollama")); dir == "" || err != nil {
		fmt.Printf("skipped: everything with Ollama, since there is none in IOP_OLLAMA (%q); scripts/install-ollama.sh builds it\n", dir)
		return nil
	}
	o, err := procs.Ollama(ctx, procs.OllamaConfig{Dir: dir, Env: []string{"OLLAMA_NUM_PARALLEL=1", "OLLAMA_KEEP_ALIVE=1h"},
		Models: map[string]string{"otiny": filepath.Join(models, "tiny.gguf"), "oslow": filepath.Join(models, "slow.gguf")}})
	if err != nil {
		return err
	}
	w.ends = append(w.ends, o.Stop)
	w.ollama = o
	return nil
}

// adapters are the ways to the providers, and routes their names at the edge. A route is called after its provider and the
// kind of its adapter, but for those through which a provider looks as it does directly.
func (w *world) config() (adapters, routes string) {
	var a, r []string
	add := func(name, kind, addr, target, more string) {
		a = append(a, fmt.Sprintf(`{name: %s, kind: %s, base_url: "http://%s", max_concurrency: 4%s}`, name, kind, addr, more))
		r = append(r, w.route(name, name, target))
	}
	const messages = `, allow_paths: ["/v1/messages", "/v1/messages/count_tokens"]`
	add("tiny", "openai", w.llama, "tiny", messages)
	add("llama-openai", "openai", w.llama+"/v1", "tiny", "")
	add("llama-anthropic", "anthropic", w.llama, "tiny", "")
	add("slow", "openai", w.slow, "tiny", messages)
	add("slow-openai", "openai", w.slow, "tiny", "")
	add("slow-anthropic", "anthropic", w.slow, "tiny", "")
	add("mortal", "openai", w.mortal, "tiny", messages)
	add("mortal-anthropic", "anthropic", w.mortal, "tiny", "")
	add("vectors", "openai", w.vectors, "tiny", "")
	add("locked", "openai", w.locked, "tiny", messages)
	a = append(a, "{name: many, kind: loopback, max_concurrency: 4}")
	r = append(r, w.route("many", "many", "loopback"))
	if w.ollama != nil {
		add("otiny", "ollama", w.ollama.Addr, "otiny", "")
		add("ollama-openai", "openai", w.ollama.Addr, "otiny", "")
		add("ollama-anthropic", "anthropic", w.ollama.Addr, "otiny", "")
		r = append(r, w.route("oslow", "otiny", "oslow"), w.route("oslow-openai", "ollama-openai", "oslow"),
			w.route("oslow-anthropic", "ollama-anthropic", "oslow"))
	}
	slices.Sort(w.models)
	return "[" + strings.Join(a, ",\n  ") + "]", "[" + strings.Join(r, ",\n  ") + "]"
}

func (w *world) route(name, adapter, target string) string {
	w.models = append(w.models, name)
	return fmt.Sprintf(`{model: %s, adapter: %s, target: %s}`, name, adapter, target)
}

// The key of the guarded edge, and its SHA-256.
const (
	rightKey     = "iop-key-of-the-clients-tests"
	rightKeyHash = "de7c5aaa14f2bf153324c66a668eb9a15a8075228c14f7bedd87c423d1382f5b"
)

func (w *world) startSites(ctx context.Context, bin string) error {
	adapters, routes := w.config()
	for _, site := range []struct {
		addr *string
		edge string
	}{
		{&w.edge, ""},
		{&w.guarded, "principals: [{id: tests, key_hashes: [" + rightKeyHash + "]}]"},
	} {
		s, err := procs.StartSite(ctx, procs.SiteConfig{Bin: bin, Adapters: adapters, Routes: routes, Edge: site.edge,
			Node: "timers: {probe_interval: 300ms}"})
		if err != nil {
			return err
		}
		w.ends = append(w.ends, s.Stop)
		*site.addr = s.HTTP
	}
	return nil
}

func (w *world) stop() (err error) {
	for _, end := range w.ends {
		err = errors.Join(err, end())
	}
	return err
}

// direct is a provider itself.
func (w *world) direct(provider string) place {
	if provider == providerOllama {
		return place{Base: "http://" + w.ollama.Addr, Model: "otiny", Key: "not-needed"}
	}
	return place{Base: "http://" + w.llama, Model: "tiny", Key: "not-needed"}
}

// through is a route of the edge.
func (w *world) through(route string) place {
	return place{Base: "http://" + w.edge, Model: route, Key: "not-needed"}
}

// has reports whether a provider is there.
func (w *world) has(provider string) bool { return provider != providerOllama || w.ollama != nil }
