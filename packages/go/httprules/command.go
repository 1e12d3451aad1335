package httprules

import "net/http"

// OllamaCommand reports whether a request is one of those that the node command OLLAMA_API carries: a closed list, by
// the raw path, so that nothing is ever interpreted that could lead elsewhere. Everything else on that API is a tunnel,
// or isn't carried at all.
func OllamaCommand(method, path string) bool {
	switch path {
	case "/api/version", "/api/tags", "/api/ps":
		return method == http.MethodGet
	case "/api/show":
		return method == http.MethodPost
	}
	return false
}
