package ollama

import (
	"context"
	"net/http"
	"slices"

	"iop/packages/go/execution"
)

// command is one request that an operator may make.
type command struct{ method, path string }

// commands returns the closed list: what an Ollama tells of itself. Nothing on it changes or runs anything.
func commands() []command {
	return []command{
		{http.MethodGet, "/api/version"},
		{http.MethodGet, "/api/tags"},
		{http.MethodGet, "/api/ps"},
		{http.MethodPost, "/api/show"},
	}
}

func commandPaths() []string {
	var paths []string
	for _, c := range commands() {
		paths = append(paths, c.path)
	}
	return paths
}

// Command implements [execution.Commander]. Paths are compared byte for byte, so that no spelling of another path
// passes for one on the list. (HT-15)
func (p *Provider) Command(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	switch {
	case !slices.Contains(commands(), command{req.Method, req.Path}):
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
