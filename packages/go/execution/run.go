package execution

import (
	"context"
	"encoding/json"
)

// Role says who speaks in a conversation.
type Role string

// The roles.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Message is one turn of a conversation.
type Message struct {
	Role       Role
	Parts      []Part
	ToolCalls  []ToolCall // of an assistant
	ToolCallID string     // of a tool: the call that it answers
	Name       string
	Reasoning  string // of an assistant: what it thought before it answered; a provider that can't be told isn't
	Failed     bool   // of a tool: the call failed, and the content says how; a provider that can't be told isn't
}

// Part is a piece of a message: text, or an image when Image isn't nil.
type Part struct {
	Text  string
	Image *Image
}

// Image is a picture by its bytes: nothing is fetched.
type Image struct {
	MediaType string // image/png, …
	Data      []byte
}

// ToolCall is a whole call of a tool. Arguments is what the model wrote, JSON as a rule.
type ToolCall struct {
	ID        string
	Name      string
	Arguments string
}

// Tool is a function that a model may call. Parameters is its JSON schema, nil = none.
type Tool struct {
	Name        string
	Description string
	Parameters  json.RawMessage
}

// ToolMode says whether a model must call a tool.
type ToolMode string

// The modes. The zero value leaves it to the provider.
const (
	ToolAuto     ToolMode = "auto"
	ToolNone     ToolMode = "none"
	ToolRequired ToolMode = "required"
	ToolNamed    ToolMode = "tool" // the one that ToolChoice names
)

// ToolChoice says which tool a model must call.
type ToolChoice struct {
	Mode ToolMode `json:"mode,omitempty"`
	Name string   `json:"name,omitempty"` // with ToolNamed
}

// Options steer the generation. Nil and empty fields are the provider's own choice. The JSON names are those of the
// runs API; what a provider can't be told is a bad_request that names the option, never dropped.
type Options struct {
	MaxTokens         *int64          `json:"max_tokens,omitempty"`
	Temperature       *float64        `json:"temperature,omitempty"`
	TopP              *float64        `json:"top_p,omitempty"`
	TopK              *int64          `json:"top_k,omitempty"`
	Stop              []string        `json:"stop,omitempty"`
	Seed              *int64          `json:"seed,omitempty"`
	FrequencyPenalty  *float64        `json:"frequency_penalty,omitempty"`
	PresencePenalty   *float64        `json:"presence_penalty,omitempty"`
	ParallelToolCalls *bool           `json:"parallel_tool_calls,omitempty"`
	ReasoningEffort   string          `json:"reasoning_effort,omitempty"` // none, minimal, low, medium, high, or the provider's own word
	ReasoningBudget   *int64          `json:"reasoning_budget,omitempty"` // most tokens to think with; 0 = none
	ResponseFormat    json.RawMessage `json:"response_format,omitempty"`  // as the OpenAI API has it
}

// Request is one normalized execution.
type Request struct {
	RunID      string
	SessionID  string // opaque correlation, never state
	Target     string
	Messages   []Message
	Tools      []Tool
	ToolChoice ToolChoice
	Options    Options
	Timers     Timers
	Credential Credential // nil = the provider is asked without a key
}

// EventKind is what an event tells.
type EventKind uint8

// The kinds. None of them is a terminal: an execution ends by its return.
const (
	EventStart     EventKind = 1 // the provider began; at most once and first
	EventDelta     EventKind = 2 // a piece of the answer's text
	EventReasoning EventKind = 3 // a piece of the reasoning's text
	EventToolCall  EventKind = 4 // a piece of a tool call
	EventUsage     EventKind = 5 // token counts so far
)

// Event is one thing that a provider said during an execution.
type Event struct {
	Kind     EventKind
	Text     string        // of EventDelta and EventReasoning; valid UTF-8
	Model    string        // of EventStart: what the provider calls the model, "" = untold
	ToolCall ToolCallDelta // of EventToolCall
	Usage    Usage         // of EventUsage
}

// ToolCallDelta is a piece of one tool call. Pieces of one call share its Index; ID and Name come with the first piece.
type ToolCallDelta struct {
	Index     int
	ID        string
	Name      string
	Arguments string // a fragment; the fragments of a call in order are its arguments
}

// Completion is how an execution that succeeded ended.
type Completion struct {
	FinishReason string // stop, length, tool_calls, content_filter, or the provider's own word
	Usage        Usage
}

// Emit takes the events of one execution, in order, from one goroutine. An error means that nobody wants the rest: the
// adapter closes its provider connection and returns.
type Emit func(Event) error

// Executor is a provider that runs normalized requests.
type Executor interface {
	Provider
	// Execute asks the provider once and emits what it says. It returns how the execution ended: nil after the
	// provider's own end mark (a finish reason, or the dialect's end), and a *Failure or ctx's cause otherwise. A
	// stream that ends without an end mark is upstream_truncated; an error object inside a 200 is upstream_error.
	// When it returns, its provider connection is closed or idle.
	Execute(ctx context.Context, req *Request, emit Emit) (Completion, error)
}
