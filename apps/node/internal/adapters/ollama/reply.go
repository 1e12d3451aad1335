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
	Message    said            `json:"message"`
	Response   string          `json:"response"` // of /api/generate, which has its text here
	Thinking   string          `json:"thinking"` // the same
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
func (r *reply) empty() bool {
	return r.Model == "" && r.text() == "" && r.reasoning() == "" && len(r.Message.ToolCalls) == 0 && !r.Done
}

func (r *reply) text() string { return r.Message.Content + r.Response }

func (r *reply) reasoning() string { return r.Message.Thinking + r.Thinking }

// pieces returns the calls that a line tells; made is how many came before. A number of its own keeps each call apart,
// whatever ids the provider gives.
func (r *reply) pieces(made int) []execution.ToolCallPiece {
	var out []execution.ToolCallPiece
	for i, c := range r.Message.ToolCalls {
		index, arguments := made+i, string(c.Function.Arguments)
		if arguments == "" {
			arguments = "{}"
		}
		out = append(out, execution.ToolCallPiece{Index: &index, ID: c.ID, Name: c.Function.Name, Arguments: arguments})
	}
	return out
}

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
