package httpapi

import (
	"net/http"
	"slices"
	"strings"
)

// Access says who may use an endpoint.
type Access uint8

// The kinds of access. The zero value is none of them, so that an endpoint can't lack one.
const (
	// AccessPrincipal needs an API key, unless no principals are configured.
	AccessPrincipal Access = 1
)

// Endpoint is one row of the table: what can be asked for, and by whom.
type Endpoint struct {
	Method string
	Path   string // matched byte for byte against the raw target; a final {id} takes the rest, slashes included
	Access Access

	handle func(*Handler, *call) *refusal
}

// Endpoints returns the whole table.
func Endpoints() []Endpoint {
	return []Endpoint{
		{http.MethodPost, "/v1/chat/completions", AccessPrincipal, (*Handler).openAI},
		{http.MethodPost, "/v1/completions", AccessPrincipal, (*Handler).openAI},
		{http.MethodPost, "/v1/embeddings", AccessPrincipal, (*Handler).openAI},
		{http.MethodPost, "/v1/responses", AccessPrincipal, (*Handler).openAI},
		{http.MethodGet, "/v1/models", AccessPrincipal, (*Handler).listModels},
		{http.MethodGet, "/v1/models/{id}", AccessPrincipal, (*Handler).getModel},
	}
}

const idSuffix = "{id}"

// table finds endpoints by path, then by method. http.ServeMux would redirect and unescape; here a path is what the
// caller wrote or it is unknown.
type table struct {
	exact  map[string][]*Endpoint
	prefix map[string][]*Endpoint // of paths that end in {id}
}

func newTable(rows []Endpoint) table {
	t := table{exact: map[string][]*Endpoint{}, prefix: map[string][]*Endpoint{}}
	for i := range rows {
		row := &rows[i]
		if p, ok := strings.CutSuffix(row.Path, idSuffix); ok {
			t.prefix[p] = append(t.prefix[p], row)
		} else {
			t.exact[row.Path] = append(t.exact[row.Path], row)
		}
	}
	return t
}

// find puts the endpoint into c, or refuses with 404 or 405.
func (t table) find(c *call, path string) *refusal {
	rows := t.exact[path]
	if rows == nil {
		for prefix, candidates := range t.prefix {
			if id, ok := strings.CutPrefix(path, prefix); ok && id != "" {
				rows, c.modelID = candidates, id
			}
		}
	}
	if rows == nil {
		return notFound("no such path here; the API is under /v1")
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
