package anthropic

import (
	"encoding/json"
	"strings"
	"testing"

	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

func recordings(t *testing.T) []*fakeprovider.Fixture {
	t.Helper()
	list, err := fakeprovider.LoadFixtures(func(method, path string) bool { return method == "POST" && path == "/v1/messages" })
	if err != nil || len(list) < 10 {
		t.Fatalf("%d recordings: %v", len(list), err)
	}
	return list
}

// Every recorded request is one that a run can carry.
func TestRecordedRequestsAreRead(t *testing.T) {
	for _, f := range recordings(t) {
		_, body, err := f.Parsed()
		if err != nil {
			t.Fatal(f.Name, err)
		}
		r := parse(t, string(body))
		var asked struct {
			Stream    bool
			MaxTokens int64 `json:"max_tokens"`
			Messages  []struct{ Content string }
			Tools     []struct{ Name string }
			Thinking  *struct {
				Budget int64 `json:"budget_tokens"`
			}
		}
		if err := json.Unmarshal(body, &asked); err != nil {
			t.Fatal(f.Name, err)
		}
		in := r.Input
		if r.Stream != asked.Stream || *in.Options.MaxTokens != asked.MaxTokens || len(in.Tools) != len(asked.Tools) ||
			len(in.Messages) != 1 || in.Messages[0].Parts[0].Text != asked.Messages[0].Content {
			t.Errorf("%s: read as %+v", f.Name, r)
		}
		if b := in.Options.ReasoningBudget; (b == nil) != (asked.Thinking == nil) || b != nil && *b != asked.Thinking.Budget {
			t.Errorf("%s: budget %v", f.Name, b)
		}
	}
}

// What real providers answered, taken for a run's events and written again, says the same to a client, whole and as a
// stream.
func TestAnswersReadLikeRecordedOnes(t *testing.T) {
	answers := 0
	for _, f := range recordings(t) {
		status, _, body, whole, err := f.Answer()
		if err != nil || !whole {
			t.Fatal(f.Name, err)
		}
		if status != 200 {
			continue
		}
		answers++
		want, events := replayed(t, f.Name, body)
		if len(want.Content) == 0 || want.StopReason == nil || *want.Usage.Output == 0 {
			t.Fatalf("%s: the test didn't read the recording: %+v", f.Name, want)
		}
		end := execution.Completion{FinishReason: map[string]string{"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}[*want.StopReason],
			Usage: execution.Usage{Input: want.Usage.Input, Output: want.Usage.Output, Cached: want.Usage.Cached}}
		if want.Usage.Cached != nil { // a run counts it within
			sum := *want.Usage.Input + *want.Usage.Cached
			end.Usage.Input = &sum
		}
		for from, got := range map[string]*message{"stream": streamed(t, end, events...).message, "object": whole1(t, end, events...)} {
			gotThinking, gotText, gotCalls := got.parts()
			thinking, text, calls := want.parts()
			if gotThinking != thinking || gotText != text || *got.StopReason != *want.StopReason ||
				*got.Usage.Input != *want.Usage.Input || *got.Usage.Output != *want.Usage.Output || len(gotCalls) != len(calls) {
				t.Errorf("%s, %s: %+v, want %+v", f.Name, from, got, want)
			}
			for i := range calls {
				if gotCalls[i].ID != calls[i].ID || gotCalls[i].Name != calls[i].Name || !sameJSON(string(calls[i].Input), string(gotCalls[i].Input)) {
					t.Errorf("%s, %s: %+v, want %+v", f.Name, from, gotCalls[i], calls[i])
				}
			}
		}
	}
	if answers < 8 {
		t.Errorf("only %d answers", answers)
	}
}

// replayed reads a recorded answer as leniently as clients do, and makes events of it.
func replayed(t *testing.T, name string, body []byte) (*message, []execution.Event) {
	t.Helper()
	m := &message{}
	if !strings.HasPrefix(string(body), "event: ") {
		if err := json.Unmarshal(body, m); err != nil {
			t.Fatal(name, err)
		}
		_, text, _ := m.parts()
		return m, []execution.Event{say(text)}
	}
	var events []execution.Event
	for line := range strings.Lines(string(body)) {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e struct {
			streamEvent
			Delta struct {
				Text, Thinking string
				Partial        string  `json:"partial_json"`
				StopReason     *string `json:"stop_reason"`
			} `json:"delta"`
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(name, err, data)
		}
		switch e.Type {
		case "message_start":
			m = e.Message
		case "content_block_start":
			m.Content = append(m.Content, *e.ContentBlock)
			if c := e.ContentBlock; c.Type == "tool_use" {
				m.Content[*e.Index].Input = nil
				events = append(events, call(len(m.Content)-1, c.ID, c.Name, ""))
			}
		case "content_block_delta":
			c := &m.Content[*e.Index]
			switch d := e.Delta; c.Type {
			case "text":
				*c.Text += d.Text
				events = append(events, say(d.Text))
			case "thinking":
				*c.Thinking += d.Thinking
				events = append(events, think(d.Thinking))
			default:
				c.Input = append(c.Input, d.Partial...)
				events = append(events, call(*e.Index, "", "", d.Partial))
			}
		case "message_delta":
			m.StopReason, m.Usage.Output = e.Delta.StopReason, e.Usage.Output
			if e.Usage.Input != nil {
				m.Usage.Input = e.Usage.Input
			}
		}
	}
	return m, events
}

// The errors of a real provider and ours have the same types for the same statuses.
func TestErrorsHaveTheRecordedTypes(t *testing.T) {
	failures := 0
	for _, f := range recordings(t) {
		status, _, body, _, err := f.Answer()
		if err != nil || status == 200 {
			continue
		}
		failures++
		var want, got failure
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(f.Name, err)
		}
		if err := strictly(string(Messages().EncodeError(status, &execution.Failure{Code: execution.CodeNoNode}, "")), &got); err != nil {
			t.Fatal(err)
		}
		if got.Type != want.Type || got.Error.Type != want.Error.Type {
			t.Errorf("%s: %s %s, want %s %s", f.Name, got.Type, got.Error.Type, want.Type, want.Error.Type)
		}
	}
	if failures != 2 {
		t.Errorf("%d failures", failures)
	}
}
