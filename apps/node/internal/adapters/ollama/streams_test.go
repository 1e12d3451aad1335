package ollama

import (
	"bytes"
	"encoding/json"
	"fmt"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/ndjson"
	"iop/packages/go/execution"
)

func normalized() adaptertest.Normalized {
	return adaptertest.Normalized{
		Owns: func(method, path string) bool {
			return method == "POST" && (path == "/api/chat" || path == "/api/generate")
		},
		Recordings: recordings(),
		Cut: []string{"ollama-0.17.4/native-chat-stream-length", "ollama-0.17.4/native-chat-stream-tool",
			"ollama-0.17.4/native-chat-tool", "ollama-0.17.4/native-chat"},
		Ended:       ended,
		Variants:    adaptertest.NDJSONVariants,
		ContentType: "application/x-ndjson",
		Say:         say,
		End:         end,
		Streams:     streams(),
		Limit:       ndjson.DefaultLimit,
	}
}

// ended reports whether a body holds the whole object that says done.
func ended(body []byte) bool {
	for line := range bytes.Lines(body) {
		if bytes.Contains(line, []byte(`"done":true`)) && json.Valid(line) {
			return true
		}
	}
	return false
}

// line is a line with members of an answer.
func line(members string) string {
	return `{"model":"fake","created_at":"2026-11-29T13:05:25.21Z",` + members + "}\n"
}

// message is a line with members of a message.
func message(members string) string {
	return line(`"message":{"role":"assistant",` + members + `},"done":false`)
}

// say is a line that tells a text.
func say(text string) string {
	quoted, _ := json.Marshal(text)
	return message(`"content":` + string(quoted))
}

// stopped is the line that ends an answer.
func stopped(reason string) string {
	return line(fmt.Sprintf(`"message":{"role":"assistant","content":""},"done":true,"done_reason":%q,"total_duration":1`, reason))
}

var end = stopped("stop")

// streams are bodies that some server sends and no recording has, with what a run makes of them.
func streams() map[string]adaptertest.Stream {
	out := map[string]adaptertest.Stream{}
	for _, group := range []map[string]adaptertest.Stream{textStreams(), callStreams(), endStreams(), errorStreams()} {
		for name, s := range group {
			out[name] = s
		}
	}
	return out
}

func fake(text, finish, usage string) adaptertest.Outcome { return by("fake", text, finish, usage) }

func wrong(text string, code execution.Code) adaptertest.Outcome {
	return failed200(code, "fake", text)
}

func textStreams() map[string]adaptertest.Stream {
	thought := fake("a", "stop", "")
	thought.Reasoning = "hm"
	counts := `"message":{"content":""},"done":true,"done_reason":"stop",`
	return map[string]adaptertest.Stream{
		"thinking":                        {Body: message(`"content":"","thinking":"hm"`) + say("a") + end, Want: thought},
		"thinking and text in one":        {Body: message(`"content":"a","thinking":"hm"`) + end, Want: thought},
		"text beside done":                {Body: line(`"message":{"content":"a"},"done":true,"done_reason":"stop"`), Want: fake("a", "stop", "")},
		"null where a text may be":        {Body: message(`"content":null,"thinking":null,"tool_calls":null`) + say("a") + end, Want: fake("a", "stop", "")},
		"no message":                      {Body: line(`"done":false`) + line(`"message":null,"done":false`) + say("a") + end, Want: fake("a", "stop", "")},
		"signs of life":                   {Body: "{}\n" + `{"created_at":"x"}` + "\n" + say("a") + end, Want: fake("a", "stop", "")},
		"members nobody knows":            {Body: line(`"message":{"content":"a","x":[1]},"remote_host":"h","logprobs":[{}],"done":false`) + end, Want: fake("a", "stop", "")},
		"characters that JSON can't have": {Body: message("\"content\":\"a\xff\\ud800b\"") + end, Want: fake("a\uFFFD\uFFFDb", "stop", "")},
		"counts":                          {Body: say("a") + line(counts+`"prompt_eval_count":65,"eval_count":251`), Want: fake("a", "stop", "65/251/-/-")},
		"counts of which one is left out": {Body: say("a") + line(counts+`"eval_count":251`), Want: fake("a", "stop", "-/251/-/-")},
		"ST-28: counts that are zero":     {Body: say("a") + line(counts+`"prompt_eval_count":0,"eval_count":0`), Want: fake("a", "stop", "")},
		"counts below zero":               {Body: say("a") + line(counts+`"prompt_eval_count":-1,"eval_count":3`), Want: fake("a", "stop", "-/3/-/-")},
	}
}

func callStreams() map[string]adaptertest.Stream {
	called := func(calls ...execution.ToolCall) adaptertest.Outcome {
		o := fake("", "tool_calls", "")
		o.Calls = calls
		return o
	}
	made := execution.NewAssembler("run-1")
	var ids []string // the ids that a run makes itself
	for range 2 {
		d, _ := made.Add(execution.ToolCallPiece{Name: "x", Arguments: "{}"})
		ids = append(ids, d[0].ID)
	}
	a, b := execution.ToolCall{ID: "a", Name: "read", Arguments: `{"path":"a.rs"}`}, execution.ToolCall{ID: "b", Name: "read", Arguments: `{"path":"b.rs"}`}
	one, two := a, b
	one.ID, two.ID = ids[0], ids[1]
	same := b
	same.ID = ids[1]
	calls := func(calls string) string { return message(`"content":"","tool_calls":[` + calls + `]`) }
	const first, second = `"function":{"index":0,"name":"read","arguments":{"path":"a.rs"}}`, `"function":{"index":0,"name":"read","arguments":{"path":"b.rs"}}`
	length := called(a)
	length.Finish = "length"
	beside := called(a)
	beside.Text = "let me see"
	return map[string]adaptertest.Stream{
		"ST-29: two calls, both with index 0":  {Body: calls(`{"id":"a",`+first+`}`) + calls(`{"id":"b",`+second+`}`) + end, Want: called(a, b)},
		"ST-29: two calls in one line":         {Body: calls(`{"id":"a",`+first+`},{"id":"b",`+second+`}`) + end, Want: called(a, b)},
		"ST-30: calls without an id":           {Body: calls(`{`+first+`}`) + calls(`{`+second+`}`) + end, Want: called(one, two)},
		"ST-30: two without an id in one line": {Body: calls(`{`+first+`},{`+second+`}`) + end, Want: called(one, two)},
		"two calls with one id":                {Body: calls(`{"id":"a",`+first+`}`) + calls(`{"id":"a",`+second+`}`) + end, Want: called(a, same)},
		"the same call twice":                  {Body: calls(`{`+first+`}`) + calls(`{`+first+`}`) + end, Want: called(one, execution.ToolCall{ID: ids[1], Name: "read", Arguments: one.Arguments})},
		"arguments that are a text":            {Body: calls(`{"id":"a","function":{"name":"read","arguments":"{\"path\":\"a.rs\"}"}}`) + end, Want: called(a)},
		"no arguments":                         {Body: calls(`{"id":"a","function":{"name":"now"}}`) + end, Want: called(execution.ToolCall{ID: "a", Name: "now", Arguments: "{}"})},
		"arguments that are null":              {Body: calls(`{"id":"a","function":{"name":"now","arguments":null}}`) + end, Want: called(execution.ToolCall{ID: "a", Name: "now", Arguments: "{}"})},
		"arguments in the provider's order":    {Body: calls(`{"id":"a","function":{"name":"f","arguments":{"z":1.50,"a":{"b":[1,2]}}}}`) + end, Want: called(execution.ToolCall{ID: "a", Name: "f", Arguments: `{"z":1.50,"a":{"b":[1,2]}}`})},
		"a call beside done":                   {Body: line(`"message":{"tool_calls":[{"id":"a",` + first + `}]},"done":true,"done_reason":"stop"`), Want: called(a)},
		"a call beside text":                   {Body: message(`"content":"let me see","tool_calls":[{"id":"a",`+first+`}]`) + end, Want: beside},
		"a call, then cut by the limit":        {Body: calls(`{"id":"a",`+first+`}`) + stopped("length"), Want: length},
		"a call without a name":                {Body: calls(`{"id":"a","function":{"arguments":{}}}`) + end, Want: adaptertest.Outcome{Model: "fake", Code: execution.CodeAdapterDecode}},
		"arguments of another shape":           {Body: calls(`{"id":"a","function":{"name":"f","arguments":[1]}}`) + end, Want: failed200(execution.CodeAdapterDecode, "", "")},
	}
}

func endStreams() map[string]adaptertest.Stream {
	truncated := execution.CodeUpstreamTruncated
	return map[string]adaptertest.Stream{
		"length":                        {Body: say("a") + stopped("length"), Want: fake("a", "length", "")},
		"the provider's own word":       {Body: say("a") + stopped("context"), Want: fake("a", "context", "")},
		"no reason":                     {Body: say("a") + line(`"done":true`), Want: fake("a", "", "")},
		"nothing said, stop":            {Body: end, Want: fake("", "stop", "")},
		"nothing after done counts":     {Body: say("a") + end + say("b") + "garbage\n" + `{"error":"x"}` + "\n", Want: fake("a", "stop", "")},
		"ST-18: lines, a clean end":     {Body: say("a") + say("b"), Want: wrong("ab", truncated)},
		"a reason without done":         {Body: say("a") + line(`"message":{"content":""},"done":false,"done_reason":"stop"`), Want: wrong("a", truncated)},
		"a reason, more, then done":     {Body: say("a") + line(`"done":false,"done_reason":"stop"`) + say("b") + end, Want: fake("ab", "stop", "")},
		"done without a line end":       {Body: say("a") + end[:len(end)-1], Want: fake("a", "stop", "")},
		"done that is cut":              {Body: say("a") + end[:len(end)-2], Want: wrong("a", truncated)},
		"a line that is cut":            {Body: say("a") + say("b")[:20], Want: wrong("a", truncated)},
		"blanks alone":                  {Body: "\n \r\n\t", Want: failed200(truncated, "", "")},
		"signs of life alone":           {Body: "{}\n{}\n", Want: failed200(truncated, "", "")},
		"one object, no line end":       {Body: `{"model":"fake","message":{"content":"a"},"done":true,"done_reason":"stop"}`, Want: fake("a", "stop", "")},
		"the model was loaded":          {Body: stopped("load"), Want: wrong("", execution.CodeUpstreamError)},
		"the model was unloaded":        {Body: stopped("unload"), Want: wrong("", execution.CodeUpstreamError)},
		"text, and the word for a load": {Body: say("a") + stopped("load"), Want: fake("a", "load", "")},
	}
}

func errorStreams() map[string]adaptertest.Stream {
	upstream, decode := execution.CodeUpstreamError, execution.CodeAdapterDecode
	return map[string]adaptertest.Stream{
		"ST-23: an error after two lines": {Body: say("a") + say("b") + `{"error":"boom"}` + "\n", Want: wrong("ab", upstream)},
		"an error at once":                {Body: `{"error":"boom"}`, Want: failed200(upstream, "", "")},
		"an error, then done":             {Body: say("a") + `{"error":"boom"}` + "\n" + end, Want: wrong("a", upstream)},
		"an error that is an object":      {Body: say("a") + `{"error":{"message":"boom"}}` + "\n", Want: wrong("a", upstream)},
		"an error beside done":            {Body: say("a") + line(`"done":true,"error":"boom"`), Want: wrong("a", upstream)},
		"an error without a line end":     {Body: say("a") + `{"error":"boom"}`, Want: wrong("a", upstream)},
		"an error that is none":           {Body: line(`"message":{"content":"a"},"error":"","done":false`) + line(`"done":true,"done_reason":"stop","error":null`), Want: fake("a", "stop", "")},
		"a line that isn't JSON":          {Body: say("a") + "boom\n" + end, Want: wrong("a", decode)},
		"a line that is half a JSON":      {Body: say("a") + `{"message":{"con` + "\n" + end, Want: wrong("a", decode)},
		"two objects in one line":         {Body: say("a")[:len(say("a"))-1] + end, Want: failed200(decode, "", "")},
		"a line of another shape":         {Body: say("a") + line(`"message":"b"`) + end, Want: wrong("a", decode)},
		"text that is a number":           {Body: message(`"content":7`) + end, Want: failed200(decode, "", "")},
		"a list":                          {Body: "[{}]\n" + end, Want: failed200(decode, "", "")},
		"an event stream":                 {Body: "data: {\"choices\":[]}\n\n", Want: failed200(decode, "", "")},
		"words at the end":                {Body: say("a") + "boom", Want: wrong("a", decode)},
	}
}
