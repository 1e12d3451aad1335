package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"iop/apps/edge/internal/dialect/ollama"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// The paths that an Ollama is asked for, too.
const (
	tagsPath = "/api/tags"
	psPath   = "/api/ps"
	showPath = "/api/show"
)

// ollamaRoot answers GET and HEAD /, by which Ollama's clients see whether it is there.
func (h *Handler) ollamaRoot(c *call) *refusal {
	h.observe(c, nil, http.StatusOK)
	c.respond(http.StatusOK, "text/plain; charset=utf-8", []byte("Ollama is running"))
	return nil
}

// ollamaVersion answers GET and HEAD /api/version: clients ask for features by it. It is that of the API.
func (h *Handler) ollamaVersion(c *call) *refusal { return h.writeOllama(c, ollama.Version("")) }

// ollamaTags answers GET /api/tags: the models that the principal may ask for.
func (h *Handler) ollamaTags(c *call) *refusal {
	return h.writeOllama(c, ollama.Tags(h.catalog(c, tagsPath), h.since))
}

// ollamaRunning answers GET /api/ps: those of them that are in memory somewhere.
func (h *Handler) ollamaRunning(c *call) *refusal {
	return h.writeOllama(c, ollama.Running(h.catalog(c, psPath)))
}

// ollamaManaged refuses what changes an Ollama's models: they are its node's.
func (h *Handler) ollamaManaged(*call) *refusal {
	ref := badRequest("", "models are managed at the machine that has them, not through this edge; run ollama there")
	ref.status = http.StatusForbidden
	return ref
}

// showLimit bounds how long one Ollama may take to show a model.
const showLimit = 5 * time.Second

// ollamaShow answers POST /api/show: by an Ollama that has the model, else by what is known of it.
func (h *Handler) ollamaShow(c *call) *refusal {
	b, ref := h.receive(c)
	if ref != nil {
		return ref
	}
	defer b.close()
	text, ref := b.text()
	if ref != nil {
		return ref
	}
	asked, bad := ollama.ParseShow(text)
	if bad != nil {
		return badField(bad)
	}
	if !validModel(asked) {
		return badRequest("model", "model: is not a name that a model can have")
	}
	f, ref := h.resolve(c, asked)
	if ref != nil {
		return ref
	}
	c.tunnel.Model, c.tunnel.Route, c.tunnel.Target = f.model, f.route, f.target
	m := ollama.Model{Name: asked}
	for _, s := range h.stock(c.state) {
		target, model, has := s.find(namesOf(f.target)...)
		if !has || !s.matches(f.route) {
			continue
		}
		if s.isOllama() {
			if r := h.showAt(c, s, target, text); r != nil {
				return h.passOn(c, r)
			}
		}
		describe(&m, s, model)
	}
	return h.writeOllama(c, ollama.Show(m, h.since))
}

// showAt asks one Ollama for a model; nil = it has no answer.
func (h *Handler) showAt(c *call, s *stock, target string, asked []byte) *service.CommandResult {
	if h.cfg.Commands == nil {
		return nil
	}
	var more struct {
		Model   string `json:"model"`
		Verbose bool   `json:"verbose,omitempty"`
	}
	_ = json.Unmarshal(asked, &more) // it was read before, strictly
	more.Model = target
	body, err := json.Marshal(more)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), showLimit)
	defer cancel()
	r := h.cfg.Commands.Command(ctx, &service.Command{Type: service.CommandOllamaAPI, NodeID: s.Node, Adapter: s.Adapter,
		SessionID: c.tunnel.SessionID, Method: http.MethodPost, Path: showPath, Body: body})
	if !r.OK() || r.Status < 200 || r.Status >= 500 {
		return nil
	}
	return r
}

// passOn answers with what an Ollama said.
func (h *Handler) passOn(c *call, r *service.CommandResult) *refusal {
	contentType := r.Header.Get("Content-Type")
	if contentType == "" || !validFieldValue(contentType) {
		contentType = "application/json"
	}
	c.out.Placed(service.Placement{Node: r.NodeID, Queued: r.Queued})
	h.observe(c, nil, r.Status)
	c.respond(r.Status, contentType, r.Body)
	return nil
}

func (h *Handler) writeOllama(c *call, body []byte) *refusal {
	h.observe(c, nil, http.StatusOK)
	c.respond(http.StatusOK, "application/json; charset=utf-8", body)
	return nil
}

// stock is what one adapter has, by name.
type stock struct {
	*Offer
	kind   string
	models map[string]execution.Model
}

// find returns the first of the targets that the adapter has. One that doesn't tell has any.
func (s *stock) find(targets ...string) (string, execution.Model, bool) {
	for _, target := range targets {
		if model, has := s.models[target]; has || len(s.models) == 0 {
			return target, model, true
		}
	}
	return "", execution.Model{}, false
}

// isOllama reports whether the adapter's provider is an Ollama.
func (s *stock) isOllama() bool { return s.kind == "ollama" || s.kind == "auto" }

// stock returns what the adapters are known to have.
func (h *Handler) stock(state *config.State) []*stock {
	offers := h.cfg.Offers()
	all := make([]*stock, len(offers))
	for i := range offers {
		o := &offers[i]
		s := &stock{Offer: o, models: make(map[string]execution.Model, len(o.Models))}
		if record := state.Node(o.Node); record != nil {
			if at := slices.IndexFunc(record.Adapters, func(a config.Adapter) bool { return a.Name == o.Adapter }); at >= 0 {
				s.kind = record.Adapters[at].Kind
			}
		}
		for _, name := range o.Targets {
			s.models[name] = execution.Model{Name: name}
		}
		for _, m := range o.Models {
			if o.serves(m.Name) {
				s.models[m.Name] = m
			}
		}
		all[i] = s
	}
	return all
}

// describe adds what an adapter knows of a model.
func describe(m *ollama.Model, s *stock, model execution.Model) {
	if m.Kind == "" {
		m.Kind = s.kind
	}
	m.Loaded = m.Loaded || model.Loaded
	m.Context = max(m.Context, model.Context)
}

// catalog returns the models that the principal of a call may ask for, with what their adapters know of them and, by the
// list of that path, their Ollamas.
func (h *Handler) catalog(c *call, path string) []ollama.Model {
	all := h.stock(c.state)
	said := h.ask(c, path, all)
	names := h.models(c)
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { // an Ollama takes the two for one
		_, tagged := slices.BinarySearch(names, name+latest)
		return tagged
	})
	models := make([]ollama.Model, len(names))
	for i, name := range names {
		m := &models[i]
		m.Name = name
		route := c.state.Route(name)
		targets := namesOf(cmp.Or(route.Target, name))
		for _, s := range all {
			target, model, has := s.find(targets...)
			if !has || !s.matches(route) {
				continue
			}
			describe(m, s, model)
			if entry := said[s.key()][target]; entry != nil && m.Entry == nil {
				m.Entry = entry
				m.Loaded = m.Loaded || path == psPath
			}
		}
	}
	return models
}

// ask asks those adapters whose providers are Ollamas and of which the principal may use something.
func (h *Handler) ask(c *call, path string, all []*stock) map[adapterKey]map[string]json.RawMessage {
	if h.cfg.Commands == nil {
		return nil
	}
	var keys []adapterKey
	routes := c.state.Routes()
	for _, s := range all {
		useful := func(r config.Route) bool { return mayUse(c.principal, &r) && s.matches(&r) }
		if s.isOllama() && slices.ContainsFunc(routes, useful) {
			keys = append(keys, s.key())
		}
	}
	return h.lists.all(c.r.Context(), path, keys)
}
