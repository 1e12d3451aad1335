package ollama

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"iop/packages/go/execution"
)

// body writes the request for a streamed chat. Members stand in a fixed order, so the same run is the same bytes.
type body struct {
	buf bytes.Buffer
	enc *json.Encoder
}

// chatBody returns the body that asks for req. An error is a bad_request: what this dialect can't be told.
func chatBody(req *execution.Request, how wording) ([]byte, error) {
	b := &body{}
	b.buf.Grow(sizeOf(req))
	b.enc = json.NewEncoder(&b.buf)
	b.enc.SetEscapeHTML(false)
	b.raw(`{"model":`)
	b.value(req.Target)
	if err := b.messages(req.Messages); err != nil {
		return nil, err
	}
	b.raw(`,"stream":true`)
	if err := b.tools(req); err != nil {
		return nil, err
	}
	if err := b.format(req.Options.ResponseFormat); err != nil {
		return nil, err
	}
	b.options(&req.Options)
	b.think(&req.Options)
	if how.keepAlive != "" {
		b.raw(`,"keep_alive":` + how.keepAlive)
	}
	b.raw("}")
	return b.buf.Bytes(), nil
}

// sizeOf estimates the length of the body, so that pictures are copied once.
func sizeOf(req *execution.Request) int {
	n := 1 << 10
	for i := range req.Messages {
		for _, p := range req.Messages[i].Parts {
			n += 64 + len(p.Text)
			if p.Image != nil {
				n += 64 + base64.StdEncoding.EncodedLen(len(p.Image.Data))
			}
		}
	}
	return n
}

func (b *body) raw(s string) { b.buf.WriteString(s) }

func (b *body) comma(i int) {
	if i > 0 {
		b.raw(",")
	}
}

// value writes v as JSON. It is given only what can be written: valid text, finite numbers and JSON that was checked.
func (b *body) value(v any) {
	if b.enc.Encode(v) == nil {
		b.buf.Truncate(b.buf.Len() - 1) // the encoder's line end
	}
}

// member writes a further member of an object.
func (b *body) member(name string, v any) {
	b.raw(`,"` + name + `":`)
	b.value(v)
}

func (b *body) messages(all []execution.Message) error {
	b.raw(`,"messages":[`)
	tools := map[string]string{} // the names of the tools that were called, by the calls' ids
	for i := range all {
		m := &all[i]
		b.comma(i)
		if m.Name != "" && m.Role != execution.RoleTool {
			return refused(fmt.Sprintf("messages[%d]: name: a provider of this kind can't be told who speaks", i))
		}
		turns := [][]execution.Part{m.Parts}
		if m.Role == execution.RoleUser {
			turns = inOrder(m.Parts)
		}
		for j, parts := range turns {
			b.comma(j)
			if err := b.turn(m, parts, i, tools); err != nil {
				return err
			}
		}
		for _, c := range m.ToolCalls {
			tools[c.ID] = c.Name
		}
	}
	b.raw("]")
	return nil
}

// inOrder returns the messages that a user's parts are told as. A message of this dialect has one text, and pictures
// that stand before it. Where text stands between pictures the order says which is which, and each part is a message
// of its own, as Ollama itself does it for its callers with the OpenAI API.
func inOrder(parts []execution.Part) [][]execution.Part {
	pictures, between := false, false
	for _, p := range parts {
		if p.Image == nil {
			between = between || pictures
			continue
		}
		if between {
			turns := make([][]execution.Part, len(parts))
			for i := range parts {
				turns[i] = parts[i : i+1]
			}
			return turns
		}
		pictures = true
	}
	return [][]execution.Part{parts}
}

// turn writes one message.
func (b *body) turn(m *execution.Message, parts []execution.Part, i int, tools map[string]string) error {
	b.raw(`{"role":`)
	b.value(string(m.Role))
	var text []string
	for _, p := range parts {
		if p.Image == nil {
			text = append(text, p.Text)
		}
	}
	b.member("content", strings.Join(text, "\n"))
	if m.Reasoning != "" {
		b.member("thinking", m.Reasoning)
	}
	b.images(parts)
	if err := b.calls(m.ToolCalls, i); err != nil {
		return err
	}
	if m.Role == execution.RoleTool {
		name := m.Name
		if name == "" {
			name = tools[m.ToolCallID]
		}
		if name != "" {
			b.member("tool_name", name)
		}
		b.member("tool_call_id", m.ToolCallID)
	}
	b.raw("}")
	return nil
}

func (b *body) images(parts []execution.Part) {
	n := 0
	for _, p := range parts {
		if p.Image == nil {
			continue
		}
		if n == 0 {
			b.raw(`,"images":[`)
		}
		b.comma(n)
		b.raw(`"`)
		b.buf.Write(base64.StdEncoding.AppendEncode(b.buf.AvailableBuffer(), p.Image.Data))
		b.raw(`"`)
		n++
	}
	if n > 0 {
		b.raw("]")
	}
}

func (b *body) calls(calls []execution.ToolCall, i int) error {
	if len(calls) == 0 {
		return nil
	}
	b.raw(`,"tool_calls":[`)
	for j, c := range calls {
		arguments, ok := object(c.Arguments)
		if !ok {
			return refused(fmt.Sprintf("messages[%d].tool_calls[%d]: arguments: a provider of this kind takes a JSON object only", i, j))
		}
		b.comma(j)
		b.raw(`{"id":`)
		b.value(c.ID)
		b.raw(`,"function":{"index":`)
		b.value(j)
		b.member("name", c.Name)
		b.member("arguments", arguments)
		b.raw("}}")
	}
	b.raw("]")
	return nil
}

// object returns arguments as the JSON object that they are in this dialect; none are an empty one.
func object(arguments string) (json.RawMessage, bool) {
	switch text := strings.Trim(arguments, " \t\r\n"); {
	case text == "" || text == "null":
		return json.RawMessage("{}"), true
	case text[0] == '{' && json.Valid([]byte(text)):
		return json.RawMessage(text), true
	}
	return nil, false
}

// tools writes the tools, unless none may be called. Which of them must be called, and that only one may be, are
// things that this dialect has no word for.
func (b *body) tools(req *execution.Request) error {
	switch mode := req.ToolChoice.Mode; {
	case mode == execution.ToolRequired || mode == execution.ToolNamed:
		return refused("tool_choice: a provider of this kind can't be told that a tool must be called; use auto or none")
	case mode == execution.ToolNone || len(req.Tools) == 0:
		return nil
	}
	if one := req.Options.ParallelToolCalls; one != nil && !*one {
		return refused("options: parallel_tool_calls: a provider of this kind can't be told to make one call at a time; leave it out")
	}
	b.raw(`,"tools":[`)
	for i, t := range req.Tools {
		b.comma(i)
		b.raw(`{"type":"function","function":{"name":`)
		b.value(t.Name)
		if t.Description != "" {
			b.member("description", t.Description)
		}
		parameters := t.Parameters
		if len(parameters) == 0 {
			parameters = json.RawMessage(`{"type":"object","properties":{}}`) // the dialect has no tool without
		}
		b.member("parameters", parameters)
		b.raw("}}")
	}
	b.raw("]")
	return nil
}

// format writes what form the answer must have: the word json, or a schema.
func (b *body) format(format json.RawMessage) error {
	if len(format) == 0 {
		return nil
	}
	var f struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	const where = "options: response_format: "
	if json.Unmarshal(format, &f) != nil {
		return refused(where + "isn't one that a provider of this kind can be told")
	}
	switch f.Type {
	case "text":
	case "json_object":
		b.member("format", "json")
	case "json_schema":
		if !bytes.HasPrefix(f.JSONSchema.Schema, []byte("{")) {
			return refused(where + "json_schema: schema: must be a JSON object")
		}
		b.member("format", f.JSONSchema.Schema)
	default:
		return refused(where + "type: must be text, json_object or json_schema")
	}
	return nil
}

func (b *body) options(o *execution.Options) {
	n := 0
	for _, m := range []struct {
		name  string
		given bool
		value any
	}{
		{"num_predict", o.MaxTokens != nil, o.MaxTokens},
		{"temperature", o.Temperature != nil, o.Temperature},
		{"top_p", o.TopP != nil, o.TopP},
		{"top_k", o.TopK != nil, o.TopK},
		{"seed", o.Seed != nil, o.Seed},
		{"stop", len(o.Stop) > 0, o.Stop},
		{"frequency_penalty", o.FrequencyPenalty != nil, o.FrequencyPenalty},
		{"presence_penalty", o.PresencePenalty != nil, o.PresencePenalty},
	} {
		if !m.given {
			continue
		}
		if n == 0 {
			b.raw(`,"options":{`)
		}
		b.comma(n)
		b.raw(`"` + m.name + `":`)
		b.value(m.value)
		n++
	}
	if n > 0 {
		b.raw("}")
	}
}

// think says whether to think, and how much where there is a word for it; a number of tokens has none.
func (b *body) think(o *execution.Options) {
	switch effort, budget := o.ReasoningEffort, o.ReasoningBudget; {
	case effort == "none" || effort == "" && budget != nil && *budget == 0:
		b.raw(`,"think":false`)
	case effort == "low" || effort == "medium" || effort == "high":
		b.member("think", effort)
	case effort != "" || budget != nil:
		b.raw(`,"think":true`)
	}
}
