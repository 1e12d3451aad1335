package admin

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/packages/go/execution"
)

// UsageView is a sum over runs as GET /admin/v1/usage shows it; the names are settled. What the rows aren't told apart by
// is left out.
type UsageView struct {
	Day             string `json:"day,omitempty"`
	Principal       string `json:"principal,omitempty"`
	Model           string `json:"model,omitempty"`
	Node            string `json:"node,omitempty"`
	Requests        int64  `json:"requests"`
	Failed          int64  `json:"failed"`
	Estimated       int64  `json:"estimated"` // requests whose tokens are an estimate
	InputTokens     int64  `json:"input_tokens"`
	OutputTokens    int64  `json:"output_tokens"`
	CachedTokens    int64  `json:"cached_tokens"`
	ReasoningTokens int64  `json:"reasoning_tokens"`
}

// usageBy is what rows of usage may be told apart by.
func usageBy() []string { return []string{"day", "principal", "model", "node"} }

// usage answers GET /admin/v1/usage?from=DAY&to=DAY&by=principal,model. Without by there is one row.
func (h *handler) usage(w http.ResponseWriter, r *http.Request) {
	if h.cfg.Usage == nil {
		h.refuse(w, r, &refusal{status: http.StatusNotFound, code: execution.CodeBadRequest, text: "this edge keeps no ledger"})
		return
	}
	q := r.URL.Query()
	bad := func(text string) {
		h.refuse(w, r, &refusal{status: http.StatusBadRequest, code: execution.CodeBadRequest, text: text})
	}
	for name := range q {
		if name != "from" && name != "to" && name != "by" {
			bad("unknown parameter " + strconv.Quote(name) + "; use from, to and by")
			return
		}
	}
	for _, name := range []string{"from", "to"} {
		if day := q.Get(name); day != "" {
			if _, err := time.Parse(time.DateOnly, day); err != nil {
				bad(name + " must be a day, as in 2026-01-31")
				return
			}
		}
	}
	var by []string
	if s := q.Get("by"); s != "" {
		by = strings.Split(s, ",")
	}
	for _, name := range by {
		if !slices.Contains(usageBy(), name) {
			bad("by: " + strconv.Quote(name) + " is none of " + strings.Join(usageBy(), ", "))
			return
		}
	}
	rows, err := h.cfg.Usage(r.Context(), q.Get("from"), q.Get("to"), by)
	if err != nil {
		h.cfg.Log.Error().Err(err).Msg("usage ledger can't be read")
		h.refuse(w, r, &refusal{status: http.StatusInternalServerError, code: execution.CodeInternal, text: "the ledger can't be read; the edge's log says why"})
		return
	}
	h.write(w, http.StatusOK, map[string]any{"usage": rows})
}
