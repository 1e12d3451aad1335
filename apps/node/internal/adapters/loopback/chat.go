package loopback

import (
	"errors"
	"strings"
)

// chat answers POST /v1/chat/completions.
func (p *Provider) chat(w *writer, body []byte) error {
	x, done, err := p.take(w, body, func(r *request) (prompt []string, say string, err error) {
		for _, m := range r.Messages {
			text := m.Content.String()
			prompt = append(prompt, text)
			if m.Role == "user" {
				say = text
			}
		}
		if len(prompt) == 0 {
			return nil, "", errors.New("messages: missing or empty")
		}
		return prompt, say, nil
	})
	if done {
		return err
	}
	if x.Stream {
		return x.chatStream(w)
	}
	return x.chatWhole(w)
}

func (x *job) chatWhole(w *writer) error {
	tokens, reason := x.answer()
	m := object{"role": "assistant", "content": strings.Join(tokens, "")}
	if x.reasoning > 0 {
		m["reasoning_content"] = strings.Join(x.thoughts(), "")
	}
	if x.tools > 0 {
		reason = "tool_calls"
		m["content"] = nil
		var calls []any
		for _, c := range x.calls() {
			calls = append(calls, object{"id": c.id, "type": "function", "function": object{"name": c.name, "arguments": c.arguments}})
		}
		m["tool_calls"] = calls
		tokens = nil
	}
	c := x.counts(len(tokens))
	out := object{"id": "chatcmpl-" + x.id, "object": "chat.completion", "created": created, "model": x.Model,
		"choices": []any{object{"index": 0, "message": m, "finish_reason": reason}}}
	if !x.noUsage {
		out["usage"] = c.object()
	}
	if err := w.deliver(&x.plan, c.output, out); err != nil {
		return err
	}
	return w.count(&x.plan, c)
}

func (c counted) object() object {
	return object{"prompt_tokens": c.input, "completion_tokens": c.output, "total_tokens": c.input + c.output,
		"completion_tokens_details": object{"reasoning_tokens": c.reasoning}}
}

// chatStream gives the answer as chunks: the role, the reasoning, then text or calls, the reason, the counts if they
// were asked for, the end mark.
func (x *job) chatStream(w *writer) error {
	if err := w.beginStream(); err != nil {
		return err
	}
	if err := x.chunk(w, object{"role": "assistant", "content": ""}, nil); err != nil {
		return err
	}
	for _, token := range x.thoughts() {
		if err := x.paced(w, object{"reasoning_content": token}); err != nil {
			return err
		}
	}
	tokens, reason := x.answer()
	if x.tools > 0 {
		tokens, reason = nil, "tool_calls"
		if err := x.streamCalls(w); err != nil {
			return err
		}
	}
	for _, token := range tokens {
		if err := x.paced(w, object{"content": token}); err != nil {
			return err
		}
	}
	if err := w.end(&x.plan); err != nil {
		return err
	}
	if err := x.chunk(w, object{}, reason); err != nil {
		return err
	}
	return x.finish(w, x.frame("chat.completion.chunk", "chatcmpl-"), x.counts(len(tokens)))
}

// streamCalls gives each call as providers do: first who is called, then the arguments in pieces.
func (x *job) streamCalls(w *writer) error {
	for i, c := range x.calls() {
		begin := object{"index": i, "id": c.id, "type": "function", "function": object{"name": c.name, "arguments": ""}}
		if err := x.paced(w, object{"tool_calls": []any{begin}}); err != nil {
			return err
		}
		for _, arguments := range c.pieces() {
			piece := object{"index": i, "function": object{"arguments": arguments}}
			if err := x.paced(w, object{"tool_calls": []any{piece}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// pieces returns the arguments in pieces of some 8 bytes, none of them cut inside a character.
func (c call) pieces() (out []string) {
	for rest := c.arguments; rest != ""; {
		n := min(len(rest), 8)
		for n < len(rest) && rest[n]&0xC0 == 0x80 {
			n++
		}
		out = append(out, rest[:n])
		rest = rest[n:]
	}
	return out
}

// paced gives one token as a chunk, at the plan's pace.
func (x *job) paced(w *writer, delta object) error {
	if err := w.token(&x.plan); err != nil {
		return err
	}
	return x.chunk(w, delta, nil)
}

func (x *job) chunk(w *writer, delta object, reason any) error {
	out := x.frame("chat.completion.chunk", "chatcmpl-")
	out["choices"] = []any{object{"index": 0, "delta": delta, "finish_reason": reason}}
	return w.event("", out)
}

// frame is what every chunk has.
func (x *job) frame(kind, prefix string) object {
	out := object{"id": prefix + x.id, "object": kind, "created": created, "model": x.Model}
	if x.StreamOptions.IncludeUsage && !x.noUsage {
		out["usage"] = nil
	}
	return out
}

// finish gives the counts, if they were asked for, and the end mark.
func (x *job) finish(w *writer, out object, c counted) error {
	if x.StreamOptions.IncludeUsage && !x.noUsage {
		out["choices"], out["usage"] = []any{}, c.object()
		if err := w.event("", out); err != nil {
			return err
		}
	}
	if err := w.body([]byte("data: [DONE]\n\n")); err != nil {
		return err
	}
	return w.count(&x.plan, c)
}

// complete answers POST /v1/completions, which knows text only.
func (p *Provider) complete(w *writer, body []byte) error {
	x, done, err := p.take(w, body, func(r *request) ([]string, string, error) {
		if len(r.Prompt) == 0 {
			return nil, "", errors.New("prompt: missing or empty")
		}
		return lastOf(r.Prompt, nil)
	})
	if done {
		return err
	}
	tokens, reason := x.answer()
	x.reasoning = 0
	c := x.counts(len(tokens))
	out := x.frame("text_completion", "cmpl-")
	choice := func(text string, reason any) []any {
		return []any{object{"index": 0, "text": text, "logprobs": nil, "finish_reason": reason}}
	}
	if !x.Stream {
		delete(out, "usage")
		out["choices"] = choice(strings.Join(tokens, ""), reason)
		if !x.noUsage {
			out["usage"] = c.object()
		}
		if err := w.deliver(&x.plan, c.output, out); err != nil {
			return err
		}
		return w.count(&x.plan, c)
	}
	return x.completeStream(w, tokens, c, out, choice, reason)
}

func (x *job) completeStream(w *writer, tokens []string, c counted, out object, choice func(string, any) []any, reason string) error {
	if err := w.beginStream(); err != nil {
		return err
	}
	for _, token := range tokens {
		if err := w.token(&x.plan); err != nil {
			return err
		}
		out["choices"] = choice(token, nil)
		if err := w.event("", out); err != nil {
			return err
		}
	}
	if err := w.end(&x.plan); err != nil {
		return err
	}
	out["choices"] = choice("", reason)
	if err := w.event("", out); err != nil {
		return err
	}
	return x.finish(w, out, c)
}
