package fakeprovider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Ollama is POST /api/chat, or /api/generate.
type Ollama struct{ Generate bool }

// StreamType implements [Dialect].
func (Ollama) StreamType() string { return "application/x-ndjson" }

// Refusal implements [Dialect].
func (Ollama) Refusal(_ int, text string) string { return encode(object{"error": text}) }

// Failure implements [Dialect].
func (d Ollama) Failure(text string) string { return d.Refusal(200, text) + "\n" }

// line is one object of an answer.
func (d Ollama) line(s *Said, text, thinking string, calls []object) object {
	o := object{"model": s.Model, "created_at": "2026-11-29T13:05:25.285418599Z", "done": false}
	said := object{"role": "assistant", "content": text}
	if d.Generate {
		said, o["response"] = o, text
	} else {
		o["message"] = said
	}
	if thinking != "" {
		said["thinking"] = thinking
	}
	if calls != nil {
		said["tool_calls"] = calls
	}
	return o
}

// end makes an object the last.
func (Ollama) end(s *Said, o object) object {
	o["done"], o["done_reason"] = true, s.Finish
	if s.Finish == "tool_calls" {
		o["done_reason"] = "stop"
	}
	o["total_duration"], o["load_duration"] = 62016636, 2565414
	if s.Usage != nil {
		o["prompt_eval_count"], o["prompt_eval_duration"] = s.Usage.Input, 32202866
		o["eval_count"], o["eval_duration"] = s.Usage.Output, 4292935
	}
	return o
}

func ollamaCalls(s *Said) []object {
	var calls []object
	for i, c := range s.Calls() {
		calls = append(calls, object{"id": c.ID, "function": object{"index": i, "name": c.Name, "arguments": json.RawMessage(c.Arguments)}})
	}
	return calls
}

// Whole implements [Dialect].
func (d Ollama) Whole(s *Said) string {
	return encode(d.end(s, d.line(s, s.Text(), s.Reasoning(), ollamaCalls(s))))
}

// Stream implements [Dialect]. Calls come whole.
func (d Ollama) Stream(s *Said, _ *Asked) []string {
	var out []string
	for _, p := range s.Pieces {
		if p.Text+p.Reasoning != "" {
			out = append(out, encode(d.line(s, p.Text, p.Reasoning, nil))+"\n")
		}
	}
	for _, c := range ollamaCalls(s) {
		out = append(out, encode(d.line(s, "", "", []object{c}))+"\n")
	}
	return append(out, encode(d.end(s, d.line(s, "", "", nil)))+"\n")
}

// Read implements [Dialect].
func (d Ollama) Read(body []byte) (*Asked, error) {
	m, err := readMembers(body)
	if err != nil {
		return nil, err
	}
	q := &Asked{Stream: true, Count: true, Options: map[string]string{}}
	var messages, tools []json.RawMessage
	var prompt, system string
	var images []string
	var options members
	delete(m, "keep_alive")
	m.options(q.Options, map[string]string{"format": "format", "think": "reasoning_effort"})
	if q.Options["reasoning_effort"] == "false" {
		q.Options["reasoning_effort"] = `"none"`
	}
	err = errors.Join(m.take("model", &q.Model), m.take("stream", &q.Stream), m.take("options", &options))
	if d.Generate {
		err = errors.Join(err, m.take("prompt", &prompt), m.take("system", &system), m.take("images", &images))
	} else {
		err = errors.Join(err, m.take("messages", &messages), m.take("tools", &tools))
	}
	options.options(q.Options, map[string]string{"num_predict": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
		"seed": "seed", "stop": "stop", "frequency_penalty": "frequency_penalty", "presence_penalty": "presence_penalty"})
	err = errors.Join(err, m.rest("the body"), options.rest("options"))
	for _, raw := range messages {
		message, bad := readOllamaMessage(raw)
		q.Messages, err = append(q.Messages, message), errors.Join(err, bad)
	}
	for _, raw := range tools {
		tool, bad := readFunction(raw)
		q.Tools, err = append(q.Tools, tool), errors.Join(err, bad)
	}
	if system != "" {
		q.Messages = append(q.Messages, Says("system", system))
	}
	if prompt != "" {
		parts, bad := ollamaParts(images, prompt)
		q.Messages, err = append(q.Messages, Message{Role: "user", Content: parts}), errors.Join(err, bad)
	}
	return q, err
}

func readOllamaMessage(raw []byte) (Message, error) {
	var m struct {
		Role     string
		Content  *string
		Thinking string
		Images   []string
		ToolName string `json:"tool_name"`
		CallID   string `json:"tool_call_id"`
		Calls    []struct {
			ID       string
			Function struct {
				Index     int
				Name      string
				Arguments json.RawMessage
			}
		} `json:"tool_calls"`
	}
	if err := strictly(raw, &m); err != nil {
		return Message{}, err
	}
	out := Message{Role: m.Role, Reasoning: m.Thinking, CallID: m.CallID}
	if m.Content == nil || m.Role == "tool" && m.ToolName == "" {
		return out, fmt.Errorf("without content, or without the tool's name: %s", raw)
	}
	for i, c := range m.Calls {
		if c.Function.Name == "" || !bytes.HasPrefix(c.Function.Arguments, []byte("{")) || c.Function.Index != i {
			return out, fmt.Errorf("not a call: %s", raw)
		}
		out.Calls = append(out.Calls, Call{c.ID, c.Function.Name, compact(c.Function.Arguments)})
	}
	var err error
	out.Content, err = ollamaParts(m.Images, *m.Content)
	return out, err
}

// ollamaParts puts the pictures in front of the text, as Ollama does.
func ollamaParts(images []string, text string) (parts []Content, err error) {
	for _, data := range images {
		image, bad := picture("", data)
		parts, err = append(parts, image), errors.Join(err, bad)
	}
	if text != "" {
		parts = append(parts, Content{Text: text})
	}
	return parts, err
}
