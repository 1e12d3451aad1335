package ollama

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// made is an answer's content, as a client has it at the end.
type made struct {
	Content, Thinking string
	Calls             []execution.ToolCall
	Reason            string
	Input, Output     int64 // -1 = untold
}

// collected reads an answer as Ollama's clients do: line by line, adding up until one is done.
func collected(raw []byte) (made, error) {
	got := made{Input: -1, Output: -1}
	done := false
	for text := range bytes.Lines(raw) {
		if done {
			return got, errors.New("a line behind the last")
		}
		var l line
		var failed struct{ Error string }
		if err := errors.Join(json.Unmarshal(text, &l), json.Unmarshal(text, &failed)); err != nil {
			return got, err
		}
		if failed.Error != "" {
			return got, errors.New(failed.Error)
		}
		if l.Model != "m" || l.CreatedAt.IsZero() {
			return got, fmt.Errorf("%s: whose?", text)
		}
		if l.Message == nil {
			if l.Response == nil {
				return got, fmt.Errorf("%s: neither a message nor a response", text)
			}
			l.Message = &said{Role: "assistant", Content: *l.Response, Thinking: l.Thinking, ToolCalls: l.ToolCalls}
		}
		if l.Message.Role != "assistant" {
			return got, fmt.Errorf("%s: who said that?", text)
		}
		got.Content += l.Message.Content
		got.Thinking += l.Message.Thinking
		for _, c := range l.Message.ToolCalls {
			if c.Function.Index != len(got.Calls) {
				return got, fmt.Errorf("%s: call %d comes as number %d", text, c.Function.Index, len(got.Calls))
			}
			got.Calls = append(got.Calls, execution.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: string(c.Function.Arguments)})
		}
		if done = l.Done; done {
			got.Reason = l.DoneReason
			if l.PromptEvalCount != nil {
				got.Input = *l.PromptEvalCount
			}
			if l.EvalCount != nil {
				got.Output = *l.EvalCount
			}
		}
	}
	if !done {
		return got, errors.New("cut")
	}
	return got, nil
}

// about is what every answer of these tests says of itself.
func about() dialect.About { return dialect.About{RunID: "run-1", Model: "m", Created: time.Now()} }

// drawn is a run's events in some order that a provider may send them in, and what they come to.
func drawn(t *rapid.T) ([]execution.Event, made) {
	want := made{Input: -1, Output: -1}
	texts := rapid.SliceOf(rapid.String()).Draw(t, "texts")
	thoughts := rapid.SliceOf(rapid.String()).Draw(t, "thoughts")
	queues := make([][]execution.Event, 2, 6)
	for _, s := range texts {
		queues[0] = append(queues[0], execution.Event{Kind: execution.EventDelta, Text: s})
		want.Content += s
	}
	for _, s := range thoughts {
		queues[1] = append(queues[1], execution.Event{Kind: execution.EventReasoning, Text: s})
		want.Thinking += s
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "calls") {
		object := rapid.MapOf(rapid.String(), rapid.Float64()).Draw(t, "arguments")
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		c := execution.ToolCall{ID: fmt.Sprint("id", i), Name: rapid.SampledFrom([]string{"look", "now"}).Draw(t, "name"), Arguments: string(text)}
		want.Calls = append(want.Calls, c)
		d := execution.ToolCallDelta{Index: i, ID: c.ID, Name: c.Name}
		var pieces []execution.Event
		for rest := c.Arguments; ; {
			n := rapid.IntRange(0, len(rest)).Draw(t, "cut")
			d.Arguments, rest = rest[:n], rest[n:]
			pieces = append(pieces, execution.Event{Kind: execution.EventToolCall, ToolCall: d})
			d = execution.ToolCallDelta{Index: i}
			if rest == "" {
				break
			}
		}
		queues = append(queues, pieces)
	}
	if rapid.Bool().Draw(t, "usage") {
		want.Input, want.Output = rapid.Int64Range(0, 1000).Draw(t, "input"), rapid.Int64Range(0, 1000).Draw(t, "output")
		queues = append(queues, []execution.Event{{Kind: execution.EventUsage, Usage: execution.Usage{Input: &want.Input, Output: &want.Output}}})
	}
	events := []execution.Event{{Kind: execution.EventStart, Model: "another name"}}
	begun := 0
	for {
		var ready []int // calls begin in the order of their index
		for q, queue := range queues {
			first := len(queue) > 0 && queue[0].Kind == execution.EventToolCall && queue[0].ToolCall.ID != ""
			if len(queue) > 0 && (!first || queue[0].ToolCall.Index == begun) {
				ready = append(ready, q)
			}
		}
		if len(ready) == 0 {
			return events, want
		}
		q := rapid.SampledFrom(ready).Draw(t, "next")
		if e := queues[q][0]; e.Kind == execution.EventToolCall && e.ToolCall.ID != "" {
			begun++
		}
		events, queues[q] = append(events, queues[q][0]), queues[q][1:]
	}
}

// Whatever order a run's events come in, parallel calls mixed, a client ends with what the model said; as a stream and as
// one object, of a chat and of a generation (ST-29).
func TestAnswersReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events, want := drawn(t)
		reason := rapid.SampledFrom([]string{"stop", "length", "tool_calls", "content_filter", ""}).Draw(t, "reason")
		want.Reason = map[string]string{"tool_calls": "stop", "": "stop"}[reason]
		if want.Reason == "" {
			want.Reason = reason
		}
		for _, e := range []dialect.Endpoint{Chat(), Generate()} {
			for _, stream := range []bool{true, false} {
				a := e.Answer(&dialect.Request{Model: "m", Stream: stream}, about())
				var out []byte
				var err error
				for _, e := range events {
					if out, err = a.Event(out, e); err != nil {
						t.Fatal(err)
					}
				}
				if !stream && len(out) > 0 {
					t.Fatalf("before its end an object has %s", out)
				}
				if out, err = a.End(out, execution.Completion{FinishReason: reason}); err != nil {
					t.Fatal(err)
				}
				got, err := collected(out)
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if len(got.Calls) == 0 {
					got.Calls = nil
				}
				if diff := cmp.Diff(want, got, cmp.Transformer("arguments", asArguments)); diff != "" {
					t.Fatalf("stream %v: %s\n%s", stream, diff, out)
				}
			}
		}
	})
}

// asArguments lets two calls be compared by what their arguments say.
func asArguments(c execution.ToolCall) map[string]any {
	out := map[string]any{"id": c.ID, "name": c.Name}
	var arguments map[string]any
	if json.Unmarshal([]byte(c.Arguments), &arguments) == nil {
		out["arguments"] = arguments
	}
	return out
}

// Wherever a stream fails, no client takes what it has for whole: Ollama's own end mark is the only one, and it isn't
// there (ST-23).
func TestFailureIsNoEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events, _ := drawn(t)
		events = events[:rapid.IntRange(0, len(events)).Draw(t, "cut")]
		text := rapid.SampledFrom([]string{"the provider's process ended\n{\"done\":true}", ""}).Draw(t, "text")
		f := &execution.Failure{Code: execution.CodeUpstreamTruncated, Origin: execution.OriginProvider, Text: text}
		for _, e := range []dialect.Endpoint{Chat(), Generate()} {
			a := e.Answer(&dialect.Request{Model: "m", Stream: true}, about())
			var out []byte
			var err error
			for _, e := range events {
				if out, err = a.Event(out, e); err != nil {
					t.Fatal(err)
				}
			}
			out = a.Fail(out, f)
			_, err = collected(out)
			want := text
			if want == "" {
				want = "upstream_truncated"
			}
			if err == nil || err.Error() != want {
				t.Fatalf("%v, want %q: %s", err, want, out)
			}
			last := out[bytes.LastIndexByte(out[:len(out)-1], '\n')+1:]
			if !bytes.Contains(last, []byte(`"code":"upstream_truncated"`)) {
				t.Fatalf("%s", last)
			}
		}
	})
	if got := Chat().Answer(&dialect.Request{}, about()).Fail(nil, &execution.Failure{}); len(got) > 0 {
		t.Errorf("an object that wasn't begun has %s", got)
	}
}

// Arguments that are no object have no place in an answer: the provider's fault, and never half of an answer.
func TestArgumentsMustBeAnObject(t *testing.T) {
	for arguments, ok := range map[string]bool{
		``: true, " \n": true, ` { "a" : 1 } `: true, `{}`: true, `{"a":1`: false, `{}{}`: false, `[]`: false, `null`: false, `"{}"`: false, `look`: false,
	} {
		for _, stream := range []bool{true, false} {
			a := Chat().Answer(&dialect.Request{Model: "m", Stream: stream}, about())
			d := execution.ToolCallDelta{ID: "a", Name: "look", Arguments: arguments}
			if _, err := a.Event(nil, execution.Event{Kind: execution.EventToolCall, ToolCall: d}); err != nil {
				t.Fatal(err)
			}
			out, err := a.End(nil, execution.Completion{FinishReason: "tool_calls"})
			if ok {
				if _, err := collected(out); err != nil {
					t.Errorf("%q: %v", arguments, err)
				}
				continue
			}
			var f *execution.Failure
			if !errors.As(err, &f) || f.Code != execution.CodeAdapterDecode || f.Origin != execution.OriginProvider || len(out) > 0 {
				t.Errorf("%q: %s, %v", arguments, out, err)
			}
		}
	}
	// What the length cut off is no call, and the end says why.
	for _, stream := range []bool{true, false} {
		a := Chat().Answer(&dialect.Request{Model: "m", Stream: stream}, about())
		for i, arguments := range []string{`{"a":1}`, `{"a":`} {
			d := execution.ToolCallDelta{Index: i, ID: fmt.Sprint("id", i), Name: "look", Arguments: arguments}
			if _, err := a.Event(nil, execution.Event{Kind: execution.EventToolCall, ToolCall: d}); err != nil {
				t.Fatal(err)
			}
		}
		out, err := a.End(nil, execution.Completion{FinishReason: "length"})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := collected(out); err != nil || len(got.Calls) != 1 || got.Reason != "length" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	// A piece of a call that never began.
	a := Chat().Answer(&dialect.Request{Model: "m", Stream: true}, about())
	if _, err := a.Event(nil, execution.Event{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: 1, ID: "a", Name: "look"}}); err != nil {
		t.Fatal(err)
	}
	if out, err := a.End(nil, execution.Completion{}); err == nil || len(out) > 0 {
		t.Errorf("a call without a name: %s", out)
	}
}

// The counts of the completion are the last word; what it doesn't say is as the events said, and what nobody said isn't
// zero but left out.
func TestUsage(t *testing.T) {
	for _, tt := range []struct{ told, last, want execution.Usage }{
		{},
		{told: execution.Usage{Input: ptr(int64(1)), Output: ptr(int64(2))}, want: execution.Usage{Input: ptr(int64(1)), Output: ptr(int64(2))}},
		{told: execution.Usage{Input: ptr(int64(1)), Output: ptr(int64(2))}, last: execution.Usage{Output: ptr(int64(3))},
			want: execution.Usage{Input: ptr(int64(1)), Output: ptr(int64(3))}},
		{last: execution.Usage{Input: ptr(int64(0))}, want: execution.Usage{Input: ptr(int64(0))}},
	} {
		a := Chat().Answer(&dialect.Request{Model: "m"}, about())
		if _, err := a.Event(nil, execution.Event{Kind: execution.EventUsage, Usage: tt.told}); err != nil {
			t.Fatal(err)
		}
		out, err := a.End(nil, execution.Completion{FinishReason: "stop", Usage: tt.last})
		if err != nil {
			t.Fatal(err)
		}
		var got line
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, execution.Usage{Input: got.PromptEvalCount, Output: got.EvalCount}); diff != "" {
			t.Errorf("%s: %s", out, diff)
		}
	}
}

// The command line looks for the words "not found" when a model is unknown.
func TestEncodeError(t *testing.T) {
	for _, tt := range []struct {
		f    execution.Failure
		want string
	}{
		{execution.Failure{Code: execution.CodeQueueFull, Text: "no place"}, `{"error":"no place","code":"queue_full"}`},
		{execution.Failure{Code: execution.CodeInternal}, `{"error":"internal","code":"internal"}`},
		{execution.Failure{Code: execution.CodeUnknownModel, Text: "no such model"}, `{"error":"model not found: no such model","code":"unknown_model"}`},
	} {
		for _, e := range []dialect.Endpoint{Chat(), Generate()} {
			if got := string(e.EncodeError(503, &tt.f, "model")); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		}
	}
}

// A stream is lines: no text breaks one.
func TestLinesStayWhole(t *testing.T) {
	a := Chat().Answer(&dialect.Request{Model: "m", Stream: true}, about())
	out, err := a.Event(nil, execution.Event{Kind: execution.EventDelta, Text: "a\r\nb\u2028c"})
	if err != nil || strings.Count(string(out), "\n") != 1 || !bytes.HasSuffix(out, []byte("\"done\":false}\n")) {
		t.Errorf("%s, %v", out, err)
	}
	if out, err = a.Event(nil, execution.Event{Kind: execution.EventDelta}); err != nil || len(out) > 0 {
		t.Errorf("an empty piece is %s", out)
	}
}
