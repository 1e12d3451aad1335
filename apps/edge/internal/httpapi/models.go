package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"

	"iop/packages/go/execution"
)

// model is OpenAI's shape of one model. Created is 0: the edge doesn't know when, and a list that changes by itself
// would defeat caches.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

type modelList struct {
	Object string  `json:"object"`
	Data   []model `json:"data"`
}

func newModel(id string) model { return model{ID: id, Object: "model", OwnedBy: "iop"} }

// anthropicModel is Anthropic's shape of one model. Clients want a time: the epoch is what that API has for one that
// isn't known.
type anthropicModel struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
}

// anthropicList is one page, which is all there is.
type anthropicList struct {
	Data    []anthropicModel `json:"data"`
	HasMore bool             `json:"has_more"`
	FirstID *string          `json:"first_id"`
	LastID  *string          `json:"last_id"`
}

func newAnthropicModel(id string) anthropicModel {
	return anthropicModel{Type: "model", ID: id, DisplayName: id, CreatedAt: "1970-01-01T00:00:00Z"}
}

// speaksAnthropic reports whether a request for the models is that of a client of Anthropic's API: it must send the
// version of that API with each request, and OpenAI's clients never do.
func speaksAnthropic(h http.Header) bool { return len(h["Anthropic-Version"]) > 0 }

// listModels answers GET /v1/models.
func (h *Handler) listModels(c *call) *refusal {
	if speaksAnthropic(c.r.Header) {
		list := anthropicList{Data: []anthropicModel{}}
		for _, id := range h.models(c) {
			list.Data = append(list.Data, newAnthropicModel(id))
		}
		if n := len(list.Data); n > 0 {
			list.FirstID, list.LastID = &list.Data[0].ID, &list.Data[n-1].ID
		}
		return h.writeJSON(c, list)
	}
	list := modelList{Object: "list", Data: []model{}}
	for _, id := range h.models(c) {
		list.Data = append(list.Data, newModel(id))
	}
	return h.writeJSON(c, list)
}

// getModel answers GET /v1/models/{id}.
func (h *Handler) getModel(c *call) *refusal {
	id, ok := unescapeModel(c.pathID)
	models := h.models(c)
	known := func(name string) bool {
		_, found := slices.BinarySearch(models, name)
		return found
	}
	switch {
	case !ok || !slices.ContainsFunc(namesOf(id), known):
		return unknownModel()
	case speaksAnthropic(c.r.Header):
		return h.writeJSON(c, newAnthropicModel(id))
	}
	return h.writeJSON(c, newModel(id))
}

// models returns the names that the principal of a call can ask for, sorted, each once: its explicit routes whether or
// not a node is there for them, and for a wildcard route what its candidates have.
func (h *Handler) models(c *call) []string {
	var ids []string
	routes := c.state.Routes()
	for i := range routes {
		route := &routes[i]
		if !mayUse(c.principal, route) {
			continue
		}
		if route.Model != wildcard {
			ids = append(ids, route.Model)
			continue
		}
		for _, o := range h.cfg.Offers() {
			if o.matches(route) {
				ids = h.appendOffered(ids, c, &o)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// appendOffered adds what an adapter has, without names that an explicit route has taken: asking for those goes there.
func (h *Handler) appendOffered(ids []string, c *call, o *Offer) []string {
	names := o.Targets
	if len(names) == 0 {
		for _, m := range o.Models {
			names = append(names, m.Name)
		}
	}
	for _, name := range names {
		if validModel(name) && !taken(c.state, name) {
			ids = append(ids, name)
		}
	}
	return ids
}

func (h *Handler) writeJSON(c *call, v any) *refusal {
	body, err := json.Marshal(v)
	if err != nil {
		ref := refuseCode(execution.CodeInternal, execution.OriginEdge, "internal error")
		ref.cause = err
		return ref
	}
	h.observe(c, nil, http.StatusOK)
	c.write(http.StatusOK, append(body, '\n'))
	return nil
}
