package anthropic

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// message is a Message as the SDKs have it, with the members that we write.
type message struct {
	ID           string    `json:"id"`
	Type         string    `json:"type"`
	Role         string    `json:"role"`
	Model        string    `json:"model"`
	Content      []content `json:"content"`
	StopReason   *string   `json:"stop_reason"`
	StopSequence *string   `json:"stop_sequence"`
	Usage        usage     `json:"usage"`
}

type content struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
}

type usage struct {
	Input   *int64 `json:"input_tokens"`
	Output  *int64 `json:"output_tokens"`
	Cached  *int64 `json:"cache_read_input_tokens"`
	Details *struct {
		Thinking int64 `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
}

// reader puts a stream together as the SDKs' accumulators do, and is stricter: each block begins once and in order, has
// only deltas of its kind, and ends before the next begins; a message has one beginning and one end, and nothing after.
type reader struct {
	message *message
	open    bool   // the last block of message.Content
	input   string // of the open block
	signed  bool
	ended   bool // message_delta came
	stopped bool // message_stop came
	failure *failure
	events  []string
}

type failure struct {
	Type  string `json:"type"`
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
		Code    string `json:"code"`
		Details struct {
			ErrorCode string `json:"error_code"`
			Param     string `json:"param"`
		} `json:"details"`
	} `json:"error"`
	RequestID *string `json:"request_id"`
}

type streamEvent struct {
	Type         string           `json:"type"`
	Message      *message         `json:"message"`
	Index        *int             `json:"index"`
	ContentBlock *content         `json:"content_block"`
	Delta        *json.RawMessage `json:"delta"`
	Usage        *usage           `json:"usage"`
}

// read takes whole events in.
func (r *reader) read(text []byte) error {
	for raw := range strings.SplitSeq(strings.TrimSuffix(string(text), "\n\n"), "\n\n") {
		if raw == "" {
			continue
		}
		name, data, ok := strings.Cut(raw, "\ndata: ")
		name, named := strings.CutPrefix(name, "event: ")
		if !ok || !named || strings.Contains(data, "\n") {
			return fmt.Errorf("not an event: %q", raw)
		}
		if r.stopped || r.failure != nil {
			return fmt.Errorf("%s after the end", name)
		}
		r.events = append(r.events, name)
		if name == "error" {
			r.failure = &failure{}
			return strictly(data, r.failure)
		}
		var e streamEvent
		if err := strictly(data, &e); err != nil {
			return fmt.Errorf("%s: %w", raw, err)
		}
		if e.Type != name {
			return fmt.Errorf("the event %s has the type %s", name, e.Type)
		}
		if err := r.event(&e); err != nil {
			return fmt.Errorf("%s: %w", raw, err)
		}
	}
	return nil
}

func strictly(data string, into any) error {
	d := json.NewDecoder(strings.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func (r *reader) event(e *streamEvent) error {
	if (r.message == nil) != (e.Type == "message_start") {
		return errors.New("a message begins once, and first")
	}
	if r.ended && e.Type != "message_stop" {
		return errors.New("comes after message_delta")
	}
	switch e.Type {
	case "message_start":
		r.message = e.Message
		if m := e.Message; m.Content == nil || len(m.Content) > 0 || m.StopReason != nil || m.Usage.Input == nil || m.Usage.Output == nil {
			return errors.New("doesn't begin empty")
		}
		return nil
	case "content_block_start":
		return r.start(e)
	case "content_block_delta", "content_block_stop":
		if !r.open || e.Index == nil || *e.Index != len(r.message.Content)-1 {
			return errors.New("isn't for the block that is open")
		}
		if e.Type == "content_block_stop" {
			return r.stop()
		}
		return r.delta(*e.Delta)
	case "message_delta":
		return r.end(e)
	case "message_stop":
		if !r.ended {
			return errors.New("comes before message_delta")
		}
		r.stopped = true
		return nil
	}
	return errors.New("is unknown")
}

func (r *reader) start(e *streamEvent) error {
	c := e.ContentBlock
	if r.open || e.Index == nil || *e.Index != len(r.message.Content) {
		return errors.New("begins within another block, or isn't the next")
	}
	switch {
	case c.Type == "text" && c.Text != nil && *c.Text == "":
	case c.Type == "thinking" && c.Thinking != nil && *c.Thinking == "" && c.Signature != nil && *c.Signature == "":
	case c.Type == "tool_use" && c.ID != "" && c.Name != "" && string(c.Input) == "{}":
	default:
		return errors.New("doesn't begin empty, or is of no known type")
	}
	r.open, r.input, r.signed = true, "", false
	r.message.Content = append(r.message.Content, *c)
	return nil
}

func (r *reader) delta(raw json.RawMessage) error {
	var d struct {
		Type      string  `json:"type"`
		Text      *string `json:"text"`
		Thinking  *string `json:"thinking"`
		Signature *string `json:"signature"`
		Partial   *string `json:"partial_json"`
	}
	if err := strictly(string(raw), &d); err != nil {
		return err
	}
	c := &r.message.Content[len(r.message.Content)-1]
	switch {
	case r.signed:
		return errors.New("comes after the signature")
	case d.Type == "text_delta" && c.Type == "text" && d.Text != nil:
		*c.Text += *d.Text
	case d.Type == "thinking_delta" && c.Type == "thinking" && d.Thinking != nil:
		*c.Thinking += *d.Thinking
	case d.Type == "signature_delta" && c.Type == "thinking" && d.Signature != nil:
		c.Signature, r.signed = d.Signature, true
	case d.Type == "input_json_delta" && c.Type == "tool_use" && d.Partial != nil:
		r.input += *d.Partial
	default:
		return errors.New("is of another type than its block")
	}
	return nil
}

func (r *reader) stop() error {
	c := &r.message.Content[len(r.message.Content)-1]
	r.open = false
	switch {
	case c.Type == "thinking" && !r.signed:
		return errors.New("thinking without a signature")
	case c.Type == "text" && *c.Text == "", c.Type == "thinking" && *c.Thinking == "":
		return errors.New("says nothing")
	case r.input != "":
		c.Input = json.RawMessage(r.input) // checked at the end: it may have been cut off
	}
	return nil
}

func (r *reader) end(e *streamEvent) error {
	var d struct {
		StopReason   *string `json:"stop_reason"`
		StopSequence *string `json:"stop_sequence"`
	}
	if err := strictly(string(*e.Delta), &d); err != nil {
		return err
	}
	if r.open || d.StopReason == nil || e.Usage == nil || e.Usage.Input == nil || e.Usage.Output == nil {
		return errors.New("a block is open, or what must be told isn't")
	}
	r.ended = true
	r.message.StopReason, r.message.StopSequence, r.message.Usage = d.StopReason, d.StopSequence, *e.Usage
	for i := range r.message.Content {
		if c := &r.message.Content[i]; c.Type == "tool_use" && !isObject(string(c.Input)) {
			if *d.StopReason != "max_tokens" {
				return fmt.Errorf("the input %q isn't an object", c.Input)
			}
			c.Input = json.RawMessage("{}")
		}
	}
	return nil
}

// parts puts what a message says in order: its thinking, its text, its calls.
func (m *message) parts() (thinking, text string, calls []content) {
	for _, c := range m.Content {
		switch c.Type {
		case "thinking":
			thinking += *c.Thinking
		case "text":
			text += *c.Text
		default:
			calls = append(calls, c)
		}
	}
	return thinking, text, calls
}
