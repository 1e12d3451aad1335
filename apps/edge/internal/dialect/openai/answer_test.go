package openai

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

var about = dialect.About{RunID: "run-ABC", Model: "tiny", Created: time.Unix(1795956714, 5e8)}

func count(n int64) *int64 { return &n }

func said(text string) execution.Event {
	return execution.Event{Kind: execution.EventDelta, Text: text}
}

func thought(text string) execution.Event {
	return execution.Event{Kind: execution.EventReasoning, Text: text}
}

func called(index int, id, name, arguments string) execution.Event {
	return execution.Event{Kind: execution.EventToolCall,
		ToolCall: execution.ToolCallDelta{Index: index, ID: id, Name: name, Arguments: arguments}}
}

func used(u execution.Usage) execution.Event {
	return execution.Event{Kind: execution.EventUsage, Usage: u}
}

var started = execution.Event{Kind: execution.EventStart, Model: "provider's own name"}

// write writes an answer.
func write(r *dialect.Request, events []execution.Event, c execution.Completion) (string, error) {
	a := Chat().Answer(r, about)
	var out []byte
	for _, e := range events {
		var err error
		if out, err = a.Event(out, e); err != nil {
			return string(out), err
		}
	}
	out, err := a.End(out, c)
	return string(out), err
}

func streamed(includeUsage bool) *dialect.Request {
	return &dialect.Request{Stream: true, IncludeUsage: includeUsage}
}

// What goes out, byte by byte: each kind of chunk, in the order of the events.
func TestStreamAsBytes(t *testing.T) {
	usage := execution.Usage{Input: count(9), Output: count(22), Cached: count(8), Reasoning: count(3)}
	got, err := write(streamed(true), []execution.Event{
		started, thought("hm"), said("naïve \"<b>\"\n"), said(""), called(0, "call_1", "look", ""), called(0, "", "", `{"at"`),
		called(1, "call_2", "now", "{}"), called(0, "", "", ""), called(0, "", "", ":1}"), used(usage),
	}, execution.Completion{FinishReason: "tool_calls"})
	if err != nil {
		t.Fatal(err)
	}
	const head = `data: {"id":"chatcmpl-ABC","object":"chat.completion.chunk","created":1795956714,"model":"tiny","choices":[`
	delta := func(d string) string {
		return head + `{"index":0,"delta":` + d + `,"finish_reason":null}],"usage":null}` + "\n\n"
	}
	want := delta(`{"role":"assistant","content":null}`) +
		delta(`{"reasoning_content":"hm"}`) +
		delta(`{"content":"naïve \"<b>\"\n"}`) +
		delta(`{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"look","arguments":""}}]}`) +
		delta(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"at\""}}]}`) +
		delta(`{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"now","arguments":"{}"}}]}`) +
		delta(`{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}`) +
		head + `{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":null}` + "\n\n" +
		head + `],"usage":{"prompt_tokens":9,"completion_tokens":22,"total_tokens":31,` +
		`"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":3}}}` + "\n\n" +
		"data: [DONE]\n\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if kind := Chat().Answer(streamed(true), about).ContentType(); kind != "text/event-stream" {
		t.Error(kind)
	}
}

func TestWholeAsBytes(t *testing.T) {
	const head = `{"id":"chatcmpl-ABC","object":"chat.completion","created":1795956714,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":`
	call := `,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"look","arguments":"{}"}},` +
		`{"id":"call_2","type":"function","function":{"name":"now","arguments":""}}]`
	calls := []execution.Event{called(0, "call_1", "look", "{"), called(1, "call_2", "now", ""), called(0, "", "", "}")}
	for name, c := range map[string]struct {
		events []execution.Event
		end    execution.Completion
		want   string
	}{
		"text, the end has the counts": {[]execution.Event{started, said("na"), said("ïve"), used(execution.Usage{Input: count(1)})},
			execution.Completion{FinishReason: "length", Usage: execution.Usage{Input: count(6), Output: count(0)}},
			`"naïve","refusal":null},"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":6,"completion_tokens":0,"total_tokens":6}}`},
		"unknown usage is not told": {[]execution.Event{said("x")}, execution.Completion{FinishReason: "stop", Usage: execution.Usage{Cached: count(1)}},
			`"x","refusal":null},"logprobs":null,"finish_reason":"stop"}]}`},
		"calls alone": {calls, execution.Completion{FinishReason: "tool_calls"},
			`null,"refusal":null` + call + `},"logprobs":null,"finish_reason":"tool_calls"}]}`},
		"reasoning, text and calls; Ollama's done reason": {append([]execution.Event{thought("h"), thought("m"), said("so")}, calls...), execution.Completion{FinishReason: "stop"},
			`"so","refusal":null,"reasoning_content":"hm"` + call + `},"logprobs":null,"finish_reason":"tool_calls"}]}`},
		"nothing but reasoning": {[]execution.Event{thought("hm")}, execution.Completion{FinishReason: "length"},
			`"","refusal":null,"reasoning_content":"hm"},"logprobs":null,"finish_reason":"length"}]}`},
		"nothing, and no reason": {nil, execution.Completion{},
			`"","refusal":null},"logprobs":null,"finish_reason":"stop"}]}`},
		"a provider's own word": {nil, execution.Completion{FinishReason: "pause_turn"},
			`"","refusal":null},"logprobs":null,"finish_reason":"pause_turn"}]}`},
	} {
		got, err := write(&dialect.Request{}, c.events, c.end)
		if want := head + c.want + "\n"; err != nil || got != want {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", name, err, got, want)
		}
	}
	if kind := Chat().Answer(&dialect.Request{}, about).ContentType(); kind != "application/json" {
		t.Error(kind)
	}
}

// A stream without any event is still an answer that SDKs can read, and counts are told only to who asked, once. (ST-28)
func TestStreamTellsCountsToWhoAsked(t *testing.T) {
	known := execution.Usage{Input: count(11), Output: count(7)}
	const eleven = `{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}`
	for name, c := range map[string]struct {
		ask    bool
		events []execution.Event
		end    execution.Usage
		want   string
	}{
		"not asked":                     {false, []execution.Event{used(known)}, known, ""},
		"by the end":                    {true, nil, known, eleven},
		"by an event":                   {true, []execution.Event{used(execution.Usage{Input: count(3)}), used(known)}, execution.Usage{}, eleven},
		"unknown":                       {true, nil, execution.Usage{}, ""},
		"none that it can't be without": {true, nil, execution.Usage{Reasoning: count(4)}, ""},
		"half":                          {true, nil, execution.Usage{Output: count(7)}, `{"prompt_tokens":0,"completion_tokens":7,"total_tokens":7}`},
		"zero is a number":              {true, nil, execution.Usage{Input: count(0), Cached: count(0)}, `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,"prompt_tokens_details":{"cached_tokens":0}}`},
	} {
		body, err := write(streamed(c.ask), c.events, execution.Completion{FinishReason: "stop", Usage: c.end})
		if err != nil {
			t.Fatal(err)
		}
		got, err := readStream([]byte(body), c.ask)
		if err != nil || got.usage != c.want {
			t.Errorf("%s: %v, %s\n%s", name, err, got.usage, body)
		}
	}
}

// A stream that failed has an error that SDKs throw, and no end mark. (ST-13, ST-17, ST-20)
func TestStreamThatFailed(t *testing.T) {
	for _, begun := range []bool{false, true} {
		a := Chat().Answer(streamed(false), about)
		var out []byte
		if begun {
			out, _ = a.Event(out, said("half"))
		}
		out = a.Fail(out, execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "the provider <broke> off"))
		got, err := readStream(out, false)
		if err != nil || got.failure != "the provider <broke> off" || got.finish != "" || strings.Contains(string(out), "[DONE]") {
			t.Errorf("%v %+v\n%s", err, got, out)
		}
		const tail = `,"type":"server_error","param":null,"code":"upstream_truncated"}}` + "\n\n"
		if !strings.HasSuffix(string(out), tail) {
			t.Errorf("%s", out)
		}
	}
	// Of one object nothing was sent, so the error is a response of its own.
	if out := Chat().Answer(&dialect.Request{}, about).Fail(nil, execution.Failf(execution.CodeNodeLost, execution.OriginEdge, "x")); len(out) > 0 {
		t.Errorf("%s", out)
	}
}

// A call that nobody could make ends the answer, whoever the node is that tells of it. (ST-30)
func TestAnswersRefuseCallsThatNobodyCouldMake(t *testing.T) {
	for _, r := range []*dialect.Request{streamed(false), {}} {
		for _, events := range [][]execution.Event{
			{called(0, "", "", "{}")}, {called(0, "call_1", "", "{}")}, {called(0, "", "look", "{}")},
			{called(-1, "call_1", "look", "{}")}, {called(dialect.MaxCalls, "call_1", "look", "{}")}, {called(1<<31, "call_1", "look", "{}")},
			{called(0, "call_1", "look", "{}"), called(1, "", "", "{}")},
		} {
			var f *execution.Failure
			if out, err := write(r, events, execution.Completion{}); !errors.As(err, &f) || f.Code != execution.CodeAdapterDecode {
				t.Errorf("%+v: %v, %s", events, err, out)
			}
		}
	}
}

func TestEncodeError(t *testing.T) {
	f := execution.Failf(execution.CodeUnknownModel, execution.OriginCaller, "no such <model>")
	for status, kind := range map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
		404: "invalid_request_error", 429: "rate_limit_error", 499: "invalid_request_error", 500: "server_error", 503: "server_error"} {
		want := `{"error":{"message":"no such \u003cmodel\u003e","type":"` + kind + `","param":"model","code":"unknown_model"}}` + "\n"
		if got := string(Chat().EncodeError(status, f, "model")); got != want {
			t.Errorf("%d: %s", status, got)
		}
	}
	got := string(Chat().EncodeError(502, &execution.Failure{Code: execution.CodeNodeLost}, ""))
	if want := `{"error":{"message":"node_lost","type":"server_error","param":null,"code":"node_lost"}}` + "\n"; got != want {
		t.Error(got)
	}
}

// drawn is an answer in any order that a run may have: a start or none, then pieces of all kinds as they fall, of each
// call the one with its name first, in the order of their indexes.
func drawn(t *rapid.T) ([]execution.Event, execution.Completion) {
	var events []execution.Event
	if rapid.Bool().Draw(t, "start") {
		events = append(events, started)
	}
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ \n"\\{}a]{0,4}`))
	number := rapid.Ptr(rapid.Int64Range(0, 1<<40), true)
	usage := rapid.Custom(func(t *rapid.T) execution.Usage {
		return execution.Usage{Input: number.Draw(t, "in"), Output: number.Draw(t, "out"), Cached: number.Draw(t, "cached"), Reasoning: number.Draw(t, "reasoning")}
	})
	calls := 0
	for range rapid.IntRange(0, 30).Draw(t, "events") {
		switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
		case kind == 0:
			events = append(events, said(text.Draw(t, "text")))
		case kind == 1:
			events = append(events, thought(text.Draw(t, "thought")))
		case kind == 2:
			events = append(events, used(usage.Draw(t, "usage")))
		case kind == 3:
			id := "call_" + strings.Repeat("x", calls)
			events = append(events, called(calls, id, rapid.SampledFrom([]string{"look", "now"}).Draw(t, "name"), text.Draw(t, "arguments")))
			calls++
		case calls > 0:
			events = append(events, called(rapid.IntRange(0, calls-1).Draw(t, "call"), "", "", text.Draw(t, "arguments")))
		}
	}
	c := execution.Completion{FinishReason: rapid.SampledFrom([]string{"", "stop", "length", "tool_calls", "content_filter", "eos"}).Draw(t, "reason")}
	if rapid.Bool().Draw(t, "counted") {
		c.Usage = usage.Draw(t, "usage")
	}
	return events, c
}

// Whatever a run says, in whatever order, a client reads the same of it, as a stream and as one object. (ST-20, ST-29)
func TestAnswersReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events, c := drawn(t)
		want := read{id: "chatcmpl-ABC", model: "tiny", created: about.Created.Unix()}
		var seen dialect.Whole
		for _, e := range events {
			if err := seen.Event(e); err != nil {
				t.Fatal(err)
			}
		}
		want.text, want.reasoning, want.calls = seen.Text.String(), seen.Reasoning.String(), seen.Calls
		want.finish = c.FinishReason
		if want.finish == "" || want.finish == "stop" {
			want.finish = map[bool]string{false: "stop", true: "tool_calls"}[len(want.calls) > 0]
		}
		if u := c.Usage; !u.Known() {
			c.Usage = seen.Usage
		}
		ask := rapid.Bool().Draw(t, "ask")
		for _, r := range []*dialect.Request{streamed(ask), {}} {
			body, err := write(r, events, c)
			if err != nil {
				t.Fatal(err)
			}
			got, err := readWhole([]byte(body))
			if r.Stream {
				got, err = readStream([]byte(body), ask)
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, body)
			}
			usage := got.usage
			got.usage, got.chunks = "", 0
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("got  %+v\nwant %+v\n%s", got, want, body)
			}
			checkUsage(t, usage, c.Usage, ask || !r.Stream)
		}
	})
}

func checkUsage(t *rapid.T, raw string, u execution.Usage, due bool) {
	if !due || u.Input == nil && u.Output == nil {
		if raw != "" {
			t.Fatalf("a usage that is unknown, or nobody asked for: %s", raw)
		}
		return
	}
	type details map[string]int64
	var got struct {
		Prompt            int64   `json:"prompt_tokens"`
		Completion        int64   `json:"completion_tokens"`
		Total             int64   `json:"total_tokens"`
		PromptDetails     details `json:"prompt_tokens_details"`
		CompletionDetails details `json:"completion_tokens_details"`
	}
	if err := strictly([]byte(raw), &got); err != nil {
		t.Fatalf("%v: %q", err, raw)
	}
	value := func(n *int64) int64 {
		if n == nil {
			return 0
		}
		return *n
	}
	if got.Prompt != value(u.Input) || got.Completion != value(u.Output) || got.Total != got.Prompt+got.Completion ||
		(got.PromptDetails != nil) != (u.Cached != nil) || got.PromptDetails["cached_tokens"] != value(u.Cached) ||
		(got.CompletionDetails != nil) != (u.Reasoning != nil) || got.CompletionDetails["reasoning_tokens"] != value(u.Reasoning) {
		t.Fatalf("%s of %+v", raw, u)
	}
	if !json.Valid([]byte(raw)) {
		t.Fatal(raw)
	}
}
