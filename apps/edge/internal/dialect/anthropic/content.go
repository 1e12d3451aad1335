package anthropic

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

const maxID = 256 // bytes of a call's id

// messageList is the conversation as a run has it.
type messageList struct {
	out    []execution.Message
	places []string // where each stands in the body
}

// ReadJSON implements [dialect.Reader].
func (l *messageList) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		role, content, ref := readMessage(at, raw)
		if ref != nil {
			return ref
		}
		t := turn{role: role}
		place := at
		at = dialect.Join(at, "content")
		if ref := readBlocks(at, content, t.block); ref != nil {
			return ref
		}
		out := t.messages()
		if len(out) == 0 && role != execution.RoleAssistant { // whose answers may have been empty, or for others' eyes only
			return dialect.Refuse(at, at+": empty")
		}
		l.out = append(l.out, out...)
		for range out {
			l.places = append(l.places, place)
		}
		return nil
	})
}

// readMessage returns a message's role and what it says, which is read when the role is known.
func readMessage(at string, raw []byte) (execution.Role, []byte, *dialect.Refusal) {
	var role string
	var content piece
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "role":
			return &role
		case "content":
			return &content
		case "clear_at":
			return dialect.Only{Value: `"never"`, Why: "leave the message out when it is over"}
		}
		return nil
	})
	switch {
	case ref != nil:
		return "", nil, ref
	case role != "user" && role != "assistant" && role != "system":
		at = dialect.Join(at, "role")
		return "", nil, dialect.Refuse(at, at+": must be user, assistant or system")
	case content == nil:
		at = dialect.Join(at, "content")
		return "", nil, dialect.Refuse(at, at+": missing")
	}
	return execution.Role(role), content, nil
}

// piece is a part of the body that is read later.
type piece []byte

// ReadJSON implements [dialect.Reader].
func (p *piece) ReadJSON(_ string, raw []byte) *dialect.Refusal {
	*p = raw
	return nil
}

// readBlocks hands out the blocks of a content; a text stands for one text block.
func readBlocks(at string, raw []byte, block func(at, kind string, raw []byte) *dialect.Refusal) *dialect.Refusal {
	if len(raw) > 0 && raw[0] == '"' {
		return block(at, "text", raw)
	}
	if len(raw) == 0 || raw[0] != '[' {
		return dialect.Refuse(at, at+": must be a text or a list of blocks")
	}
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		kind, ref := readType(at, raw)
		if ref != nil {
			return ref
		}
		return block(at, kind, raw)
	})
}

// readType looks ahead for the type of an object, on which the rest of its members depend.
func readType(at string, raw []byte) (string, *dialect.Refusal) {
	var kind string
	ref := dialect.Object(at, raw, func(name string) any {
		if name == "type" {
			return &kind
		}
		return dialect.Ignored{}
	})
	return kind, ref
}

// readText reads a text block, or the text that stands for one.
func readText(at string, raw []byte) (string, *dialect.Refusal) {
	var text string
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return "", dialect.Refuse(at, at+": isn't a text")
		}
		return text, nil
	}
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "text":
			return &text
		case "citations":
			return dialect.Only{Value: "[]", Why: "a run carries no citations"}
		}
		return common(name)
	})
	return text, ref
}

// common are the members that every block may have.
func common(name string) any {
	switch name {
	case "type", "cache_control":
		return dialect.Ignored{}
	}
	return nil
}

// turn is what one message says, as it comes together.
type turn struct {
	role      execution.Role
	parts     []execution.Part
	reasoning strings.Builder
	calls     []execution.ToolCall
	results   []execution.Message
}

// block reads one block.
func (t *turn) block(at, kind string, raw []byte) *dialect.Refusal {
	user, assistant := t.role == execution.RoleUser, t.role == execution.RoleAssistant
	switch {
	case kind == "text":
		text, ref := readText(at, raw)
		if text != "" {
			t.parts = append(t.parts, execution.Part{Text: text})
		}
		return ref
	case kind == "image" && user:
		image, ref := readImage(at, raw)
		t.parts = append(t.parts, execution.Part{Image: image})
		return ref
	case kind == "tool_result" && user:
		return t.result(at, raw)
	case kind == "tool_use" && assistant:
		return t.call(at, raw)
	case kind == "thinking" && assistant:
		return t.think(at, raw)
	case kind == "redacted_thinking" && assistant:
		// Only Anthropic's servers can read it, and an answer doesn't need it: they leave out that of old turns, too.
		return dialect.Object(at, raw, func(name string) any {
			if name == "data" {
				return dialect.Ignored{}
			}
			return common(name)
		})
	}
	at = dialect.Join(at, "type")
	has := map[execution.Role]string{execution.RoleUser: "text, image and tool_result", execution.RoleSystem: "text",
		execution.RoleAssistant: "text, thinking and tool_use"}[t.role]
	return dialect.Refuse(at, at+": "+shown(kind)+" isn't supported in a message of the "+string(t.role)+"; it may have "+has)
}

// messages returns the turn as a run has it: what tools said comes first and each for itself, since a run has it right
// behind the calls. (The API wants it in front of a user's own words, too.)
func (t *turn) messages() []execution.Message {
	out := t.results
	if len(t.parts) > 0 || len(t.calls) > 0 || t.reasoning.Len() > 0 {
		out = append(out, execution.Message{Role: t.role, Parts: t.parts, ToolCalls: t.calls, Reasoning: t.reasoning.String()})
	}
	return out
}

// think reads what an assistant thought. Its signature isn't looked at: an answer of ours has none that says anything.
func (t *turn) think(at string, raw []byte) *dialect.Refusal {
	var text string
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "thinking":
			return &text
		case "signature":
			return dialect.Ignored{}
		}
		return common(name)
	})
	t.reasoning.WriteString(text)
	return ref
}

// call reads a call of a tool that an assistant made.
func (t *turn) call(at string, raw []byte) *dialect.Refusal {
	c := execution.ToolCall{Arguments: "{}"}
	var input piece
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "id":
			return &c.ID
		case "name":
			return &c.Name
		case "input":
			return &input
		case "caller":
			return caller{}
		case "toolset_name":
			return dialect.Unsupported{Why: "a run knows no sets of tools"}
		}
		return common(name)
	})
	switch {
	case ref != nil:
		return ref
	case c.ID == "" || len(c.ID) > maxID:
		return dialect.Refuse(at+".id", at+".id: must have 1 to 256 bytes")
	case !execution.IsToolName(c.Name):
		return dialect.Refuse(at+".name", at+".name: isn't that of a tool")
	}
	for _, other := range t.calls {
		if other.ID == c.ID {
			return dialect.Refuse(at+".id", at+".id: another call has it")
		}
	}
	if input != nil {
		var text bytes.Buffer
		if err := json.Compact(&text, input); err != nil || input[0] != '{' {
			return dialect.Refuse(at+".input", at+".input: must be an object")
		}
		c.Arguments = text.String()
	}
	t.calls = append(t.calls, c)
	return nil
}

// caller says who called a tool: the model, and not another tool.
type caller struct{}

// ReadJSON implements [dialect.Reader].
func (caller) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.Object(at, raw, func(name string) any {
		if name == "type" {
			return dialect.Only{Value: `"direct"`, Why: "a run knows no tools that call tools"}
		}
		return nil
	})
}

// result reads what a tool said.
func (t *turn) result(at string, raw []byte) *dialect.Refusal {
	m := execution.Message{Role: execution.RoleTool}
	var content piece
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "tool_use_id":
			return &m.ToolCallID
		case "content":
			return &content
		case "is_error":
			return &m.Failed
		case "toolset_name":
			return dialect.Unsupported{Why: "a run knows no sets of tools"}
		}
		return common(name)
	})
	switch {
	case ref != nil:
		return ref
	case m.ToolCallID == "" || len(m.ToolCallID) > maxID:
		return dialect.Refuse(at+".tool_use_id", at+".tool_use_id: must have 1 to 256 bytes")
	}
	if content != nil {
		ref = readBlocks(at+".content", content, func(at, kind string, raw []byte) *dialect.Refusal {
			return resultBlock(&m, at, kind, raw)
		})
	}
	t.results = append(t.results, m)
	return ref
}

func resultBlock(m *execution.Message, at, kind string, raw []byte) *dialect.Refusal {
	var part execution.Part
	var ref *dialect.Refusal
	switch kind {
	case "text":
		if part.Text, ref = readText(at, raw); part.Text == "" {
			return ref
		}
	case "image":
		part.Image, ref = readImage(at, raw)
	default:
		return dialect.Refuse(at+".type", at+".type: "+shown(kind)+" isn't supported in a tool_result; it may have text and image")
	}
	m.Parts = append(m.Parts, part)
	return ref
}

// readImage reads a picture that comes along.
func readImage(at string, raw []byte) (*execution.Image, *dialect.Refusal) {
	var source piece
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "source":
			return &source
		case "transformations":
			return dialect.Unsupported{Why: "send the image as it is to be seen"}
		}
		return common(name)
	})
	at = dialect.Join(at, "source")
	switch {
	case ref != nil:
		return nil, ref
	case source == nil:
		return nil, dialect.Refuse(at, at+": missing")
	}
	kind, ref := readType(at, source)
	switch {
	case ref != nil:
		return nil, ref
	case kind != "base64":
		return nil, dialect.Refuse(at+".type", at+".type: "+shown(kind)+` isn't supported, nothing is fetched; send the image itself, as "base64"`)
	}
	return readBase64(at, source)
}

func readBase64(at string, raw []byte) (*execution.Image, *dialect.Refusal) {
	var image execution.Image
	var data string
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "type":
			return dialect.Ignored{}
		case "media_type":
			return &image.MediaType
		case "data":
			return &data
		}
		return nil
	})
	if ref != nil {
		return nil, ref
	}
	image.MediaType = strings.ToLower(image.MediaType)
	if image.MediaType == "image/jpg" { // common, and unknown to providers that go by the registered names
		image.MediaType = "image/jpeg"
	}
	var err error
	image.Data, err = base64.StdEncoding.DecodeString(data)
	switch {
	case err != nil || len(image.Data) == 0:
		return nil, dialect.Refuse(at+".data", at+".data: must be the image's bytes in base64")
	case len(image.Data) > execution.MaxImage:
		return nil, dialect.Refuse(at+".data", at+".data: the image has more than 20 MiB")
	case !execution.IsImageType(image.MediaType):
		return nil, dialect.Refuse(at+".media_type", at+".media_type: must be an image's, as in image/png")
	}
	return &image, nil
}

// shown makes a word that a caller chose fit to be repeated.
func shown(word string) string {
	if len(word) > 64 {
		word = word[:64]
	}
	return strconv.Quote(strings.ToValidUTF8(word, "\uFFFD"))
}
