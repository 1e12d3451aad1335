// Package openai drives providers that speak the OpenAI dialect: vLLM, llama.cpp, LM Studio, hosted APIs.
package openai

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/execution"
)

// Config is what the kind takes from an adapter's configuration.
type Config struct {
	BaseURL        string
	MaxConcurrency int
	Options        map[string]string
	AllowPaths     []string
	Connect        time.Duration
	Log            zerolog.Logger
}

// Provider is a provider that speaks the OpenAI dialect.
type Provider struct{}

var _ execution.Tunneler = (*Provider)(nil)

// New returns the driver; it starts nothing.
func New(cfg Config) (*Provider, error) { panic("not yet") }

// Probe implements [execution.Provider].
func (p *Provider) Probe(ctx context.Context) execution.Capabilities { panic("not yet") }

// Close implements [execution.Provider].
func (p *Provider) Close() { panic("not yet") }

// Tunnel implements [execution.Tunneler].
func (p *Provider) Tunnel(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	panic("not yet")
}
