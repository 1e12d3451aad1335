package openai

import (
	"bytes"
	"encoding/json"
	"errors"

	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

// chunk is one event of a streamed answer, or the whole of one that isn't streamed.
type chunk struct {
	Object  string          `json:"object"`
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   json.RawMessage `json:"usage"`
	Error   json.RawMessage `json:"error"`
	Message json.RawMessage `json:"message"` // of an object that is an error itself, as vLLM's were
}

type choice struct {
	Index        *int            `json:"index"`
	Delta        *said           `json:"delta"`
	Message      *said           `json:"message"`
	FinishReason string          `json:"finish_reason"`
	Usage        json.RawMessage `json:"usage"`
	Error        json.RawMessage `json:"error"`
}

// said is what the model says in a chunk. Reasoning has three names; who sends two of them says the same in both.
type said struct {
	Content          content   `json:"content"`
	Refusal          string    `json:"refusal"`
	ReasoningContent thoughts  `json:"reasoning_content"`
	Reasoning        thoughts  `json:"reasoning"`
	Thinking         thoughts  `json:"thinking"`
	ToolCalls        []called  `json:"tool_calls"`
	FunctionCall     *function `json:"function_call"` // before there were tools
}

func (s *said) reasoning() string {
	for _, c := range []thoughts{s.ReasoningContent, s.Reasoning, s.Thinking} {
		if c.text != "" {
			return c.text
		}
	}
	return s.Content.thinking
}

// pieces returns what is said of tool calls.
func (s *said) pieces() []execution.ToolCallPiece {
	var out []execution.ToolCallPiece
	for _, c := range s.ToolCalls {
		out = append(out, execution.ToolCallPiece{Index: c.Index, ID: c.ID, Name: c.Function.Name, Arguments: string(c.Function.Arguments)})
	}
	if f := s.FunctionCall; f != nil {
		out = append(out, execution.ToolCallPiece{Name: f.Name, Arguments: string(f.Arguments)})
	}
	return out
}

type called struct {
	Index    *int     `json:"index"`
	ID       string   `json:"id"`
	Function function `json:"function"`
}

type function struct {
	Name      string    `json:"name"`
	Arguments arguments `json:"arguments"`
}

// arguments are a text that holds JSON; some providers give the JSON itself.
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
		return errors.New("arguments are neither a text nor an object")
	}
	return nil
}

// content is a text, or a list of parts of which some are texts and some may be reasoning.
type content struct{ text, thinking string }

// UnmarshalJSON implements [json.Unmarshaler].
func (c *content) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case 'n':
		return nil
	case '"':
		return json.Unmarshal(b, &c.text)
	case '[':
		var parts []struct {
			Type     string  `json:"type"`
			Text     string  `json:"text"`
			Thinking content `json:"thinking"`
		}
		if err := json.Unmarshal(b, &parts); err != nil {
			return err
		}
		for _, p := range parts {
			c.text += p.Text
			c.thinking += p.Thinking.text
		}
		return nil
	}
	return errors.New("content is neither a text nor a list")
}

// thoughts is reasoning; of a form that nobody knows it is none, since the answer doesn't depend on it.
type thoughts struct{ content }

// UnmarshalJSON implements [json.Unmarshaler].
func (t *thoughts) UnmarshalJSON(b []byte) error {
	_ = t.content.UnmarshalJSON(b)
	return nil
}

// failure returns the error that a chunk reports under a status of success, nil if it reports none.
func (c *chunk) failure(status int) error {
	if upstream.IsError(c.Error) {
		return upstream.Reported(status, c.Error)
	}
	if c.Object == "error" {
		return upstream.Reported(status, c.Message)
	}
	for i := range c.Choices {
		if upstream.IsError(c.Choices[i].Error) {
			return upstream.Reported(status, c.Choices[i].Error)
		}
	}
	return nil
}

// first returns the choice with index 0, nil if the chunk has none: a run asks for one answer.
func (c *chunk) first() *choice {
	for i := range c.Choices {
		if index := c.Choices[i].Index; index == nil && i == 0 || index != nil && *index == 0 {
			return &c.Choices[i]
		}
	}
	return nil
}

// finishReason returns the word of a choice in the names that runs have.
func (c *choice) finishReason() string {
	if c.FinishReason == "function_call" {
		return "tool_calls"
	}
	return c.FinishReason
}
