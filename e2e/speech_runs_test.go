package e2e

import (
	"encoding/json"
	"fmt"

	"iop/e2e/fakeprovider"
)

func writeRun(q *fakeprovider.Asked) string {
	options := raw(q.Options)
	openAIFormat(options)
	body := object{"adapter": "gpu", "target": q.Model, "stream": q.Stream, "options": options}
	var messages []object
	for i := range q.Messages {
		messages = append(messages, writeRunMessage(&q.Messages[i]))
	}
	body["messages"] = messages
	var tools []object
	for _, t := range q.Tools {
		tools = append(tools, object{"name": t.Name, "description": t.Description, "parameters": json.RawMessage(t.Schema)})
	}
	if tools != nil {
		body["tools"] = tools
	}
	switch name, named := cutPrefix(q.Choice, "tool "); {
	case named:
		body["tool_choice"] = object{"mode": "tool", "name": name}
	case q.Choice != "":
		body["tool_choice"] = q.Choice
	}
	return encode(body)
}

func writeRunMessage(m *fakeprovider.Message) object {
	parts := []object{}
	for _, c := range m.Content {
		if c.Image == "" {
			parts = append(parts, object{"type": "text", "text": c.Text})
			continue
		}
		mediaType, data := cutImage(c.Image)
		parts = append(parts, object{"type": "image", "media_type": mediaType, "data": data})
	}
	out := object{"role": m.Role, "content": parts}
	if m.Reasoning != "" {
		out["reasoning"] = m.Reasoning
	}
	if m.CallID != "" {
		out["tool_call_id"] = m.CallID
	}
	if m.Failed {
		out["failed"] = true
	}
	var calls []object
	for _, c := range m.Calls {
		calls = append(calls, object{"id": c.ID, "name": c.Name, "arguments": c.Arguments})
	}
	if calls != nil {
		out["tool_calls"] = calls
	}
	return out
}

// runUsage is the token counts of a run.
type runUsage struct {
	Input     number `json:"input"`
	Output    number `json:"output"`
	Cached    number `json:"cached"`
	Reasoning number `json:"reasoning"`
}

func (u *runUsage) count() *fakeprovider.Usage {
	if u == nil {
		return nil
	}
	return count(u.Input, u.Output, u.Cached)
}

func readRun(body []byte, exact bool) (h heard, err error) {
	var a struct {
		RunID     string              `json:"run_id"`
		SessionID string              `json:"session_id"`
		Node      string              `json:"node"`
		Adapter   string              `json:"adapter"`
		Target    string              `json:"target"`
		Model     string              `json:"model"`
		Text      *string             `json:"text"`
		Reasoning string              `json:"reasoning"`
		Calls     []fakeprovider.Call `json:"tool_calls"`
		Finish    *string             `json:"finish_reason"`
		Usage     *runUsage           `json:"usage"`
	}
	if err := exactly(body, &a, exact); err != nil {
		return h, err
	}
	if a.RunID == "" || a.Node == "" || a.Adapter != "gpu" || a.Text == nil || a.Finish == nil {
		return h, fmt.Errorf("not a run: %s", shorten(body))
	}
	return heard{Text: *a.Text, Reasoning: a.Reasoning, Calls: a.Calls, Finish: *a.Finish, Usage: a.Usage.count(), Whole: true}, nil
}

// runEvent is the data of a run's event.
type runEvent struct {
	RunID     string      `json:"run_id"`
	Seq       int         `json:"seq"`
	SessionID string      `json:"session_id"`
	Model     string      `json:"model"`
	Text      string      `json:"text"`
	Index     *int        `json:"index"`
	ID        string      `json:"id"`
	Name      string      `json:"name"`
	Arguments string      `json:"arguments"`
	Usage     *runUsage   `json:"usage"`
	Finish    string      `json:"finish_reason"`
	Cause     string      `json:"cause"`
	Error     *runFailure `json:"error"`
}

type runFailure struct {
	Code     string `json:"code"`
	Message  string `json:"message"`
	Origin   string `json:"origin"`
	Upstream int    `json:"upstream_status"`
}

func readRunStream(body []byte, exact bool) (h heard, err error) {
	list, broken := frames(body, exact)
	for i, se := range list {
		var e runEvent
		if err := exactly([]byte(se.data), &e, exact); err != nil {
			return h, err
		}
		if e.Seq != i+1 || e.RunID == "" || h.Whole || h.Failed != "" || (se.name == "start") != (i == 0) && se.name != "error" {
			return h, fmt.Errorf("out of order, or after the end: %+v", se)
		}
		if err := h.addRun(se.name, &e); err != nil {
			return h, fmt.Errorf("%w: %.300s", err, se.data)
		}
	}
	return h, broken
}

// addRun adds what an event says.
func (h *heard) addRun(name string, e *runEvent) error {
	switch name {
	case "start", "usage":
	case "delta":
		h.Text += e.Text
	case "reasoning_delta":
		h.Reasoning += e.Text
	case "tool_call":
		if e.Index == nil || *e.Index > len(h.Calls) || (*e.Index == len(h.Calls)) != (e.ID != "" && e.Name != "") {
			return fmt.Errorf("not a piece of a call")
		}
		if *e.Index == len(h.Calls) {
			h.Calls = append(h.Calls, fakeprovider.Call{ID: e.ID, Name: e.Name})
		}
		h.Calls[*e.Index].Arguments += e.Arguments
	case "complete":
		h.Finish, h.Usage, h.Whole = e.Finish, e.Usage.count(), true
	case "error":
		if e.Error == nil || e.Error.Code == "" || e.Error.Message == "" {
			return fmt.Errorf("not an error")
		}
		h.Failed = e.Error.Code
	case "cancelled":
		h.Failed = "cancelled"
	default:
		return fmt.Errorf("no event of a run: %s", name)
	}
	return nil
}

func readRunError(body []byte) (code, text string, err error) {
	var e struct {
		Error struct{ Code, Message, Origin, Param string }
	}
	err = exactly(body, &e, true)
	text = e.Error.Message
	if e.Error.Param != "" {
		text = e.Error.Param + " | " + text
	}
	if err == nil && (e.Error.Code == "" || e.Error.Message == "" || e.Error.Origin == "") {
		err = fmt.Errorf("not an error of this API: %s", shorten(body))
	}
	return e.Error.Code, text, err
}
