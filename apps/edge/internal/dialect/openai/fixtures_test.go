package openai

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"iop/apps/edge/internal/dialect"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

// refused are the recorded requests that a run can't carry, with the member at fault; of both providers.
var refused = map[string]string{
	"chat-400-bad-type":              "messages",
	"chat-400-invalid-json":          "",
	"chat-400-no-messages":           "messages",
	"chat-logprobs-long-lines":       "logprobs",
	"chat-n2":                        "n",
	"chat-stream-n2":                 "n",
	"gzip-request-body":              "",
	"503-loading":                    "model",
	"chat-server-killed-midstream":   "model",
	"chat-stream-queued-no-bytes-4s": "model",
	"chat-stream-sse-ping":           "model",
}

func recordings(t *testing.T) map[string]*fakeprovider.Fixture {
	t.Helper()
	list, err := fakeprovider.LoadFixtures(func(method, path string) bool { return method == "POST" && path == "/v1/chat/completions" })
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*fakeprovider.Fixture{}
	for _, f := range list {
		byName[f.Name] = f
	}
	return byName
}

// Every chat request that was recorded with a real provider can be a run, unless it asks for what no run has.
func TestRecordedRequestsAreRead(t *testing.T) {
	fixtures := recordings(t)
	if len(fixtures) < 50 {
		t.Fatalf("only %d recordings", len(fixtures))
	}
	for name, f := range fixtures {
		_, body, err := f.Parsed()
		if err != nil {
			t.Fatal(name, err)
		}
		_, short, _ := strings.Cut(name, "/")
		field, bad := refused[short]
		q, ref := Chat().Parse(body)
		switch {
		case bad && (ref == nil || ref.Field != field):
			t.Errorf("%s: %+v, want a refusal of %q", name, ref, field)
		case !bad && ref != nil:
			t.Errorf("%s: %+v", name, ref)
		case ref == nil:
			sameAsAsked(t, name, q, body)
		}
	}
}

// sameAsAsked compares what recorded requests have with what was read of it.
func sameAsAsked(t *testing.T, name string, q *dialect.Request, body []byte) {
	t.Helper()
	var asked struct {
		Model         string
		Stream        bool
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
		Messages []struct {
			Role, Content string
			ToolCallID    string            `json:"tool_call_id"`
			ToolCalls     []json.RawMessage `json:"tool_calls"`
		}
		Tools     []json.RawMessage
		MaxTokens *int64 `json:"max_tokens"`
		Stop      []string
		Effort    string `json:"reasoning_effort"`
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		t.Fatal(name, err)
	}
	in := q.Input
	if q.Model != asked.Model || q.Stream != asked.Stream || q.IncludeUsage != asked.StreamOptions.IncludeUsage ||
		len(in.Messages) != len(asked.Messages) || len(in.Tools) != len(asked.Tools) ||
		!reflect.DeepEqual(in.Options, execution.Options{MaxTokens: asked.MaxTokens, Stop: asked.Stop, ReasoningEffort: asked.Effort}) {
		t.Errorf("%s was read as %+v", name, q)
	}
	for i, m := range asked.Messages {
		got, text := in.Messages[i], ""
		for _, p := range got.Parts {
			text += p.Text
		}
		if string(got.Role) != m.Role || text != m.Content || got.ToolCallID != m.ToolCallID || len(got.ToolCalls) != len(m.ToolCalls) {
			t.Errorf("%s: messages[%d] was read as %+v", name, i, got)
		}
	}
}

const greeting = "Hello from the tiny test model. It streams one piece at a time: naïve café, 한국어 🙂\ndata: not an event\n\ndone!"

// Our answers have the shape of the real ones: to the same question the same object, but for what is the provider's own.
func TestWholeAnswersLookLikeRecordedOnes(t *testing.T) {
	fixtures := recordings(t)
	usage := func(in, out int64, cached *int64) execution.Completion {
		return execution.Completion{FinishReason: "stop", Usage: execution.Usage{Input: &in, Output: &out, Cached: cached}}
	}
	for name, c := range map[string]struct {
		events []execution.Event
		end    execution.Completion
	}{
		"ollama-0.17.4/chat":  {[]execution.Event{said(greeting)}, usage(6, 39, nil)},
		"llamacpp-0.7.0/chat": {[]execution.Event{said(greeting)}, usage(6, 39, count(2))},
		"llamacpp-0.7.0/chat-reasoning": {[]execution.Event{thought("Okay so someone asks something; let me reason about this slowly.\n"),
			said("The answer is forty-two.\n\n")}, usage(9, 22, count(8))},
		"llamacpp-0.7.0/chat-tool": {[]execution.Event{called(0, "RPFbwdwMqrxVMOiZcDCKJa0hjSnW246w", "get_weather", `{"city": "Seoul", "unit": "celsius"}`)},
			usage(337, 13, count(71))},
		"ollama-0.17.4/chat-tool": {[]execution.Event{called(0, "call_voj2l7kf", "get_weather", `{"city":"Seoul","unit":"celsius"}`)}, usage(176, 13, nil)},
	} {
		_, _, recorded, whole, err := fixtures[name].Answer()
		if err != nil || !whole {
			t.Fatal(name, err)
		}
		body, err := write(&dialect.Request{}, c.events, c.end)
		if err != nil {
			t.Fatal(err)
		}
		got, want := plain(t, []byte(body)), plain(t, recorded)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %v\nwant %v", name, got, want)
		}
	}
}

// plain reads an answer without what differs from one to the next, or between a provider and OpenAI's types.
func plain(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal(body, &out); err != nil {
		t.Fatal(err)
	}
	for _, own := range []string{"id", "created"} {
		if out[own] == nil {
			t.Errorf("no %s: %s", own, body)
		}
		delete(out, own)
	}
	for _, providers := range []string{"system_fingerprint", "timings"} {
		delete(out, providers)
	}
	choice := out["choices"].([]any)[0].(map[string]any)
	delete(choice, "logprobs") // null, which the types have
	message := choice["message"].(map[string]any)
	delete(message, "refusal") // null, too
	if calls, ok := message["tool_calls"].([]any); ok {
		delete(calls[0].(map[string]any), "index") // Ollama's alone
		if message["content"] == "" {
			message["content"] = nil // OpenAI's word for it
		}
	}
	return out
}

// A recorded stream, taken for a run and written again, reads the same as the recording itself by the same reader.
func TestStreamsReadLikeRecordedOnes(t *testing.T) {
	streams := 0
	for name, f := range recordings(t) {
		status, header, body, whole, err := f.Answer()
		_, request, perr := f.Parsed()
		if err != nil || perr != nil || !whole || status != 200 || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") ||
			!bytes.HasSuffix(body, []byte("data: [DONE]\n\n")) || strings.Contains(name, "n2") || strings.Contains(name, "ping") {
			continue
		}
		streams++
		want, events := replayed(t, name, body)
		if want.text+want.reasoning == "" && want.calls == nil || want.finish == "" {
			t.Fatalf("%s: the test didn't read the recording", name)
		}
		ask := bytes.Contains(request, []byte("include_usage"))
		var usage execution.Usage
		if want.usage != "" {
			usage = countsOf(t, want.usage)
		}
		out, err := write(streamed(ask), events, execution.Completion{FinishReason: want.finish, Usage: usage})
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := readStream([]byte(out), ask)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got.text != want.text || got.reasoning != want.reasoning || got.finish != want.finish || !reflect.DeepEqual(got.calls, want.calls) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, want)
		}
		if ask != (got.usage != "") || ask && countsOf(t, got.usage).Input == nil || ask && *countsOf(t, got.usage).Output != *usage.Output {
			t.Errorf("%s: usage %s, want %s", name, got.usage, want.usage)
		}
	}
	if streams < 12 {
		t.Errorf("only %d streams", streams)
	}
}

// replayed reads a recorded stream leniently, with the members that only its provider has, and makes events of it.
func replayed(t *testing.T, name string, body []byte) (read, []execution.Event) {
	t.Helper()
	var r read
	var events []execution.Event
	for event := range strings.SplitSeq(strings.TrimSuffix(string(body), "data: [DONE]\n\n"), "\n\n") {
		data := strings.TrimPrefix(event, "data: ")
		if data == "" {
			continue
		}
		var c struct {
			Usage   json.RawMessage `json:"usage"`
			Choices []struct {
				Delta struct {
					delta
					Thought string `json:"reasoning"` // Ollama's word
				} `json:"delta"`
				FinishReason string `json:"finish_reason"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatal(name, err, data)
		}
		if len(c.Usage) > 0 {
			r.usage = string(c.Usage)
		}
		for _, choice := range c.Choices {
			d := choice.Delta
			reasoning := first(d.Reasoning, d.Thought)
			events = append(events, thought(reasoning))
			r.reasoning += reasoning
			if d.Content != nil {
				events = append(events, said(*d.Content))
				r.text += *d.Content
			}
			for _, call := range d.ToolCalls {
				events = append(events, called(*call.Index, call.ID, call.Function.Name, *call.Function.Arguments))
				if call.ID != "" {
					r.calls = append(r.calls, execution.ToolCall{ID: call.ID, Name: call.Function.Name})
				}
				r.calls[*call.Index].Arguments += *call.Function.Arguments
			}
			r.finish += choice.FinishReason
		}
	}
	return r, events
}

func countsOf(t *testing.T, usage string) execution.Usage {
	t.Helper()
	var u struct {
		Prompt     *int64 `json:"prompt_tokens"`
		Completion *int64 `json:"completion_tokens"`
	}
	if err := json.Unmarshal([]byte(usage), &u); err != nil {
		t.Fatal(err)
	}
	return execution.Usage{Input: u.Prompt, Output: u.Completion}
}
