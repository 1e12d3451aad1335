package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// everything is an answer with all that there is.
func everything(path string) *fakeprovider.Said {
	all := sayings()
	s := *all["two calls, mixed"]
	if path == "/api/generate" {
		s = *all["reasoning"]
	} else {
		s.Pieces = slices.Concat(all["reasoning"].Pieces, s.Pieces)
	}
	return &s
}

// form is how an answer may come over the wire, all of which say the same.
type form struct {
	name string
	make func(body string) []byte // what is sent
}

// formsOf are the forms of an answer with a content type.
func formsOf(media string) []form {
	whole := func(change func(string) string) func(string) []byte {
		return func(body string) []byte { return stream(media, change(body)) }
	}
	replaced := func(pairs ...string) func(string) []byte { return whole(strings.NewReplacer(pairs...).Replace) }
	lines := func(before, field string) func(string) []byte { // of an event, which begin with a field's name
		return whole(func(body string) string {
			return regexp.MustCompile("(?m)^(data|event): ").ReplaceAllString(body, before+"$1"+field)
		})
	}
	out := []form{
		{"a byte a chunk", func(body string) []byte { return stream(media, bytewise(body)...) }}, // ST-03
		{"one chunk", replaced()}, // ST-24
		{"no end of the HTTP answer", func(body string) []byte { return bytes.TrimSuffix(stream(media, body), []byte("0\r\n\r\n")) }},
		{"lines that end in CRLF", replaced("\n", "\r\n")}, // ST-07
	}
	if media == "application/x-ndjson" {
		return append(out, form{"empty lines", replaced("\n", "\n\n \n")},
			form{"no last line end", whole(func(body string) string { return strings.TrimSuffix(body, "\n") })},
			form{"more behind the end", whole(func(body string) string { return body + body })}) // ST-20
	}
	return append(out,
		form{"lines that end in CR", replaced("\n", "\r")},
		form{"no blank after the colon", lines("", ":")},
		form{"comments, ids and times", lines(": still here\nid: 7\nretry: 10\n", ": ")},                                                        // ST-06
		form{"data of two lines", replaced("data: {", "data: {\ndata: ")},                                                                       //
		form{"a byte order mark", whole(func(body string) string { return "\ufeff" + body })},                                                   //
		form{"more behind the end", whole(func(body string) string { return body + body + `data: {"error":{"message":"too late"}}` + "\n\n" })}) // ST-20
}

// eachRun is eachPair for those whose requests go as runs.
func eachRun(t *testing.T, test func(t *testing.T, p *pair)) {
	t.Helper()
	for _, s := range speeches() {
		for _, k := range kinds() {
			if slices.Contains(k.carries, s.path) || k.name == "openai with messages" {
				continue
			}
			t.Run(s.name+" to "+k.name, func(t *testing.T) {
				t.Parallel()
				test(t, newPair(t, s, k, harness.Options{}, 4))
			})
		}
	}
}

// Whatever form an answer has on the wire, a run understands the same of it, has one end, and takes nothing that comes
// behind the answer's own.
func TestRunsReadEveryForm(t *testing.T) {
	t.Parallel()
	eachRun(t, func(t *testing.T, p *pair) {
		s, d := everything(p.path), fakeprovider.DialectOf(p.kind.runs)
		body := strings.Join(d.Stream(s, chatOf(true)), "")
		check := func(name string, script fakeprovider.Script) {
			t.Helper()
			p.says(script)
			q := chatOf(true)
			h, err := p.read(p.ask(p.request(q)), true, true)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			same(t, name, h, p.understood(s, q))
		}
		for _, f := range formsOf(d.StreamType()) {
			check(f.name, fakeprovider.Raw(f.make(body)))
		}
		for seed := range uint64(8) { // ST-24
			check(fmt.Sprint("random pieces ", seed), fakeprovider.Pieces(stream(d.StreamType(), body), seed))
		}
		s.Pieces = slices.Insert(slices.Clone(s.Pieces), 3, fakeprovider.Piece{Text: strings.Repeat("가나다 0123 ", 200_000)}) // ST-04
		check("a line of 3 MB", fakeprovider.Speak(s))

		var packed bytes.Buffer // ST-10
		z := gzip.NewWriter(&packed)
		_, _ = z.Write([]byte(body))
		_ = z.Close()
		p.says(fakeprovider.Answer(200, d.StreamType(), packed.String(), "Content-Encoding: gzip"))
		p.wantFailure(t, p.ask(p.request(chatOf(true))), 502, "adapter_decode")
		p.works(t)
	})
}

// ST-01, ST-02, ST-06: each piece is with the caller before the provider has said the next one, whatever both speak.
func TestPairsPassPiecesAsTheyCome(t *testing.T) {
	t.Parallel()
	eachPair(t, harness.Options{}, 1, func(t *testing.T, p *pair) {
		s := &fakeprovider.Said{Model: "m", Finish: "stop", Usage: tokens(3, 3, 0)}
		words := []string{"first", "second", "third"}
		for i, word := range words {
			s.Pieces = append(s.Pieces, fakeprovider.Piece{Text: word})
			if i == 0 {
				s.Pieces = slices.Insert(s.Pieces, 0, fakeprovider.Piece{Reasoning: "thought"})
			}
		}
		words = slices.Insert(words, 0, "thought")
		next := make(chan struct{})
		p.says(fakeprovider.Breaks(s, func(fakeprovider.Dialect) int { return 0 }, func(x *fakeprovider.Exchange, d fakeprovider.Dialect) {
			said := 0
			for _, piece := range d.Stream(s, chatOf(true)) {
				if said < len(words) && strings.Contains(piece, words[said]) {
					said++
					<-next
				}
				x.Chunk(piece)
			}
			x.EndChunks()
		}))
		c := p.dial()
		c.Send(p.request(chatOf(true)))
		next <- struct{}{}
		body := c.Head(limit, "POST").Body
		got := ""
		for i, word := range words {
			for buffer := make([]byte, 4096); !strings.Contains(got, word); {
				n, err := body.Read(buffer)
				if got += string(buffer[:n]); err != nil && !strings.Contains(got, word) {
					t.Fatalf("%v after %q", err, got)
				}
			}
			if i+1 < len(words) {
				next <- struct{}{}
			}
		}
	})
}

// oddity is an answer of a kind of provider that others would have written otherwise.
type oddity struct {
	name string
	body string // of a stream
	want heard
	id   bool // a call's id is made up
}

// oddities are what real providers do, by the path that a run goes to.
func oddities() map[string][]oddity {
	return map[string][]oddity{"/v1/chat/completions": openAIOddities(), "/v1/messages": anthropicOddities(), "/api/chat": ollamaOddities()}
}

// twoCalls and oneCall are answers with calls, which oddities tell in their own ways.
func twoCalls() heard {
	return heard{Calls: []fakeprovider.Call{{ID: "a", Name: "open", Arguments: `{"path":"a.rs"}`}, {ID: "b", Name: "open", Arguments: `{"path":"b.rs"}`}},
		Finish: "tool_calls", Whole: true}
}

func oneCall() heard {
	return heard{Text: "hi", Calls: []fakeprovider.Call{{Name: "open", Arguments: `{"path":"a.rs"}`}}, Finish: "tool_calls", Whole: true}
}

func openAIOddities() []oddity {
	chunk := func(delta, finish, more string) string {
		return `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{` + delta + `},"finish_reason":` + finish + `}]` + more + "}\n\n"
	}
	const usage = `,"usage":{"prompt_tokens":65,"completion_tokens":251,"total_tokens":316}`
	const counts, last = `data: {"choices":[]` + usage + "}\n\n", "data: [DONE]\n\n"
	hi, end, null := chunk(`"role":"assistant","content":"hi"`, "null", ""), chunk("", `"stop"`, ""), chunk("", "null", `,"usage":null`)
	tail := func(name string, rest ...string) oddity {
		return oddity{name, hi + strings.Join(rest, "") + last, heard{Text: "hi", Finish: "stop", Usage: tokens(65, 251, 0), Whole: true}, false}
	}
	call := func(index, id, name, arguments string) string {
		return chunk(`"tool_calls":[{`+index+id+`"function":{`+name+`"arguments":"`+arguments+`"}}]`, "null", "")
	}
	two := func(name, index string) oddity {
		a, b := call(index, `"id":"a",`, `"name":"open",`, `{\"path\":\"a.rs\"`), call(index, `"id":"b",`, `"name":"open",`, `{\"path\":\"b.rs\"`)
		return oddity{name, a + call(index, "", "", "}") + b + call(index, "", "", "}") + chunk("", `"tool_calls"`, "") + last, twoCalls(), false}
	}
	return []oddity{
		// ST-26
		tail("usage without choices", end, counts), tail("usage with an empty choice", end, chunk("", "null", usage)),
		tail("usage with the finish reason", chunk("", `"stop"`, usage)),
		tail("usage of null before and after", null, end, counts, null),                     // ST-28
		two("calls without an index", ""), two("calls that are all number 0", `"index":0,`), // ST-29
		// ST-30
		{"a call without an id", hi + call(`"index":0,`, "", `"name":"open",`, "") + call(`"index":0,`, "", "", `{\"path\":\"a.rs\"}`) + chunk("", `"stop"`, "") + last, oneCall(), true},
		{"no [DONE]", hi + end, heard{Text: "hi", Finish: "stop", Whole: true}, false},
		{"no finish reason", hi + last, heard{Text: "hi", Finish: "", Whole: true}, false},
		{"reasoning by another name", chunk(`"reasoning":"hm"`, "null", "") + hi + end + last, heard{Reasoning: "hm", Text: "hi", Finish: "stop", Whole: true}, false},
	}
}

func anthropicOddities() []oddity {
	event := func(kind, more string) string {
		return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\"" + more + "}\n\n"
	}
	begin := event("message_start", `,"message":{"id":"m","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":65,"output_tokens":1}}`)
	block := func(index, block string) string {
		return event("content_block_start", `,"index":`+index+`,"content_block":{`+block+`}`)
	}
	end := func(reason string) string {
		return event("message_delta", `,"delta":{"stop_reason":"`+reason+`"},"usage":{"output_tokens":2}`)
	}
	stop := event("content_block_stop", `,"index":0`)
	called := oneCall()
	called.Usage = tokens(65, 2, 0)
	return []oddity{
		{"a call that begins with its input, and no end", begin + block("0", `"type":"text","text":"hi"`) + stop +
			block("1", `"type":"tool_use","id":"","name":"open","input":{"path":"a.rs"}`) + end("tool_use"), called, true},
		{"events and blocks that nobody knows", event("whatever", "") + begin + block("0", `"type":"oracle"`) +
			event("content_block_delta", `,"index":0,"delta":{"type":"oracle_delta","x":1}`) + stop + block("1", `"type":"text","text":"hi"`) +
			end("end_turn") + event("message_stop", ""), heard{Text: "hi", Finish: "stop", Usage: tokens(65, 2, 0), Whole: true}, false},
	}
}

func ollamaOddities() []oddity {
	line := func(content, more, end string) string {
		return `{"model":"m","created_at":"2026-11-29T13:05:25Z","message":{"role":"assistant","content":"` + content + `"` + more + `},` + end + "}\n"
	}
	const on, done = `"done":false`, `"done":true,"done_reason":"stop"`
	call := func(id, path string) string {
		return line("", `,"tool_calls":[{`+id+`"function":{"index":0,"name":"open","arguments":{"path":"`+path+`"}}}]`, on)
	}
	return []oddity{
		{"calls that are all number 0", call(`"id":"a",`, "a.rs") + call(`"id":"b",`, "b.rs") + line("", "", done), twoCalls(), false}, // ST-29
		{"a call without an id", call("", "a.rs") + line("", `,"thinking":""`, on) + line("hi", "", done), oneCall(), true},            // ST-30
	}
}

// What a provider leaves out, repeats or says elsewhere is understood all the same, in every dialect of a caller.
func TestRunsReadOddities(t *testing.T) {
	t.Parallel()
	eachRun(t, func(t *testing.T, p *pair) {
		all := oddities()[p.kind.runs]
		for _, o := range all {
			if p.path == "/api/generate" && len(o.want.Calls) > 0 {
				continue
			}
			p.says(fakeprovider.Raw(stream(fakeprovider.DialectOf(p.kind.runs).StreamType(), o.body)))
			for _, streams := range []bool{true, false} {
				p.odd(t, &o, streams)
			}
		}
		if len(all) < 2 {
			t.Fatal("nothing was read")
		}
	})
}

// odd asks for a run that is answered oddly.
func (p *pair) odd(t *testing.T, o *oddity, streams bool) {
	t.Helper()
	a := p.ask(p.request(chatOf(streams)))
	h, err := p.read(a, streams, true)
	if err != nil {
		t.Errorf("%s: %v", o.name, err)
		return
	}
	want := o.want
	want.Calls = slices.Clone(want.Calls)
	if want.Finish == "" && p.name != "runs" {
		want.Finish = "stop" // their clients want a word
	}
	if p.name == "runs" && o.name == "a call without an id" && p.kind.name == "openai" {
		want.Finish = "stop" // as the provider said; the others say what makes clients call
	}
	if o.id && len(h.Calls) > 0 {
		want.Calls[0].ID = h.Calls[0].ID
		if h.Calls[0].ID == "" {
			t.Errorf("%s: the call has no id", o.name)
		}
	}
	same(t, fmt.Sprintf("%s, stream %v", o.name, streams), h, want)
	line := p.ended(a.Header)
	wantLog(t, line, map[string]any{"code": "ok"})
	if u := want.Usage; u == nil {
		noUsage(t, line)
	} else {
		wantLog(t, line, map[string]any{"input_tokens": u.Input, "output_tokens": u.Output})
	}
}
