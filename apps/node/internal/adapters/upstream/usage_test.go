package upstream

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

const (
	events = "text/event-stream"
	plain  = "application/json"
	lines  = "application/x-ndjson"
)

// observe feeds a body in pieces that cut returns, until there is nothing left.
func observe(kind, body string, cut func(left int) int) execution.Usage {
	o := newObserver(200, http.Header{"Content-Type": {kind}})
	for rest := []byte(body); len(rest) > 0; {
		n := cut(len(rest))
		// The observer keeps nothing of a piece, so what it was given may change afterwards.
		piece := append([]byte(nil), rest[:n]...)
		o.write(piece)
		clear(piece)
		rest = rest[n:]
	}
	return o.usage()
}

func whole(left int) int { return left }
func bytewise(int) int   { return 1 }

func seeded(seed uint64) func(int) int {
	r := rand.New(rand.NewPCG(seed, 3))
	return func(left int) int { return 1 + r.IntN(min(left, 1+r.IntN(300))) }
}

// show prints a usage: -1 is unknown.
func show(u execution.Usage) string {
	v := func(n *int64) int64 {
		if n == nil {
			return -1
		}
		return *n
	}
	return fmt.Sprint(v(u.Input), v(u.Output), v(u.Cached), v(u.Reasoning))
}

const unknown = "-1 -1 -1 -1"

func TestUsage(t *testing.T) {
	const (
		delta = `{"choices":[{"index":0,"delta":{"content":"usage: {\"usage\":{\"prompt_tokens\":9}}"}}],"usage":null}`
		final = `{"id":"x","choices":[],"usage":{"prompt_tokens":65,"completion_tokens":251,"total_tokens":316}}`
	)
	cases := map[string]struct{ kind, body, want string }{
		// ST-26: the last chunk in three shapes.
		"no choices":     {events, "data: " + delta + "\n\ndata: " + final + "\n\ndata: [DONE]\n\n", "65 251 -1 -1"},
		"empty choice":   {events, `data: {"choices":[{"index":0,"delta":{}}],"usage":{"completion_tokens":251,"prompt_tokens":65}}` + "\n\n", "65 251 -1 -1"},
		"finish chunk":   {events, `data: {"choices":[{"finish_reason":"stop","delta":{}}],"usage":{"prompt_tokens":65,"completion_tokens":251}}` + "\n\n", "65 251 -1 -1"},
		"null after":     {events, strings.Repeat("data: "+delta+"\n\n", 5) + `data: {"usage":{"prompt_tokens":11,"completion_tokens":7}}` + "\n\ndata: " + delta + "\n\n", "11 7 -1 -1"}, // ST-28
		"zero in each":   {events, `data: {"usage":{"prompt_tokens":0,"completion_tokens":0}}` + "\n\n", unknown},
		"running counts": {events, `data: {"usage":{"prompt_tokens":6,"completion_tokens":1}}` + "\n\n" + `data: {"usage":{"prompt_tokens":6,"completion_tokens":2}}` + "\n\n", "6 2 -1 -1"},
		// ST-07
		"CRLF":           {events, "data: " + final + "\r\n\r\ndata: [DONE]\r\n\r\n", "65 251 -1 -1"},
		"CR":             {events, "data: " + final + "\r\rdata: [DONE]\r\r", "65 251 -1 -1"},
		"no blank":       {events, "event:x\ndata:" + final + "\n\n", "65 251 -1 -1"},
		"two data lines": {events, "data: {\"usage\":\ndata: {\"prompt_tokens\":65,\ndata:\"completion_tokens\":251}}\n\n", "65 251 -1 -1"},
		"CRLF, two":      {events, "data: {\"usage\":\r\ndata: {\"prompt_tokens\":65,\"completion_tokens\":251}}\r\n\r\n", "65 251 -1 -1"},
		"comments":       {events, ": ping\n\n:\ndata: " + final + "\n: x\n\n", "65 251 -1 -1"},
		"no last line":   {events, "data: " + final, "65 251 -1 -1"},
		"other field":    {events, "datax: " + final + "\n\nxdata: " + final + "\n\ndat: " + final + "\n\n", unknown},
		"cut object":     {events, "data: {\"usage\":{\"prompt_tokens\":1\n\ndata: " + final + "\n\n", "65 251 -1 -1"},
		"garbage first":  {events, "data: {{{[[\"\\\n\ndata: " + final + "\n\n", "65 251 -1 -1"},

		"details":      {plain, `{"usage":{"prompt_tokens":6,"completion_tokens":39,"prompt_tokens_details":{"cached_tokens":5},"completion_tokens_details":{"reasoning_tokens":3}}}`, "6 39 5 3"},
		"null details": {plain, `{"usage":{"prompt_tokens":6,"completion_tokens":39,"prompt_tokens_details":null}}`, "6 39 -1 -1"},
		"responses":    {plain, `{"object":"response","usage":{"input_tokens":6,"output_tokens":39,"input_tokens_details":{"cached_tokens":0},"output_tokens_details":{"reasoning_tokens":0}}}`, "6 39 0 0"},
		"completed":    {events, "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":6,\"output_tokens\":39}}}\n\n", "6 39 -1 -1"},
		"messages": {events, "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1,\"cache_read_input_tokens\":4}}}\n\n" +
			"data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n", "29 15 4 -1"},
		// The Messages API counts the cache beside the input, and each count of its last event is the whole one.
		"messages, cumulative": {events, `data: {"message":{"usage":{"input_tokens":1,"output_tokens":0,"cache_read_input_tokens":336,"cache_creation_input_tokens":7}}}` + "\n\n" +
			`data: {"usage":{"input_tokens":3,"output_tokens":15,"output_tokens_details":{"thinking_tokens":9}}}` + "\n\n", "346 15 336 9"},
		"all from the cache":   {plain, `{"usage":{"input_tokens":0,"output_tokens":0,"cache_read_input_tokens":9}}`, "9 0 9 -1"},
		"gateway's cache word": {plain, `{"usage":{"prompt_tokens":40,"completion_tokens":2,"cache_read_input_tokens":30}}`, "40 2 30 -1"},
		"cache without input":  {plain, `{"usage":{"output_tokens":2,"cache_read_input_tokens":30}}`, "-1 2 30 -1"},
		"a sum too large":      {plain, `{"usage":{"input_tokens":9,"cache_read_input_tokens":9223372036854775807}}`, "9 -1 9223372036854775807 -1"},
		"embeddings":           {plain, `{"data":[{"embedding":[0.1,-2e-5]}],"usage":{"prompt_tokens":8,"total_tokens":8}}`, "8 -1 -1 -1"},
		"blanks":               {plain, " {\n \"usage\" : \t{ \"prompt_tokens\" : 6 , \"completion_tokens\" : 39 } \n}\n", "6 39 -1 -1"},
		"other nesting":        {plain, `{"metadata":{"usage":{"prompt_tokens":1}},"choices":[{"usage":{"prompt_tokens":2}}],"response":[{"usage":{"prompt_tokens":3}}]}`, unknown},
		"key as value":         {plain, `{"a":"usage","b":{"prompt_tokens":1},"response":"usage"}`, unknown},
		"escaped key":          {plain, `{"us\u0061ge":{"prompt_tokens":1},"\"usage":{"prompt_tokens":2}}`, unknown},
		"longer key":           {plain, `{"usages":{"prompt_tokens":1},"usag":{"prompt_tokens":1},"prompt_usage":{"prompt_tokens":1}}`, unknown},
		"inner inner":          {plain, `{"response":{"a":{"usage":{"prompt_tokens":1}},"usage":{"input_tokens":5}}}`, "5 -1 -1 -1"},
		"negative":             {plain, `{"usage":{"prompt_tokens":-4,"completion_tokens":3}}`, "-1 3 -1 -1"},
		"wrong types":          {plain, `{"usage":{"prompt_tokens":"6"}}`, unknown},
		"array":                {plain, `["usage",{"usage":{"prompt_tokens":1}}]`, unknown},
		"brackets inside":      {plain, `{"a":"}}]\\","usage":{"x":"}","prompt_tokens":6}}`, "6 -1 -1 -1"},
		"too large":            {plain, `{"usage":{"x":"` + strings.Repeat("a", maxCapture) + `","prompt_tokens":6}}`, unknown},
		"empty":                {plain, "", unknown},

		"native":              {plain, `{"model":"m","message":{"content":"eval_count"},"done":true,"prompt_eval_count":6,"prompt_eval_duration":9,"eval_count":39,"eval_duration":8}`, "6 39 -1 -1"},
		"native stream":       {lines, `{"message":{"content":"\"eval_count\":1,"},"done":false}` + "\n" + `{"done":true,"prompt_eval_count":6,"eval_count":39}` + "\n", "6 39 -1 -1"},
		"native, no line end": {lines, "{\"done\":false}\r\n\n" + `{"prompt_eval_count" : 6 , "eval_count": 39 }`, "6 39 -1 -1"},
		"native embedding":    {plain, `{"embeddings":[[0.1,-2]],"prompt_eval_count":8}`, "8 -1 -1 -1"},
		"native zeros":        {lines, `{"prompt_eval_count":0,"eval_count":39}` + "\n", "-1 39 -1 -1"}, // ST-28
		"native, later":       {lines, `{"prompt_eval_count":6,"eval_count":1}` + "\n" + `{"eval_count":2}` + "\n{\"eval_count\":0}\n", "6 2 -1 -1"},
		"native, elsewhere":   {lines, `{"message":{"eval_count":1},"x":[{"eval_count":2}],"eval_counts":3,"xeval_count":4,"a":"eval_count","b":5}` + "\n", unknown},
		"native, no numbers":  {plain, `{"prompt_eval_count":"6","eval_count":null}`, unknown},
		"native, odd numbers": {plain, `{"prompt_eval_count":-6,"eval_count":3.9}`, unknown},
		"native, odder ones":  {plain, `{"prompt_eval_count":6e2,"eval_count":99999999999999999999}`, unknown},
		"native, cut":         {lines, `{"prompt_eval_count":6,"eval_count":39` + "\n" + `{"eval_count":` + "\n" + `7}` + "\n", "6 39 -1 -1"},
		"native, garbage":     {lines, "{{[\"\n" + `{"prompt_eval_count":6,"eval_count":39}` + "\n", "6 39 -1 -1"},
		"native, both":        {lines, `{"usage":{"prompt_tokens":1,"completion_tokens":2}}` + "\n", "1 2 -1 -1"},
		"not JSON":            {plain, "<html>usage</html>", unknown},
		"binary type":         {"application/octet-stream", final, unknown},
		"broken type":         {";;", final, unknown},
		"charset":             {plain + "; charset=utf-8", final, "65 251 -1 -1"},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			for i, cut := range []func(int) int{whole, bytewise, seeded(1), seeded(2), seeded(3)} {
				if got := show(observe(k.kind, k.body, cut)); got != k.want {
					t.Errorf("split %d: %s, want %s", i, got, k.want)
				}
			}
		})
	}
}

// ST-10: what can't be read is unknown, never zero.
func TestUsageOfOtherBodies(t *testing.T) {
	body := `{"usage":{"prompt_tokens":6}}`
	for name, h := range map[string]http.Header{
		"gzip": {"Content-Type": {plain}, "Content-Encoding": {"gzip"}},
		"none": {},
	} {
		o := newObserver(200, h)
		o.write([]byte(body))
		if o.usage().Known() {
			t.Error(name)
		}
	}
	o := newObserver(400, http.Header{"Content-Type": {plain}})
	o.write([]byte(body))
	if o.usage().Known() {
		t.Error("an error's body was counted")
	}
	o = newObserver(200, http.Header{"Content-Type": {plain}, "Content-Encoding": {"identity"}})
	o.write([]byte(body))
	if !o.usage().Known() {
		t.Error("identity is no encoding")
	}
}

// ST-04, faults row 22: a line of any length is read with the same memory, and what follows it is read too.
func TestUsageBehindALongLine(t *testing.T) {
	line := []byte("data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat(`long\n`, 5<<20/6) + "\"}}]}\n\n")
	var o *observer
	patience.Allocated(t, 64<<10, func() {
		o = newObserver(200, http.Header{"Content-Type": {events}})
		for rest := line; len(rest) > 0; rest = rest[min(len(rest), MaxPiece):] {
			o.write(rest[:min(len(rest), MaxPiece)])
		}
	})
	o.write([]byte("data: {\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":39}}\n\n"))
	if got := show(o.usage()); got != "6 39 -1 -1" {
		t.Error(got)
	}
}

// Every recorded answer, in pieces cut anywhere: the same counts, and those that the recording holds.
func TestUsageOfFixtures(t *testing.T) {
	all, err := fakeprovider.LoadFixtures(func(_, path string) bool { return strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/api/") })
	if err != nil {
		t.Fatal(err)
	}
	known := 0
	for _, f := range all {
		status, header, body, _, err := f.Answer()
		if err != nil {
			t.Fatal(f.Name, err)
		}
		run := func(cut func(int) int) execution.Usage {
			o := newObserver(status, header)
			for rest := body; len(rest) > 0; {
				n := cut(len(rest))
				o.write(rest[:n])
				rest = rest[n:]
			}
			return o.usage()
		}
		want := run(whole)
		for seed := range uint64(20) {
			if d := cmp.Diff(want, run(seeded(seed))); d != "" {
				t.Errorf("%s, seed %d: %s", f.Name, seed, d)
			}
		}
		if want.Known() {
			known++
		}
		if holds := lastCounts(body); status == 200 && holds != "" && holds != show(want) {
			t.Errorf("%s: %s, the body holds %s", f.Name, show(want), holds)
		}
	}
	if known < 50 {
		t.Errorf("only %d of %d recordings have known counts", known, len(all))
	}
}

// lastCounts finds the input and output counts of a body by decoding each line of it, the slow way.
func lastCounts(body []byte) string {
	out := ""
	for line := range strings.Lines(string(body)) {
		var v struct {
			Usage    *counts
			Response struct{ Usage *counts }
			Message  struct{ Usage *counts }
			Prompt   int64 `json:"prompt_eval_count"`
			Eval     int64 `json:"eval_count"`
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &v) != nil {
			continue
		}
		if v.Prompt > 0 {
			u := execution.Usage{Input: &v.Prompt}
			if v.Eval > 0 {
				u.Output = &v.Eval
			}
			out = show(u)
		}
		for _, c := range []*counts{v.Usage, v.Response.Usage} {
			if c == nil || v.Message.Usage != nil || zero(first(c.Input, c.Prompt)) {
				continue
			}
			input := *first(c.Input, c.Prompt)
			if c.CacheRead != nil {
				input += *c.CacheRead
			}
			u := execution.Usage{Input: &input, Output: first(c.Output, c.Completion),
				Cached: first(c.PromptDetails.Cached, c.InputDetails.Cached, c.CacheRead), Reasoning: first(c.OutputDetails.Reasoning, c.CompletionDetails.Reasoning)}
			out = show(u)
		}
	}
	return out
}

// Random JSON with usage objects in and out of place, against a decoder that reads it whole.
func TestUsageAgainstADecoder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, err := json.Marshal(randomObject(t, 0))
		if err != nil {
			t.Fatal(err)
		}
		want := reference(text)
		if got := show(observe(plain, string(text), seeded(rapid.Uint64().Draw(t, "seed")))); got != want {
			t.Fatalf("%s\ngot %s, want %s", text, got, want)
		}
	})
}

func randomObject(t *rapid.T, depth int) map[string]any {
	keys := []string{"usage", "response", "message", "choices", "prompt_tokens", "a\"b", "usage\\", "é"}
	out := map[string]any{}
	for range rapid.IntRange(0, 4).Draw(t, "members") {
		out[rapid.SampledFrom(keys).Draw(t, "key")] = randomValue(t, depth+1)
	}
	return out
}

func randomValue(t *rapid.T, depth int) any {
	top := 6
	if depth > 4 {
		top = 3
	}
	switch rapid.IntRange(0, top).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.SampledFrom([]string{"", "usage", `{"usage":{"prompt_tokens":1}}`, `\`, `"`, "}]"}).Draw(t, "string")
	case 2, 3:
		return rapid.IntRange(0, 1000).Draw(t, "number")
	case 4:
		return []any{randomValue(t, depth+1), randomValue(t, depth+1)}
	case 5:
		return map[string]any{"prompt_tokens": rapid.IntRange(0, 99).Draw(t, "in"), "completion_tokens": rapid.IntRange(0, 99).Draw(t, "out")}
	}
	return randomObject(t, depth)
}

// reference applies the observer's rule to a whole object. json.Marshal sorts keys, so message, response, usage is
// the order in which they stand.
func reference(text []byte) string {
	var top map[string]json.RawMessage
	_ = json.Unmarshal(text, &top)
	o := &observer{}
	for _, parent := range []string{"message", "response"} {
		var inner map[string]json.RawMessage
		if json.Unmarshal(top[parent], &inner) == nil && len(inner["usage"]) > 0 && inner["usage"][0] == '{' {
			o.take(inner["usage"])
		}
	}
	if u := top["usage"]; len(u) > 0 && u[0] == '{' {
		o.take(u)
	}
	return show(o.usage())
}

// FuzzObserver: no input panics, and how it is cut never matters.
func FuzzObserver(f *testing.F) {
	kinds := []string{plain, events, lines}
	f.Add([]byte("data: {\"usage\":{\"prompt_tokens\":6}}\n\n"), uint64(1), uint8(1))
	f.Add([]byte("data:{\"a\":\"\\\"usage\"}\r\n\r\ndata: {\"usage\":\rdata:{\"input_tokens\":1}}\r\r"), uint64(2), uint8(1))
	f.Add([]byte(`{"response":{"usage":{"output_tokens":3}},"usage":null}`), uint64(3), uint8(0))
	f.Add([]byte(`{"usage":{"usage":{"prompt_tokens":1}},"usage":{"prompt_tokens":2}}`), uint64(4), uint8(0))
	f.Add([]byte("}}]]\"\\"), uint64(5), uint8(0))
	f.Add([]byte("{\"prompt_eval_count\":12,\"eval_count\":3.4}\n{\"eval_count\": 5 }"), uint64(6), uint8(2))
	f.Fuzz(func(t *testing.T, body []byte, seed uint64, form uint8) {
		kind := kinds[int(form)%len(kinds)]
		want := show(observe(kind, string(body), whole))
		if got := show(observe(kind, string(body), seeded(seed))); got != want {
			t.Fatalf("cut: %s, whole: %s", got, want)
		}
		if got := show(observe(kind, string(body), bytewise)); got != want {
			t.Fatalf("bytewise: %s, whole: %s", got, want)
		}
	})
}

func BenchmarkObserver(b *testing.B) {
	event := []byte(`data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" from"}}],"created":1795956714,` +
		`"id":"chatcmpl-jYbDvCxD84v7hLqnn29TjlC3ChYBPTQp","model":"tiny","object":"chat.completion.chunk"}` + "\n\n")
	counted := []byte(`data: {"choices":[],"usage":{"completion_tokens":39,"prompt_tokens":6,"total_tokens":45}}` + "\n\n")
	numbers := []byte(strings.Repeat(`0.0123456789,-0.98765432,`, MaxPiece/25))
	for name, k := range map[string]struct {
		kind  string
		piece []byte
		begin string
	}{
		"event": {events, event, ""}, "half-event": {events, event[:100], "data: {"},
		"usage-event": {events, counted, ""}, "embedding": {plain, numbers, `{"data":[`},
		"line": {lines, []byte(`{"model":"tiny","created_at":"2026-11-29T13:05:25.21Z","message":{"role":"assistant","content":" from"},"done":false}` + "\n"), ""},
	} {
		b.Run(name, func(b *testing.B) {
			o := newObserver(200, http.Header{"Content-Type": {k.kind}})
			o.write([]byte(k.begin))
			b.SetBytes(int64(len(k.piece)))
			b.ReportAllocs()
			for b.Loop() {
				o.write(k.piece)
			}
		})
	}
}
