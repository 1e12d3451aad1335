package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"iop/e2e/fakeprovider"
)

func cutPrefix(s, prefix string) (string, bool) { return strings.CutPrefix(s, prefix) }

func writeAnthropic(q *fakeprovider.Asked) string {
	body := raw(q.Options)
	move(body, "stop", "stop_sequences")
	if choice := writeAnthropicChoice(q.Choice, takeOption(body, "parallel_tool_calls")); choice != nil {
		body["tool_choice"] = choice
	}
	output := object{}
	if format := takeOption(body, "format"); format != "" {
		output["format"] = object{"type": "json_schema", "schema": json.RawMessage(format)}
	}
	if budget := takeOption(body, "reasoning_budget"); budget != "" {
		body["thinking"] = object{"type": "enabled", "budget_tokens": json.RawMessage(budget)}
	}
	switch effort := takeOption(body, "reasoning_effort"); effort {
	case "":
	case `"none"`:
		body["thinking"] = object{"type": "disabled"}
	default:
		output["effort"] = json.RawMessage(effort)
	}
	if len(output) > 0 {
		body["output_config"] = output
	}
	maps.Copy(body, object{"model": q.Model, "stream": q.Stream})
	system, messages := writeAnthropicTurns(q.Messages)
	if body["messages"] = messages; system != nil {
		body["system"] = system
	}
	var tools []object
	for _, t := range q.Tools {
		tools = append(tools, object{"name": t.Name, "description": t.Description, "input_schema": json.RawMessage(t.Schema)})
	}
	if tools != nil {
		body["tools"] = tools
	}
	return encode(body)
}

func writeAnthropicChoice(asked, parallel string) object {
	choice := object{"type": "auto"}
	switch name, named := cutPrefix(asked, "tool "); {
	case named:
		choice = object{"type": "tool", "name": name}
	case asked == "required":
		choice = object{"type": "any"}
	case asked != "":
		choice = object{"type": asked}
	case parallel == "":
		return nil
	}
	if parallel == "false" {
		choice["disable_parallel_tool_use"] = true
	}
	return choice
}

// writeAnthropicTurns writes the conversation: what tools said is told with the user's next words.
func writeAnthropicTurns(all []fakeprovider.Message) (system, turns []object) {
	var said []object
	flush := func(role string) {
		if said != nil {
			turns = append(turns, object{"role": role, "content": said})
		}
		said = nil
	}
	for i := range all {
		m := &all[i]
		switch m.Role {
		case "system":
			system = append(system, writeBlocks(m)...)
		case "tool":
			result := object{"type": "tool_result", "tool_use_id": m.CallID, "content": writeBlocks(m)}
			if m.Failed {
				result["is_error"] = true
			}
			said = append(said, result)
		case "user":
			said = append(said, writeBlocks(m)...)
			flush("user")
		case "assistant":
			flush("user")
			said = writeBlocks(m)
			flush("assistant")
		}
	}
	flush("user")
	return system, turns
}

func writeBlocks(m *fakeprovider.Message) []object {
	blocks := []object{}
	if m.Reasoning != "" {
		blocks = append(blocks, object{"type": "thinking", "thinking": m.Reasoning, "signature": "c2lnbmVk"})
	}
	for _, c := range m.Content {
		if c.Image == "" {
			blocks = append(blocks, object{"type": "text", "text": c.Text})
			continue
		}
		mediaType, data := cutImage(c.Image)
		blocks = append(blocks, object{"type": "image", "source": object{"type": "base64", "media_type": mediaType, "data": data}})
	}
	for _, c := range m.Calls {
		blocks = append(blocks, object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": json.RawMessage(c.Arguments)})
	}
	return blocks
}

// anthropicUsage is the token counts of a message.
type anthropicUsage struct {
	Input   number `json:"input_tokens"`
	Output  number `json:"output_tokens"`
	Cached  number `json:"cache_read_input_tokens"`
	Created number `json:"cache_creation_input_tokens"`
	Details *struct {
		Thinking number `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
}

// count returns the counts with what came from the cache in the input. The API demands numbers: 0 may be untold.
func (u *anthropicUsage) count() *fakeprovider.Usage {
	if u.Input == nil || u.Output == nil || *u.Input == 0 && *u.Output == 0 {
		return nil
	}
	all := count(u.Input, u.Output, u.Cached)
	all.Input += all.Cached
	return all
}

// anthropicMessage is a whole message, or the beginning of a streamed one.
type anthropicMessage struct {
	ID         string           `json:"id"`
	Type       string           `json:"type"`
	Role       string           `json:"role"`
	Model      string           `json:"model"`
	Content    []anthropicBlock `json:"content"`
	StopReason *string          `json:"stop_reason"`
	Stop       *string          `json:"stop_sequence"`
	Usage      *anthropicUsage  `json:"usage"`
}

// anthropicBlock is a block of a message.
type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text"`
	Thinking  *string         `json:"thinking"`
	Signature *string         `json:"signature"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
}

// anthropicFinish is a stop reason in common words.
func anthropicFinish(reason *string) string {
	if reason == nil {
		return ""
	}
	if word, known := map[string]string{"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}[*reason]; known {
		return word
	}
	return *reason
}

func readAnthropic(body []byte, exact bool) (h heard, err error) {
	var m anthropicMessage
	if err := exactly(body, &m, exact); err != nil {
		return h, err
	}
	if m.Type != "message" || m.ID == "" || m.Role != "assistant" || m.Model == "" || m.Content == nil || m.StopReason == nil || exact && m.Usage == nil {
		return h, fmt.Errorf("not a message: %s", shorten(body))
	}
	for i := range m.Content {
		switch b := &m.Content[i]; {
		case b.Type == "text" && b.Text != nil && *b.Text != "":
			h.Text += *b.Text
		case b.Type == "thinking" && b.Thinking != nil && (!exact || b.Signature != nil):
			h.Reasoning += *b.Thinking
		case b.Type == "tool_use" && b.ID != "" && b.Name != "" && strings.HasPrefix(string(b.Input), "{"):
			h.Calls = append(h.Calls, fakeprovider.Call{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		default:
			return h, fmt.Errorf("not a block: %s", shorten(body))
		}
	}
	h.Finish, h.Whole = anthropicFinish(m.StopReason), true
	if m.Usage != nil {
		h.Usage = m.Usage.count()
	}
	return h, nil
}

// anthropicEvent is an event of a stream.
type anthropicEvent struct {
	Type    string            `json:"type"`
	Message *anthropicMessage `json:"message"`
	Index   int               `json:"index"`
	Block   *anthropicBlock   `json:"content_block"`
	Delta   *anthropicDelta   `json:"delta"`
	Usage   *anthropicUsage   `json:"usage"`
	Error   json.RawMessage   `json:"error"`
	Request *string           `json:"request_id"` // of an error
}

type anthropicDelta struct {
	Type       string  `json:"type"`
	Text       string  `json:"text"`
	Thinking   string  `json:"thinking"`
	Signature  string  `json:"signature"`
	Partial    string  `json:"partial_json"`
	StopReason *string `json:"stop_reason"`
	Stop       *string `json:"stop_sequence"`
}

// anthropicReader reads a stream as Anthropic's clients do: one block after the other.
type anthropicReader struct {
	heard
	exact bool
	begun bool
	index int             // of the block that is open, or comes next
	open  *anthropicBlock // nil = none
	usage anthropicUsage
}

func readAnthropicStream(body []byte, exact bool) (heard, error) {
	r := &anthropicReader{exact: exact}
	list, broken := frames(body, exact)
	for _, se := range list {
		var e anthropicEvent
		if err := exactly([]byte(se.data), &e, exact); err != nil {
			return r.heard, err
		}
		if se.name != e.Type || r.Whole || r.Failed != "" {
			return r.heard, fmt.Errorf("an event by another name, or after the end: %+v", se)
		}
		if err := r.take(&e, []byte(se.data)); err != nil {
			return r.heard, fmt.Errorf("%w: %.300s", err, se.data)
		}
	}
	return r.heard, broken
}

func (r *anthropicReader) take(e *anthropicEvent, data []byte) error {
	switch {
	case e.Type == "ping":
	case e.Type == "error":
		code, text, err := readAnthropicError(data)
		if r.Failed = code; code == "" {
			r.Failed = text
		}
		return err
	case e.Type == "message_start":
		if r.begun || e.Message == nil || e.Message.ID == "" || len(e.Message.Content) > 0 || r.exact && e.Message.Usage == nil {
			return errors.New("not the beginning")
		}
		r.begun = true
		r.told(e.Message.Usage)
	case !r.begun:
		return errors.New("before the beginning")
	case e.Type == "message_delta":
		if r.open != nil || r.Finish != "" || e.Delta == nil || e.Delta.StopReason == nil {
			return errors.New("not how the message ends")
		}
		r.Finish = anthropicFinish(e.Delta.StopReason)
		r.told(e.Usage)
		r.Usage = r.usage.count()
	case e.Type == "message_stop":
		if r.Finish == "" {
			return errors.New("an end without a stop reason")
		}
		r.Whole = true
	default:
		return r.block(e)
	}
	return nil
}

func (r *anthropicReader) told(u *anthropicUsage) {
	if u == nil {
		return
	}
	if u.Input != nil {
		r.usage.Input = u.Input
	}
	if u.Cached != nil {
		r.usage.Cached = u.Cached
	}
	r.usage.Output = u.Output
}

// block takes an event of a block.
func (r *anthropicReader) block(e *anthropicEvent) error {
	if !r.exact { // llama.cpp begins the next block before it ends the last
		switch {
		case e.Type == "content_block_start" && r.open != nil && e.Index == r.index+1:
			r.open = nil
			r.index++
		case e.Index < r.index && (e.Type == "content_block_stop" || e.Delta != nil && e.Delta.Type == "signature_delta"):
			return nil
		}
	}
	if e.Index != r.index || r.Finish != "" || (e.Type == "content_block_start") != (r.open == nil) {
		return errors.New("out of order")
	}
	switch e.Type {
	case "content_block_start":
		r.open = e.Block
		if e.Block != nil && e.Block.Type == "tool_use" {
			if e.Block.ID == "" || e.Block.Name == "" || r.exact && string(e.Block.Input) != "{}" {
				return errors.New("not the beginning of a call")
			}
			r.Calls = append(r.Calls, fakeprovider.Call{ID: e.Block.ID, Name: e.Block.Name})
		}
	case "content_block_delta":
		return r.delta(e.Delta)
	case "content_block_stop":
		if r.open.Type == "tool_use" {
			if c := &r.Calls[len(r.Calls)-1]; c.Arguments == "" {
				c.Arguments = "{}" // what its beginning said
			}
		}
		r.open = nil
		r.index++
	default:
		return errors.New("an event that nobody knows")
	}
	return nil
}

func (r *anthropicReader) delta(d *anthropicDelta) error {
	switch {
	case d == nil:
		return errors.New("no delta")
	case d.Type == "text_delta" && r.open.Type == "text":
		r.Text += d.Text
	case d.Type == "thinking_delta" && r.open.Type == "thinking":
		r.Reasoning += d.Thinking
	case d.Type == "signature_delta" && r.open.Type == "thinking":
	case d.Type == "input_json_delta" && r.open.Type == "tool_use":
		r.Calls[len(r.Calls)-1].Arguments += d.Partial
	default:
		return errors.New("a delta of another block")
	}
	return nil
}

func readAnthropicError(body []byte) (code, text string, err error) {
	var e struct {
		Type  string
		Error struct {
			Type, Message, Code string
			Details             struct {
				Code  string `json:"error_code"`
				Param string
			}
		}
		Request *string `json:"request_id"`
	}
	err = exactly(body, &e, true)
	text = e.Error.Message
	if e.Error.Details.Param != "" {
		text = e.Error.Details.Param + " | " + text
	}
	if err == nil && (e.Type != "error" || e.Error.Type == "" || e.Error.Message == "" || e.Error.Code != e.Error.Details.Code) {
		err = fmt.Errorf("not an error of this API: %s", shorten(body))
	}
	return e.Error.Code, text, err
}
