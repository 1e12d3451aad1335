package anthropic

import (
	"strconv"
	"strings"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/packages/go/execution"
)

type stream struct {
	body string
	want adaptertest.Outcome
}

// streams are bodies that some provider sends and no recording has, with what a run makes of them.
func streams() map[string]adaptertest.Stream {
	out := map[string]adaptertest.Stream{}
	for _, group := range []map[string]stream{usageStreams(), callStreams(), endStreams(), errorStreams(), textStreams(), wholeStreams()} {
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
	start := func(usage string) string {
		return eventOf("message_start", `,"message":{"model":"fake","content":[],"usage":`+usage+`}`)
	}
	brokeOff := wentWrong("a", execution.CodeUpstreamTruncated)
	brokeOff.Usage = "9/-/8/-"
	return map[string]stream{
		"counts of the whole answer at its end": {start(`{"input_tokens":3,"output_tokens":1,"cache_read_input_tokens":2,"cache_creation_input_tokens":1}`) + say("a") +
			stopped("end_turn", `,"usage":{"input_tokens":4,"output_tokens":7,"cache_read_input_tokens":2,"cache_creation_input_tokens":1,"output_tokens_details":{"thinking_tokens":5}}`) + done,
			fake("a", "stop", "7/7/2/5")},
		"counts that grow": {start(`{"input_tokens":3,"output_tokens":1}`) + say("a") + eventOf("message_delta", `,"delta":{"stop_reason":null},"usage":{"output_tokens":3}`) +
			stopped("end_turn", `,"usage":{"output_tokens":5}`) + done, fake("a", "stop", "3/5/-/-")},
		"all of the input from the cache":       {start(`{"input_tokens":0,"output_tokens":0,"cache_read_input_tokens":9}`) + say("a") + stopped("end_turn", `,"usage":{"output_tokens":5}`), fake("a", "stop", "9/5/9/-")},
		"ST-28: nulls and zeros":                {start(`{"input_tokens":3,"output_tokens":0}`) + say("a") + stopped("end_turn", `,"usage":{"output_tokens":5}`) + stopped("end_turn", `,"usage":null`) + stopped("end_turn", `,"usage":{"input_tokens":0,"output_tokens":0}`) + done, fake("a", "stop", "3/5/-/-")},
		"unknown":                               {begin + say("a") + end, fake("a", "stop", "")},
		"an answer that breaks off":             {start(`{"input_tokens":1,"output_tokens":1,"cache_read_input_tokens":8}`) + say("a"), brokeOff},
		"the length isn't known from the start": {start(`{"input_tokens":3,"output_tokens":1}`) + say("a") + stopped("end_turn", "") + done, fake("a", "stop", "3/-/-/-")},
	}
}

func callStreams() map[string]stream {
	rs := func(calls ...execution.ToolCall) adaptertest.Outcome {
		o := fake("", "tool_calls", "")
		o.Calls = calls
		return o
	}
	made := func(index int) string { // the id that a run makes itself
		a := execution.NewAssembler("run-1")
		var id string
		for i := range index + 1 {
			d, _ := a.Add(execution.ToolCallPiece{Name: strconv.Itoa(i)})
			id = d[0].ID
		}
		return id
	}
	use := func(id string) string { return `{"type":"tool_use","id":"` + id + `","name":"read","input":{}}` }
	piece := func(index int, text string) string {
		return deltaOf(index, `{"type":"input_json_delta","partial_json":`+strconv.Quote(text)+`}`)
	}
	const args = `{"path":"a.rs"}`
	stop := stopped("tool_use", "") + done
	a, b := execution.ToolCall{ID: "a", Name: "read", Arguments: args}, execution.ToolCall{ID: "b", Name: "read", Arguments: args}
	none := execution.ToolCall{ID: "a", Name: "read", Arguments: "{}"}
	unnamed := wentWrong("", execution.CodeAdapterDecode)
	unnamed.Status = 0
	return map[string]stream{
		"ST-29: two calls side by side": {begin + open(0, use("a")) + open(1, use("b")) + piece(0, args[:5]) + piece(1, args[:8]) + piece(0, args[5:]) + closed(0) + piece(1, args[8:]) + closed(1) + stop, rs(a, b)},
		"ST-29: two calls with index 0": {begin + open(0, use("a")) + piece(0, args) + closed(0) + open(0, use("b")) + piece(0, args) + closed(0) + stop, rs(a, b)},
		"ST-30: calls without an id": {begin + open(0, `{"type":"tool_use","name":"read"}`) + piece(0, args) + closed(0) + open(0, `{"type":"tool_use","name":"read"}`) + piece(0, args) + closed(0) + stop,
			rs(execution.ToolCall{ID: made(0), Name: "read", Arguments: args}, execution.ToolCall{ID: made(1), Name: "read", Arguments: args})},
		"no arguments":                    {begin + open(0, use("a")) + piece(0, "") + closed(0) + stop, rs(none)},
		"no arguments, two calls":         {begin + open(0, use("a")) + closed(0) + open(1, `{"type":"tool_use","id":"b","name":"read","input":{"path":"a.rs"}}`) + closed(1) + stop, rs(none, b)},
		"a block that isn't ended":        {begin + open(0, use("a")) + stop, rs(none)},
		"neither a block nor it is ended": {begin + open(0, use("a")) + stopped("tool_use", ""), rs(none)},
		"the same block, not ended":       {begin + open(0, use("a")) + open(0, use("b")) + piece(0, args) + stop, rs(none, b)},
		"blocks that aren't ended":        {begin + open(0, use("a")) + piece(0, args) + open(0, use("b")) + piece(0, args) + stop, rs(a, b)},
		"a block that isn't ended, done":  {begin + open(0, use("a")) + done, func() adaptertest.Outcome { o := rs(none); o.Finish = ""; return o }()},
		"arguments at once":               {begin + open(0, `{"type":"tool_use","id":"a","name":"read","input":{"path":"a.rs"}}`) + closed(0) + stop, rs(a)},
		"arguments at once, a text":       {begin + open(0, `{"type":"tool_use","id":"a","name":"read","input":"{\"path\":\"a.rs\"}"}`) + closed(0) + stop, rs(a)},
		"arguments at once and again":     {begin + open(0, `{"type":"tool_use","id":"a","name":"read","input":{"path":"a.rs"}}`) + piece(0, args) + closed(0) + stop, rs(a)},
		"input null":                      {begin + open(0, `{"type":"tool_use","id":"a","name":"read","input":null}`) + closed(0) + stop, rs(none)},
		"input is a number":               {begin + open(0, `{"type":"tool_use","id":"a","name":"read","input":7}`) + stop, wentWrong("", execution.CodeAdapterDecode)},
		"a call without a name":           {begin + open(0, `{"type":"tool_use","id":"a"}`) + piece(0, args) + stop, unnamed},
		"a tool of the provider's own": {begin + open(0, `{"type":"server_tool_use","id":"s","name":"web_search","input":{}}`) + piece(0, `{"query":"x"}`) + closed(0) +
			open(1, `{"type":"web_search_tool_result","tool_use_id":"s","content":[{"type":"web_search_result","title":"T"}]}`) + closed(1) +
			open(2, `{"type":"text","text":""}`) + deltaOf(2, `{"type":"text_delta","text":"a"}`) + deltaOf(2, `{"type":"citations_delta","citation":{"url":"u"}}`) + closed(2) + end, fake("a", "stop", "")},
		"too many at once": {begin + func() string {
			var s strings.Builder
			for i := range maxOpen + 1 {
				s.WriteString(open(i, `{"type":"tool_use","name":"f"}`))
			}
			return s.String()
		}(), tooMany()},
	}
}

// tooMany is what comes of one call more than there may be at once.
func tooMany() adaptertest.Outcome {
	o := wentWrong("", execution.CodeAdapterDecode)
	a := execution.NewAssembler("run-1")
	for range maxOpen {
		n := a.Len()
		d, _ := a.Add(execution.ToolCallPiece{Index: &n, Name: "f"})
		o.Calls = append(o.Calls, execution.ToolCall{ID: d[0].ID, Name: "f"})
	}
	return o
}

func endStreams() map[string]stream {
	truncated := execution.CodeUpstreamTruncated
	out := map[string]stream{
		"message_stop alone, after text":    {begin + say("a") + done, fake("a", "", "")},
		"message_stop alone, nothing said":  {begin + done, wentWrong("", truncated)},
		"message_stop and nothing else":     {done, adaptertest.Outcome{Code: truncated, Status: 200}},
		"a stop reason without it":          {begin + say("a") + stopped("end_turn", ""), fake("a", "stop", "")},
		"nothing said, with a stop reason":  {begin + end, fake("", "stop", "")},
		"nothing after message_stop counts": {begin + say("a") + end + say("b") + "data: garbage\n\n", fake("a", "stop", "")},
		"ST-18: two deltas, a clean end":    {begin + say("a") + say("b"), wentWrong("ab", truncated)},
		"ended blocks are no end":           {begin + open(0, `{"type":"text","text":""}`) + say("a") + closed(0), wentWrong("a", truncated)},
		"a stop reason that is null":        {begin + say("a") + eventOf("message_delta", `,"delta":{"stop_reason":null}`), wentWrong("a", truncated)},
		"a stop reason that is empty":       {begin + say("a") + stopped("", ""), wentWrong("a", truncated)},
		"message_stop that isn't ended":     {begin + say("a") + strings.TrimSuffix(done, "\n"), wentWrong("a", truncated)},
		"[DONE] is none of this dialect":    {begin + say("a") + "data: [DONE]\n\n", wentWrong("a", execution.CodeAdapterDecode)},
		"pings alone":                       {": ping\n\n" + eventOf("ping", ""), adaptertest.Outcome{Code: truncated, Status: 200}},
	}
	for stop, finish := range map[string]string{
		"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter",
		"pause_turn": "pause_turn", "model_context_window_exceeded": "model_context_window_exceeded", "new word": "new word",
	} {
		out["stop reason "+stop] = stream{begin + say("a") + stopped(stop, "") + done, fake("a", finish, "")}
	}
	return out
}

func errorStreams() map[string]stream {
	upstream, decode := execution.CodeUpstreamError, execution.CodeAdapterDecode
	overloaded := eventOf("error", `,"error":{"type":"overloaded_error","message":"Overloaded"}`)
	early := adaptertest.Outcome{Code: upstream, Status: 200}
	return map[string]stream{
		"an error event":                  {begin + say("a") + overloaded, wentWrong("a", upstream)},
		"an error event at once":          {overloaded, early},
		"an error event without a name":   {begin + say("a") + strings.TrimPrefix(overloaded, "event: error\n"), wentWrong("a", upstream)},
		"an error event that isn't JSON":  {begin + say("a") + "event: error\ndata: boom\n\n", wentWrong("a", upstream)},
		"another dialect's error":         {begin + say("a") + "data: {\"error\":{\"message\":\"boom\"}}\n\n", wentWrong("a", upstream)},
		"an error after the stop reason":  {begin + say("a") + stopped("end_turn", "") + overloaded, wentWrong("a", upstream)},
		"an event that isn't JSON":        {begin + say("a") + "data: boom\n\n" + end, wentWrong("a", decode)},
		"an event that is half a JSON":    {begin + say("a") + `data: {"type":"content_block_del` + "\n\n" + end, wentWrong("a", decode)},
		"an event of another shape":       {begin + say("a") + eventOf("content_block_delta", `,"delta":"a"`) + end, wentWrong("a", decode)},
		"a start without a message":       {eventOf("message_start", "") + end, adaptertest.Outcome{Code: decode, Status: 200}},
		"text that is a number":           {begin + deltaOf(0, `{"type":"text_delta","text":7}`) + end, wentWrong("", decode)},
		"an index that is a text":         {begin + eventOf("content_block_stop", `,"index":"0"`) + end, wentWrong("", decode)},
		"a refusal, as the API writes it": {begin + say("a") + eventOf("message_delta", `,"delta":{"stop_reason":"refusal","stop_sequence":null,"stop_details":{"type":"refusal","category":"x"}}`) + done, fake("a", "content_filter", "")},
	}
}

func textStreams() map[string]stream {
	thought := func(o adaptertest.Outcome) adaptertest.Outcome { o.Reasoning = "hm"; return o }
	thinking := open(0, `{"type":"thinking","thinking":"","signature":""}`) + deltaOf(0, `{"type":"thinking_delta","thinking":"h"}`) + deltaOf(0, `{"type":"thinking_delta","thinking":"m"}`) +
		deltaOf(0, `{"type":"signature_delta","signature":"EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk"}`) + closed(0)
	return map[string]stream{
		"signs of life":             {begin + eventOf("ping", "") + ": x\n\ndata:\n\nevent: ping\ndata:\n\n" + say("a") + eventOf("ping", "") + end, fake("a", "stop", "")},
		"thinking, then text":       {begin + thinking + open(1, `{"type":"text","text":""}`) + deltaOf(1, `{"type":"text_delta","text":"a"}`) + closed(1) + end, thought(fake("a", "stop", ""))},
		"a redacted thought":        {begin + open(0, `{"type":"redacted_thinking","data":"EmwKAhgBEgy3va3pzix"}`) + closed(0) + say("a") + end, fake("a", "stop", "")},
		"blocks that begin with it": {begin + open(0, `{"type":"thinking","thinking":"hm"}`) + closed(0) + open(1, `{"type":"text","text":"a"}`) + deltaOf(1, `{"type":"text_delta","text":"b"}`) + end, thought(fake("ab", "stop", ""))},
		"an event of a new type":    {begin + eventOf("weather", `,"sun":true`) + say("a") + end, fake("a", "stop", "")},
		"a delta of a new type":     {begin + deltaOf(0, `{"type":"sound_delta","sound":"x"}`) + say("a") + end, fake("a", "stop", "")},
		"a block of a new type":     {begin + open(0, `{"type":"sound"}`) + closed(0) + closed(7) + say("a") + end, fake("a", "stop", "")},
		"no start":                  {say("a") + end, adaptertest.Outcome{Text: "a", Finish: "stop"}},
		"events without names":      {strings.ReplaceAll(begin+say("a")+end, "event: ", "x: "), fake("a", "stop", "")},
		"a start twice":             {begin + begin + say("a") + end, fake("a", "stop", "")},
		"broken characters":         {begin + "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\xff\\ud800b\"}}\n\n" + end, fake("a\uFFFD\uFFFDb", "stop", "")},
	}
}

// wholeStreams are answers of one object to a request that asked for a stream.
func wholeStreams() map[string]stream {
	const head = `{"id":"m","type":"message","role":"assistant","model":"fake",`
	decode, early := execution.CodeAdapterDecode, adaptertest.Outcome{Code: execution.CodeUpstreamError, Status: 200}
	everything := fake("ab", "tool_calls", "3/4/-/-")
	everything.Reasoning = "hm"
	everything.Calls = []execution.ToolCall{{ID: "x", Name: "f", Arguments: `{"a":1}`}, {ID: "y", Name: "g", Arguments: "{}"}}
	return map[string]stream{
		"a JSON object": {head + `"content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":"a"},{"type":"text","text":"b"},` +
			`{"type":"tool_use","id":"x","name":"f","input":{"a":1}},{"type":"tool_use","id":"y","name":"g","input":{}}],"stop_reason":"tool_use","usage":{"input_tokens":3,"output_tokens":4}}`, everything},
		"a JSON object without a stop reason": {head + `"content":[{"type":"text","text":"a"}]}`, fake("a", "", "")},
		"a JSON object without content":       {head + `"content":[],"stop_reason":"end_turn"}`, fake("", "stop", "")},
		"blanks before a JSON object":         {" \r\n\t\n" + head + `"content":[{"type":"text","text":"a"}],"stop_reason":"max_tokens"}` + "\n", fake("a", "length", "")},
		"a JSON object with an error":         {`{"type":"error","error":{"type":"api_error","message":"boom"}}`, early},
		"a JSON object that is an error":      {`{"type":"error","message":"boom"}`, early},
		"another dialect's object, an error":  {`{"error":"boom"}`, early},
		"another dialect's object":            {`{"model":"fake","choices":[]}`, adaptertest.Outcome{Code: decode, Status: 200}},
		"a JSON object of another shape":      {head + `"content":"a"}`, adaptertest.Outcome{Code: decode, Status: 200}},
		"a JSON object that isn't one":        {`{"type":}`, adaptertest.Outcome{Code: decode, Status: 200}},
		"a JSON object that breaks off":       {head + `"content":[{"type":`, adaptertest.Outcome{Code: execution.CodeUpstreamTruncated, Status: 200}},
		"a JSON object whose call is unnamed": {head + `"content":[{"type":"tool_use","id":"x","input":{}}]}`, adaptertest.Outcome{Model: "fake", Code: decode}},
	}
}
