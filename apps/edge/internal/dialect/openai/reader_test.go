package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"iop/packages/go/execution"
)

// chunk is a chat.completion.chunk as the SDKs' types have it; pointers tell what is absent.
type chunk struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Created int64           `json:"created"`
	Model   string          `json:"model"`
	Choices []chunkChoice   `json:"choices"`
	Usage   json.RawMessage `json:"usage"`
}

type chunkChoice struct {
	Index        *int    `json:"index"`
	Delta        *delta  `json:"delta"`
	FinishReason *string `json:"finish_reason"`
}

type delta struct {
	Role      string      `json:"role"`
	Content   *string     `json:"content"`
	Reasoning string      `json:"reasoning_content"`
	ToolCalls []deltaCall `json:"tool_calls"`
}

type deltaCall struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string  `json:"name"`
		Arguments *string `json:"arguments"`
	} `json:"function"`
}

// read is what an SDK has put together of an answer.
type read struct {
	id, model string
	created   int64
	text      string
	reasoning string
	calls     []execution.ToolCall
	finish    string
	usage     string // as JSON, "" = untold
	chunks    int
	failure   string // the message of an error event
}

// sdk puts a stream together as the SDKs' accumulators do, and is strict where one of them is: openai-go wants the same
// id in each chunk, and no gap between the indexes of calls; openai's helper for Node a role, a finish reason, and a
// type, a name and arguments of each call; the AI SDK a name in the first piece of one; all of them no error and JSON in each event.
// Members that the SDKs' types don't have are refused, and so is what comes after the end.
type sdk struct {
	read
	includeUsage bool
	done         bool
	counted      bool
}

// readStream reads a stream to its end mark.
func readStream(body []byte, includeUsage bool) (read, error) {
	s := sdk{includeUsage: includeUsage}
	for len(body) > 0 {
		event, rest, ok := bytes.Cut(body, []byte("\n\n"))
		if !ok {
			return s.read, fmt.Errorf("the stream ends inside an event: %q", body)
		}
		body = rest
		data, ok := bytes.CutPrefix(event, []byte("data: "))
		if !ok || bytes.ContainsAny(data, "\r\n") {
			return s.read, fmt.Errorf("not an event of one line: %q", event)
		}
		if err := s.event(data); err != nil {
			return s.read, fmt.Errorf("%w: %s", err, data)
		}
	}
	if !s.done && s.failure == "" {
		return s.read, errors.New("the stream ends without an end mark")
	}
	return s.read, nil
}

func (s *sdk) event(data []byte) error {
	var members map[string]json.RawMessage
	switch {
	case s.done || s.failure != "":
		return errors.New("an event after the end")
	case string(data) == "[DONE]":
		if s.finish == "" {
			return errors.New("done without a finish reason")
		}
		s.done = true
		return nil
	case json.Unmarshal(data, &members) != nil:
		return errors.New("an event isn't a JSON object")
	}
	if _, failed := members["error"]; failed {
		var body errorBody
		if err := strictly(data, &body); err != nil {
			return err
		}
		if s.failure = body.Error.Message; s.failure == "" {
			return errors.New("an error without a message")
		}
		return nil
	}
	if _, has := members["usage"]; has != s.includeUsage {
		return errors.New("each chunk has a usage if one asked, and else none")
	}
	var c chunk
	if err := strictly(data, &c); err != nil {
		return err
	}
	return s.chunk(&c)
}

func strictly(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

func (s *sdk) chunk(c *chunk) error {
	if s.chunks++; s.chunks == 1 {
		s.id, s.model, s.created = c.ID, c.Model, c.Created
	}
	switch {
	case c.ID == "" || c.ID != s.id || c.Model == "" || c.Model != s.model || c.Created == 0 || c.Created != s.created:
		return errors.New("another head")
	case c.Object != "chat.completion.chunk":
		return errors.New("not a chunk")
	case s.counted:
		return errors.New("a chunk after that with the usage")
	}
	if len(c.Choices) == 0 {
		if s.finish == "" || len(c.Usage) == 0 || string(c.Usage) == "null" {
			return errors.New("a chunk that says nothing")
		}
		s.counted, s.usage = true, string(c.Usage)
		return nil
	}
	ch := c.Choices[0]
	switch {
	case len(c.Choices) != 1 || ch.Index == nil || *ch.Index != 0 || ch.Delta == nil:
		return errors.New("not one choice")
	case s.finish != "":
		return errors.New("a choice after the finish reason")
	case s.includeUsage && string(c.Usage) != "null":
		return errors.New("a usage too early")
	case (ch.Delta.Role != "") != (s.chunks == 1) || s.chunks == 1 && ch.Delta.Role != "assistant":
		return errors.New("the role comes in the first chunk and not again")
	}
	if ch.FinishReason != nil {
		if s.finish = *ch.FinishReason; s.finish == "" {
			return errors.New("an empty finish reason")
		}
	}
	return s.delta(ch.Delta)
}

func (s *sdk) delta(d *delta) error {
	s.reasoning += d.Reasoning
	if d.Content != nil {
		s.text += *d.Content
	}
	for _, c := range d.ToolCalls {
		if c.Index == nil || *c.Index < 0 || *c.Index > len(s.calls) || c.Function.Arguments == nil {
			return errors.New("a call without an index, or with one too high, or without arguments")
		}
		if *c.Index == len(s.calls) {
			if c.ID == "" || c.Type != "function" || c.Function.Name == "" {
				return errors.New("a call begins without an id, a type or a name")
			}
			s.calls = append(s.calls, execution.ToolCall{ID: c.ID, Name: c.Function.Name})
		} else if c.ID != "" || c.Type != "" || c.Function.Name != "" {
			return errors.New("a call begins twice")
		}
		s.calls[*c.Index].Arguments += *c.Function.Arguments
	}
	return nil
}

// completion is a chat.completion as the SDKs' types have it.
type completion struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Created int64           `json:"created"`
	Model   string          `json:"model"`
	Usage   json.RawMessage `json:"usage"`
	Choices []struct {
		Index        *int            `json:"index"`
		FinishReason string          `json:"finish_reason"`
		Logprobs     json.RawMessage `json:"logprobs"`
		Message      struct {
			Role      string          `json:"role"`
			Content   *string         `json:"content"`
			Refusal   json.RawMessage `json:"refusal"`
			Reasoning string          `json:"reasoning_content"`
			ToolCalls []struct {
				ID       string `json:"id"`
				Type     string `json:"type"`
				Function struct {
					Name      string `json:"name"`
					Arguments string `json:"arguments"`
				} `json:"function"`
			} `json:"tool_calls"`
		} `json:"message"`
	} `json:"choices"`
}

// readWhole reads an answer that is one object.
func readWhole(body []byte) (read, error) {
	var c completion
	if err := strictly(body, &c); err != nil {
		return read{}, err
	}
	if len(c.Choices) != 1 || c.Object != "chat.completion" || c.ID == "" || c.Model == "" || c.Created == 0 {
		return read{}, errors.New("not a completion")
	}
	ch := c.Choices[0]
	m := ch.Message
	r := read{id: c.ID, model: c.Model, created: c.Created, reasoning: m.Reasoning, finish: ch.FinishReason, usage: string(c.Usage)}
	switch {
	case ch.Index == nil || *ch.Index != 0 || m.Role != "assistant" || ch.FinishReason == "":
		return r, errors.New("not a choice")
	case string(ch.Logprobs) != "null" || string(m.Refusal) != "null":
		return r, errors.New("logprobs and refusal aren't null")
	case m.Content == nil && len(m.ToolCalls) == 0:
		return r, errors.New("neither content nor calls")
	case m.ToolCalls != nil && len(m.ToolCalls) == 0, strings.Contains(string(body), `"reasoning_content":""`):
		return r, errors.New("members that say nothing")
	}
	if m.Content != nil {
		r.text = *m.Content
	}
	for _, t := range m.ToolCalls {
		if t.Type != "function" {
			return r, errors.New("a call without its type")
		}
		r.calls = append(r.calls, execution.ToolCall{ID: t.ID, Name: t.Function.Name, Arguments: t.Function.Arguments})
	}
	return r, nil
}
