package execution

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Code is the reason why something did not succeed. The numbers are on the wire, in stores and in logs: the list only
// grows, and a number is never used again. Each code has a row in docs and in [Codes].
type Code uint8

// The failure codes. CodeOK is no failure; it never travels in a Failure.
const (
	CodeOK                    Code = 0
	CodeBadRequest            Code = 1
	CodeUnauthorized          Code = 2
	CodeUnknownModel          Code = 3
	CodeUnknownAdapter        Code = 4
	CodeLimitExceeded         Code = 5
	CodeBodyTooLarge          Code = 6
	CodeNoNode                Code = 7
	CodeQueueFull             Code = 8
	CodeQueueTimeout          Code = 9
	CodeOverloaded            Code = 10
	CodeEdgeDraining          Code = 11
	CodeNodeDraining          Code = 12
	CodeNodeLost              Code = 13
	CodeDispatchTimeout       Code = 14
	CodeAdapterBusy           Code = 15
	CodeAdapterUnavailable    Code = 16
	CodeAdapterDecode         Code = 17
	CodeAdapterPanic          Code = 18
	CodeUpstreamConnect       Code = 19
	CodeUpstreamError         Code = 20
	CodeUpstreamTruncated     Code = 21
	CodeFirstByteTimeout      Code = 22
	CodeIdleTimeout           Code = 23
	CodeDeadline              Code = 24
	CodeClientGone            Code = 25
	CodeClientSlow            Code = 26
	CodeCancelled             Code = 27
	CodeCredentialUnavailable Code = 28
	CodeCredentialRefused     Code = 29
	CodeCredentialReflected   Code = 30
	CodeStaleProjection       Code = 31
	CodeDuplicateRun          Code = 32
	CodeProtocol              Code = 33
	CodeInternal              Code = 34
)

var codeNames = [...]string{
	CodeOK:                    "ok",
	CodeBadRequest:            "bad_request",
	CodeUnauthorized:          "unauthorized",
	CodeUnknownModel:          "unknown_model",
	CodeUnknownAdapter:        "unknown_adapter",
	CodeLimitExceeded:         "limit_exceeded",
	CodeBodyTooLarge:          "body_too_large",
	CodeNoNode:                "no_node",
	CodeQueueFull:             "queue_full",
	CodeQueueTimeout:          "queue_timeout",
	CodeOverloaded:            "overloaded",
	CodeEdgeDraining:          "edge_draining",
	CodeNodeDraining:          "node_draining",
	CodeNodeLost:              "node_lost",
	CodeDispatchTimeout:       "dispatch_timeout",
	CodeAdapterBusy:           "adapter_busy",
	CodeAdapterUnavailable:    "adapter_unavailable",
	CodeAdapterDecode:         "adapter_decode",
	CodeAdapterPanic:          "adapter_panic",
	CodeUpstreamConnect:       "upstream_connect",
	CodeUpstreamError:         "upstream_error",
	CodeUpstreamTruncated:     "upstream_truncated",
	CodeFirstByteTimeout:      "first_byte_timeout",
	CodeIdleTimeout:           "idle_timeout",
	CodeDeadline:              "deadline",
	CodeClientGone:            "client_gone",
	CodeClientSlow:            "client_slow",
	CodeCancelled:             "cancelled",
	CodeCredentialUnavailable: "credential_unavailable",
	CodeCredentialRefused:     "credential_refused",
	CodeCredentialReflected:   "credential_reflected",
	CodeStaleProjection:       "stale_projection",
	CodeDuplicateRun:          "duplicate_run",
	CodeProtocol:              "protocol",
	CodeInternal:              "internal",
}

// Codes returns every failure code in ascending order, without CodeOK.
func Codes() []Code {
	codes := make([]Code, 0, len(codeNames)-1)
	for i := 1; i < len(codeNames); i++ {
		codes = append(codes, Code(i))
	}
	return codes
}

// String returns the stable name that HTTP bodies, logs, metrics and events show.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "code_" + strconv.Itoa(int(c))
}

// Origin says where a failure was born; its numbers are on the wire.
type Origin uint8

// The origins.
const (
	OriginCaller   Origin = 1
	OriginEdge     Origin = 2
	OriginNode     Origin = 3
	OriginProvider Origin = 4
)

// String returns the origin's stable name, "unknown" for a number that this version doesn't know.
func (o Origin) String() string {
	switch o {
	case OriginCaller:
		return "caller"
	case OriginEdge:
		return "edge"
	case OriginNode:
		return "node"
	case OriginProvider:
		return "provider"
	}
	return "unknown"
}

// MaxFailureText is the longest Failure.Text in bytes; the wire cuts what is longer.
const MaxFailureText = 512

// Failure is why a run or tunnel didn't succeed. It is an error. Text is for people: code branches on Code only, and
// Text holds neither a secret nor the caller's input.
type Failure struct {
	Code           Code
	Origin         Origin
	Text           string
	UpstreamStatus int           // the provider's HTTP status, 0 = none
	RetryAfter     time.Duration // 0 = not told
	NothingSent    bool          // no byte of the request may have reached a provider
	Lease          LeaseRefusal  // why a key couldn't be used, with CodeCredentialRefused and CodeCredentialUnavailable
}

// LeaseRefusal is why a lease was refused, by the numbers of agent-contract/inner/credential-lease.md. Operators see it
// in events and logs; callers never do. The zero value is none.
type LeaseRefusal struct {
	Reason uint8
	Field  uint8 // what it is about, 0 = no field
}

// Error implements error: the code's name, then the text.
func (f *Failure) Error() string {
	if f.Text == "" {
		return f.Code.String()
	}
	return f.Code.String() + ": " + f.Text
}

// Failf returns a Failure with a formatted text.
func Failf(code Code, origin Origin, format string, args ...any) *Failure {
	return &Failure{Code: code, Origin: origin, Text: fmt.Sprintf(format, args...)}
}

// AsFailure returns the Failure in err's chain; any other error becomes CodeInternal of the given origin, whose text
// is fixed, since a foreign error's text may hold what must not leave the program. AsFailure(nil, …) is nil.
func AsFailure(err error, origin Origin) *Failure {
	if err == nil {
		return nil
	}
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	return &Failure{Code: CodeInternal, Origin: origin, Text: "internal error"}
}
