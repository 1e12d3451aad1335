package admin

import (
	"net/http"

	"iop/apps/edge/internal/dialect"
	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
)

// runs answers GET /admin/v1/runs.
func (h *handler) runs(w http.ResponseWriter, _ *http.Request) {
	runs := h.cfg.Runs()
	if runs == nil {
		runs = []service.RunView{}
	}
	h.write(w, http.StatusOK, map[string]any{"runs": runs})
}

// run answers GET /admin/v1/runs/{id}: all that is known of a run, its steps among it.
func (h *handler) run(w http.ResponseWriter, r *http.Request) {
	view, found := h.cfg.Explain(r.PathValue("id"))
	if !found {
		h.refuse(w, r, unknownRun())
		return
	}
	h.write(w, http.StatusOK, view)
}

func unknownRun() *refusal {
	return &refusal{status: http.StatusNotFound, code: execution.CodeBadRequest, text: "no such run; only those that ended lately are remembered"}
}

// cancelRun answers POST /admin/v1/runs/{id}/cancel. The body is empty, or an empty object.
func (h *handler) cancelRun(w http.ResponseWriter, r *http.Request) {
	body, refused := readBody(w, r)
	if refused == nil && len(body) > 0 {
		if bad := dialect.Object("", body, func(string) any { return nil }); bad != nil {
			refused = badBody(bad)
		}
	}
	if refused != nil {
		h.refuse(w, r, refused)
		return
	}
	id := r.PathValue("id")
	h.cfg.Log.Info().Str("run_id", id).Str("remote", r.RemoteAddr).Msg("admin cancels a run")
	switch h.cfg.Steer.Cancel(id) {
	case service.Cancelling:
		h.write(w, http.StatusAccepted, map[string]string{"run_id": id, "result": "cancelling"})
	case service.AlreadyEnded:
		h.refuse(w, r, &refusal{status: http.StatusConflict, code: execution.CodeBadRequest, text: "the run has ended already"})
	default:
		h.refuse(w, r, unknownRun())
	}
}
