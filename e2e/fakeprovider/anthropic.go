package fakeprovider

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Anthropic is POST /v1/messages.
type Anthropic struct{}

// StreamType implements [Dialect].
func (Anthropic) StreamType() string { return "text/event-stream" }

// Refusal implements [Dialect].
func (Anthropic) Refusal(status int, text string) string {
	kind, known := map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
		429: "rate_limit_error", 503: "overloaded_error", 529: "overloaded_error"}[status]
	if !known {
		kind = "api_error"
	}
	return encode(object{"type": "error", "error": object{"type": kind, "message": text}, "request_id": "req_1"})
}

// Failure implements [Dialect].
func (d Anthropic) Failure(text string) string {
	return "event: error\ndata: " + d.Refusal(529, text) + "\n\n"
}

func anthropicStop(finish string) string {
	return map[string]string{"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}[finish]
}

func anthropicUsage(u *Usage, output int64) object {
	usage := object{"input_tokens": u.Input - u.Cached, "output_tokens": output}
	if u.Cached > 0 {
		usage["cache_read_input_tokens"] = u.Cached
	}
	return usage
}

// Whole implements [Dialect].
func (Anthropic) Whole(s *Said) string {
	var content []object
	if text := s.Reasoning(); text != "" {
		content = append(content, object{"type": "thinking", "thinking": text, "signature": "c2lnbmVk"})
	}
	if text := s.Text(); text != "" {
		content = append(content, object{"type": "text", "text": text})
	}
	for _, c := range s.Calls() {
		content = append(content, object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": json.RawMessage(c.Arguments)})
	}
	answer := object{"id": "msg_1", "type": "message", "role": "assistant", "model": s.Model, "content": content,
		"stop_reason": anthropicStop(s.Finish), "stop_sequence": nil}
	if s.Usage != nil {
		answer["usage"] = anthropicUsage(s.Usage, s.Usage.Output)
	}
	return encode(answer)
}

// Stream implements [Dialect].
func (Anthropic) Stream(s *Said, _ *Asked) []string {
	message := object{"id": "msg_1", "type": "message", "role": "assistant", "model": s.Model, "content": []object{},
		"stop_reason": nil, "stop_sequence": nil}
	if s.Usage != nil {
		message["usage"] = anthropicUsage(s.Usage, 0)
	}
	w := &anthropicWriter{index: -1}
	w.event(object{"type": "message_start", "message": message})
	w.event(object{"type": "ping"})
	for _, p := range s.inTurn() {
		w.piece(p)
	}
	w.stop()
	end := object{"type": "message_delta", "delta": object{"stop_reason": anthropicStop(s.Finish), "stop_sequence": nil}}
	if s.Usage != nil {
		end["usage"] = object{"output_tokens": s.Usage.Output}
	}
	w.event(end)
	w.event(object{"type": "message_stop"})
	return w.out
}

// anthropicWriter writes a stream's events.
type anthropicWriter struct {
	out   []string
	index int    // of the block that is open
	open  string // what kind of block it is, "" = none
}

func (w *anthropicWriter) event(data object) {
	w.out = append(w.out, fmt.Sprintf("event: %s\ndata: %s\n\n", data["type"], encode(data)))
}

func (w *anthropicWriter) piece(p Piece) {
	switch {
	case p.Reasoning != "":
		w.begin("thinking", object{"type": "thinking", "thinking": "", "signature": ""})
		w.delta(object{"type": "thinking_delta", "thinking": p.Reasoning})
	case p.Text != "":
		w.begin("text", object{"type": "text", "text": ""})
		w.delta(object{"type": "text_delta", "text": p.Text})
	case p.ID != "":
		w.begin("call "+p.ID, object{"type": "tool_use", "id": p.ID, "name": p.Name, "input": object{}})
		if p.Arguments != "" {
			w.delta(object{"type": "input_json_delta", "partial_json": p.Arguments})
		}
	default:
		w.delta(object{"type": "input_json_delta", "partial_json": p.Arguments})
	}
}

// begin opens a block unless one of the kind is open.
func (w *anthropicWriter) begin(kind string, block object) {
	if w.open == kind {
		return
	}
	w.stop()
	w.open = kind
	w.index++
	w.event(object{"type": "content_block_start", "index": w.index, "content_block": block})
}

func (w *anthropicWriter) delta(delta object) {
	w.event(object{"type": "content_block_delta", "index": w.index, "delta": delta})
}

func (w *anthropicWriter) stop() {
	if w.open == "" {
		return
	}
	if w.open == "thinking" {
		w.delta(object{"type": "signature_delta", "signature": "c2lnbmVk"})
	}
	w.event(object{"type": "content_block_stop", "index": w.index})
	w.open = ""
}

// Read implements [Dialect].
func (Anthropic) Read(body []byte) (*Asked, error) {
	m, err := readMembers(body)
	if err != nil {
		return nil, err
	}
	q := &Asked{Options: map[string]string{}, Count: true}
	m.options(q.Options, map[string]string{"max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
		"stop_sequences": "stop"})
	var system json.RawMessage
	var messages, tools []json.RawMessage
	var choice, thinking, output json.RawMessage
	err = errors.Join(m.take("model", &q.Model), m.take("stream", &q.Stream), m.take("system", &system), m.take("messages", &messages),
		m.take("tools", &tools), m.take("tool_choice", &choice), m.take("thinking", &thinking), m.take("output_config", &output), m.rest("the body"))
	if q.Options["max_tokens"] == "" {
		err = errors.Join(err, errors.New("max_tokens: missing"))
	}
	if len(system) > 0 {
		said, bad := readBlocks("system", system)
		q.Messages, err = append(q.Messages, said...), errors.Join(err, bad)
	}
	for _, raw := range messages {
		err = errors.Join(err, q.anthropicTurn(raw))
	}
	for _, raw := range tools {
		var t struct {
			Name, Description string
			Schema            json.RawMessage `json:"input_schema"`
		}
		err = errors.Join(err, strictly(raw, &t))
		q.Tools = append(q.Tools, Tool{t.Name, t.Description, compact(t.Schema)})
	}
	return q, errors.Join(err, q.anthropicChoice(choice), q.anthropicThinking(thinking), q.anthropicOutput(output))
}

// anthropicTurn adds what one message of the request says: a message for each answer of a tool, and one for the rest.
func (q *Asked) anthropicTurn(raw []byte) error {
	var turn struct {
		Role    string
		Content json.RawMessage
	}
	if err := strictly(raw, &turn); err != nil {
		return err
	}
	if turn.Role != "user" && turn.Role != "assistant" {
		return fmt.Errorf("no role: %s", turn.Role)
	}
	said, err := readBlocks(turn.Role, turn.Content)
	q.Messages = append(q.Messages, said...)
	return err
}

// block is a part of a content.
type block struct {
	Type      string
	Text      string
	Thinking  string
	Signature string
	ID        string
	Name      string
	Input     json.RawMessage
	UseID     string `json:"tool_use_id"`
	IsError   bool   `json:"is_error"`
	Content   json.RawMessage
	Source    struct {
		Type      string
		MediaType string `json:"media_type"`
		Data      string
	}
}

// readBlocks reads a content, which is a text or a list of blocks.
func readBlocks(role string, raw json.RawMessage) ([]Message, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		if text == "" {
			return nil, errors.New("an empty text")
		}
		return []Message{Says(role, text)}, nil
	}
	var blocks []block
	if err := strictly(raw, &blocks); err != nil {
		return nil, err
	}
	var out []Message
	rest := Message{Role: role}
	for _, b := range blocks {
		if b.Type != "tool_result" {
			if err := rest.add(&b); err != nil {
				return nil, err
			}
			continue
		}
		result := Message{Role: "tool", CallID: b.UseID, Failed: b.IsError}
		if len(b.Content) > 0 {
			said, err := readBlocks("tool", b.Content)
			if err != nil || len(said) != 1 || role != "user" || b.UseID == "" {
				return nil, fmt.Errorf("not a tool_result: %w: %s", err, b.Content)
			}
			result.Content = said[0].Content
		}
		out = append(out, result)
	}
	if rest.Content != nil || rest.Calls != nil || rest.Reasoning != "" {
		out = append(out, rest)
	}
	if out == nil {
		return nil, errors.New("a message that says nothing")
	}
	return out, nil
}

func (m *Message) add(b *block) error {
	switch {
	case b.Type == "text" && b.Text != "":
		m.Content = append(m.Content, Content{Text: b.Text})
	case b.Type == "image" && b.Source.Type == "base64" && (m.Role == "user" || m.Role == "tool"):
		image, err := picture(b.Source.MediaType, b.Source.Data)
		m.Content = append(m.Content, image)
		return err
	case b.Type == "thinking" && m.Role == "assistant":
		m.Reasoning += b.Thinking
	case b.Type == "tool_use" && m.Role == "assistant" && b.ID != "" && b.Name != "" && strings.HasPrefix(string(b.Input), "{"):
		m.Calls = append(m.Calls, Call{b.ID, b.Name, compact(b.Input)})
	default:
		return fmt.Errorf("no block for the %s: %+v", m.Role, *b)
	}
	return nil
}

func (q *Asked) anthropicChoice(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	var c struct {
		Type, Name string
		One        bool `json:"disable_parallel_tool_use"`
	}
	err := strictly(raw, &c)
	q.Choice = c.Type
	switch c.Type {
	case "any":
		q.Choice = "required"
	case "tool":
		q.Choice = "tool " + c.Name
	}
	if c.One {
		q.Options["parallel_tool_calls"] = "false"
	}
	return err
}

func (q *Asked) anthropicThinking(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	var t struct {
		Type    string
		Budget  json.RawMessage `json:"budget_tokens"`
		Display string
	}
	err := strictly(raw, &t)
	switch t.Type {
	case "enabled":
		q.Options["reasoning_budget"] = compact(t.Budget)
	case "disabled":
		q.Options["reasoning_effort"] = `"none"`
	}
	return err
}

func (q *Asked) anthropicOutput(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	var o struct {
		Effort json.RawMessage
		Format struct {
			Type   string
			Schema json.RawMessage
		}
	}
	err := strictly(raw, &o)
	if len(o.Effort) > 0 {
		q.Options["reasoning_effort"] = compact(o.Effort)
	}
	if o.Format.Type == "json_schema" {
		q.Options["format"] = compact(o.Format.Schema)
	}
	return err
}
