package ollama

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

const (
	// probeLimit bounds a probe whatever its caller allows. The node allows less: what no answer means while runs are
	// in work is for the node to say.
	probeLimit = 10 * time.Second
	// maxList is the largest list of models that is read.
	maxList = 4 << 20
	// maxVersion is the longest version and the longest name that are shown.
	maxVersion = 64
)

// unknownVersion is the version of a provider that tells none.
const unknownVersion = "unknown"

// list is the answer to GET /api/tags and to GET /api/ps.
type list struct {
	Models []listed `json:"models"`
}

// listed is one model of a list.
type listed struct {
	Name    string `json:"name"`
	Digest  string `json:"digest"`
	Context int64  `json:"context_length"` // of those in memory: what a request gets
}

// Probe implements [execution.Provider]: the version, the models, those in memory, and for a few models that are new
// how long their context is. Nothing of it loads a model. (OL-01)
func (p *Provider) Probe(ctx context.Context) execution.Capabilities {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	caps := p.look(ctx)
	if p.finding != nil {
		return p.finding.note(p.url, caps)
	}
	return caps
}

func (p *Provider) look(ctx context.Context) execution.Capabilities {
	answer, err := p.client.Fetch(ctx, "/api/version", maxList)
	if err != nil {
		return unavailable(failed(err, "/api/version"))
	}
	version := readVersion(answer)
	switch s := answer.Status; {
	case s >= 500:
		return unavailable(fmt.Sprintf("provider answers %d to GET /api/version", s))
	case s >= 300 && s < 400:
		return unavailable(fmt.Sprintf("provider redirects (%d); set base_url to where it redirects to", s))
	case wantsKey(s):
		return execution.Capabilities{Available: true, Version: version}
	}
	models, keyed, reason := p.list(ctx, "/api/tags")
	switch {
	case keyed: // the version alone is told to whoever asks
		return execution.Capabilities{Available: true, Version: version}
	case reason != "":
		return unavailable(reason)
	}
	inMemory, _, _ := p.list(ctx, "/api/ps") // older versions don't have it
	return execution.Capabilities{Available: true, Version: version, Models: p.models(ctx, models, inMemory)}
}

// wantsKey reports whether something before an Ollama wants a key, which the node hasn't: it is there all the same, and
// what it has isn't told.
func wantsKey(status int) bool { return status == 401 || status == 403 }

// list asks for a list of models; keyed or a reason say why there is none.
func (p *Provider) list(ctx context.Context, path string) (models []listed, keyed bool, reason string) {
	answer, err := p.client.Fetch(ctx, path, maxList)
	if err != nil {
		return nil, false, failed(err, path)
	}
	var l list
	switch {
	case wantsKey(answer.Status):
		return nil, true, ""
	case answer.Status != 200:
		return nil, false, fmt.Sprintf("provider answers %d to GET %s; does base_url point to an Ollama?", answer.Status, path)
	case json.Unmarshal(answer.Body, &l) != nil || l.Models == nil:
		return nil, false, "answer to GET " + path + " isn't a list of models; does base_url point to an Ollama?"
	}
	return l.Models, false, ""
}

// models puts together what the lists say. A model in memory has the context that it was loaded with; of others it is
// what they would have.
func (p *Provider) models(ctx context.Context, all, inMemory []listed) []execution.Model {
	loaded := map[string]listed{}
	for _, m := range inMemory {
		loaded[m.Name] = m
	}
	p.learn(ctx, all, loaded)
	models := make([]execution.Model, 0, len(all))
	for _, m := range all {
		if m.Name == "" {
			continue
		}
		l, is := loaded[m.Name]
		length := max(l.Context, 0)
		if length == 0 {
			length = p.contexts.of(m.Digest)
		}
		models = append(models, execution.Model{Name: m.Name, Loaded: is, Context: length})
	}
	return models
}

// readVersion reads the answer to GET /api/version.
func readVersion(answer *upstream.Answer) string {
	var v struct {
		Version string `json:"version"`
	}
	if answer.Status != 200 || json.Unmarshal(answer.Body, &v) != nil || printable(v.Version) == "" {
		return unknownVersion
	}
	return "ollama " + printable(v.Version)
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

func unavailable(reason string) execution.Capabilities {
	return execution.Capabilities{Reason: reason, Version: unknownVersion}
}

// failed says why a question got no answer.
func failed(err error, path string) string {
	if f, ok := errors.AsType[*execution.Failure](err); ok {
		return f.Text
	}
	return "no answer in time to GET " + path
}
