package ollama

import (
	"context"
	"net/http"

	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// commandPaths are the paths of the closed list: what an Ollama tells of itself. Which method goes with each says
// [httprules.OllamaCommand].
func commandPaths() []string { return []string{"/api/version", "/api/tags", "/api/ps", "/api/show"} }

// Command implements [execution.Commander]. Paths are compared byte for byte, so that no spelling of another path
// passes for one on the list. (HT-15)
func (p *Provider) Command(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	switch {
	case !httprules.OllamaCommand(req.Method, req.Path):
		return notSent(req, "command: only GET /api/version, GET /api/tags, GET /api/ps and POST /api/show are passed on")
	case req.Query != "":
		return notSent(req, "command: a query has no meaning here")
	case req.Method == http.MethodGet && req.Body != nil && req.ContentLength != 0:
		return notSent(req, "command: "+req.Path+" takes no body")
	}
	return p.commands.Tunnel(ctx, req, sink)
}

// notSent refuses a command and closes its body, as every tunnel does.
func notSent(req *execution.TunnelRequest, text string) error {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	return refused(text)
}
