package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"iop/e2e/fakeprovider"
)

func writeOpenAI(q *fakeprovider.Asked) string {
	body := raw(q.Options)
	openAIFormat(body)
	maps.Copy(body, object{"model": q.Model, "stream": q.Stream})
	if q.Count && q.Stream {
		body["stream_options"] = object{"include_usage": true}
	}
	var messages []object
	for i := range q.Messages {
		messages = append(messages, writeOpenAIMessage(&q.Messages[i]))
	}
	body["messages"] = messages
	if tools := functions(q.Tools); tools != nil {
		body["tools"] = tools
	}
	switch name, named := cutPrefix(q.Choice, "tool "); {
	case named:
		body["tool_choice"] = object{"type": "function", "function": object{"name": name}}
	case q.Choice != "":
		body["tool_choice"] = q.Choice
	}
	return encode(body)
}

// functions are tools as OpenAI's and Ollama's callers write them.
func functions(tools []fakeprovider.Tool) []object {
	var out []object
	for _, t := range tools {
		out = append(out, object{"type": "function", "function": object{"name": t.Name, "description": t.Description, "parameters": json.RawMessage(t.Schema)}})
	}
	return out
}

func writeOpenAIMessage(m *fakeprovider.Message) object {
	out := object{"role": m.Role, "content": textOf(m)}
	if len(images(m)) > 0 {
		var parts []object
		for _, c := range m.Content {
			if c.Image == "" {
				parts = append(parts, object{"type": "text", "text": c.Text})
				continue
			}
			mediaType, data := cutImage(c.Image)
			parts = append(parts, object{"type": "image_url", "image_url": object{"url": "data:" + mediaType + ";base64," + data}})
		}
		out["content"] = parts
	}
	if m.Reasoning != "" {
		out["reasoning_content"] = m.Reasoning
	}
	if m.CallID != "" {
		out["tool_call_id"] = m.CallID
	}
	var calls []object
	for _, c := range m.Calls {
		calls = append(calls, object{"id": c.ID, "type": "function", "function": object{"name": c.Name, "arguments": c.Arguments}})
	}
	if calls != nil {
		out["tool_calls"] = calls
		if len(m.Content) == 0 {
			out["content"] = nil
		}
	}
	return out
}

// openAIUsage is the token counts of an answer.
type openAIUsage struct {
	Prompt        number `json:"prompt_tokens"`
	Completion    number `json:"completion_tokens"`
	Total         number `json:"total_tokens"`
	PromptDetails *struct {
		Cached number `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	Details *struct {
		Reasoning number `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func (u *openAIUsage) count() (*fakeprovider.Usage, error) {
	if u == nil {
		return nil, nil
	}
	if u.Prompt == nil || u.Completion == nil || u.Total == nil || *u.Total != *u.Prompt+*u.Completion {
		return nil, fmt.Errorf("usage that the SDKs can't read: %s", encode(u))
	}
	var cached number
	if u.PromptDetails != nil {
		cached = u.PromptDetails.Cached
	}
	return count(u.Prompt, u.Completion, cached), nil
}

// openAISaid is a message, or what a chunk says of one.
type openAISaid struct {
	Role      string  `json:"role"`
	Content   *string `json:"content"`
	Refusal   *string `json:"refusal"`
	Thought   string  `json:"reasoning_content"`
	Reasoning string  `json:"reasoning"` // Ollama's word for it
	Calls     []struct {
		Index    *int   `json:"index"`
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string  `json:"name"`
			Arguments *string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// openAIAnswer is a whole answer, or a chunk of one.
type openAIAnswer struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []struct {
		Index    int             `json:"index"`
		Message  *openAISaid     `json:"message"`
		Delta    *openAISaid     `json:"delta"`
		Logprobs json.RawMessage `json:"logprobs"`
		Finish   *string         `json:"finish_reason"`
	} `json:"choices"`
	Usage *openAIUsage    `json:"usage"`
	Error json.RawMessage `json:"error"` // of a chunk: nothing else is there
}

func readOpenAI(body []byte, exact bool) (h heard, err error) {
	var a openAIAnswer
	if err := exactly(body, &a, exact); err != nil {
		return h, err
	}
	if a.Object != "chat.completion" || a.ID == "" || a.Created == 0 || a.Model == "" || len(a.Choices) == 0 || a.Choices[0].Message == nil || a.Choices[0].Finish == nil {
		return h, fmt.Errorf("not a chat completion: %s", shorten(body))
	}
	choice := a.Choices[0]
	m := choice.Message
	if m.Role != "assistant" || m.Content == nil && len(m.Calls) == 0 || exact && m.Reasoning != "" {
		return h, fmt.Errorf("not a message: %s", shorten(body))
	}
	if m.Content != nil {
		h.Text = *m.Content
	}
	h.Reasoning, h.Finish, h.Whole = m.Thought+m.Reasoning, *choice.Finish, true
	for _, c := range m.Calls {
		if c.ID == "" || c.Type != "function" || c.Function.Name == "" || c.Function.Arguments == nil {
			return h, fmt.Errorf("not a call: %s", shorten(body))
		}
		h.Calls = append(h.Calls, fakeprovider.Call{ID: c.ID, Name: c.Function.Name, Arguments: *c.Function.Arguments})
	}
	h.Usage, err = a.Usage.count()
	return h, err
}

func readOpenAIStream(body []byte, exact bool) (h heard, err error) {
	list, broken := frames(body, exact)
	first := ""
	for i, e := range list {
		switch {
		case e.name != "" || h.Whole || h.Failed != "":
			return h, fmt.Errorf("event %d: %+v after the end, or with a name", i, e)
		case e.data == "[DONE]":
			h.Whole = true
			continue
		}
		var a openAIAnswer
		if err := exactly([]byte(e.data), &a, exact); err != nil {
			return h, err
		}
		if a.Error != nil {
			code, text, err := readOpenAIError([]byte(e.data))
			if h.Failed = code; code == "" {
				h.Failed = text
			}
			if err != nil && exact {
				return h, err
			}
			continue
		}
		if i == 0 {
			first = a.ID
		}
		if a.Object != "chat.completion.chunk" || a.ID != first || a.ID == "" || a.Created == 0 || exact && a.Model == "" {
			return h, fmt.Errorf("not a chunk: %.200s", e.data)
		}
		if err := h.addOpenAI(&a, i == 0, exact); err != nil {
			return h, fmt.Errorf("%w: %.300s", err, e.data)
		}
	}
	if h.Whole && h.Finish == "" {
		return h, errors.New("[DONE] without a finish reason")
	}
	return h, broken
}

// addOpenAI adds what a chunk says.
func (h *heard) addOpenAI(a *openAIAnswer, first, exact bool) (err error) {
	if a.Usage != nil {
		if h.Usage != nil || exact && (len(a.Choices) > 0 || h.Finish == "") {
			return errors.New("usage that comes twice, with a choice, or before the finish reason")
		}
		h.Usage, err = a.Usage.count()
	}
	if len(a.Choices) == 0 {
		return err
	}
	c := a.Choices[0]
	if c.Index != 0 { // of another answer
		return err
	}
	switch d := c.Delta; {
	case d == nil || first && d.Role != "assistant" || exact && d.Reasoning != "":
		return errors.New("no delta, no role in the first one, or another provider's")
	case h.Finish != "":
		return errors.New("goes on after the finish reason")
	default:
		if d.Content != nil {
			h.Text += *d.Content
		}
		h.Reasoning += d.Thought + d.Reasoning
		if err := h.addOpenAICalls(d); err != nil {
			return err
		}
	}
	if c.Finish != nil {
		h.Finish = *c.Finish
	}
	return err
}

func (h *heard) addOpenAICalls(d *openAISaid) error {
	for _, c := range d.Calls {
		if c.Index == nil || *c.Index > len(h.Calls) || c.Function.Arguments == nil {
			return errors.New("a call without an index or arguments, or out of order")
		}
		begins := *c.Index == len(h.Calls)
		if begins != (c.ID != "") || begins != (c.Function.Name != "") || begins != (c.Type == "function") {
			return errors.New("the first piece of a call has id, type and name, and no other")
		}
		if begins {
			h.Calls = append(h.Calls, fakeprovider.Call{ID: c.ID, Name: c.Function.Name})
		}
		h.Calls[*c.Index].Arguments += *c.Function.Arguments
	}
	return nil
}

func readOpenAIError(body []byte) (code, text string, err error) {
	var e struct {
		Error struct {
			Message, Type string
			Param         *string
			Code          any
		}
	}
	err = exactly(body, &e, true)
	code, _ = e.Error.Code.(string)
	text = e.Error.Message
	if e.Error.Param != nil {
		text = *e.Error.Param + " | " + text
	}
	if err == nil && (e.Error.Message == "" || e.Error.Type == "") {
		err = fmt.Errorf("not an error of this API: %s", shorten(body))
	}
	return code, text, err
}
