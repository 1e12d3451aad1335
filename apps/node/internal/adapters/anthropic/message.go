package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
)

// event is one event of a streamed answer. Which members it has depends on its type.
type event struct {
	Type    string          `json:"type"`
	Message *message        `json:"message"`       // message_start
	Index   int             `json:"index"`         // content_block_…
	Block   block           `json:"content_block"` // content_block_start
	Delta   delta           `json:"delta"`         // content_block_delta, message_delta
	Usage   json.RawMessage `json:"usage"`         // message_delta
	Error   json.RawMessage `json:"error"`         // error
}

// message is a whole answer, or the beginning of a streamed one.
type message struct {
	Type       string          `json:"type"`
	Model      string          `json:"model"`
	Content    []block         `json:"content"`
	StopReason string          `json:"stop_reason"`
	Usage      json.RawMessage `json:"usage"`
	Error      json.RawMessage `json:"error"`
}

// block is a part of an answer: a text, a thought, a call of a tool, or something that a run has no place for.
type block struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Thinking string `json:"thinking"`
	ID       string `json:"id"`
	Name     string `json:"name"`
	Input    input  `json:"input"`
}

// delta is what is new of a block, or of the message.
type delta struct {
	Type        string `json:"type"`
	Text        string `json:"text"`
	Thinking    string `json:"thinking"`
	PartialJSON string `json:"partial_json"`
	StopReason  string `json:"stop_reason"`
}

// input is a call's arguments, as the text that runs have. Servers that imitate the API send the text itself.
type input string

// noInput is what a call without arguments has: they are always an object.
const noInput = "{}"

// UnmarshalJSON implements [json.Unmarshaler].
func (in *input) UnmarshalJSON(b []byte) error {
	switch {
	case bytes.Equal(b, []byte("null")):
	case b[0] == '"':
		return json.Unmarshal(b, (*string)(in))
	case b[0] == '{':
		*in = input(bytes.ToValidUTF8(b, []byte("\uFFFD")))
	default:
		return errors.New("input is neither an object nor a text")
	}
	return nil
}

// finishReason returns a stop reason in the words of runs.
func finishReason(stop string) string {
	switch stop {
	case "end_turn", "stop_sequence":
		return "stop"
	case "max_tokens":
		return "length"
	case "tool_use":
		return "tool_calls"
	case "refusal":
		return "content_filter"
	}
	return stop
}
