package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"iop/apps/edge/internal/dialect"
	"iop/apps/edge/internal/dialect/anthropic"
	"iop/apps/edge/internal/dialect/ollama"
	"iop/apps/edge/internal/dialect/openai"
)

// Access says who may use an endpoint.
type Access uint8

// The kinds of access. The zero value is none of them, so that an endpoint can't lack one.
const (
	// AccessPrincipal needs an API key, unless no principals are configured.
	AccessPrincipal Access = 1
	// AccessAnyone tells everybody the same, and nothing of this edge.
	AccessAnyone Access = 2
)

// Endpoint is one row of the table: what can be asked for, and by whom.
type Endpoint struct {
	Method string
	Path   string // matched byte for byte against the raw target; {id} takes what stands there, slashes included
	Access Access

	handle func(*Handler, *call) *refusal
	encode encoder          // the dialect's error shape
	api    dialect.Endpoint // how a run serves it, nil = a run can't
}

// Endpoints returns the whole table.
func Endpoints() []Endpoint {
	return slices.Concat(openAIEndpoints(), anthropicEndpoints(), ollamaEndpoints(), runEndpoints())
}

// responsesPath is where a request may ask to be run in the background.
const responsesPath = "/v1/responses"

func openAIEndpoints() []Endpoint {
	chat := openai.Chat()
	encode := chat.EncodeError
	return []Endpoint{
		{http.MethodPost, "/v1/chat/completions", AccessPrincipal, (*Handler).forward, encode, chat},
		{http.MethodPost, "/v1/completions", AccessPrincipal, (*Handler).forward, encode, nil},
		{http.MethodPost, "/v1/embeddings", AccessPrincipal, (*Handler).forward, encode, nil},
		{http.MethodPost, responsesPath, AccessPrincipal, (*Handler).forward, encode, nil},
		{http.MethodGet, modelsPath, AccessPrincipal, (*Handler).listModels, encode, nil},
		{http.MethodGet, modelPath + idMark, AccessPrincipal, (*Handler).getModel, encode, nil},
	}
}

func anthropicEndpoints() []Endpoint {
	messages := anthropic.Messages()
	return []Endpoint{
		{http.MethodPost, "/v1/messages", AccessPrincipal, (*Handler).forward, messages.EncodeError, messages},
		{http.MethodPost, "/v1/messages/count_tokens", AccessPrincipal, (*Handler).forward, messages.EncodeError, nil},
	}
}

func ollamaEndpoints() []Endpoint {
	chat, generate := ollama.Chat(), ollama.Generate()
	encode := chat.EncodeError
	rows := []Endpoint{
		{http.MethodGet, "/", AccessAnyone, (*Handler).ollamaRoot, encode, nil},
		{http.MethodGet, "/api/version", AccessAnyone, (*Handler).ollamaVersion, encode, nil},
		{http.MethodGet, tagsPath, AccessPrincipal, (*Handler).ollamaTags, encode, nil},
		{http.MethodGet, psPath, AccessPrincipal, (*Handler).ollamaRunning, encode, nil},
		{http.MethodPost, showPath, AccessPrincipal, (*Handler).ollamaShow, encode, nil},
		{http.MethodPost, "/api/chat", AccessPrincipal, (*Handler).forward, encode, chat},
		{http.MethodPost, "/api/generate", AccessPrincipal, (*Handler).forward, encode, generate},
		{http.MethodPost, "/api/embed", AccessPrincipal, (*Handler).forward, encode, nil},
		{http.MethodPost, "/api/embeddings", AccessPrincipal, (*Handler).forward, encode, nil},
	}
	for _, managed := range []struct{ method, path string }{
		{http.MethodPost, "/api/pull"}, {http.MethodPost, "/api/push"}, {http.MethodPost, "/api/create"},
		{http.MethodPost, "/api/copy"}, {http.MethodDelete, "/api/delete"},
		{http.MethodPost, "/api/blobs/" + idMark}, {http.MethodHead, "/api/blobs/" + idMark},
	} {
		rows = append(rows, Endpoint{managed.method, managed.path, AccessPrincipal, (*Handler).ollamaManaged, encode, nil})
	}
	return rows
}

func runEndpoints() []Endpoint {
	return []Endpoint{
		{http.MethodPost, "/iop/v1/runs", AccessPrincipal, (*Handler).createRun, encodeRunError, nil},
		{http.MethodGet, "/iop/v1/runs/{id}", AccessPrincipal, (*Handler).getRun, encodeRunError, nil},
		{http.MethodPost, "/iop/v1/runs/{id}/cancel", AccessPrincipal, (*Handler).cancelRun, encodeRunError, nil},
	}
}

const idMark = "{id}"

// table finds endpoints by path, then by method. http.ServeMux would redirect and unescape; here a path is what the
// caller wrote or it is unknown.
type table struct {
	exact    map[string][]*Endpoint
	patterns []pattern
}

// pattern is a path with an {id} in it.
type pattern struct {
	prefix, suffix string
	rows           []*Endpoint
}

func newTable(rows []Endpoint) table {
	t := table{exact: map[string][]*Endpoint{}}
	for i := range rows {
		row := &rows[i]
		prefix, suffix, ok := strings.Cut(row.Path, idMark)
		if !ok {
			t.exact[row.Path] = append(t.exact[row.Path], row)
			continue
		}
		at := slices.IndexFunc(t.patterns, func(p pattern) bool { return p.prefix == prefix && p.suffix == suffix })
		if at < 0 {
			at = len(t.patterns)
			t.patterns = append(t.patterns, pattern{prefix: prefix, suffix: suffix})
		}
		t.patterns[at].rows = append(t.patterns[at].rows, row)
	}
	return t
}

// match finds the pattern of a path; of two that fit, the one that says more.
func (t table) match(path string) (rows []*Endpoint, id string) {
	best := -1
	for _, p := range t.patterns {
		rest, ok := strings.CutPrefix(path, p.prefix)
		if !ok {
			continue
		}
		if inner, ok := strings.CutSuffix(rest, p.suffix); ok && inner != "" && len(p.suffix) > best {
			best, rows, id = len(p.suffix), p.rows, inner
		}
	}
	return rows, id
}

// find puts the endpoint into c, or refuses with 404 or 405.
func (t table) find(c *call, path string) *refusal {
	rows := t.exact[path]
	if rows == nil {
		rows, c.pathID = t.match(path)
	}
	if rows == nil {
		return notFound("no such path here; the APIs are under /v1, /api and /iop/v1")
	}
	c.encode = rows[0].encode
	if speaksAnthropic(c.r.Header) && (path == modelsPath || strings.HasPrefix(path, modelPath)) {
		c.encode = anthropic.Messages().EncodeError
	}
	for _, row := range rows {
		if row.serves(c.r.Method) {
			c.endpoint = row
			return nil
		}
	}
	ref := badRequest("", "this path doesn't take the method; see the Allow header")
	ref.status, ref.allow = http.StatusMethodNotAllowed, allowed(rows)
	return ref
}

// serves reports whether the endpoint answers a method: its own, and HEAD where it has GET.
func (e *Endpoint) serves(method string) bool {
	return method == e.Method || method == http.MethodHead && e.Method == http.MethodGet
}

func allowed(rows []*Endpoint) string {
	var methods []string
	for _, row := range rows {
		methods = append(methods, row.Method)
		if row.Method == http.MethodGet {
			methods = append(methods, http.MethodHead)
		}
	}
	slices.Sort(methods)
	return strings.Join(slices.Compact(methods), ", ")
}
