package httprules

import (
	"net/url"
	"strings"
)

// KindPaths returns the provider paths that an adapter of a kind carries without further configuration, the dialects
// that it speaks by them; a star at the end stands for all below. The edge chooses between a tunnel and a run by it, and
// the node refuses what isn't on it. Unknown kinds have none.
func KindPaths(kind string) []string {
	switch kind {
	case "openai":
		return []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/models", "/v1/models/*"}
	case "loopback":
		return []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/models"}
	case "anthropic":
		return []string{"/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/v1/models/*"}
	case "ollama", "auto":
		return []string{"/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show",
			"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/models", "/v1/models/*", "/v1/messages"}
	}
	return nil
}

// Carries reports whether an adapter of a kind with further allowed paths carries a path that [CheckTarget] passed.
func Carries(kind string, allowed []string, path string) bool {
	for _, list := range [][]string{KindPaths(kind), allowed} {
		for _, p := range list {
			if below, star := strings.CutSuffix(p, "*"); p == path || star && len(path) > len(below) && strings.HasPrefix(path, below) {
				return true
			}
		}
	}
	return false
}

// RunPath returns the path that an adapter of a kind asks its provider for to serve a normalized run, before the base
// URL's own path is joined to it. A kind that asks for none, or isn't known, has "".
func RunPath(kind string) string {
	switch kind {
	case "openai":
		return "/v1/chat/completions"
	case "anthropic":
		return "/v1/messages"
	case "ollama", "auto":
		return "/api/chat"
	}
	return ""
}

// KindBase returns the base URL that an adapter of a kind goes by. It is the configured one, but for Ollama without the
// /v1 that people copy along from their OpenAI clients: its native API stands beside it. (HT-16)
func KindBase(kind, baseURL string) string {
	if kind != "ollama" && kind != "auto" {
		return baseURL
	}
	u, err := url.Parse(baseURL)
	if err != nil || u.RawQuery != "" || u.Fragment != "" {
		return baseURL // whoever reads it next refuses it
	}
	if path := strings.TrimSuffix(u.EscapedPath(), "/"); strings.HasSuffix(path, "/v1") {
		return strings.TrimSuffix(strings.TrimSuffix(baseURL, "/"), "/v1")
	}
	return baseURL
}
