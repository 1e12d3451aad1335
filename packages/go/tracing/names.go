package tracing

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"
	genai "go.opentelemetry.io/otel/semconv/v1.41.0" // the last with GenAI, which has a repository of its own since
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// Key is the name of an attribute.
type Key = attribute.Key

// The names that OpenTelemetry's semantic conventions have.
const (
	KeyErrorType     = semconv.ErrorTypeKey // a failure code
	KeyMethod        = semconv.HTTPRequestMethodKey
	KeyRoute         = semconv.HTTPRouteKey // a path of the table of endpoints, never what a caller wrote
	KeyStatus        = semconv.HTTPResponseStatusCodeKey
	KeyScheme        = semconv.URLSchemeKey
	KeyPath          = semconv.URLPathKey
	KeyServerAddress = semconv.ServerAddressKey
	KeyServerPort    = semconv.ServerPortKey

	KeyOperation     = genai.GenAIOperationNameKey
	KeyProvider      = genai.GenAIProviderNameKey // the dialect that is spoken
	KeyRequestModel  = genai.GenAIRequestModelKey
	KeyResponseModel = genai.GenAIResponseModelKey
	KeyFinishReasons = genai.GenAIResponseFinishReasonsKey
	KeyInputTokens   = genai.GenAIUsageInputTokensKey
	KeyOutputTokens  = genai.GenAIUsageOutputTokensKey
	KeyCachedTokens  = genai.GenAIUsageCacheReadInputTokensKey
	KeyReasoning     = genai.GenAIUsageReasoningOutputTokensKey
	KeyFirstChunk    = genai.GenAIResponseTimeToFirstChunkKey // in seconds
)

// Our own names.
const (
	KeyRun        Key = "iop.run_id"
	KeyKind       Key = "iop.kind" // tunnel or run
	KeyNode       Key = "iop.node_id"
	KeyAdapter    Key = "iop.adapter"
	KeyGeneration Key = "iop.connection_generation"
	KeyAttempt    Key = "iop.attempt" // from 1
	KeyPrincipal  Key = "iop.principal"
	KeyModel      Key = "iop.route"          // the route's public name
	KeyPosition   Key = "iop.queue.position" // from 1; absent = it never waited
	KeyOutcome    Key = "iop.outcome"        // a failure code, or ok
	KeyBackground Key = "iop.background"     // 1 = the run goes on without its caller
)

// The names of spans. That of a caller's request is its method and route, that of a provider's its operation and model.
const (
	NameQueue     = "iop.queue"     // waits for a place
	NameAttempt   = "iop.attempt"   // one place's try, from the edge's side
	NameExecution = "iop.execution" // the same from the node's side
)

// OperationChat is the operation of a run.
const OperationChat = "chat"

// Operation is what the conventions call a request to a provider by its path; "" is no inference, as a list of models.
func Operation(path string) string {
	switch {
	case strings.HasSuffix(path, "/chat/completions"), strings.HasSuffix(path, "/messages"),
		strings.HasSuffix(path, "/responses"), path == "/api/chat":
		return OperationChat
	case strings.HasSuffix(path, "/completions"), path == "/api/generate":
		return genai.GenAIOperationNameTextCompletion.Value.AsString()
	case strings.HasSuffix(path, "/embeddings"), path == "/api/embed":
		return genai.GenAIOperationNameEmbeddings.Value.AsString()
	}
	return ""
}
