// Package ollama drives Ollama by its native API, and by the OpenAI and Anthropic endpoints that it has beside it.
//
// It says which paths an Ollama has, what it tells of itself, what a normalized run looks like in its native dialect,
// there and back, and which questions of an operator it answers; how a request gets there and back is package
// upstream's business. It never runs a model to find something out.
package ollama

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// DefaultURL is where an Ollama listens when nobody told it otherwise. The auto kind looks there.
const DefaultURL = "http://127.0.0.1:11434"

// Config is what the kinds ollama and auto take from an adapter's configuration.
type Config struct {
	BaseURL        string            // http://h:p; http://h:p/v1 is the same. Empty with Auto = DefaultURL
	Auto           bool              // an Ollama that may or may not be there: what is found is logged once
	MaxConcurrency int               // idle connections worth keeping
	Options        map[string]string // see wording.set
	AllowPaths     []string          // paths beside the dialects'
	Connect        time.Duration     // 0 = 5 s
	Log            zerolog.Logger
}

// Provider is an Ollama.
type Provider struct {
	client   *upstream.Client
	commands *upstream.Client // carries what an operator may ask and a caller may not
	url      string
	how      wording
	contexts contexts
	shows    time.Duration // showsLimit; a test's to change
	finding  *finding      // nil = its configuration says that it is there
}

var (
	_ execution.Tunneler  = (*Provider)(nil)
	_ execution.Executor  = (*Provider)(nil)
	_ execution.Commander = (*Provider)(nil)
)

// Paths returns what may be tunnelled without further configuration.
func Paths() []string { return httprules.KindPaths("ollama") }

// New returns the driver; it starts nothing and asks the provider nothing.
func New(cfg Config) (*Provider, error) {
	p := &Provider{url: httprules.KindBase("ollama", cfg.BaseURL), shows: showsLimit}
	if cfg.Auto {
		p.finding = &finding{log: cfg.Log}
		if p.url == "" {
			p.url = DefaultURL
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Options)) {
		if err := p.how.set(name, cfg.Options[name]); err != nil {
			return nil, fmt.Errorf("options: %w", err)
		}
	}
	up := upstream.Config{
		BaseURL: p.url, Paths: Paths(), AllowPaths: cfg.AllowPaths,
		MaxConcurrency: cfg.MaxConcurrency, Connect: cfg.Connect, Log: cfg.Log,
	}
	var err error
	if p.client, err = upstream.New(up); err != nil {
		return nil, err
	}
	up.Paths, up.AllowPaths = commandPaths(), nil
	if p.commands, err = upstream.New(up); err != nil {
		return nil, err
	}
	return p, nil
}

// Close implements [execution.Provider].
func (p *Provider) Close() {
	p.client.Close()
	p.commands.Close()
}

// Tunnel implements [execution.Tunneler].
func (p *Provider) Tunnel(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	return p.client.Tunnel(ctx, req, sink)
}

// wording is what an adapter's options say of its runs.
type wording struct {
	keepAlive string // JSON: how long a model stays in memory after a run; empty = the provider's own choice
}

// set reads one of the adapter's options:
//
//	keep_alive  how long a model stays in memory after a run: a time as in 10m, seconds, 0 = not at all, -1 = for ever
func (w *wording) set(name, value string) error {
	if name != "keep_alive" {
		return fmt.Errorf("%q is unknown; the kinds ollama and auto have keep_alive", name)
	}
	if n, err := strconv.ParseInt(value, 10, 32); err == nil {
		w.keepAlive = strconv.FormatInt(n, 10)
		return nil
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		return errors.New("keep_alive: must be a time as in 10m, or a number of seconds; 0 = not at all, -1 = for ever")
	}
	w.keepAlive = strconv.Quote(d.String())
	return nil
}
