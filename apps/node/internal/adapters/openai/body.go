package openai

import (
	"errors"
	"fmt"

	"iop/apps/node/internal/adapters/jsonbody"
	"iop/packages/go/execution"
)

// wording is how a provider wants some things said that the dialect's versions say differently.
type wording struct {
	noUsage   bool   // it refuses stream_options
	maxTokens string // the member that limits an answer
	reasoning string // the member of an assistant's message that holds its reasoning, "" = it can't be told
}

func newWording() wording { return wording{maxTokens: "max_tokens", reasoning: "reasoning_content"} }

// set reads one of the adapter's options:
//
//	include_usage     "off" for a provider that refuses stream_options; its runs then have no token counts
//	max_tokens_field  "max_completion_tokens" for one that refuses max_tokens
//	reasoning_field   "reasoning" for one that reads an earlier answer's reasoning there; "none" for one that refuses it
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
	case "reasoning_field":
		switch value {
		case "reasoning_content", "reasoning":
			w.reasoning = value
		case "none":
			w.reasoning = ""
		default:
			return errors.New("reasoning_field: must be reasoning_content, reasoning or none")
		}
	default:
		return fmt.Errorf("%q is unknown; the openai kind has include_usage, max_tokens_field and reasoning_field", name)
	}
	return nil
}

// body writes the request for a streamed chat completion.
type body struct {
	*jsonbody.Writer
	how wording
}

// chatBody returns the body that asks for req. An error is a bad_request: what this dialect can't be told.
func chatBody(req *execution.Request, how wording) ([]byte, error) {
	b := &body{jsonbody.New(req), how}
	b.Raw(`{"model":`)
	b.Value(req.Target)
	b.Raw(`,"messages":[`)
	for i := range req.Messages {
		b.Comma(i)
		if err := b.message(&req.Messages[i], i); err != nil {
			return nil, err
		}
	}
	b.Raw(`],"stream":true`)
	if !how.noUsage {
		b.Raw(`,"stream_options":{"include_usage":true}`)
	}
	b.tools(req)
	b.options(&req.Options)
	b.Raw("}")
	return b.Bytes(), nil
}

func (b *body) message(m *execution.Message, i int) error {
	b.Raw(`{"role":`)
	b.Value(string(m.Role))
	if m.Name != "" {
		b.Member("name", m.Name)
	}
	if m.ToolCallID != "" {
		b.Member("tool_call_id", m.ToolCallID)
	}
	b.Raw(`,"content":`)
	switch {
	case len(m.Parts) == 0 && len(m.ToolCalls) > 0:
		b.Raw("null")
	case len(m.Parts) == 0:
		b.Raw(`""`)
	case len(m.Parts) == 1 && m.Parts[0].Image == nil:
		b.Value(m.Parts[0].Text)
	default:
		if err := b.parts(m, i); err != nil {
			return err
		}
	}
	if m.Reasoning != "" && b.how.reasoning != "" {
		b.Member(b.how.reasoning, m.Reasoning)
	}
	b.calls(m.ToolCalls)
	b.Raw("}")
	return nil
}

func (b *body) parts(m *execution.Message, i int) error {
	b.Raw("[")
	for j, p := range m.Parts {
		b.Comma(j)
		if p.Image == nil {
			b.Raw(`{"type":"text","text":`)
			b.Value(p.Text)
			b.Raw("}")
			continue
		}
		if m.Role != execution.RoleUser {
			return jsonbody.Refused(fmt.Sprintf("messages[%d].parts[%d]: a provider of this kind takes images from users only", i, j))
		}
		b.Raw(`{"type":"image_url","image_url":{"url":"`)
		b.Append(p.Image.DataURL) // a checked media type and base64 need no quoting
		b.Raw(`"}}`)
	}
	b.Raw("]")
	return nil
}

func (b *body) calls(calls []execution.ToolCall) {
	if len(calls) == 0 {
		return
	}
	b.Raw(`,"tool_calls":[`)
	for i, c := range calls {
		b.Comma(i)
		b.Raw(`{"id":`)
		b.Value(c.ID)
		b.Raw(`,"type":"function","function":{"name":`)
		b.Value(c.Name)
		b.Member("arguments", c.Arguments)
		b.Raw("}}")
	}
	b.Raw("]")
}

// tools writes the tools and which of them must be called. Without tools the choice is left out: providers refuse it.
func (b *body) tools(req *execution.Request) {
	if len(req.Tools) == 0 {
		return
	}
	b.Raw(`,"tools":[`)
	for i, t := range req.Tools {
		b.Comma(i)
		b.Raw(`{"type":"function","function":{"name":`)
		b.Value(t.Name)
		if t.Description != "" {
			b.Member("description", t.Description)
		}
		if len(t.Parameters) > 0 {
			b.Member("parameters", t.Parameters)
		}
		b.Raw("}}")
	}
	b.Raw("]")
	switch c := req.ToolChoice; c.Mode {
	case "":
	case execution.ToolNamed:
		b.Raw(`,"tool_choice":{"type":"function","function":{"name":`)
		b.Value(c.Name)
		b.Raw("}}")
	default:
		b.Member("tool_choice", string(c.Mode))
	}
}

func (b *body) options(o *execution.Options) {
	thinking := effort(o)
	for _, m := range []struct {
		name  string
		given bool
		value any
	}{
		{b.how.maxTokens, o.MaxTokens != nil, o.MaxTokens},
		{"temperature", o.Temperature != nil, o.Temperature},
		{"top_p", o.TopP != nil, o.TopP},
		{"top_k", o.TopK != nil, o.TopK},
		{"stop", len(o.Stop) > 0, o.Stop},
		{"seed", o.Seed != nil, o.Seed},
		{"frequency_penalty", o.FrequencyPenalty != nil, o.FrequencyPenalty},
		{"presence_penalty", o.PresencePenalty != nil, o.PresencePenalty},
		{"parallel_tool_calls", o.ParallelToolCalls != nil, o.ParallelToolCalls},
		{"reasoning_effort", thinking != "", thinking},
		{"response_format", len(o.ResponseFormat) > 0, o.ResponseFormat},
	} {
		if m.given {
			b.Member(m.name, m.value)
		}
	}
}

// The budgets from which an effort is medium and high: this dialect has no word for a number of tokens.
const (
	mediumBudget = 2048
	highBudget   = 8192
)

// effort returns the word for how much to think, "" if that is the provider's choice. A word that was given stands.
func effort(o *execution.Options) string {
	switch n := o.ReasoningBudget; {
	case o.ReasoningEffort != "" || n == nil:
		return o.ReasoningEffort
	case *n == 0:
		return "none"
	case *n < mediumBudget:
		return "low"
	case *n < highBudget:
		return "medium"
	}
	return "high"
}
