package admin

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"iop/apps/edge/internal/dialect"
	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// maxBody bounds the body of a request: that of a command, and what stands around it.
const maxBody = service.MaxCommandBody + 8<<10

// readBody reads the whole body, so that a caller that leaves is noticed from then on.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *refusal) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, &refusal{status: http.StatusRequestEntityTooLarge, code: execution.CodeBodyTooLarge, text: "the body is too large"}
	case err != nil:
		return nil, &refusal{status: http.StatusBadRequest, code: execution.CodeBadRequest, text: "the body ended early"}
	}
	return body, nil
}

// badBody refuses a body for what is wrong in it. That may hold the name of a member, so it isn't logged.
func badBody(bad *dialect.Refusal) *refusal {
	return &refusal{status: http.StatusBadRequest, code: execution.CodeBadRequest, text: "the body isn't as it must be", detail: bad.Text}
}

// commandRequest is the body of POST /admin/v1/nodes/{id}/commands.
type commandRequest struct {
	Type, Adapter, Method, Path, SessionID string
	Body                                   json.RawMessage // sent as it is
}

func parseCommand(body []byte) (*commandRequest, *refusal) {
	q := &commandRequest{}
	bad := dialect.Object("", body, func(name string) any {
		switch name {
		case "type":
			return &q.Type
		case "adapter":
			return &q.Adapter
		case "method":
			return &q.Method
		case "path":
			return &q.Path
		case "session_id":
			return &q.SessionID
		case "body":
			return &q.Body
		}
		return nil
	})
	if bad != nil {
		return nil, badBody(bad)
	}
	return q, nil
}

// command answers POST /admin/v1/nodes/{id}/commands.
func (h *handler) command(w http.ResponseWriter, r *http.Request) {
	body, refused := readBody(w, r)
	var q *commandRequest
	if refused == nil {
		q, refused = parseCommand(body)
	}
	id := r.PathValue("id")
	if refused == nil {
		refused = h.checkCommand(id, q)
	}
	if refused != nil {
		h.refuse(w, r, refused)
		return
	}
	kind, _ := service.ParseCommandType(q.Type)
	h.cfg.Log.Info().Str("node_id", id).Stringer("type", kind).Str("remote", r.RemoteAddr).Msg("admin asks a node")
	result := h.cfg.Steer.Command(r.Context(), &service.Command{NodeID: id, Type: kind, SessionID: q.SessionID, Adapter: q.Adapter,
		Method: q.Method, Path: q.Path, Body: q.Body})
	if f := result.Failure; f != nil {
		h.write(w, statusOf(f.Code), failedCommand{errorView{f.Text, f.Code.String(), f.Origin.String()}, result.CommandID, id})
		return
	}
	h.write(w, http.StatusOK, showCommand(kind, result))
}

// checkCommand refuses what has a status of its own; the rest is the service's to refuse.
func (h *handler) checkCommand(id string, q *commandRequest) *refusal {
	kind, known := service.ParseCommandType(q.Type)
	switch {
	case h.cfg.State().Node(id) == nil:
		return &refusal{status: http.StatusNotFound, code: execution.CodeBadRequest, text: "no node of that id is configured"}
	case !known:
		return &refusal{status: http.StatusBadRequest, code: execution.CodeBadRequest, text: "type must be CAPABILITIES, TRANSPORT_STATUS or OLLAMA_API"}
	case kind == service.CommandOllamaAPI && !httprules.OllamaCommand(q.Method, q.Path):
		return &refusal{status: http.StatusForbidden, code: execution.CodeBadRequest,
			text: "OLLAMA_API carries GET /api/version, /api/tags, /api/ps and POST /api/show, and nothing else"}
	}
	return nil
}

// errorView is the error of every answer that is one.
type errorView struct {
	Message string `json:"message"`
	Code    string `json:"code"`
	Origin  string `json:"origin"`
}

type failedCommand struct {
	Error     errorView `json:"error"`
	CommandID string    `json:"command_id"` // "" = it was never sent
	Node      string    `json:"node"`
}

// commandView is the answer to a command; the names are settled.
type commandView struct {
	CommandID    string                   `json:"command_id"`
	Node         string                   `json:"node"`
	Generation   uint64                   `json:"connection_generation"`
	Type         string                   `json:"type"`
	Adapter      string                   `json:"adapter"`
	SessionID    string                   `json:"session_id"`
	QueuedMS     int64                    `json:"queue_ms"`
	DurationMS   int64                    `json:"duration_ms"`
	Capabilities *capabilitiesView        `json:"capabilities,omitempty"`
	Transport    *service.TransportStatus `json:"transport_status,omitempty"`
	Status       int                      `json:"status,omitempty"`
	ContentType  string                   `json:"content_type,omitempty"`
	Body         json.RawMessage          `json:"body,omitempty"` // the provider's JSON, or its text as a string
}

type capabilitiesView struct {
	Adapters []service.AdapterCapabilities `json:"adapters"`
}

func showCommand(kind service.CommandType, r *service.CommandResult) commandView {
	v := commandView{CommandID: r.CommandID, Node: r.NodeID, Generation: r.Generation, Type: kind.String(), Adapter: r.Adapter,
		SessionID: r.SessionID, QueuedMS: r.Queued.Milliseconds(), DurationMS: r.Duration.Milliseconds()}
	switch kind {
	case service.CommandCapabilities:
		v.Capabilities = &capabilitiesView{Adapters: r.Capabilities}
	case service.CommandTransportStatus:
		v.Transport = r.Transport
	case service.CommandOllamaAPI:
		v.Status, v.ContentType, v.Body = r.Status, r.Header.Get("Content-Type"), r.Body
		if !json.Valid(r.Body) {
			v.Body, _ = json.Marshal(strings.ToValidUTF8(string(r.Body), "\uFFFD")) // texts always encode
		}
	}
	return v
}

// statusOf is how a command's failure looks in HTTP.
func statusOf(code execution.Code) int {
	switch code {
	case execution.CodeBadRequest:
		return http.StatusBadRequest
	case execution.CodeUnauthorized:
		return http.StatusUnauthorized
	case execution.CodeUnknownModel, execution.CodeUnknownAdapter:
		return http.StatusNotFound
	case execution.CodeDuplicateRun:
		return http.StatusConflict
	case execution.CodeBodyTooLarge:
		return http.StatusRequestEntityTooLarge
	case execution.CodeLimitExceeded:
		return http.StatusTooManyRequests
	case execution.CodeNoNode, execution.CodeQueueFull, execution.CodeQueueTimeout, execution.CodeOverloaded, execution.CodeEdgeDraining,
		execution.CodeNodeDraining, execution.CodeAdapterBusy, execution.CodeAdapterUnavailable, execution.CodeStaleProjection,
		execution.CodeCredentialUnavailable, execution.CodeCredentialRefused:
		return http.StatusServiceUnavailable
	case execution.CodeNodeLost, execution.CodeAdapterDecode, execution.CodeAdapterPanic, execution.CodeUpstreamConnect,
		execution.CodeUpstreamError, execution.CodeUpstreamTruncated, execution.CodeCredentialReflected, execution.CodeProtocol:
		return http.StatusBadGateway
	case execution.CodeDispatchTimeout, execution.CodeFirstByteTimeout, execution.CodeIdleTimeout, execution.CodeDeadline:
		return http.StatusGatewayTimeout
	case execution.CodeClientGone, execution.CodeClientSlow, execution.CodeCancelled:
		return statusGone
	}
	return http.StatusInternalServerError
}

// statusGone is for who isn't there to be told, or wanted it so.
const statusGone = 499
