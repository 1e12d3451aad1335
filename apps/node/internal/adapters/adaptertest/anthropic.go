package adaptertest

import (
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// Anthropic is the dialect of the anthropic kind.
func Anthropic() Dialect {
	return Dialect{
		Request: func(body string) *execution.TunnelRequest { return Post("/v1/messages", body) },
		Owns:    func(_, path string) bool { return httprules.Carries("anthropic", nil, path) },
		Plain:   "ollama-0.17.4/messages",
		Stream:  "llamacpp-0.7.0/messages-stream-tool",
	}
}
