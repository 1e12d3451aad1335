package openai

import (
	"encoding/json"
	"net/http"

	"iop/packages/go/execution"
)

// errorBody is OpenAI's error shape.
type errorBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	} `json:"error"`
}

// typeServer is the type of errors that aren't the caller's.
const typeServer = "server_error"

// errorType is the dialect's word for a status; clients of the field branch on it.
func errorType(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status == http.StatusForbidden:
		return "permission_error"
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status >= 500:
		return typeServer
	}
	return "invalid_request_error"
}

// encodeError returns an error of a type as one line of JSON without its end.
func encodeError(kind string, f *execution.Failure, field string) []byte {
	var body errorBody
	body.Error.Message = f.Text
	if body.Error.Message == "" {
		body.Error.Message = f.Code.String()
	}
	body.Error.Type = kind
	body.Error.Code = f.Code.String()
	if field != "" {
		body.Error.Param = &field
	}
	text, err := json.Marshal(body)
	if err != nil { // strings always encode
		return []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal"}}`)
	}
	return text
}
