package anthropic

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"iop/apps/node/internal/adapters/jsonbody"
	"iop/packages/go/execution"
)

// body writes the request for a streamed message.
type body struct {
	*jsonbody.Writer
}

// messageBody returns the body that asks for req. An error is a bad_request: what this dialect can't be told.
func messageBody(req *execution.Request, how wording) ([]byte, error) {
	if err := checkOptions(&req.Options); err != nil {
		return nil, err
	}
	b := &body{jsonbody.New(req)}
	b.Raw(`{"model":`)
	b.Value(req.Target)
	thought := thinking(&req.Options, how)
	b.Member("max_tokens", thought.maxTokens)
	b.system(req.Messages)
	if err := b.messages(req.Messages); err != nil {
		return nil, err
	}
	b.Raw(`,"stream":true`)
	b.tools(req)
	b.options(&req.Options)
	if err := b.output(&req.Options, thought); err != nil {
		return nil, err
	}
	b.Raw("}")
	return b.Bytes(), nil
}

// system writes what the system says. The dialect has one place for it, before the conversation; an empty line stands
// between what were several messages, since providers glue them.
func (b *body) system(all []execution.Message) {
	var said []string
	for i := range all {
		if all[i].Role != execution.RoleSystem {
			continue
		}
		text := ""
		for _, p := range all[i].Parts {
			text += p.Text
		}
		said = append(said, text)
	}
	if len(said) > 0 {
		b.Member("system", strings.Join(said, "\n\n"))
	}
}

// messages writes the conversation as turns of the user and the assistant: neighbours of one side are one turn, and a
// tool's answer is a part of the user's.
func (b *body) messages(all []execution.Message) error {
	b.Raw(`,"messages":[`)
	side, turns := "", 0
	for i := range all {
		m := &all[i]
		if m.Name != "" && m.Role != execution.RoleTool { // a tool is known by its call
			return jsonbody.Refused(fmt.Sprintf("messages[%d]: name: a provider of this kind can't be told who speaks", i))
		}
		if m.Role == execution.RoleSystem || m.Role == execution.RoleAssistant && !hasContent(m.Parts) && len(m.ToolCalls) == 0 {
			continue // or it was only thought, see blocks
		}
		speaks := "user"
		if m.Role == execution.RoleAssistant {
			speaks = "assistant"
		}
		if side == speaks {
			b.Raw(",")
		} else {
			if turns > 0 {
				b.Raw("]},")
			}
			b.Raw(`{"role":"` + speaks + `","content":[`)
			side = speaks
			turns++
		}
		if err := b.blocks(m, i); err != nil {
			return err
		}
	}
	if turns == 0 {
		return jsonbody.Refused("messages: a provider of this kind needs one that isn't the system's")
	}
	b.Raw("]}]")
	return nil
}

// blocks writes the content of a message, at least one block. Reasoning isn't told: the API takes it only with the
// signature of the provider that made it.
func (b *body) blocks(m *execution.Message, i int) error {
	if m.Role == execution.RoleTool {
		b.Raw(`{"type":"tool_result","tool_use_id":`)
		b.Value(m.ToolCallID)
		if m.Failed {
			b.Raw(`,"is_error":true`)
		}
		if hasContent(m.Parts) {
			b.Raw(`,"content":[`)
			b.parts(m.Parts)
			b.Raw("]")
		}
		b.Raw("}")
		return nil
	}
	n := b.parts(m.Parts)
	for j, c := range m.ToolCalls {
		input, ok := object(c.Arguments)
		if !ok {
			return jsonbody.Refused(fmt.Sprintf("messages[%d].tool_calls[%d]: arguments: a provider of this kind takes a JSON object only", i, j))
		}
		b.Comma(n)
		n++
		b.Raw(`{"type":"tool_use","id":`)
		b.Value(c.ID)
		b.Member("name", c.Name)
		b.Member("input", input)
		b.Raw("}")
	}
	return nil
}

// hasContent reports whether [body.parts] writes any block.
func hasContent(parts []execution.Part) bool {
	for _, p := range parts {
		if p.Text != "" || p.Image != nil {
			return true
		}
	}
	return false
}

// parts writes texts and pictures and returns how many. The API refuses empty texts, so those are left out.
func (b *body) parts(parts []execution.Part) (n int) {
	for _, p := range parts {
		switch {
		case p.Image != nil:
			b.Comma(n)
			b.Raw(`{"type":"image","source":{"type":"base64","media_type":`)
			b.Value(p.Image.MediaType)
			b.Raw(`,"data":"`)
			b.Append(func(dst []byte) []byte { return base64.StdEncoding.AppendEncode(dst, p.Image.Data) })
			b.Raw(`"}}`)
		case p.Text != "":
			b.Comma(n)
			b.Raw(`{"type":"text","text":`)
			b.Value(p.Text)
			b.Raw("}")
		default:
			continue
		}
		n++
	}
	return n
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

// tools writes the tools and which of them must be called. Without tools nothing is said of either: the API refuses it.
func (b *body) tools(req *execution.Request) {
	if len(req.Tools) == 0 {
		return
	}
	b.Raw(`,"tools":[`)
	for i, t := range req.Tools {
		b.Comma(i)
		b.Raw(`{"name":`)
		b.Value(t.Name)
		if t.Description != "" {
			b.Member("description", t.Description)
		}
		b.Member("input_schema", withMember(t.Parameters, "type", `"object"`))
		b.Raw("}")
	}
	b.Raw("]")
	b.toolChoice(req)
}

func (b *body) toolChoice(req *execution.Request) {
	one := req.Options.ParallelToolCalls != nil && !*req.Options.ParallelToolCalls
	kind := "auto"
	switch req.ToolChoice.Mode {
	case execution.ToolNone:
		b.Raw(`,"tool_choice":{"type":"none"}`)
		return
	case execution.ToolRequired:
		kind = "any"
	case execution.ToolNamed:
		kind = "tool"
	case "":
		if !one {
			return
		}
	}
	b.Raw(`,"tool_choice":{"type":"` + kind + `"`)
	if kind == "tool" {
		b.Member("name", req.ToolChoice.Name)
	}
	if one {
		b.Raw(`,"disable_parallel_tool_use":true`)
	}
	b.Raw("}")
}

// withMember returns a schema with a member that the API wants and that says nothing new, unless it has that member. The
// order of the others stays: models write their answer in it.
func withMember(schema json.RawMessage, name, value string) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(schema, &members) != nil || len(members) == 0 {
		return json.RawMessage(`{"` + name + `":` + value + "}")
	}
	if _, has := members[name]; has {
		return schema
	}
	_, rest, _ := strings.Cut(string(schema), "{")
	return json.RawMessage(`{"` + name + `":` + value + "," + rest)
}

func (b *body) options(o *execution.Options) {
	for _, m := range []struct {
		name  string
		given bool
		value any
	}{
		{"temperature", o.Temperature != nil, o.Temperature},
		{"top_p", o.TopP != nil, o.TopP},
		{"top_k", o.TopK != nil, o.TopK},
		{"stop_sequences", len(o.Stop) > 0, o.Stop},
	} {
		if m.given {
			b.Member(m.name, m.value)
		}
	}
}
