package loopback

import (
	"encoding/json"
	"errors"
	"strings"
)

// respond answers POST /v1/responses with one text; the directives reasoning and tools don't belong to this path.
func (p *Provider) respond(w *writer, body []byte) error {
	x, done, err := p.take(w, body, func(r *request) ([]string, string, error) { return lastOf(inputTexts(r.Input)) })
	if done {
		return err
	}
	x.reasoning, x.tools = 0, 0
	tokens, reason := x.answer()
	s := &response{job: x, text: strings.Join(tokens, ""), counted: x.counts(len(tokens)), status: "completed"}
	if reason == "length" {
		s.status = "incomplete"
	}
	if x.Stream {
		return s.stream(w, tokens)
	}
	if err := w.deliver(&x.plan, len(tokens), s.whole(s.status)); err != nil {
		return err
	}
	return w.count(&x.plan, s.counted)
}

// inputTexts reads an input: a text, or a list of items with a content.
func inputTexts(raw json.RawMessage) ([]string, error) {
	var one string
	if json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}, nil
	}
	var items []message
	if json.Unmarshal(raw, &items) == nil {
		var out []string
		for _, item := range items {
			if len(item.Content) > 0 {
				out = append(out, item.Content.String())
			}
		}
		if len(out) > 0 {
			return out, nil
		}
	}
	return nil, errors.New("input: missing, empty, or of another form")
}

// response is the answer of the responses API.
type response struct {
	*job
	text    string
	counted counted
	status  string
	seq     int
}

// whole returns the object as it is at a status; its output stands in it once it is over.
func (s *response) whole(status string) object {
	out := object{"id": "resp_" + s.id, "object": "response", "created_at": created, "model": s.Model, "status": status,
		"output": []any{}, "error": nil, "incomplete_details": nil, "usage": nil}
	if status == "in_progress" {
		return out
	}
	if status == "incomplete" {
		out["incomplete_details"] = object{"reason": "max_output_tokens"}
	}
	out["output"] = []any{s.item(status, []any{s.part(s.text)})}
	if !s.noUsage {
		c := s.counted
		out["usage"] = object{"input_tokens": c.input, "output_tokens": c.output, "total_tokens": c.input + c.output,
			"input_tokens_details": object{"cached_tokens": 0}, "output_tokens_details": object{"reasoning_tokens": 0}}
	}
	return out
}

func (s *response) item(status string, content []any) object {
	return object{"id": "msg_" + s.id, "type": "message", "role": "assistant", "status": status, "content": content}
}

func (s *response) part(text string) object {
	return object{"type": "output_text", "text": text, "annotations": []any{}}
}

func (s *response) stream(w *writer, tokens []string) error {
	if err := w.beginStream(); err != nil {
		return err
	}
	place := func(more object) object {
		more["item_id"], more["output_index"], more["content_index"] = "msg_"+s.id, 0, 0
		return more
	}
	begin := []struct {
		name string
		v    object
	}{
		{"response.created", object{"response": s.whole("in_progress")}},
		{"response.in_progress", object{"response": s.whole("in_progress")}},
		{"response.output_item.added", object{"output_index": 0, "item": s.item("in_progress", []any{})}},
		{"response.content_part.added", place(object{"part": s.part("")})},
	}
	for _, e := range begin {
		if err := s.send(w, e.name, e.v); err != nil {
			return err
		}
	}
	for _, token := range tokens {
		if err := w.token(&s.plan); err != nil {
			return err
		}
		if err := s.send(w, "response.output_text.delta", place(object{"delta": token})); err != nil {
			return err
		}
	}
	if err := w.end(&s.plan); err != nil {
		return err
	}
	if err := s.send(w, "response.output_text.done", place(object{"text": s.text})); err != nil {
		return err
	}
	if err := s.send(w, "response.content_part.done", place(object{"part": s.part(s.text)})); err != nil {
		return err
	}
	if err := s.send(w, "response.output_item.done", object{"output_index": 0, "item": s.item(s.status, []any{s.part(s.text)})}); err != nil {
		return err
	}
	if err := s.send(w, "response."+s.status, object{"response": s.whole(s.status)}); err != nil {
		return err
	}
	return w.count(&s.plan, s.counted)
}

func (s *response) send(w *writer, name string, v object) error {
	v["type"], v["sequence_number"] = name, s.seq
	s.seq++
	return w.event(name, v)
}
