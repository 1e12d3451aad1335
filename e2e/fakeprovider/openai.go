package fakeprovider

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// OpenAI is POST /v1/chat/completions, as llama.cpp has it.
type OpenAI struct{}

// StreamType implements [Dialect].
func (OpenAI) StreamType() string { return "text/event-stream" }

// Refusal implements [Dialect].
func (OpenAI) Refusal(status int, text string) string {
	return encode(object{"error": object{"code": status, "message": text, "type": "invalid_request_error"}})
}

// Failure implements [Dialect].
func (d OpenAI) Failure(text string) string { return "data: " + d.Refusal(500, text) + "\n\n" }

// Whole implements [Dialect].
func (OpenAI) Whole(s *Said) string {
	message := object{"role": "assistant", "content": s.Text()}
	if text := s.Reasoning(); text != "" {
		message["reasoning_content"] = text
	}
	var calls []object
	for _, c := range s.Calls() {
		calls = append(calls, object{"id": c.ID, "type": "function", "function": object{"name": c.Name, "arguments": c.Arguments}})
	}
	if calls != nil {
		message["tool_calls"] = calls
		if s.Text() == "" {
			message["content"] = nil
		}
	}
	answer := object{"id": "chatcmpl-1", "object": "chat.completion", "created": 1795956715, "model": s.Model,
		"choices": []object{{"index": 0, "message": message, "finish_reason": s.Finish}}}
	if s.Usage != nil {
		answer["usage"] = openAIUsage(s.Usage)
	}
	return encode(answer)
}

func openAIUsage(u *Usage) object {
	return object{"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"prompt_tokens_details": object{"cached_tokens": u.Cached}}
}

// Stream implements [Dialect].
func (d OpenAI) Stream(s *Said, q *Asked) []string {
	out := []string{d.chunk(s, object{"role": "assistant", "content": nil}, nil)}
	for _, p := range s.Pieces {
		switch {
		case p.Reasoning != "":
			out = append(out, d.chunk(s, object{"reasoning_content": p.Reasoning}, nil))
		case p.Text != "":
			out = append(out, d.chunk(s, object{"content": p.Text}, nil))
		case p.ID != "":
			out = append(out, d.chunk(s, object{"tool_calls": []object{{"index": p.Call, "id": p.ID, "type": "function",
				"function": object{"name": p.Name, "arguments": p.Arguments}}}}, nil))
		default:
			out = append(out, d.chunk(s, object{"tool_calls": []object{{"index": p.Call, "function": object{"arguments": p.Arguments}}}}, nil))
		}
	}
	out = append(out, d.chunk(s, object{}, s.Finish))
	if q.Count && s.Usage != nil {
		out = append(out, "data: "+encode(object{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795956715,
			"model": s.Model, "choices": []object{}, "usage": openAIUsage(s.Usage)})+"\n\n")
	}
	return append(out, "data: [DONE]\n\n")
}

func (OpenAI) chunk(s *Said, delta object, finish any) string {
	return "data: " + encode(object{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795956715, "model": s.Model,
		"choices": []object{{"index": 0, "delta": delta, "finish_reason": finish}}}) + "\n\n"
}

// Read implements [Dialect].
func (OpenAI) Read(body []byte) (*Asked, error) {
	m, err := readMembers(body)
	if err != nil {
		return nil, err
	}
	q := &Asked{Options: map[string]string{}}
	m.options(q.Options, map[string]string{"max_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "temperature": "temperature",
		"top_p": "top_p", "top_k": "top_k", "stop": "stop", "seed": "seed", "frequency_penalty": "frequency_penalty",
		"presence_penalty": "presence_penalty", "parallel_tool_calls": "parallel_tool_calls", "reasoning_effort": "reasoning_effort"})
	var messages []openAIMessage
	var tools []json.RawMessage
	var choice, format json.RawMessage
	var streaming struct {
		Count bool `json:"include_usage"`
	}
	err = errors.Join(m.take("model", &q.Model), m.take("stream", &q.Stream), m.take("stream_options", &streaming), m.take("messages", &messages),
		m.take("tools", &tools), m.take("tool_choice", &choice), m.take("response_format", &format), m.rest("the body"))
	q.Count = streaming.Count
	for i := range messages {
		message, bad := messages[i].read()
		q.Messages, err = append(q.Messages, message), errors.Join(err, bad)
	}
	for _, raw := range tools {
		tool, bad := readFunction(raw)
		q.Tools, err = append(q.Tools, tool), errors.Join(err, bad)
	}
	return q, errors.Join(err, q.openAIChoice(choice), q.openAIFormat(format))
}

// openAIMessage is a message as it stands in a request.
type openAIMessage struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Reasoning string          `json:"reasoning_content"`
	CallID    string          `json:"tool_call_id"`
	Calls     []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string  `json:"name"`
			Arguments *string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// UnmarshalJSON implements [json.Unmarshaler], strictly.
func (m *openAIMessage) UnmarshalJSON(raw []byte) error {
	type plain openAIMessage
	return strictly(raw, (*plain)(m))
}

func (m *openAIMessage) read() (Message, error) {
	out := Message{Role: m.Role, Reasoning: m.Reasoning, CallID: m.CallID}
	for _, c := range m.Calls {
		if c.ID == "" || c.Type != "function" || c.Function.Name == "" || c.Function.Arguments == nil || !json.Valid([]byte(*c.Function.Arguments)) {
			return out, fmt.Errorf("not a call: %+v", c)
		}
		out.Calls = append(out.Calls, Call{c.ID, c.Function.Name, compact([]byte(*c.Function.Arguments))})
	}
	if (m.Role == "tool") != (m.CallID != "") || m.Role != "assistant" && (m.Calls != nil || m.Reasoning != "") {
		return out, fmt.Errorf("a message of the %s has what it can't have", m.Role)
	}
	var text string
	switch {
	case string(m.Content) == "null" && m.Role == "assistant" && len(m.Calls) > 0:
		return out, nil
	case json.Unmarshal(m.Content, &text) == nil:
		if text != "" {
			out.Content = append(out.Content, Content{Text: text})
		}
		return out, nil
	}
	var parts []struct {
		Type  string
		Text  string
		Image struct{ URL string } `json:"image_url"`
	}
	err := strictly(m.Content, &parts)
	for _, p := range parts {
		part := Content{Text: p.Text}
		if p.Type == "image_url" {
			mediaType, data, found := strings.Cut(strings.TrimPrefix(p.Image.URL, "data:"), ";base64,")
			if !found || m.Role != "user" {
				return out, fmt.Errorf("no place for the picture %.50s", p.Image.URL)
			}
			var bad error
			part, bad = picture(mediaType, data)
			err = errors.Join(err, bad)
		}
		out.Content = append(out.Content, part)
	}
	return out, err
}

// readFunction reads a tool that OpenAI and Ollama write the same.
func readFunction(raw []byte) (Tool, error) {
	var t struct {
		Type     string
		Function struct {
			Name, Description string
			Parameters        json.RawMessage
		}
	}
	err := strictly(raw, &t)
	if err == nil && (t.Type != "function" || t.Function.Name == "") {
		err = fmt.Errorf("not a function: %s", raw)
	}
	return Tool{t.Function.Name, t.Function.Description, compact(t.Function.Parameters)}, err
}

func (q *Asked) openAIChoice(raw json.RawMessage) error {
	if len(raw) == 0 || json.Unmarshal(raw, &q.Choice) == nil {
		return nil
	}
	var named struct {
		Type     string
		Function struct{ Name string }
	}
	err := strictly(raw, &named)
	q.Choice = "tool " + named.Function.Name
	return err
}

func (q *Asked) openAIFormat(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	var f struct {
		Type   string
		Schema struct {
			Name, Description string
			Strict            bool
			Schema            json.RawMessage
		} `json:"json_schema"`
	}
	err := strictly(raw, &f)
	switch {
	case f.Type == "json_object":
		q.Options["format"] = `"json"`
	case f.Type == "json_schema" && f.Schema.Name != "":
		q.Options["format"] = compact(f.Schema.Schema)
	case err == nil:
		err = fmt.Errorf("not a format: %s", raw)
	}
	return err
}
