package openai

import (
	"strconv"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/packages/go/execution"
)

// chunkOf is an event with a whole object.
func chunkOf(object string) string { return "data: " + object + "\n\n" }

type stream struct {
	body string
	want adaptertest.Outcome
}

// streams are bodies that some provider sends and no recording has, with what a run makes of them.
func streams() map[string]adaptertest.Stream {
	out := map[string]adaptertest.Stream{}
	for _, group := range []map[string]stream{usageStreams(), callStreams(), endStreams(), errorStreams(), textStreams()} {
		for name, s := range group {
			out[name] = adaptertest.Stream{Body: s.body, Want: s.want}
		}
	}
	return out
}

func fake(text, finish, usage string) adaptertest.Outcome {
	return adaptertest.Outcome{Model: "fake", Text: text, Finish: finish, Usage: usage}
}

func wentWrong(text string, code execution.Code) adaptertest.Outcome {
	return adaptertest.Outcome{Model: "fake", Text: text, Code: code, Status: 200}
}

func usageStreams() map[string]stream {
	const counts = `"usage":{"prompt_tokens":65,"completion_tokens":251,"total_tokens":316}`
	null := chunkOf(`{"model":"fake","choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}`)
	known := chunkOf(`{"model":"fake","choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":11,"completion_tokens":7}}`)
	return map[string]stream{
		"ST-26: usage without a choice":       {say("a") + stopped("stop") + chunkOf(`{"model":"fake","choices":[],`+counts+`}`) + done, fake("a", "stop", "65/251/-/-")},
		"ST-26: usage with an empty choice":   {say("a") + stopped("stop") + chunkOf(`{"model":"fake","choices":[{"index":0,"delta":{}}],`+counts+`}`) + done, fake("a", "stop", "65/251/-/-")},
		"ST-26: usage with the finish reason": {say("a") + chunkOf(`{"model":"fake","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],`+counts+`}`) + done, fake("a", "stop", "65/251/-/-")},
		"ST-26: usage without choices":        {say("a") + stopped("stop") + chunkOf(`{`+counts+`}`) + done, fake("a", "stop", "65/251/-/-")},
		"ST-26: usage inside the choice":      {say("a") + chunkOf(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop",`+counts+`}]}`) + done, fake("a", "stop", "65/251/-/-")},
		"ST-26: usage before the first text":  {chunkOf(`{"model":"fake","choices":[],"usage":{"prompt_tokens":3}}`) + end, fake("", "stop", "3/-/-/-")},
		"ST-28: null around the counts":       {null + null + null + null + null + known + null + stopped("stop") + done, fake("aaaaaaa", "stop", "11/7/-/-")},
		"ST-28: zeros after the counts":       {known + chunkOf(`{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}`) + end, fake("a", "stop", "11/7/-/-")},
		"counts that grow":                    {chunkOf(`{"model":"fake","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}`) + chunkOf(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9,"completion_tokens_details":{"reasoning_tokens":4}}}`) + end, fake("", "stop", "3/9/-/4")},
		"unknown":                             {say("a") + end, fake("a", "stop", "")},
		"counts of an answer that breaks off": {known, adaptertest.Outcome{Model: "fake", Text: "a", Usage: "11/7/-/-", Code: execution.CodeUpstreamTruncated, Status: 200}},
	}
}

func callStreams() map[string]stream {
	rs := func(calls ...execution.ToolCall) adaptertest.Outcome {
		o := fake("", "tool_calls", "")
		o.Calls = calls
		return o
	}
	made := func(seed string, index int) string { // the id that a run makes itself
		a := execution.NewAssembler(seed)
		var id string
		for i := range index + 1 {
			d, _ := a.Add(execution.ToolCallPiece{Name: strconv.Itoa(i)})
			id = d[0].ID
		}
		return id
	}
	stop := stopped("tool_calls") + done
	a, b := execution.ToolCall{ID: "a", Name: "read", Arguments: `{"path":"a.rs"}`}, execution.ToolCall{ID: "b", Name: "read", Arguments: `{"path":"b.rs"}`}
	one := execution.ToolCall{ID: made("run-1", 0), Name: "read", Arguments: a.Arguments}
	two := execution.ToolCall{ID: made("run-1", 1), Name: "read", Arguments: b.Arguments}
	return map[string]stream{
		"ST-29: two calls without an index": {
			delta(`{"tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"path\":"}}]}`) + delta(`{"tool_calls":[{"function":{"arguments":"\"a.rs\"}"}}]}`) +
				delta(`{"tool_calls":[{"id":"b","type":"function","function":{"name":"read","arguments":"{\"path\":"}}]}`) + delta(`{"tool_calls":[{"function":{"arguments":"\"b.rs\"}"}}]}`) + stop, rs(a, b)},
		"ST-29: two calls with index 0": {
			delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"read","arguments":"{\"path\":"}}]}`) + delta(`{"tool_calls":[{"index":0,"function":{"arguments":"\"a.rs\"}"}}]}`) +
				delta(`{"tool_calls":[{"index":0,"id":"b","function":{"name":"read","arguments":"{\"path\":"}}]}`) + delta(`{"tool_calls":[{"index":0,"function":{"arguments":"\"b.rs\"}"}}]}`) + stop, rs(a, b)},
		"ST-30: a first piece without an id": {
			delta(`{"tool_calls":[{"index":0,"function":{"name":"read"}}]}`) + delta(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"path\":"}}]}`) +
				delta(`{"tool_calls":[{"index":0,"function":{"arguments":"\"a.rs\"}"}}]}`) + stop, rs(one)},
		"two whole calls in one chunk, neither id nor index": {
			delta(`{"content":null,"tool_calls":[{"function":{"name":"read","arguments":"{\"path\":\"a.rs\"}"}},{"function":{"name":"read","arguments":"{\"path\":\"b.rs\"}"}}]}`) + stop, rs(one, two)},
		"arguments that are an object": {
			delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"read","arguments":{"path":"a.rs"}}}]}`) + stop, rs(a)},
		"arguments that are null": {
			delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"now","arguments":null}}]}`) + stop, rs(execution.ToolCall{ID: "a", Name: "now"})},
		"the old form": {
			delta(`{"function_call":{"name":"read","arguments":"{\"path\":"}}`) + delta(`{"function_call":{"arguments":"\"a.rs\"}"}}`) + stopped("function_call") + done, rs(one)},
		"a call without a name": {delta(`{"tool_calls":[{"index":0,"id":"a","function":{"arguments":"{}"}}]}`) + stop,
			adaptertest.Outcome{Model: "fake", Code: execution.CodeAdapterDecode}},
	}
}

func endStreams() map[string]stream {
	truncated := execution.CodeUpstreamTruncated
	return map[string]stream{
		"a finish reason alone":              {say("a") + stopped("length"), fake("a", "length", "")},
		"a finish reason beside the text":    {chunkOf(`{"model":"fake","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}`), fake("a", "stop", "")},
		"the provider's own word":            {say("a") + stopped("eos"), fake("a", "eos", "")},
		"an empty finish reason is none":     {say("a") + stopped(""), wentWrong("a", truncated)},
		"[DONE] alone, after text":           {say("a") + done, fake("a", "", "")},
		"[DONE] alone, nothing said":         {delta(`{"role":"assistant","content":""}`) + done, wentWrong("", truncated)},
		"[DONE] and nothing else":            {done, adaptertest.Outcome{Code: truncated, Status: 200}},
		"[DONE] with blanks":                 {say("a") + "data:   [DONE]  \n\n", fake("a", "", "")},
		"nothing after [DONE] counts":        {say("a") + end + say("b") + "data: garbage\n\n", fake("a", "stop", "")},
		"ST-18: two deltas, a clean end":     {say("a") + say("b"), wentWrong("ab", truncated)},
		"[DONE] whose event isn't ended":     {say("a") + "data: [DONE]\n", wentWrong("a", truncated)},
		"finish reason error":                {say("a") + stopped("error") + done, wentWrong("a", execution.CodeUpstreamError)},
		"finish reason abort":                {say("a") + stopped("abort") + done, wentWrong("a", truncated)},
		"another choice's end isn't this's":  {say("a") + chunkOf(`{"choices":[{"index":1,"delta":{"content":"x"},"finish_reason":"stop"}]}`), wentWrong("a", truncated)},
		"comments alone":                     {": ping\n\n: ping\n\n", adaptertest.Outcome{Code: truncated, Status: 200}},
		"a stream that is one JSON object":   {`{"model":"fake","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}`, fake("a", "stop", "")},
		"blanks before a JSON object":        {" \r\n\t\n" + `{"model":"fake","choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}` + "\n", fake("a", "stop", "")},
		"a message as an event":              {chunkOf(`{"model":"fake","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}`) + done, fake("a", "stop", "")},
		"the whole message after the deltas": {say("a") + chunkOf(`{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}`) + done, fake("a", "stop", "")},
	}
}

func errorStreams() map[string]stream {
	upstream, decode := execution.CodeUpstreamError, execution.CodeAdapterDecode
	early := adaptertest.Outcome{Code: upstream, Status: 200}
	return map[string]stream{
		"an error object":                     {say("a") + chunkOf(`{"error":{"message":"boom","code":500}}`) + done, wentWrong("a", upstream)},
		"an error text":                       {say("a") + chunkOf(`{"error":"boom"}`), wentWrong("a", upstream)},
		"an error at once":                    {chunkOf(`{"error":{"message":"boom"}}`) + done, early},
		"an error event":                      {say("a") + "event: error\ndata: {\"message\":\"boom\"}\n\n", wentWrong("a", upstream)},
		"an error event that isn't JSON":      {say("a") + "event: error\ndata: boom\n\n", wentWrong("a", upstream)},
		"an error event around an error":      {"event: error\ndata: {\"error\":{\"message\":\"boom\"}}\n\n", early},
		"an object that is an error":          {say("a") + chunkOf(`{"object":"error","message":"boom","code":400}`), wentWrong("a", upstream)},
		"an error in the choice":              {say("a") + chunkOf(`{"model":"fake","choices":[{"index":0,"delta":{},"finish_reason":null,"error":{"message":"boom"}}]}`) + stopped("stop"), wentWrong("a", upstream)},
		"an error after the finish reason":    {say("a") + stopped("stop") + chunkOf(`{"error":{"message":"boom"}}`), wentWrong("a", upstream)},
		"a JSON object with an error":         {`{"error":{"message":"boom"}}`, early},
		"error null is none":                  {chunkOf(`{"model":"fake","choices":[{"index":0,"delta":{"content":"a"}}],"error":null}`) + end, fake("a", "stop", "")},
		"an event that isn't JSON":            {say("a") + "data: boom\n\n" + end, wentWrong("a", decode)},
		"an event that is half a JSON":        {say("a") + `data: {"choices":[{"in` + "\n\n" + end, wentWrong("a", decode)},
		"an event of another shape":           {say("a") + chunkOf(`{"choices":"many"}`) + end, wentWrong("a", decode)},
		"text that is a number":               {delta(`{"content":7}`) + end, adaptertest.Outcome{Code: decode, Status: 200}},
		"a JSON object without choices":       {`{"model":"fake"}`, wentWrong("", decode)},
		"a JSON object without a message":     {`{"model":"fake","choices":[{"index":0,"finish_reason":"stop"}]}`, wentWrong("", decode)},
		"a JSON object that isn't one":        {`{"model":}`, adaptertest.Outcome{Code: decode, Status: 200}},
		"a JSON object and something more":    {`{"model":"fake","choices":[{"message":{"content":"a"}}]} x`, adaptertest.Outcome{Code: decode, Status: 200}},
		"a JSON object that breaks off":       {`{"model":"fake","choices":[{"message":`, adaptertest.Outcome{Code: execution.CodeUpstreamTruncated, Status: 200}},
		"a JSON object that was broken off":   {`{"model":"fake","choices":[{"message":{"content":"a"},"finish_reason":"abort"}]}`, wentWrong("a", execution.CodeUpstreamTruncated)},
		"a JSON object whose call is unnamed": {`{"model":"fake","choices":[{"message":{"tool_calls":[{"function":{"arguments":"{}"}}]}}]}`, adaptertest.Outcome{Model: "fake", Code: decode}},
	}
}

func textStreams() map[string]stream {
	thought := func(o adaptertest.Outcome) adaptertest.Outcome { o.Reasoning = "hm"; return o }
	return map[string]stream{
		"signs of life":                   {"event: ping\ndata: {\"type\":\"ping\"}\n\n: x\n\ndata:\n\n" + chunkOf("{}") + chunkOf(`{"choices":[]}`) + say("a") + end, fake("a", "stop", "")},
		"reasoning_content":               {delta(`{"reasoning_content":"hm"}`) + say("a") + end, thought(fake("a", "stop", ""))},
		"reasoning":                       {delta(`{"reasoning":"hm"}`) + say("a") + end, thought(fake("a", "stop", ""))},
		"thinking":                        {delta(`{"thinking":"hm"}`) + say("a") + end, thought(fake("a", "stop", ""))},
		"reasoning by two names":          {delta(`{"reasoning":"hm","reasoning_content":"hm"}`) + say("a") + end, thought(fake("a", "stop", ""))},
		"reasoning of another shape":      {delta(`{"reasoning":{"effort":1},"content":"a"}`) + end, fake("a", "stop", "")},
		"a list of parts":                 {delta(`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"a"}]}`) + end, thought(fake("a", "stop", ""))},
		"a refusal":                       {delta(`{"content":null,"refusal":"no"}`) + end, fake("no", "stop", "")},
		"choice 0 of several":             {chunkOf(`{"model":"fake","choices":[{"index":1,"delta":{"content":"x"}},{"index":0,"delta":{"content":"a"}}]}`) + end, fake("a", "stop", "")},
		"a choice without an index":       {chunkOf(`{"model":"fake","choices":[{"delta":{"content":"a"}},{"delta":{"content":"x"}}]}`) + end, fake("a", "stop", "")},
		"events of other names":           {"event: add\ndata: " + `{"model":"fake","choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}` + "\n\n", fake("a", "stop", "")},
		"characters that JSON can't have": {chunkOf("{\"model\":\"fake\",\"choices\":[{\"delta\":{\"content\":\"a\xff\\ud800b\"}}]}") + end, fake("a\uFFFD\uFFFDb", "stop", "")},
	}
}
