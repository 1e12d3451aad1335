// Package openai drives providers that speak the OpenAI dialect: vLLM, llama.cpp, LM Studio, hosted APIs, and others
// behind the same paths.
//
// It says which paths the dialect has, what a provider tells of itself, and what a normalized run looks like in the
// dialect, there and back; how a request gets there and back is package upstream's business.
package openai

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// Config is what the kind takes from an adapter's configuration.
type Config struct {
	BaseURL        string            // with or without the API's version: http://h:p and http://h:p/v1 are the same
	MaxConcurrency int               // idle connections worth keeping
	Options        map[string]string // see wording.set
	AllowPaths     []string          // paths beside the dialect's, as llama.cpp's /v1/messages
	Connect        time.Duration     // 0 = 5 s
	Log            zerolog.Logger
}

// Provider is a provider that speaks the OpenAI dialect.
type Provider struct {
	client *upstream.Client
	how    wording
	about  atomic.Pointer[about] // what doesn't change while the provider runs; nil = ask
}

var (
	_ execution.Tunneler = (*Provider)(nil)
	_ execution.Executor = (*Provider)(nil)
)

// Paths returns what may be tunnelled without further configuration.
func Paths() []string { return httprules.KindPaths("openai") }

// New returns the driver; it starts nothing and asks the provider nothing.
func New(cfg Config) (*Provider, error) {
	how := newWording()
	for _, name := range slices.Sorted(maps.Keys(cfg.Options)) {
		if err := how.set(name, cfg.Options[name]); err != nil {
			return nil, fmt.Errorf("options: %w", err)
		}
	}
	client, err := upstream.New(upstream.Config{
		BaseURL: cfg.BaseURL, Paths: Paths(), AllowPaths: cfg.AllowPaths,
		MaxConcurrency: cfg.MaxConcurrency, Connect: cfg.Connect, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	return &Provider{client: client, how: how}, nil
}

// Close implements [execution.Provider].
func (p *Provider) Close() { p.client.Close() }

// Tunnel implements [execution.Tunneler].
func (p *Provider) Tunnel(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	return p.client.Tunnel(ctx, req, sink)
}
