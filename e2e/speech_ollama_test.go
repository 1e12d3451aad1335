package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"iop/e2e/fakeprovider"
)

func writeOllama(q *fakeprovider.Asked) string {
	body := ollamaBody(q)
	names := map[string]string{}
	var messages []object
	for i := range q.Messages {
		m := &q.Messages[i]
		out := object{"role": m.Role, "content": textOf(m)}
		if pictures := images(m); pictures != nil {
			out["images"] = pictures
		}
		if m.Reasoning != "" {
			out["thinking"] = m.Reasoning
		}
		var calls []object
		for j, c := range m.Calls {
			names[c.ID] = c.Name
			calls = append(calls, object{"id": c.ID, "function": object{"index": j, "name": c.Name, "arguments": json.RawMessage(c.Arguments)}})
		}
		if calls != nil {
			out["tool_calls"] = calls
		}
		if m.Role == "tool" {
			out["tool_call_id"], out["tool_name"] = m.CallID, names[m.CallID]
		}
		messages = append(messages, out)
	}
	body["messages"] = messages
	if tools := functions(q.Tools); tools != nil {
		body["tools"] = tools
	}
	return encode(body)
}

// writeGenerate writes a request of one prompt: the last message, with what the system says.
func writeGenerate(q *fakeprovider.Asked) string {
	body := ollamaBody(q)
	for i := range q.Messages {
		m := &q.Messages[i]
		switch m.Role {
		case "system":
			body["system"] = textOf(m)
		case "user":
			body["prompt"] = textOf(m)
			if pictures := images(m); pictures != nil {
				body["images"] = pictures
			}
		}
	}
	return encode(body)
}

func ollamaBody(q *fakeprovider.Asked) object {
	options := raw(q.Options)
	body := object{"model": q.Model}
	if !q.Stream {
		body["stream"] = false
	}
	if format := takeOption(options, "format"); format != "" {
		body["format"] = json.RawMessage(format)
	}
	if effort := takeOption(options, "reasoning_effort"); effort == `"none"` {
		body["think"] = false
	} else if effort != "" {
		body["think"] = json.RawMessage(effort)
	}
	move(options, "max_tokens", "num_predict")
	if len(options) > 0 {
		body["options"] = options
	}
	return body
}

// ollamaLine is a line of a stream, or a whole answer.
type ollamaLine struct {
	Model     string       `json:"model"`
	CreatedAt time.Time    `json:"created_at"`
	Message   *ollamaSaid  `json:"message"`
	Response  *string      `json:"response"`
	Thinking  string       `json:"thinking"` // of generate
	Calls     []ollamaCall `json:"tool_calls"`
	Done      *bool        `json:"done"`
	Reason    string       `json:"done_reason"`
	Input     number       `json:"prompt_eval_count"`
	Output    number       `json:"eval_count"`
	Total     int64        `json:"total_duration"`
	Load      int64        `json:"load_duration"`
	InputTime int64        `json:"prompt_eval_duration"`
	Time      int64        `json:"eval_duration"`
	Error     string       `json:"error"` // with Code alone
	Code      string       `json:"code"`
}

type ollamaSaid struct {
	Role     string       `json:"role"`
	Content  *string      `json:"content"`
	Thinking string       `json:"thinking"`
	Calls    []ollamaCall `json:"tool_calls"`
}

type ollamaCall struct {
	ID       string `json:"id"`
	Function struct {
		Index     int             `json:"index"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

func readOllama(body []byte, exact bool) (h heard, err error) {
	if err := h.addOllama(body, exact); err != nil {
		return h, err
	}
	if !h.Whole {
		return h, fmt.Errorf("not a whole answer: %s", shorten(body))
	}
	return h, nil
}

func readOllamaStream(body []byte, exact bool) (h heard, err error) {
	for line := range strings.Lines(string(body)) {
		text, whole := strings.CutSuffix(line, "\n")
		if !whole {
			return h, fmt.Errorf("half a line: %.200q", line)
		}
		if h.Whole || h.Failed != "" {
			return h, fmt.Errorf("goes on after its end: %.200q", line)
		}
		if err := h.addOllama([]byte(text), exact); err != nil {
			return h, err
		}
	}
	return h, nil
}

// addOllama adds what a line says.
func (h *heard) addOllama(text []byte, exact bool) error {
	var l ollamaLine
	if err := exactly(text, &l, exact); err != nil {
		return err
	}
	if l.Error != "" {
		if h.Failed = l.Code; l.Code == "" {
			h.Failed = l.Error
		}
		if l.Done != nil || l.Message != nil || l.Response != nil {
			return fmt.Errorf("an error among other things: %s", shorten(text))
		}
		return nil
	}
	calls := l.Calls
	switch m := l.Message; {
	case l.Model == "" || l.CreatedAt.IsZero() || l.Done == nil || (m == nil) == (l.Response == nil):
		return fmt.Errorf("not a line: %s", shorten(text))
	case m != nil:
		if m.Role != "assistant" || m.Content == nil {
			return fmt.Errorf("not a message: %s", shorten(text))
		}
		h.Text += *m.Content
		h.Reasoning += m.Thinking
		calls = m.Calls
	default:
		h.Text += *l.Response
		h.Reasoning += l.Thinking
	}
	if err := h.addOllamaCalls(calls, exact); err != nil {
		return fmt.Errorf("%w: %s", err, shorten(text))
	}
	switch {
	case *l.Done:
		return h.endOllama(&l, exact)
	case l.Reason != "" || l.Input != nil || l.Total != 0:
		return fmt.Errorf("tells the end's before it is done: %s", shorten(text))
	}
	return nil
}

func (h *heard) addOllamaCalls(calls []ollamaCall, exact bool) error {
	for _, c := range calls {
		if c.Function.Name == "" || exact && (c.ID == "" || c.Function.Index != len(h.Calls)) || !strings.HasPrefix(string(c.Function.Arguments), "{") {
			return errors.New("not a call")
		}
		h.Calls = append(h.Calls, fakeprovider.Call{ID: c.ID, Name: c.Function.Name, Arguments: string(c.Function.Arguments)})
	}
	return nil
}

// endOllama adds what the last line says.
func (h *heard) endOllama(l *ollamaLine, exact bool) error {
	if l.Reason == "" || exact && l.Total <= 0 {
		return errors.New("an end without a reason, or without a time")
	}
	h.Finish, h.Whole = l.Reason, true
	if len(h.Calls) > 0 && l.Reason == "stop" { // there is no word for it
		h.Finish = "tool_calls"
	}
	h.Usage = count(l.Input, l.Output, nil)
	return nil
}

func readOllamaError(body []byte) (code, text string, err error) {
	var e struct{ Error, Code string }
	err = exactly(body, &e, true)
	if err == nil && e.Error == "" {
		err = fmt.Errorf("not an error of this API: %s", shorten(body))
	}
	return e.Code, e.Error, err
}
