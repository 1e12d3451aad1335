// Package loopback is an embedded provider: it speaks the OpenAI dialect with deterministic answers and no network.
package loopback

import (
	"context"

	"iop/packages/go/execution"
)

// Config is what the kind takes from an adapter's configuration.
type Config struct {
	Targets    []string
	AllowPaths []string
	Options    map[string]string
}

// Provider answers by itself.
type Provider struct{}

var _ execution.Tunneler = (*Provider)(nil)

// New returns the driver; it starts nothing.
func New(cfg Config) (*Provider, error) { panic("not yet") }

// Probe implements [execution.Provider].
func (p *Provider) Probe(ctx context.Context) execution.Capabilities { panic("not yet") }

// Close implements [execution.Provider].
func (p *Provider) Close() {}

// Tunnel implements [execution.Tunneler].
func (p *Provider) Tunnel(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	panic("not yet")
}
