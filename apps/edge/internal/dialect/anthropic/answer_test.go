package anthropic

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

func say(text string) execution.Event {
	return execution.Event{Kind: execution.EventDelta, Text: text}
}

func think(text string) execution.Event {
	return execution.Event{Kind: execution.EventReasoning, Text: text}
}

func call(index int, id, name, arguments string) execution.Event {
	return execution.Event{Kind: execution.EventToolCall,
		ToolCall: execution.ToolCallDelta{Index: index, ID: id, Name: name, Arguments: arguments}}
}

func count(input, output, cached, reasoning int64) execution.Usage {
	number := func(n int64) *int64 {
		if n < 0 {
			return nil
		}
		return &n
	}
	return execution.Usage{Input: number(input), Output: number(output), Cached: number(cached), Reasoning: number(reasoning)}
}

func told(u execution.Usage) execution.Event {
	return execution.Event{Kind: execution.EventUsage, Usage: u}
}

// answer returns what a run's events look like, each by itself, and its end behind them.
func answer(t errorer, r *dialect.Request, end execution.Completion, events ...execution.Event) []string {
	a := Messages().Answer(r, dialect.About{RunID: "run-1", Model: "tiny"})
	var out []string
	for _, e := range events {
		text, err := a.Event(nil, e)
		if err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		out = append(out, string(text))
	}
	text, err := a.End(nil, end)
	if err != nil {
		t.Fatalf("the end: %v", err)
	}
	return append(out, string(text))
}

type errorer interface{ Fatalf(string, ...any) }

func streamed(t errorer, end execution.Completion, events ...execution.Event) *reader {
	var r reader
	for _, text := range answer(t, &dialect.Request{Stream: true}, end, events...) {
		if err := r.read([]byte(text)); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
	}
	if !r.stopped {
		t.Fatalf("the stream has no end: %v", r.events)
	}
	return &r
}

func whole1(t errorer, end execution.Completion, events ...execution.Event) *message {
	m := &message{}
	if err := strictly(strings.Join(answer(t, &dialect.Request{}, end, events...), ""), m); err != nil {
		t.Fatalf("%v", err)
	}
	return m
}

// Golden streams: what is in the file is what clients get, byte by byte.
func TestStreamGolden(t *testing.T) {
	start := execution.Event{Kind: execution.EventStart, Model: "tiny:latest"}
	for name, tt := range map[string]struct {
		end    execution.Completion
		events []execution.Event
	}{
		"text": {execution.Completion{FinishReason: "stop", Usage: count(6, 2, -1, -1)}, []execution.Event{start, say("naïve <b>\n"), say("\"done!\"")}},
		"thinking": {execution.Completion{FinishReason: "length", Usage: count(9, 12, 8, 10)},
			[]execution.Event{start, think("Okay"), think(" so"), say("The answer"), told(count(9, 12, 8, 10))}},
		"calls": {execution.Completion{FinishReason: "tool_calls"}, []execution.Event{start, say("I look."),
			call(0, "call_a", "get_weather", ""), call(0, "", "", `{"city":`), call(1, "call_b", "now", "{}"), call(0, "", "", ` "Seoul"}`),
			call(2, "call_c", "now", "")}},
		"nothing": {execution.Completion{FinishReason: "content_filter"}, nil},
	} {
		got := strings.Join(answer(t, &dialect.Request{Stream: true}, tt.end, tt.events...), "")
		path := "testdata/" + name + ".sse"
		if os.Getenv("GOLDEN") == "write" {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		var r reader
		if err := r.read([]byte(got)); err != nil || !r.stopped {
			t.Errorf("%s can't be read: %v", name, err)
		}
	}
}

func TestWholeGolden(t *testing.T) {
	got := strings.Join(answer(t, &dialect.Request{}, execution.Completion{FinishReason: "stop", Usage: count(9, 12, 4, -1)},
		think("Okay"), say("I "), call(0, "a", "now", " "), say("look."), call(1, "b", "look", `{"at": "<b>"}`)), "")
	want := `{"id":"msg_1","type":"message","role":"assistant","model":"tiny","content":[` +
		`{"type":"thinking","thinking":"Okay","signature":"iop-unsigned"},{"type":"text","text":"I look."},` +
		`{"type":"tool_use","id":"a","name":"now","input":{}},{"type":"tool_use","id":"b","name":"look","input":{"at": "<b>"}}],` +
		`"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":5,"output_tokens":12,"cache_read_input_tokens":4}}` + "\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What a client gets doesn't wait for what it need not wait for: the first call goes out as it comes, while another
// that comes between its pieces waits until the first is whole, and no longer.
func TestStreamHoldsLittleBack(t *testing.T) {
	parts := answer(t, &dialect.Request{Stream: true}, execution.Completion{FinishReason: "tool_calls"},
		say("I "),                            // 0
		call(0, "a", "look", ""),             // 1
		call(0, "", "", `{"at":`),            // 2
		call(1, "b", "now", `{"zone":"KST"`), // 3
		say("look."),                         // 4
		call(1, "", "", `}`),                 // 5
		call(0, "", "", `"x"}`),              // 6
		call(2, "c", "now", `{}`),            // 7
		call(0, "", "", " \n"),               // 8
	)
	for i, want := range []string{
		"message_start content_block_start content_block_delta", // text
		"content_block_stop content_block_start",                // a
		"content_block_delta",
		"", "", "",
		"content_block_delta content_block_stop content_block_start content_block_delta content_block_stop content_block_start content_block_delta", // a, b, text
		"content_block_stop content_block_start content_block_delta",                                                                                // c
		"",
		"content_block_stop message_delta message_stop",
	} {
		var got []string
		for line := range strings.Lines(parts[i]) {
			if name, ok := strings.CutPrefix(line, "event: "); ok {
				got = append(got, strings.TrimSpace(name))
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("event %d gives %v, want %s", i, got, want)
		}
	}
}

// ST-29: calls that come side by side stay apart, whatever comes between their pieces. Any order of events that a run
// may have gives a stream that a strict client reads back to what was said, and the same as one object.
func TestStreamReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events, text, thinking, calls := drawEvents(t)
		end := execution.Completion{FinishReason: rapid.SampledFrom([]string{"stop", "length", "tool_calls", "content_filter", "", "eos"}).Draw(t, "finish"),
			Usage: count(rapid.Int64Range(-1, 9).Draw(t, "input"), rapid.Int64Range(-1, 9).Draw(t, "output"), -1, rapid.Int64Range(-1, 9).Draw(t, "reasoning"))}
		r := streamed(t, end, events...)
		one := whole1(t, end, events...)
		for from, m := range map[string]*message{"stream": r.message, "object": one} {
			gotThinking, gotText, gotCalls := m.parts()
			if gotText != text || gotThinking != thinking {
				t.Fatalf("%s: text %q and thinking %q, want %q and %q", from, gotText, gotThinking, text, thinking)
			}
			if len(gotCalls) != len(calls) {
				t.Fatalf("%s: %d calls, want %d", from, len(gotCalls), len(calls))
			}
			for _, c := range gotCalls { // in the order in which they began, which need not be that of their index
				if want := calls[c.ID]; want.Name != c.Name || !sameJSON(want.Arguments, string(c.Input)) {
					t.Fatalf("%s: %s is %s(%s), want %s(%s)", from, c.ID, c.Name, c.Input, want.Name, want.Arguments)
				}
			}
			checkEnd(t, m, end, len(calls) > 0)
		}
	})
}

func checkEnd(t *rapid.T, m *message, end execution.Completion, calls bool) {
	want := map[string]string{"length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}[end.FinishReason]
	if want == "" {
		want = "end_turn"
		if calls {
			want = "tool_use"
		}
	}
	if *m.StopReason != want {
		t.Fatalf("stop_reason %s, want %s", *m.StopReason, want)
	}
	for _, n := range []struct{ got, want *int64 }{{m.Usage.Input, end.Usage.Input}, {m.Usage.Output, end.Usage.Output}} {
		if n.want == nil && *n.got != 0 || n.want != nil && *n.got != *n.want {
			t.Fatalf("usage %+v, want %+v", m.Usage, end.Usage)
		}
	}
	if d := m.Usage.Details; (d != nil) != (end.Usage.Reasoning != nil) || d != nil && d.Thinking != *end.Usage.Reasoning {
		t.Fatalf("thinking tokens %+v, want %v", d, end.Usage.Reasoning)
	}
}

// drawEvents draws the events of a run and what they say.
func drawEvents(t *rapid.T) (events []execution.Event, text, thinking string, calls map[string]execution.ToolCall) {
	var pending [][]execution.Event
	calls = map[string]execution.ToolCall{}
	arguments := rapid.SampledFrom([]string{"", " ", "{}", `{"a":"}{\"\\"}`, ` {"city": "Seoul", "n": [1, {"b": "]"}], "ü": "한"}` + "\n", `{"x":{"y":{}}}`})
	for i := range rapid.IntRange(0, 4).Draw(t, "calls") {
		c := execution.ToolCall{ID: fmt.Sprintf("id-%d", i), Name: "tool", Arguments: arguments.Draw(t, "arguments")}
		calls[c.ID] = c
		pieces := []execution.Event{call(i, c.ID, c.Name, "")}
		for rest := []rune(c.Arguments); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			pieces = append(pieces, call(i, "", "", string(rest[:n])))
			rest = rest[n:]
		}
		if len(pieces) > 1 && rapid.Bool().Draw(t, "at once") {
			pieces[1].ToolCall.ID, pieces[1].ToolCall.Name = c.ID, c.Name
			pieces = pieces[1:]
		}
		pending = append(pending, pieces)
	}
	if rapid.Bool().Draw(t, "start") {
		events = append(events, execution.Event{Kind: execution.EventStart})
	}
	words := rapid.SampledFrom([]string{"", "a", "b ", "\n\n", "data: x", "🙂"})
	for len(pending) > 0 || rapid.IntRange(0, 3).Draw(t, "more") > 0 {
		switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
		case kind == 0:
			events = append(events, think(words.Draw(t, "thinking")))
			thinking += events[len(events)-1].Text
		case kind == 1:
			events = append(events, say(words.Draw(t, "text")))
			text += events[len(events)-1].Text
		case kind == 2:
			events = append(events, told(execution.Usage{}))
		case len(pending) > 0:
			i := rapid.IntRange(0, len(pending)-1).Draw(t, "which")
			events = append(events, pending[i][0])
			if pending[i] = pending[i][1:]; len(pending[i]) == 0 {
				pending = slices.Delete(pending, i, i+1)
			}
		}
	}
	return events, text, thinking, calls
}

func sameJSON(want, got string) bool {
	if strings.TrimSpace(want) == "" {
		want = "{}"
	}
	var a, b any
	return json.Unmarshal([]byte(want), &a) == nil && json.Unmarshal([]byte(got), &b) == nil && cmp.Equal(a, b)
}

// Arguments that aren't an object can't be told, except where the answer's length cut them off.
func TestArgumentsThatAreNoObject(t *testing.T) {
	for _, arguments := range []string{`{"city": "Se`, `[1]`, `"x"`, `nonsense`, `{nonsense}`, `{} {}`} {
		for _, r := range []*dialect.Request{{}, {Stream: true}} {
			a := Messages().Answer(r, dialect.About{})
			_, err := a.Event(nil, call(0, "a", "now", arguments))
			if err == nil {
				_, err = a.End(nil, execution.Completion{FinishReason: "tool_calls"})
			}
			var f *execution.Failure
			if !errors.As(err, &f) || f.Code != execution.CodeAdapterDecode {
				t.Errorf("%s, stream %v: %v", arguments, r.Stream, err)
			}
		}
	}
	end := execution.Completion{FinishReason: "length"}
	events := []execution.Event{say("x"), call(0, "a", "now", `{"city": "Se`)}
	for _, m := range []*message{streamed(t, end, events...).message, whole1(t, end, events...)} {
		if _, _, calls := m.parts(); len(calls) != 1 || *m.StopReason != "max_tokens" {
			t.Errorf("an answer that was cut off within a call: %+v", m)
		}
	}
}

func TestObjectEnd(t *testing.T) {
	for text, end := range map[string]int{`{}`: 2, ` {"a":{"b":[1]}} `: 16, `{"}":"{\\"}`: 11, `{"\"}":"\\\""}x`: 14, `{`: 0, ``: 0, `[{}]`: 0, `"{}"`: 0, `x{}`: 0, `{"a":"}`: 0} {
		var e objectEnd
		got := 0
		for i := range len(text) {
			if e.write(text[i : i+1]); e.complete() && got == 0 {
				got = i + 1
			}
		}
		if got != end {
			t.Errorf("%s is complete after %d bytes, want %d", text, got, end)
		}
	}
}

// A call that goes on after its block was closed, as complete, is a fault and not lost.
func TestCallGoesOnAfterItsEnd(t *testing.T) {
	a := Messages().Answer(&dialect.Request{Stream: true}, dialect.About{})
	for _, e := range []execution.Event{call(0, "a", "now", "{}"), say("x"), call(0, "", "", " ")} {
		if _, err := a.Event(nil, e); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Event(nil, call(0, "", "", "{}")); execution.AsFailure(err, 0).Code != execution.CodeAdapterDecode {
		t.Error(err)
	}
}

// ST-30: a call that nobody could make ends the answer, whoever the node is that tells of it.
func TestCallsThatNobodyCouldMake(t *testing.T) {
	for _, r := range []*dialect.Request{{}, {Stream: true}} {
		for _, events := range [][]execution.Event{
			{call(0, "", "", "{}")}, {call(0, "a", "", "{}")}, {call(0, "", "now", "{}")}, {call(-1, "a", "now", "{}")},
			{call(dialect.MaxCalls, "a", "now", "{}")}, {call(0, "a", "now", "{}"), call(1, "", "", "{}")}, {call(0, "a", "now", "{"), call(1, "", "b", "{}")},
		} {
			a := Messages().Answer(r, dialect.About{})
			var err error
			for _, e := range events {
				if err == nil {
					_, err = a.Event(nil, e)
				}
			}
			if err == nil {
				_, err = a.End(nil, execution.Completion{FinishReason: "tool_calls"})
			}
			if f := execution.AsFailure(err, 0); f == nil || f.Code != execution.CodeAdapterDecode {
				t.Errorf("%+v, stream %v: %v", events, r.Stream, err)
			}
		}
	}
}

// What waits behind a call that doesn't end is bounded, by its bytes and by how many blocks there are.
func TestStreamBoundsWhatWaits(t *testing.T) {
	if s := Messages().Answer(&dialect.Request{Stream: true}, dialect.About{}).(*stream); s.most != maxHeld {
		t.Fatalf("holds %d bytes", s.most)
	}
	big := strings.Repeat("x", 1<<10)
	for name, next := range map[string]func(i int) execution.Event{
		"bytes":  func(int) execution.Event { return say(big) },
		"blocks": func(i int) execution.Event { return []execution.Event{say("x"), think("y")}[i%2] },
		"itself": func(int) execution.Event { return call(0, "", "", big) },
	} {
		a := &stream{most: 1 << 16}
		_, err := a.Event(nil, call(0, "a", "now", `{"`))
		for i := 0; err == nil && i < 1<<10; i++ {
			_, err = a.Event(nil, next(i))
		}
		if f := execution.AsFailure(err, 0); f == nil || f.Code != execution.CodeAdapterDecode {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ST-28: usage that was told before anything was said is in the beginning already, and what the end tells is the last word.
func TestUsage(t *testing.T) {
	parts := answer(t, &dialect.Request{Stream: true}, execution.Completion{Usage: count(-1, 7, -1, -1)}, told(count(10, 0, 4, -1)), say("x"))
	if !strings.Contains(parts[1], `"usage":{"input_tokens":6,"output_tokens":0,"cache_read_input_tokens":4}`) ||
		!strings.Contains(parts[2], `"usage":{"input_tokens":6,"output_tokens":7,"cache_read_input_tokens":4}`) {
		t.Errorf("%q", parts)
	}
}

// A caller that doesn't want to see what is thought doesn't.
func TestHideReasoning(t *testing.T) {
	for _, stream := range []bool{false, true} {
		parts := answer(t, &dialect.Request{Stream: stream, HideReasoning: true}, execution.Completion{FinishReason: "stop"}, think("secret"), say("x"))
		if text := strings.Join(parts, ""); strings.Contains(text, "secret") || strings.Contains(text, "thinking") || !strings.Contains(text, `"x"`) {
			t.Errorf("%s", text)
		}
	}
}

func TestStopReasons(t *testing.T) {
	for finish, want := range map[string]string{"stop": "end_turn", "": "end_turn", "eos": "end_turn", "length": "max_tokens",
		"tool_calls": "tool_use", "content_filter": "refusal", "refusal": "refusal", "pause_turn": "pause_turn", "max_tokens": "max_tokens",
		"model_context_window_exceeded": "model_context_window_exceeded", "stop_sequence": "stop_sequence", "tool_use": "tool_use"} {
		if got := *whole1(t, execution.Completion{FinishReason: finish}, say("x")).StopReason; got != want {
			t.Errorf("%q ends as %s, want %s", finish, got, want)
		}
	}
}

// ST-17: a stream that failed has an error event and no end mark, and what is open stays open.
func TestStreamFails(t *testing.T) {
	for code, want := range map[execution.Code]string{execution.CodeNodeLost: "api_error", execution.CodeIdleTimeout: "timeout_error",
		execution.CodeNodeDraining: "overloaded_error"} {
		a := Messages().Answer(&dialect.Request{Stream: true}, dialect.About{RunID: "r", Model: "m"})
		text, err := a.Event(nil, say("x"))
		if err != nil {
			t.Fatal(err)
		}
		var r reader
		if err := r.read(a.Fail(text, execution.Failf(code, execution.OriginNode, "the node is \"away\""))); err != nil {
			t.Fatal(err)
		}
		if r.stopped || r.failure == nil || r.failure.Error.Type != want || r.failure.Error.Message != `the node is "away"` || r.failure.Error.Code != code.String() {
			t.Errorf("%v: %+v", code, r.failure)
		}
	}
	if got := Messages().Answer(&dialect.Request{}, dialect.About{}).Fail(nil, &execution.Failure{}); len(got) != 0 {
		t.Errorf("an answer that isn't a stream fails with %s", got)
	}
}

func TestEncodeError(t *testing.T) {
	for status, want := range map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
		404: "not_found_error", 409: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 499: "api_error",
		500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error"} {
		var f failure
		body := Messages().EncodeError(status, execution.Failf(execution.CodeNoNode, execution.OriginEdge, "no node\n"), "messages[0].role")
		if err := strictly(string(body), &f); err != nil {
			t.Fatal(err)
		}
		if f.Type != "error" || f.Error.Type != want || f.Error.Message != "no node\n" || f.Error.Code != "no_node" ||
			f.Error.Details.ErrorCode != "no_node" || f.Error.Details.Param != "messages[0].role" {
			t.Errorf("%d: %s", status, body)
		}
	}
	body := string(Messages().EncodeError(http.StatusTooManyRequests, &execution.Failure{Code: execution.CodeLimitExceeded}, ""))
	if want := `{"type":"error","error":{"type":"rate_limit_error","message":"limit_exceeded","code":"limit_exceeded","details":{"error_code":"limit_exceeded"}},"request_id":null}` + "\n"; body != want {
		t.Error(body)
	}
}
