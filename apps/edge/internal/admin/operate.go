package admin

import (
	"net/http"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/dialect"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// drain answers POST /admin/v1/nodes/{id}/drain: {"undo": bool}; an empty body is {}.
func (h *handler) drain(w http.ResponseWriter, r *http.Request) {
	var undo bool
	body, refused := readBody(w, r)
	if refused == nil && len(body) > 0 {
		refused = parseObject(body, map[string]any{"undo": &undo})
	}
	if refused != nil {
		h.refuse(w, r, refused)
		return
	}
	id := r.PathValue("id")
	if !h.cfg.Steer.SetDrained(id, !undo) {
		h.refuse(w, r, &refusal{status: http.StatusNotFound, code: execution.CodeBadRequest, text: "no node of that id is configured"})
		return
	}
	h.cfg.Log.Warn().Str("node_id", id).Bool("undo", undo).Str("remote", r.RemoteAddr).Msg("admin drains a node")
	h.write(w, http.StatusOK, map[string]any{"node": id, "drained": !undo})
}

// releaseView is the answer to a release; the names are settled.
type releaseView struct {
	Node     string `json:"node"`
	Adapter  string `json:"adapter"`
	RunID    string `json:"run_id"`
	Released int    `json:"released"` // places that are free now
}

// releasePlace answers POST /admin/v1/places/release: {"node", "adapter", "run_id", "force"?}.
func (h *handler) releasePlace(w http.ResponseWriter, r *http.Request) {
	var (
		at    admission.Place
		run   string
		force bool
	)
	body, refused := readBody(w, r)
	if refused == nil {
		refused = parseObject(body, map[string]any{"node": &at.Node, "adapter": &at.Adapter, "run_id": &run, "force": &force})
	}
	if refused == nil && !(config.ValidID(at.Node) && config.ValidID(at.Adapter) && config.ValidID(run)) {
		refused = &refusal{status: http.StatusBadRequest, code: execution.CodeBadRequest, text: "node, adapter and run_id must be names"}
	}
	if refused != nil {
		h.refuse(w, r, refused)
		return
	}
	done := h.cfg.Steer.Release(at, run, force)
	// Who did what is recorded whatever came of it.
	h.cfg.Log.Warn().Str("node_id", at.Node).Str("adapter", at.Adapter).Str("run_id", run).Bool("force", force).
		Int("released", done.Places).Int("kept", done.Held).Str("remote", r.RemoteAddr).Msg("admin releases a place")
	switch {
	case done.Places > 0:
		h.write(w, http.StatusOK, releaseView{at.Node, at.Adapter, run, done.Places})
	case done.Held > 0:
		h.refuse(w, r, &refusal{status: http.StatusConflict, code: execution.CodeBadRequest,
			text: "the run isn't over, or its node says that it still works on it; cancel it, or release it with force"})
	default:
		h.refuse(w, r, &refusal{status: http.StatusNotFound, code: execution.CodeBadRequest, text: "the run holds no place there"})
	}
}

// parseObject reads an object whose members go where fields says.
func parseObject(body []byte, fields map[string]any) *refusal {
	if bad := dialect.Object("", body, func(name string) any { return fields[name] }); bad != nil {
		return badBody(bad)
	}
	return nil
}
