package httpapi

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"iop/apps/edge/internal/dialect"
	"iop/apps/edge/internal/dialect/anthropic"
	"iop/apps/edge/internal/dialect/ollama"
	"iop/apps/edge/internal/dialect/openai"
	"iop/packages/go/execution"
)

// statusUnanswered marks codes whose caller isn't there to be told: they are in the log only.
const statusUnanswered = 0

// statusCancelled answers a caller whose run somebody else cancelled. It is below 500, so that no client tries again.
const statusCancelled = 499

// outcomeRow says how a failure code looks in HTTP.
type outcomeRow struct {
	status int
	// neverStarted says that the code itself proves that no provider saw the request: doing it again is safe.
	neverStarted bool
}

// rowOf is the table of docs/errors: failure code to HTTP. It is a switch and not a map, so that a code without a row
// is found by the test that walks execution.Codes.
func rowOf(code execution.Code) (row outcomeRow, known bool) {
	switch code {
	case execution.CodeBadRequest:
		return outcomeRow{http.StatusBadRequest, true}, true
	case execution.CodeUnauthorized:
		return outcomeRow{http.StatusUnauthorized, true}, true
	case execution.CodeUnknownModel, execution.CodeUnknownAdapter:
		return outcomeRow{http.StatusNotFound, true}, true
	case execution.CodeDuplicateRun:
		return outcomeRow{http.StatusConflict, true}, true
	case execution.CodeBodyTooLarge:
		return outcomeRow{http.StatusRequestEntityTooLarge, true}, true
	case execution.CodeLimitExceeded:
		return outcomeRow{http.StatusTooManyRequests, true}, true
	case execution.CodeNoNode, execution.CodeQueueFull, execution.CodeQueueTimeout, execution.CodeOverloaded,
		execution.CodeAdapterBusy, execution.CodeAdapterUnavailable, execution.CodeStaleProjection,
		execution.CodeCredentialUnavailable:
		return outcomeRow{http.StatusServiceUnavailable, true}, true
	case execution.CodeEdgeDraining, execution.CodeNodeDraining, execution.CodeCredentialRefused:
		// Also the end of what was running when the grace was over.
		return outcomeRow{http.StatusServiceUnavailable, false}, true
	case execution.CodeNodeLost, execution.CodeAdapterDecode, execution.CodeAdapterPanic,
		execution.CodeUpstreamConnect, execution.CodeUpstreamError, execution.CodeUpstreamTruncated,
		execution.CodeCredentialReflected, execution.CodeProtocol:
		return outcomeRow{http.StatusBadGateway, false}, true
	case execution.CodeDispatchTimeout, execution.CodeFirstByteTimeout, execution.CodeIdleTimeout,
		execution.CodeDeadline:
		return outcomeRow{http.StatusGatewayTimeout, false}, true
	case execution.CodeClientGone, execution.CodeClientSlow:
		return outcomeRow{statusUnanswered, false}, true
	case execution.CodeCancelled:
		return outcomeRow{statusCancelled, false}, true
	case execution.CodeInternal:
		return outcomeRow{http.StatusInternalServerError, false}, true
	}
	return outcomeRow{http.StatusInternalServerError, false}, false
}

// refusal is an error response in the making.
type refusal struct {
	failure *execution.Failure
	status  int    // 0 = the code's
	param   string // the field of the body at fault
	allow   string // the Allow header of a 405
	sent    bool   // a provider may have seen the request
	cause   error  // for the log; never shown to the caller, and never with what the caller sent
}

func badRequest(param, text string) *refusal {
	return &refusal{failure: execution.Failf(execution.CodeBadRequest, execution.OriginCaller, "%s", text),
		status: http.StatusBadRequest, param: param}
}

// badField refuses a body for what is wrong in it.
func badField(r *dialect.Refusal) *refusal { return badRequest(r.Field, r.Text) }

// failed refuses a request for a failure, with the status of its code.
func failed(f *execution.Failure) *refusal {
	row, _ := rowOf(f.Code)
	return &refusal{failure: f, status: row.status}
}

func notFound(text string) *refusal {
	ref := badRequest("", text)
	ref.status = http.StatusNotFound
	return ref
}

func refuseCode(code execution.Code, origin execution.Origin, text string) *refusal {
	row, _ := rowOf(code)
	return &refusal{failure: execution.Failf(code, origin, "%s", text), status: row.status}
}

// maybeSeen reports whether a failed run's request may have reached a provider. Unknown counts as yes.
func maybeSeen(f *execution.Failure, attempts int) bool {
	row, known := rowOf(f.Code)
	return attempts > 0 && !f.NothingSent && !(known && row.neverStarted)
}

// encoder writes the body of an error response in the shape of an API. Field is the member of the request's body at
// fault, "" = none.
type encoder func(status int, f *execution.Failure, field string) []byte

// encoderOf is the shape for a path that no endpoint has: that of the API which it seems to be meant for.
func encoderOf(path string) encoder {
	switch {
	case strings.HasPrefix(path, "/api/"):
		return ollama.Chat().EncodeError
	case strings.HasPrefix(path, "/v1/messages"):
		return anthropic.Messages().EncodeError
	}
	return openai.Chat().EncodeError
}

// defaultRetryAfter is told with a 503 whose failure doesn't say when to come back.
const defaultRetryAfter = 5 * time.Second

// writeError is the one place where a failure becomes a response. Headers that the run has set already (node, queue
// time) stay.
func (h *Handler) writeError(c *call, ref *refusal) {
	status := ref.status
	if status == 0 {
		row, _ := rowOf(ref.failure.Code)
		status = row.status
	}
	c.traceFailure(ref.failure, status)
	if status == statusUnanswered {
		c.out.abort()
	}
	header := c.w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", "Bearer")
	}
	if ref.allow != "" {
		header.Set("Allow", ref.allow)
	}
	if after := retryAfter(status, ref.failure); after > 0 {
		header.Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
	if ref.sent && status >= 500 {
		// SDKs run a prompt again after a 5xx. This one may have run, or may be running.
		header.Set("X-Should-Retry", "false")
	}
	encode := c.encode
	if encode == nil { // no endpoint has the path
		encode = encoderOf(c.r.RequestURI)
	}
	c.write(status, encode(status, ref.failure, ref.param))
}

func retryAfter(status int, f *execution.Failure) time.Duration {
	if f.RetryAfter > 0 {
		return f.RetryAfter
	}
	if status == http.StatusServiceUnavailable {
		return defaultRetryAfter
	}
	return 0
}
