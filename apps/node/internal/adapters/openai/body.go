package openai

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"iop/packages/go/execution"
)

// wording is how a provider wants some things said that the dialect's versions say differently.
type wording struct {
	noUsage   bool   // it refuses stream_options
	maxTokens string // the member that limits an answer
}

// set reads one of the adapter's options:
//
//	include_usage     "off" for a provider that refuses stream_options; its runs then have no token counts
//	max_tokens_field  "max_completion_tokens" for one that refuses max_tokens
func (w *wording) set(name, value string) error {
	switch name {
	case "include_usage":
		if value != "on" && value != "off" {
			return errors.New("include_usage: must be on or off")
		}
		w.noUsage = value == "off"
	case "max_tokens_field":
		if value != "max_tokens" && value != "max_completion_tokens" {
			return errors.New("max_tokens_field: must be max_tokens or max_completion_tokens")
		}
		w.maxTokens = value
	default:
		return fmt.Errorf("%q is unknown; the openai kind has include_usage and max_tokens_field", name)
	}
	return nil
}

// body writes the request for a streamed chat completion. Members stand in a fixed order, so the same run is the same
// bytes.
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
	b.raw(`,"messages":[`)
	for i := range req.Messages {
		b.comma(i)
		if err := b.message(&req.Messages[i], i); err != nil {
			return nil, err
		}
	}
	b.raw(`],"stream":true`)
	if !how.noUsage {
		b.raw(`,"stream_options":{"include_usage":true}`)
	}
	b.tools(req)
	b.options(&req.Options, how)
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

func (b *body) message(m *execution.Message, i int) error {
	b.raw(`{"role":`)
	b.value(string(m.Role))
	if m.Name != "" {
		b.member("name", m.Name)
	}
	if m.ToolCallID != "" {
		b.member("tool_call_id", m.ToolCallID)
	}
	b.raw(`,"content":`)
	switch {
	case len(m.Parts) == 0 && len(m.ToolCalls) > 0:
		b.raw("null")
	case len(m.Parts) == 0:
		b.raw(`""`)
	case len(m.Parts) == 1 && m.Parts[0].Image == nil:
		b.value(m.Parts[0].Text)
	default:
		if err := b.parts(m, i); err != nil {
			return err
		}
	}
	b.calls(m.ToolCalls)
	b.raw("}")
	return nil
}

func (b *body) parts(m *execution.Message, i int) error {
	b.raw("[")
	for j, p := range m.Parts {
		b.comma(j)
		if p.Image == nil {
			b.raw(`{"type":"text","text":`)
			b.value(p.Text)
			b.raw("}")
			continue
		}
		if m.Role != execution.RoleUser {
			return refused(fmt.Sprintf("messages[%d].parts[%d]: a provider of this kind takes images from users only", i, j))
		}
		b.raw(`{"type":"image_url","image_url":{"url":"`)
		b.buf.Write(p.Image.DataURL(b.buf.AvailableBuffer())) // a checked media type and base64 need no quoting
		b.raw(`"}}`)
	}
	b.raw("]")
	return nil
}

func (b *body) calls(calls []execution.ToolCall) {
	if len(calls) == 0 {
		return
	}
	b.raw(`,"tool_calls":[`)
	for i, c := range calls {
		b.comma(i)
		b.raw(`{"id":`)
		b.value(c.ID)
		b.raw(`,"type":"function","function":{"name":`)
		b.value(c.Name)
		b.member("arguments", c.Arguments)
		b.raw("}}")
	}
	b.raw("]")
}

// tools writes the tools and which of them must be called. Without tools the choice is left out: providers refuse it.
func (b *body) tools(req *execution.Request) {
	if len(req.Tools) == 0 {
		return
	}
	b.raw(`,"tools":[`)
	for i, t := range req.Tools {
		b.comma(i)
		b.raw(`{"type":"function","function":{"name":`)
		b.value(t.Name)
		if t.Description != "" {
			b.member("description", t.Description)
		}
		if len(t.Parameters) > 0 {
			b.member("parameters", t.Parameters)
		}
		b.raw("}}")
	}
	b.raw("]")
	switch c := req.ToolChoice; c.Mode {
	case "":
	case execution.ToolNamed:
		b.raw(`,"tool_choice":{"type":"function","function":{"name":`)
		b.value(c.Name)
		b.raw("}}")
	default:
		b.member("tool_choice", string(c.Mode))
	}
}

func (b *body) options(o *execution.Options, how wording) {
	for _, m := range []struct {
		name  string
		given bool
		value any
	}{
		{how.maxTokens, o.MaxTokens != nil, o.MaxTokens},
		{"temperature", o.Temperature != nil, o.Temperature},
		{"top_p", o.TopP != nil, o.TopP},
		{"top_k", o.TopK != nil, o.TopK},
		{"stop", len(o.Stop) > 0, o.Stop},
		{"seed", o.Seed != nil, o.Seed},
		{"frequency_penalty", o.FrequencyPenalty != nil, o.FrequencyPenalty},
		{"presence_penalty", o.PresencePenalty != nil, o.PresencePenalty},
		{"parallel_tool_calls", o.ParallelToolCalls != nil, o.ParallelToolCalls},
		{"reasoning_effort", o.ReasoningEffort != "", o.ReasoningEffort},
		{"response_format", len(o.ResponseFormat) > 0, o.ResponseFormat},
	} {
		if m.given {
			b.member(m.name, m.value)
		}
	}
}

// refused is a request that nothing was sent of.
func refused(text string) error {
	return &execution.Failure{Code: execution.CodeBadRequest, Origin: execution.OriginCaller, Text: text, NothingSent: true}
}
