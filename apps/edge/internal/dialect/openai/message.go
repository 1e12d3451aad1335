package openai

import (
	"encoding/json"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// messages is a conversation as a run has it.
type messages struct {
	list   []execution.Message
	places []string // where each stands in the body
}

// ReadJSON implements [dialect.Reader].
func (l *messages) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var m message
		if ref := dialect.Object(at, raw, m.member); ref != nil {
			return ref
		}
		if ref := m.settle(at); ref != nil {
			return ref
		}
		// Of an answer that was broken off before it began, clients keep an empty message. Providers' APIs are divided
		// on those, and models are told nothing by them.
		if m.Role == execution.RoleAssistant && m.silent() {
			return nil
		}
		l.list, l.places = append(l.list, m.Message), append(l.places, at)
		return nil
	})
}

// message is one of them as it is read: which members it may have depends on its role, which may come last.
type message struct {
	execution.Message
	role             string
	content          content
	refusal          string
	reasoning        string
	reasoningContent string // another name of it
}

func (m *message) member(name string) any {
	switch name {
	case "role":
		return &m.role
	case "content":
		return &m.content
	case "name":
		return &m.Name
	case "tool_calls":
		return (*toolCalls)(&m.ToolCalls)
	case "tool_call_id":
		return &m.ToolCallID
	case "refusal":
		return &m.refusal
	case "reasoning_content":
		return &m.reasoningContent
	case "reasoning":
		return &m.reasoning
	case "annotations": // of an answer that is sent back as it came; no model is shown them
		return dialect.Ignored{}
	case "audio":
		return dialect.Unsupported{Why: "a run has text and images only"}
	case "function_call":
		return dialect.Unsupported{Why: "use tool_calls"}
	}
	return nil
}

// settle makes a run's message of what was read.
func (m *message) settle(at string) *dialect.Refusal {
	switch m.role {
	case "system", "developer": // two names of one thing: what models call it differs
		m.Role = execution.RoleSystem
	case "user", "assistant", "tool":
		m.Role = execution.Role(m.role)
	case "":
		return dialect.Refuse(at+".role", at+".role: is missing")
	case "function":
		return dialect.Refuse(at+".role", at+".role: isn't supported here; use tool")
	default:
		return dialect.Refuse(at+".role", at+".role: must be system, developer, user, assistant or tool")
	}
	if ref := m.checkRole(at); ref != nil {
		return ref
	}
	if m.reasoning != "" && m.reasoningContent != "" && m.reasoning != m.reasoningContent {
		return dialect.Refuse(at+".reasoning", at+".reasoning: and reasoning_content differ; give one of them")
	}
	m.Reasoning = first(m.reasoningContent, m.reasoning)
	m.Parts = m.content.parts
	if m.refusal != "" {
		m.Parts = append(m.Parts, execution.Part{Text: m.refusal})
	}
	switch {
	case m.Role == execution.RoleTool && m.ToolCallID == "":
		return dialect.Refuse(at+".tool_call_id", at+".tool_call_id: is missing; name the call that this answers")
	case (m.Role == execution.RoleSystem || m.Role == execution.RoleUser) && m.silent():
		return dialect.Refuse(at+".content", at+".content: is missing or empty")
	}
	return nil
}

// silent reports whether a message says nothing.
func (m *message) silent() bool {
	return len(m.Parts) == 0 && len(m.ToolCalls) == 0 && m.Reasoning == ""
}

// checkRole refuses what only messages of another role have.
func (m *message) checkRole(at string) *dialect.Refusal {
	for _, member := range []struct {
		name  string
		given bool
		role  execution.Role
	}{
		{"tool_calls", len(m.ToolCalls) > 0, execution.RoleAssistant},
		{"refusal", m.refusal != "", execution.RoleAssistant},
		{"reasoning_content", m.reasoningContent != "", execution.RoleAssistant},
		{"reasoning", m.reasoning != "", execution.RoleAssistant},
		{"tool_call_id", m.ToolCallID != "", execution.RoleTool},
	} {
		if member.given && m.Role != member.role {
			return dialect.Refuse(at+"."+member.name, at+"."+member.name+": only messages of the role "+string(member.role)+" have it")
		}
	}
	switch {
	case m.content.image != "" && m.Role != execution.RoleUser && m.Role != execution.RoleTool:
		return dialect.Refuse(m.content.image, m.content.image+": only a user or a tool shows an image")
	case m.content.refusal != "" && m.Role != execution.RoleAssistant:
		return dialect.Refuse(m.content.refusal, m.content.refusal+": only an assistant refuses")
	}
	return nil
}

// content is one text or a list of parts. Texts that are empty say nothing, and some providers refuse them.
type content struct {
	parts   []execution.Part
	image   string // where the first image stands, "" = there is none
	refusal string // the same of a refusal
}

// ReadJSON implements [dialect.Reader].
func (c *content) ReadJSON(at string, raw []byte) *dialect.Refusal {
	switch raw[0] {
	case '"':
		var text string
		ref := readText(at, raw, &text)
		c.add(text)
		return ref
	case '[':
		return dialect.List(at, raw, c.part)
	}
	return dialect.Refuse(at, at+": must be a text or a list of parts")
}

func (c *content) add(text string) {
	if text != "" {
		c.parts = append(c.parts, execution.Part{Text: text})
	}
}

// part reads one part of a list.
func (c *content) part(at string, raw []byte) *dialect.Refusal {
	var p part
	if ref := dialect.Object(at, raw, p.member); ref != nil {
		return ref
	}
	if ref := p.check(at); ref != nil {
		return ref
	}
	switch p.kind {
	case "text":
		c.add(*p.text)
	case "refusal":
		c.add(*p.refusal)
		c.refusal = first(c.refusal, at)
	case "image_url":
		c.parts = append(c.parts, execution.Part{Image: p.image.Image})
		c.image = first(c.image, at)
	}
	return nil
}

// part is one part as it is read. Its type says which of the others it has.
type part struct {
	kind    string
	text    *string
	refusal *string
	image   image
}

func (p *part) member(name string) any {
	switch name {
	case "type":
		return &p.kind
	case "text":
		return &p.text
	case "refusal":
		return &p.refusal
	case "image_url":
		return &p.image
	case "input_audio", "file":
		return dialect.Unsupported{Why: "a run has text and images only"}
	case "prompt_cache_breakpoint", "cache_control": // what a provider keeps doesn't change its answer
		return dialect.Ignored{}
	}
	return nil
}

// check refuses a part whose type and members don't go together.
func (p *part) check(at string) *dialect.Refusal {
	switch p.kind {
	case "text", "refusal", "image_url":
	default:
		return dialect.Refuse(at+".type", at+`.type: must be "text", "image_url" or "refusal"`)
	}
	for _, member := range []struct {
		name  string
		given bool
	}{{"text", p.text != nil}, {"refusal", p.refusal != nil}, {"image_url", p.image.Image != nil}} {
		switch field := at + "." + member.name; {
		case member.name == p.kind && !member.given:
			return dialect.Refuse(field, field+": is missing")
		case member.name != p.kind && member.given:
			return dialect.Refuse(field, field+": goes with the type "+member.name+" only")
		}
	}
	return nil
}

// first returns a, or b if there is no a.
func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// readText reads a text.
func readText(at string, raw []byte, into *string) *dialect.Refusal {
	if json.Unmarshal(raw, into) != nil {
		return dialect.Refuse(at, at+": must be a text")
	}
	return nil
}
