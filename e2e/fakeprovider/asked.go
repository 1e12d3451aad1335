package fakeprovider

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
)

// Asked is a chat request, in whatever dialect it is written. Two requests that ask for the same are equal.
type Asked struct {
	Model    string
	Stream   bool
	Count    bool // token counts are asked for, where a dialect leaves that to who asks
	Messages []Message
	Tools    []Tool
	Choice   string // "", auto, none, required, or "tool " and its name
	// Options are by the names that OpenAI has for them, as JSON without blanks: max_tokens, temperature, top_p, top_k,
	// stop, seed, frequency_penalty, presence_penalty, parallel_tool_calls; reasoning_effort (with Ollama's true for an
	// effort that has no word), reasoning_budget; and format, which is "json" or a schema.
	Options map[string]string
}

// Message is one message. A system's and a tool's are messages here, wherever a dialect has them.
type Message struct {
	Role      string // system, user, assistant, tool
	Content   []Content
	Reasoning string
	Calls     []Call
	CallID    string // of a tool's: which call it answers
	Failed    bool   // of a tool's
}

// Content is a text or an image.
type Content struct {
	Text  string
	Image string // media type, a colon, and the bytes
}

// Tool is a tool that may be called.
type Tool struct{ Name, Description, Schema string } // Schema is JSON without blanks

// Says returns a message that is one text.
func Says(role, text string) Message { return Message{Role: role, Content: []Content{{Text: text}}} }

// members are those of a JSON object that nobody has looked at yet.
type members map[string]json.RawMessage

func readMembers(raw []byte) (members, error) {
	var m members
	if err := json.Unmarshal(raw, &m); err != nil || m == nil {
		return nil, fmt.Errorf("not an object: %.200s", raw)
	}
	return m, nil
}

// take reads a member, if it is there, and strikes it off.
func (m members) take(name string, into any) error {
	raw, has := m[name]
	if !has {
		return nil
	}
	delete(m, name)
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w in %.200s", name, err, raw)
	}
	return nil
}

// options strikes off those of the named members that are there, under the names that they have in [Asked].
func (m members) options(into map[string]string, names map[string]string) {
	for name, common := range names {
		if raw, has := m[name]; has {
			into[common] = compact(raw)
			delete(m, name)
		}
	}
}

// rest is an error when a member was left over.
func (m members) rest(where string) error {
	for name := range m {
		return fmt.Errorf("%s: %q isn't a member of it in this dialect", where, name)
	}
	return nil
}

func compact(raw []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

// strictly reads a value into a struct that has all its members.
func strictly(raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w in %.200s", err, raw)
	}
	return nil
}

// picture returns an image of which the dialect tells the bytes in base64, and perhaps the kind.
func picture(mediaType, data string) (Content, error) {
	b, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return Content{}, err
	}
	if mediaType == "" {
		mediaType = http.DetectContentType(b)
	}
	return Content{Image: mediaType + ":" + string(b)}, nil
}
