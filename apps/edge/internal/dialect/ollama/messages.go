package ollama

import (
	"bytes"
	"encoding/json"
	"strings"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// message is one message of a chat request.
type message struct {
	execution.Message
	toolName string // of a tool's answer: which tool that was
	at       string // where it stands
}

// conversation is the messages of a chat request.
type conversation struct {
	given int       // how many there are
	said  []message // those that say something
}

// ReadJSON implements [dialect.Reader].
func (c *conversation) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		c.given++
		m := message{at: at}
		ref := m.read(raw)
		// Of an answer that was broken off before it began, clients keep an empty message. Providers' APIs are divided
		// on those, and models are told nothing by them.
		if m.Role != execution.RoleAssistant || !m.empty() {
			c.said = append(c.said, m)
		}
		return ref
	})
}

// empty reports whether a message has nothing to show for itself.
func (m *message) empty() bool { return len(m.Parts) == 0 && len(m.ToolCalls) == 0 }

func (m *message) read(raw []byte) *dialect.Refusal {
	var role, text string
	var pictures imageList
	ref := dialect.Object(m.at, raw, func(name string) any {
		switch name {
		case "role":
			return &role
		case "content":
			return &text
		case "thinking":
			return &m.Reasoning
		case "images":
			return &pictures
		case "tool_calls":
			return (*callList)(&m.ToolCalls)
		case "tool_name":
			return &m.toolName
		case "tool_call_id":
			return &m.ToolCallID
		}
		return nil
	})
	if ref != nil {
		return ref
	}
	m.Role = execution.Role(strings.ToLower(role))
	m.Parts = pictures // before the text: Ollama puts them there
	if text != "" {
		m.Parts = append(m.Parts, execution.Part{Text: text})
	}
	return m.check(len(pictures) > 0)
}

// check refuses what a run would refuse under a name that the caller doesn't know.
func (m *message) check(pictures bool) *dialect.Refusal {
	refuse := func(name, text string) *dialect.Refusal {
		field := dialect.Join(m.at, name)
		return dialect.Refuse(field, field+": "+text)
	}
	switch m.Role {
	case execution.RoleSystem, execution.RoleUser, execution.RoleAssistant, execution.RoleTool:
	default:
		return refuse("role", "must be system, user, assistant or tool")
	}
	switch {
	case m.Reasoning != "" && m.Role != execution.RoleAssistant:
		return refuse("thinking", "only an assistant does")
	case len(m.ToolCalls) > 0 && m.Role != execution.RoleAssistant:
		return refuse("tool_calls", "only an assistant makes them")
	case m.ToolCallID != "" && m.Role != execution.RoleTool:
		return refuse("tool_call_id", "only a tool has one")
	case m.toolName != "" && m.Role != execution.RoleTool:
		return refuse("tool_name", "only a tool has one")
	case pictures && m.Role != execution.RoleUser && m.Role != execution.RoleTool:
		return refuse("images", "only a user or a tool shows some")
	case m.empty() && (m.Role == execution.RoleSystem || m.Role == execution.RoleUser):
		return refuse("content", "missing or empty")
	}
	return nil
}

// imageList is pictures by their bytes in base64. Their kind isn't told: the first bytes say it.
type imageList []execution.Part

// ReadJSON implements [dialect.Reader].
func (l *imageList) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var data []byte
		if raw[0] != '"' || json.Unmarshal(raw, &data) != nil {
			return dialect.Refuse(at, at+": must be the image's bytes in base64")
		}
		kind := imageType(data)
		if kind == "" {
			return dialect.Refuse(at, at+": must be a PNG, JPEG, GIF or WebP image")
		}
		*l = append(*l, execution.Part{Image: &execution.Image{MediaType: kind, Data: data}})
		return nil
	})
}

// imageType returns the media type of a picture, "" if it is none of those that providers take.
func imageType(data []byte) string {
	switch {
	case bytes.HasPrefix(data, []byte("\x89PNG\r\n\x1a\n")):
		return "image/png"
	case bytes.HasPrefix(data, []byte("\xff\xd8\xff")):
		return "image/jpeg"
	case bytes.HasPrefix(data, []byte("GIF87a")), bytes.HasPrefix(data, []byte("GIF89a")):
		return "image/gif"
	case len(data) >= 12 && string(data[:4]) == "RIFF" && string(data[8:12]) == "WEBP":
		return "image/webp"
	}
	return ""
}

// callList is the tool calls of an assistant. Their arguments are objects.
type callList []execution.ToolCall

// ReadJSON implements [dialect.Reader].
func (l *callList) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		c := execution.ToolCall{Arguments: "{}"}
		ref := dialect.Object(at, raw, func(name string) any {
			switch name {
			case "id":
				return &c.ID
			case "type":
				return dialect.Only{Value: `"function"`, Why: "tools are functions"}
			case "function":
				return (*function)(&c)
			}
			return nil
		})
		if ref == nil && c.Name == "" {
			ref = dialect.Refuse(at+".function.name", at+".function.name: missing")
		}
		*l = append(*l, c)
		return ref
	})
}

// function is what a call calls.
type function execution.ToolCall

// ReadJSON implements [dialect.Reader].
func (f *function) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.Object(at, raw, func(name string) any {
		switch name {
		case "index": // clients send it back as they got it; where the call stands says the same
			return dialect.Ignored{}
		case "name":
			return &f.Name
		case "arguments":
			return (*arguments)(&f.Arguments)
		}
		return nil
	})
}

// arguments is a JSON object, kept as text.
type arguments string

// ReadJSON implements [dialect.Reader].
func (a *arguments) ReadJSON(at string, raw []byte) *dialect.Refusal {
	var text bytes.Buffer
	if raw[0] != '{' || json.Compact(&text, raw) != nil {
		return dialect.Refuse(at, at+": must be an object")
	}
	*a = arguments(text.String())
	return nil
}
