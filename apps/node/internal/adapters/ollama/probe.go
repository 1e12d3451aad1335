package ollama

import (
	"context"

	"github.com/rs/zerolog"

	"iop/packages/go/execution"
)

type contexts struct{}
type finding struct{ log zerolog.Logger }

// Probe implements [execution.Provider].
func (p *Provider) Probe(ctx context.Context) execution.Capabilities {
	return execution.Capabilities{Version: "unknown"}
}
