package anthropic

import (
	"net/http"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// statusOverloaded is the API's own.
const statusOverloaded = 529

// errorType is the API's word for a status.
func errorType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, statusOverloaded:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= 400 && status < 499 { // 499 is a run that somebody cancelled: the request was in order
		return "invalid_request_error"
	}
	return "api_error"
}

// streamErrorType is the API's word for what ended a stream that had begun, where no status tells it.
func streamErrorType(code execution.Code) string {
	switch code {
	case execution.CodeEdgeDraining, execution.CodeNodeDraining, execution.CodeOverloaded, execution.CodeAdapterBusy:
		return "overloaded_error"
	case execution.CodeDispatchTimeout, execution.CodeFirstByteTimeout, execution.CodeIdleTimeout, execution.CodeDeadline:
		return "timeout_error"
	}
	return "api_error"
}

// appendError appends an error in the API's shape. The SDKs read a stable code from details.error_code; it stands in
// code as well, where the other dialects of the edge have it. The request's id goes in a header, so it is null here.
func appendError(dst []byte, kind string, f *execution.Failure, field string) []byte {
	message := f.Text
	if message == "" {
		message = f.Code.String()
	}
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = dialect.AppendText(dst, kind)
	dst = append(dst, `,"message":`...)
	dst = dialect.AppendText(dst, message)
	dst = append(dst, `,"code":`...)
	dst = dialect.AppendText(dst, f.Code.String())
	dst = append(dst, `,"details":{"error_code":`...)
	dst = dialect.AppendText(dst, f.Code.String())
	if field != "" {
		dst = append(dst, `,"param":`...)
		dst = dialect.AppendText(dst, field)
	}
	return append(dst, `}},"request_id":null}`...)
}
