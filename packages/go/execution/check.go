package execution

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// The bounds of a request, beside those of its body as a whole.
const (
	// MaxImage is the largest picture in bytes.
	MaxImage = 20 << 20
	// MaxTools is how many tools a request may offer.
	MaxTools = 512
	// MaxToolName is the longest name of a tool in bytes. Anthropic's API takes as many, and agents use them; OpenAI's
	// takes 64, which its providers say themselves.
	MaxToolName = 128

	maxTarget     = 512
	maxMessages   = 100_000
	maxMessageID  = 256
	maxImageType  = 64
	maxImageParts = 1024 // of one request
)

// Check refuses a request that no provider could make sense of: a *[Failure] of the code bad_request that names the
// place, as in "messages[2].parts[0]: …", and repeats nothing of the content. A dialect may refuse more.
func (r *Request) Check() error {
	switch {
	case r.Target == "":
		return invalid("target: missing; name the model")
	case len(r.Target) > maxTarget || !utf8.ValidString(r.Target) || strings.ContainsFunc(r.Target, isControl):
		return invalid("target: must have at most %d bytes and no control characters", maxTarget)
	case len(r.Messages) == 0:
		return invalid("messages: missing or empty")
	case len(r.Messages) > maxMessages:
		return invalid("messages: more than %d", maxMessages)
	}
	images := 0
	for i := range r.Messages {
		if err := r.Messages[i].check(i); err != nil {
			return err
		}
		for _, p := range r.Messages[i].Parts {
			if p.Image != nil {
				images++
			}
		}
	}
	if images > maxImageParts {
		return invalid("messages: more than %d images", maxImageParts)
	}
	if err := r.checkTools(); err != nil {
		return err
	}
	return r.Options.check()
}

func (m *Message) check(i int) error {
	switch m.Role {
	case RoleSystem, RoleUser, RoleAssistant, RoleTool:
	default:
		return invalid("messages[%d]: role: must be system, user, assistant or tool", i)
	}
	switch {
	case len(m.ToolCalls) > 0 && m.Role != RoleAssistant:
		return invalid("messages[%d]: tool_calls: only an assistant makes them", i)
	case m.ToolCallID != "" && m.Role != RoleTool:
		return invalid("messages[%d]: tool_call_id: only a tool has one", i)
	case m.ToolCallID == "" && m.Role == RoleTool:
		return invalid("messages[%d]: tool_call_id: missing; name the call that this answers", i)
	case m.Reasoning != "" && (m.Role != RoleAssistant || !utf8.ValidString(m.Reasoning)):
		return invalid("messages[%d]: reasoning: only an assistant has some, in UTF-8", i)
	case m.Failed && m.Role != RoleTool:
		return invalid("messages[%d]: failed: only a tool's answer does", i)
	case len(m.ToolCallID) > maxMessageID || !utf8.ValidString(m.ToolCallID):
		return invalid("messages[%d]: tool_call_id: must have at most %d bytes", i, maxMessageID)
	case m.Name != "" && (len(m.Name) > maxMessageID || !utf8.ValidString(m.Name) || strings.ContainsFunc(m.Name, isControl)):
		return invalid("messages[%d]: name: must have at most %d bytes and no control characters", i, maxMessageID)
	}
	if m.Role != RoleTool && len(m.ToolCalls) == 0 && m.Reasoning == "" && m.empty() {
		return invalid("messages[%d]: empty", i)
	}
	for j := range m.Parts {
		if err := m.checkPart(i, j); err != nil {
			return err
		}
	}
	return m.checkCalls(i)
}

// empty reports whether a message has neither text nor a picture.
func (m *Message) empty() bool {
	for _, p := range m.Parts {
		if p.Text != "" || p.Image != nil {
			return false
		}
	}
	return true
}

func (m *Message) checkPart(i, j int) error {
	p := &m.Parts[j]
	switch {
	case !utf8.ValidString(p.Text):
		return invalid("messages[%d].parts[%d]: the text isn't UTF-8", i, j)
	case p.Image == nil:
		return nil
	case p.Text != "":
		return invalid("messages[%d].parts[%d]: is a text or an image, not both", i, j)
	case m.Role != RoleUser && m.Role != RoleTool:
		return invalid("messages[%d].parts[%d]: only a user or a tool shows an image", i, j)
	case !IsImageType(p.Image.MediaType):
		return invalid("messages[%d].parts[%d]: the image's media type must be image/…, as in image/png", i, j)
	case len(p.Image.Data) == 0:
		return invalid("messages[%d].parts[%d]: the image is empty", i, j)
	case len(p.Image.Data) > MaxImage:
		return invalid("messages[%d].parts[%d]: the image has %d bytes, %d are allowed", i, j, len(p.Image.Data), MaxImage)
	}
	return nil
}

func (m *Message) checkCalls(i int) error {
	ids := map[string]bool{}
	for j, c := range m.ToolCalls {
		switch {
		case c.ID == "" || len(c.ID) > maxMessageID || !utf8.ValidString(c.ID):
			return invalid("messages[%d].tool_calls[%d]: id: must have 1 to %d bytes", i, j, maxMessageID)
		case ids[c.ID]:
			return invalid("messages[%d].tool_calls[%d]: id: given twice", i, j)
		case !IsToolName(c.Name):
			return invalid("messages[%d].tool_calls[%d]: name: isn't that of a tool", i, j)
		case !utf8.ValidString(c.Arguments):
			return invalid("messages[%d].tool_calls[%d]: arguments: aren't UTF-8", i, j)
		}
		ids[c.ID] = true
	}
	return nil
}

func (r *Request) checkTools() error {
	if len(r.Tools) > MaxTools {
		return invalid("tools: more than %d", MaxTools)
	}
	names := map[string]bool{}
	for i, t := range r.Tools {
		switch {
		case !IsToolName(t.Name):
			return invalid("tools[%d]: name: must have 1 to %d letters, digits or any of %s", i, MaxToolName, toolNameMore)
		case names[t.Name]:
			return invalid("tools[%d]: name: given twice", i)
		case !utf8.ValidString(t.Description):
			return invalid("tools[%d]: description: isn't UTF-8", i)
		case len(t.Parameters) > 0 && !isObject(t.Parameters):
			return invalid("tools[%d]: parameters: must be a JSON object", i)
		}
		names[t.Name] = true
	}
	if err := r.ToolChoice.check(); err != nil {
		return err
	}
	switch {
	case r.ToolChoice.Mode == ToolNamed && !names[r.ToolChoice.Name]:
		return invalid("tool_choice: names a tool that isn't among the tools")
	case r.ToolChoice.Mode == ToolRequired && len(r.Tools) == 0:
		return invalid("tool_choice: requires a tool, and there are none")
	}
	return nil
}

// toolNameMore is what a tool's name may hold beside letters and digits.
const toolNameMore = "_-.:/"

// IsToolName reports whether a tool may have this name: 1 to [MaxToolName] letters, digits or any of _-.:/.
func IsToolName(s string) bool { return len(s) <= MaxToolName && isMadeOf(s, toolNameMore) }

// IsImageType reports whether s is a media type that an image may have, as in image/png.
func IsImageType(s string) bool {
	kind, ok := strings.CutPrefix(s, "image/")
	return ok && len(s) <= maxImageType && isWord(kind, "+-.")
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// DataURL appends the image as a data: URL, the form in which most dialects take pictures.
func (im *Image) DataURL(dst []byte) []byte {
	dst = append(dst, "data:"...)
	dst = append(dst, im.MediaType...)
	dst = append(dst, ";base64,"...)
	return base64.StdEncoding.AppendEncode(dst, im.Data)
}
