package execution

import (
	"encoding/json"
	"strings"
	"testing"
)

// sound is a request that uses everything.
func sound() *Request {
	return &Request{
		Target: "m",
		Messages: []Message{
			{Role: RoleSystem, Parts: []Part{{Text: "be kind"}}},
			{Role: RoleUser, Parts: []Part{{Text: "what is it?"}, {Image: &Image{MediaType: "image/svg+xml", Data: []byte("<svg/>")}}}, Name: "ann"},
			{Role: RoleAssistant, ToolCalls: []ToolCall{{ID: "a", Name: "look", Arguments: "{}"}, {ID: "b", Name: "look", Arguments: "{}"}}},
			{Role: RoleTool, ToolCallID: "a", Parts: []Part{{Text: "a cat"}}},
			{Role: RoleTool, ToolCallID: "b"},
			{Role: RoleAssistant, Parts: []Part{{Text: "a cat"}}},
			{Role: RoleAssistant, Reasoning: "is it?"}, // its answer's length ended there
		},
		Tools: []Tool{{Name: "look", Parameters: json.RawMessage(`{"type":"object"}`)}, {Name: "now"},
			{Name: "mcp__" + strings.Repeat("x", MaxToolName-5)}},
		ToolChoice: ToolChoice{Mode: ToolNamed, Name: "look"},
	}
}

func TestCheck(t *testing.T) {
	if err := sound().Check(); err != nil {
		t.Fatal(err)
	}
	zero := int64(0)
	for want, spoil := range map[string]func(*Request){
		"target: missing":                            func(r *Request) { r.Target = "" },
		"target: must have":                          func(r *Request) { r.Target = "a\nb" },
		"target: must have at most":                  func(r *Request) { r.Target = strings.Repeat("x", 513) },
		"messages: missing or empty":                 func(r *Request) { r.Messages = nil },
		"messages: more than 100000":                 func(r *Request) { r.Messages = make([]Message, 100_001) },
		"messages[1]: role":                          func(r *Request) { r.Messages[1].Role = "developer" },
		"messages[0]: empty":                         func(r *Request) { r.Messages[0].Parts = nil },
		"messages[1]: empty":                         func(r *Request) { r.Messages[1].Parts = []Part{{}, {}} },
		"messages[5]: empty":                         func(r *Request) { r.Messages[5].Parts = nil },
		"messages[6]: empty":                         func(r *Request) { r.Messages[6].Reasoning = "" },
		"messages[1]: tool_calls":                    func(r *Request) { r.Messages[1].ToolCalls = r.Messages[2].ToolCalls },
		"messages[0]: tool_call_id":                  func(r *Request) { r.Messages[0].ToolCallID = "a" },
		"messages[3]: tool_call_id":                  func(r *Request) { r.Messages[3].ToolCallID = "" },
		"messages[4]: tool_call_id":                  func(r *Request) { r.Messages[4].ToolCallID = strings.Repeat("x", 257) },
		"messages[1]: name":                          func(r *Request) { r.Messages[1].Name = "a\x00" },
		"messages[2].tool_calls[0]: id":              func(r *Request) { r.Messages[2].ToolCalls[0].ID = "" },
		"messages[2].tool_calls[1]: id: given twice": func(r *Request) { r.Messages[2].ToolCalls[1].ID = "a" },
		"messages[2].tool_calls[1]: name":            func(r *Request) { r.Messages[2].ToolCalls[1].Name = "a b" },
		"messages[2].tool_calls[0]: arguments":       func(r *Request) { r.Messages[2].ToolCalls[0].Arguments = "\xff" },
		"messages[0].parts[0]: the text isn't UTF-8": func(r *Request) { r.Messages[0].Parts[0].Text = "\xff" },
		"messages[0].parts[0]: only a user":          func(r *Request) { r.Messages[0].Parts = r.Messages[1].Parts[1:] },
		"messages[1].parts[1]: is a text or":         func(r *Request) { r.Messages[1].Parts[1].Text = "x" },
		"messages[1].parts[1]: the image's media":    func(r *Request) { r.Messages[1].Parts[1].Image.MediaType = "text/html" },
		"messages[1].parts[1]: the image's media t":  func(r *Request) { r.Messages[1].Parts[1].Image.MediaType = "image/png;x=1" },
		"messages[1].parts[1]: the image's media ty": func(r *Request) { r.Messages[1].Parts[1].Image.MediaType = "image/" },
		"messages[1].parts[1]: the image is empty":   func(r *Request) { r.Messages[1].Parts[1].Image.Data = nil },
		"messages[1].parts[1]: the image has 20971521 bytes, 20971520 are allowed": func(r *Request) {
			r.Messages[1].Parts[1].Image.Data = make([]byte, MaxImage+1)
		},
		"messages: more than 1024 images": func(r *Request) {
			for range 1024 {
				r.Messages[1].Parts = append(r.Messages[1].Parts, r.Messages[1].Parts[1])
			}
		},
		"tools: more than 512":                  func(r *Request) { r.Tools = make([]Tool, 513) },
		"tools[1]: name: must have":             func(r *Request) { r.Tools[1].Name = "" },
		"tools[2]: name: must have":             func(r *Request) { r.Tools[2].Name += "x" },
		"tools[1]: name: given twice":           func(r *Request) { r.Tools[1].Name = "look" },
		"tools[1]: description":                 func(r *Request) { r.Tools[1].Description = "\xff" },
		"tools[0]: parameters":                  func(r *Request) { r.Tools[0].Parameters = json.RawMessage(`[]`) },
		"tools[0]: parameters: must":            func(r *Request) { r.Tools[0].Parameters = json.RawMessage(`{`) },
		"tool_choice: names a tool":             func(r *Request) { r.ToolChoice.Name = "other" },
		"tool_choice: requires a tool":          func(r *Request) { r.ToolChoice, r.Tools = ToolChoice{Mode: ToolRequired}, nil },
		"tool_choice: the mode":                 func(r *Request) { r.ToolChoice.Mode = "any" },
		"options: max_tokens: must be at least": func(r *Request) { r.Options.MaxTokens = &zero },
	} {
		r := sound()
		spoil(r)
		if got := refusal(r.Check()); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What a request says is repeated in no refusal.
func TestCheckRepeatsNothing(t *testing.T) {
	r := sound()
	r.Messages[2].ToolCalls[0].Name = "canary x"
	if err := r.Check(); err == nil || strings.Contains(err.Error(), "canary") {
		t.Error(err)
	}
}

func TestDataURL(t *testing.T) {
	im := &Image{MediaType: "image/png", Data: []byte{0, 255, 1}}
	if got := string(im.DataURL([]byte("x:"))); got != "x:data:image/png;base64,AP8B" {
		t.Error(got)
	}
}
