package anthropic

import (
	"context"
	"time"

	"iop/apps/node/internal/adapters/modellist"
	"iop/packages/go/execution"
)

const (
	// probeLimit bounds a probe whatever its caller allows.
	probeLimit = 3 * time.Second
	// maxList is the largest list of models that is read.
	maxList = 4 << 20
	// modelsPath asks for the longest page that the API has: one page is all there is.
	modelsPath = "/v1/models?limit=1000"
	// unknownVersion is that of every provider: the API tells none.
	unknownVersion = "unknown"
)

// Probe implements [execution.Provider] by one GET of the list of models. A provider that wants a key for it is there
// all the same.
func (p *Provider) Probe(ctx context.Context) execution.Capabilities {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	answer, reason := p.client.Look(ctx, modelsPath, maxList)
	switch {
	case reason != "":
		return execution.Capabilities{Reason: reason, Version: unknownVersion}
	case answer.Status != 200:
		return execution.Capabilities{Available: true, Version: unknownVersion}
	}
	list, err := modellist.Read(answer.Body)
	if err != nil {
		return execution.Capabilities{Reason: "answer to GET /v1/models isn't a list; does base_url point to an Anthropic API?", Version: unknownVersion}
	}
	models := make([]execution.Model, 0, len(list))
	for _, m := range list { // llama.cpp holds what it lists in memory; others don't tell
		models = append(models, execution.Model{Name: m.ID, Loaded: m.OwnedBy == "llamacpp" && (m.State == "" || m.State == "loaded"), Context: m.Context})
	}
	return execution.Capabilities{Available: true, Version: unknownVersion, Models: models}
}
