package ollama

import (
	"bytes"
	"encoding/json"
	"errors"

	"iop/packages/go/execution"
)

// reply is one line of a streamed answer, or the whole of one that isn't streamed.
type reply struct {
	Model      string          `json:"model"`
	Message    *said           `json:"message"`
	Done       bool            `json:"done"`
	DoneReason string          `json:"done_reason"`
	Error      json.RawMessage `json:"error"`

	PromptEvalCount int64 `json:"prompt_eval_count"`
	EvalCount       int64 `json:"eval_count"`
}

// said is what the model says in a line.
type said struct {
	Content   string   `json:"content"`
	Thinking  string   `json:"thinking"`
	ToolCalls []called `json:"tool_calls"`
}

// called is a tool call, which always comes whole. Its index isn't read: several versions number every call 0.
type called struct {
	ID       string `json:"id"`
	Function struct {
		Name      string    `json:"name"`
		Arguments arguments `json:"arguments"`
	} `json:"function"`
}

// arguments are an object in this dialect and a text that holds it in runs. Servers that imitate it send the text.
type arguments string

// UnmarshalJSON implements [json.Unmarshaler].
func (a *arguments) UnmarshalJSON(b []byte) error {
	switch {
	case bytes.Equal(b, []byte("null")):
	case b[0] == '"':
		return json.Unmarshal(b, (*string)(a))
	case b[0] == '{':
		*a = arguments(bytes.ToValidUTF8(b, []byte("\uFFFD")))
	default:
		return errors.New("arguments are neither an object nor a text")
	}
	return nil
}

// empty reports whether a line says nothing at all.
func (r *reply) empty() bool { return r.Model == "" && r.Message == nil && !r.Done }

// usage returns the counts of an answer's last line. The dialect leaves a count out that is zero, so that zero and
// unknown look the same. (ST-28)
func (r *reply) usage() (u execution.Usage) {
	if r.PromptEvalCount > 0 {
		u.Input = &r.PromptEvalCount
	}
	if r.EvalCount > 0 {
		u.Output = &r.EvalCount
	}
	return u
}
