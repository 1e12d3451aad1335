// Package adapters is the map of adapter kinds: it turns one adapter of a node's projection into the driver of a
// provider. It knows each kind by name and nothing of links, places or runs.
//
// A new kind is one package beside this file and one line in [Build].
package adapters

import (
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/adapters/anthropic"
	"iop/apps/node/internal/adapters/loopback"
	"iop/apps/node/internal/adapters/ollama"
	"iop/apps/node/internal/adapters/openai"
	"iop/packages/go/execution"
)

// Config is one adapter as the projection names it.
type Config struct {
	Name           string            // unique on the node; for logs
	Kind           string            // one of Kinds
	BaseURL        string            // http:// or https:// URL of the provider; empty for embedded kinds
	MaxConcurrency int               // places; how many idle connections are worth keeping
	Options        map[string]string // per kind; an unknown one is refused
	AllowPaths     []string          // paths that may be tunnelled beside the dialect's own
	Targets        []string          // what the adapter offers, empty = what the provider says
	Connect        time.Duration     // limit of dial and TLS handshake, 0 = 5 s
	Log            zerolog.Logger
}

// Kinds returns the names of all kinds, sorted.
func Kinds() []string { return []string{"anthropic", "auto", "loopback", "ollama", "openai"} }

// Build returns the driver of cfg's kind. It starts nothing and asks the provider nothing; a fault of the
// configuration is an error that names the field.
func Build(cfg Config) (execution.Provider, error) {
	p, err := build(cfg)
	if err != nil {
		return nil, fmt.Errorf("adapter %q: %w", cfg.Name, err)
	}
	return p, nil
}

func build(cfg Config) (execution.Provider, error) {
	switch cfg.Kind {
	case "openai":
		return openai.New(openai.Config{
			BaseURL: cfg.BaseURL, MaxConcurrency: cfg.MaxConcurrency, Options: cfg.Options,
			AllowPaths: cfg.AllowPaths, Connect: cfg.Connect, Log: cfg.Log,
		})
	case "anthropic":
		return anthropic.New(anthropic.Config{
			BaseURL: cfg.BaseURL, MaxConcurrency: cfg.MaxConcurrency, Options: cfg.Options,
			AllowPaths: cfg.AllowPaths, Connect: cfg.Connect, Log: cfg.Log,
		})
	case "ollama", "auto":
		auto := cfg.Kind == "auto"
		if auto && cfg.BaseURL != "" {
			return nil, errors.New("base_url: the auto kind looks for an Ollama on " + ollama.DefaultURL + "; remove it, or use kind ollama")
		}
		return ollama.New(ollama.Config{
			BaseURL: cfg.BaseURL, Auto: auto, MaxConcurrency: cfg.MaxConcurrency, Options: cfg.Options,
			AllowPaths: cfg.AllowPaths, Connect: cfg.Connect, Log: cfg.Log.With().Str("adapter", cfg.Name).Logger(),
		})
	case "loopback":
		if cfg.BaseURL != "" {
			return nil, errors.New("base_url: the loopback kind is embedded and has none; remove it")
		}
		return loopback.New(loopback.Config{Targets: cfg.Targets, AllowPaths: cfg.AllowPaths, Options: cfg.Options})
	}
	return nil, fmt.Errorf("kind %q is unknown; use one of %q", cfg.Kind, Kinds())
}
