package ollama

import (
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"iop/packages/go/execution"
)

// maxNames is how many models are named in the log.
const maxNames = 20

// finding is what the auto kind knows of the provider that it looks for.
type finding struct {
	log zerolog.Logger

	mu   sync.Mutex
	told string // the version that was logged
}

// note says what a probe means for a provider that nobody promised: one that isn't there is no fault, one that is has
// to be an Ollama, and what was found is logged once.
func (f *finding) note(url string, caps execution.Capabilities) execution.Capabilities {
	switch {
	case !caps.Available:
		return unavailable("no Ollama on this node's machine at " + url + ": " + caps.Reason)
	case caps.Version == unknownVersion:
		return unavailable("what answers at " + url + " doesn't say that it is an Ollama; configure it under its own kind")
	}
	f.mu.Lock()
	known := f.told == caps.Version
	f.told = caps.Version
	f.mu.Unlock()
	if known {
		return caps
	}
	var names []string
	for _, m := range caps.Models[:min(len(caps.Models), maxNames)] {
		names = append(names, printable(m.Name))
	}
	f.log.Info().Str("url", url).Str("version", caps.Version).Int("models", len(caps.Models)).
		Str("names", strings.Join(names, " ")).Msg("found an Ollama")
	return caps
}
