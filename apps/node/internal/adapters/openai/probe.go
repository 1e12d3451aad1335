package openai

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"iop/apps/node/internal/adapters/modellist"
	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

const (
	// probeLimit bounds a probe whatever its caller allows.
	probeLimit = 3 * time.Second
	// maxList is the largest list of models that is read.
	maxList = 4 << 20
	// maxAbout is the largest answer about a version that is read.
	maxAbout = 256 << 10
	// maxVersion is the longest version that is shown.
	maxVersion = 64
)

// unknownVersion is the version of a provider that tells none.
const unknownVersion = "unknown"

// family is what a provider's list of models gives away about who made it.
type family uint8

const (
	familyOther family = iota
	familyLlamaCpp
	familyVLLM
	familyOllama
)

// about is what a provider said of itself once.
type about struct {
	family  family
	version string
}

// Probe implements [execution.Provider]: one GET of the list of models, and once in a provider's life one for its
// version. A provider that wants a key for its list is there all the same.
func (p *Provider) Probe(ctx context.Context) execution.Capabilities {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	answer, reason := p.client.Look(ctx, "/v1/models", maxList)
	if reason != "" {
		p.about.Store(nil) // what comes back may be another
		return execution.Capabilities{Reason: reason, Version: unknownVersion}
	}
	if answer.Status != 200 {
		return execution.Capabilities{Available: true, Version: p.version(ctx, familyOf(answer, nil))}
	}
	list, err := modellist.Read(answer.Body)
	if err != nil {
		return execution.Capabilities{Reason: "answer to GET /v1/models isn't JSON; does base_url point to an OpenAI API?", Version: unknownVersion}
	}
	kind := familyOf(answer, list)
	return execution.Capabilities{Available: true, Version: p.version(ctx, kind), Models: models(kind, list)}
}

// models returns the models. llama.cpp and vLLM hold what they list in memory; others don't tell.
func models(kind family, list []modellist.Model) []execution.Model {
	out := make([]execution.Model, 0, len(list))
	for _, m := range list {
		loaded := kind == familyLlamaCpp || kind == familyVLLM
		if m.State != "" {
			loaded = m.State == "loaded"
		}
		out = append(out, execution.Model{Name: m.ID, Loaded: loaded, Context: m.Context})
	}
	return out
}

func familyOf(answer *upstream.Answer, list []modellist.Model) family {
	if answer.Header.Get("Server") == "llama.cpp" {
		return familyLlamaCpp
	}
	for _, m := range list {
		switch m.OwnedBy {
		case "llamacpp":
			return familyLlamaCpp
		case "vllm":
			return familyVLLM
		case "library":
			return familyOllama
		}
	}
	return familyOther
}

// version returns the provider's version. It is asked for once, where a provider of this family tells it.
func (p *Provider) version(ctx context.Context, kind family) string {
	if known := p.about.Load(); known != nil && known.family == kind {
		return known.version
	}
	version, told := unknownVersion, true
	switch kind {
	case familyLlamaCpp:
		version, told = p.ask(ctx, "/props", "build_info", "llama.cpp ")
	case familyVLLM:
		version, told = p.ask(ctx, "/version", "version", "vllm ")
	case familyOllama:
		version, told = p.ask(ctx, "/api/version", "version", "ollama ")
	}
	if told { // no answer at all is asked for again by the next probe
		p.about.Store(&about{family: kind, version: version})
	}
	return version
}

// ask reads one text from a JSON answer; told reports whether there was an answer.
func (p *Provider) ask(ctx context.Context, path, member, name string) (text string, told bool) {
	answer, err := p.client.Fetch(ctx, path, maxAbout)
	if err != nil || answer.Status != 200 {
		return unknownVersion, err == nil
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(answer.Body, &object) != nil || json.Unmarshal(object[member], &text) != nil || text == "" {
		return unknownVersion, true
	}
	return name + printable(text), true
}

// printable keeps of a provider's text what can be shown in one line.
func printable(s string) string {
	s = s[:min(len(s), maxVersion)]
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
}
