package loopback

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/packages/go/execution"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func provider(t testing.TB, targets ...string) *Provider {
	t.Helper()
	p, err := New(Config{Targets: targets, Options: map[string]string{"defaults": "delay=0s"}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// chat returns a chat request whose last message of the user says text; more is appended to the object.
func chat(text, more string) *execution.TunnelRequest {
	content, _ := json.Marshal(text)
	return adaptertest.Post("/v1/chat/completions",
		`{"model":"loopback","messages":[{"role":"system","content":"be kind"},{"role":"user","content":`+string(content)+`}]`+more+`}`)
}

const (
	stream    = `,"stream":true`
	withUsage = `,"stream":true,"stream_options":{"include_usage":true}`
	weather   = `,"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},"unit":{"enum":["celsius","kelvin"]}}}}},{"type":"function","function":{"name":"now"}}]`
)

func TestConformance(t *testing.T) {
	adaptertest.RunEmbedded(t, adaptertest.Embedded{
		New:     func(t testing.TB) execution.Tunneler { return provider(t) },
		Whole:   func() *execution.TunnelRequest { return chat("hi loopback: reasoning=3", withUsage) },
		Endless: func() *execution.TunnelRequest { return chat("loopback: tokens=100000 delay=5ms", stream) },
		Cut:     func() *execution.TunnelRequest { return chat("loopback: cut=5", stream) },
	})
}

// answer is what a client makes of an answer, streamed or not.
type answer struct {
	Text, Reasoning, Finish string
	Calls                   map[int]string // index → name(arguments)
	Done                    bool
	Usage                   bool
}

type choice struct {
	Delta        *part   `json:"delta"`
	Message      *part   `json:"message"`
	Text         string  `json:"text"`
	FinishReason *string `json:"finish_reason"`
}

type part struct {
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content"`
	ToolCalls []struct {
		Index    int    `json:"index"`
		ID       string `json:"id"`
		Function struct{ Name, Arguments string }
	} `json:"tool_calls"`
}

func read(t *testing.T, body []byte) answer {
	t.Helper()
	a := answer{Calls: map[int]string{}}
	add := func(text string) {
		var v struct {
			Choices []choice
			Usage   *struct {
				Total int `json:"total_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		a.Usage = a.Usage || v.Usage != nil && v.Usage.Total > 0
		for _, c := range v.Choices {
			a.Text += c.Text
			if c.FinishReason != nil {
				a.Finish = *c.FinishReason
			}
			for _, p := range []*part{c.Delta, c.Message} {
				if p == nil {
					continue
				}
				a.Text += p.Content
				a.Reasoning += p.Reasoning
				for i, call := range p.ToolCalls {
					a.Calls[max(call.Index, i)] += call.Function.Name + call.Function.Arguments
				}
			}
		}
	}
	if !strings.HasPrefix(string(body), "data: ") {
		add(string(body))
		return a
	}
	for event := range strings.SplitSeq(strings.TrimSuffix(string(body), "\n\n"), "\n\n") {
		if data := strings.TrimPrefix(event, "data: "); data == "[DONE]" {
			a.Done = true
		} else {
			add(data)
		}
	}
	return a
}

func do(t *testing.T, p *Provider, req *execution.TunnelRequest) *adaptertest.Recorder {
	t.Helper()
	r, err := adaptertest.Do(t, t.Context(), p, req)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestChat(t *testing.T) {
	all := strings.Join(sentence(), "")
	if !strings.Contains(all, "loopback adapter") {
		t.Error("the answer doesn't say who answers")
	}
	w := `get_weather{"city":"loopback","days":1,"unit":"celsius"}`
	cases := map[string]struct {
		say, more string
		want      answer
	}{
		"default":        {"hi", "", answer{Text: all, Finish: "stop", Usage: true}},
		"tokens":         {"loopback: tokens=3", "", answer{Text: "Hello from the", Finish: "stop", Usage: true}},
		"again":          {"loopback: tokens=25", "", answer{Text: all + " Hello from", Finish: "stop", Usage: true}},
		"no tokens":      {"loopback: tokens=0", "", answer{Finish: "stop", Usage: true}},
		"max_tokens":     {"hi", `,"max_tokens":2`, answer{Text: "Hello from", Finish: "length", Usage: true}},
		"max_completion": {"hi", `,"max_completion_tokens":1`, answer{Text: "Hello", Finish: "length", Usage: true}},
		"mark":           {"x loopback: mark=a7 tokens=3\nloopback: tokens=9", "", answer{Text: "[a7] Hello from", Finish: "stop", Usage: true}},
		"mark alone":     {"loopback: mark=a7 tokens=0", "", answer{Text: "[a7] ", Finish: "stop", Usage: true}},
		"reasoning":      {"loopback: reasoning=2 tokens=1", "", answer{Text: "Hello", Reasoning: " hm1 hm2", Finish: "stop", Usage: true}},
		"tools":          {"loopback: tools", weather, answer{Finish: "tool_calls", Usage: true, Calls: map[int]string{0: w}}},
		"two tools":      {"loopback: tools=3", weather, answer{Finish: "tool_calls", Usage: true, Calls: map[int]string{0: w, 1: "now{}", 2: w}}},
		"required":       {"hi", weather + `,"tool_choice":"required"`, answer{Finish: "tool_calls", Usage: true, Calls: map[int]string{0: w}}},
		"named":          {"hi", weather + `,"tool_choice":{"type":"function","function":{"name":"now"}}`, answer{Finish: "tool_calls", Usage: true, Calls: map[int]string{0: "now{}"}}},
		"auto":           {"loopback: tokens=1", weather + `,"tool_choice":"auto"`, answer{Text: "Hello", Finish: "stop", Usage: true}},
		"usage off":      {"loopback: usage=off tokens=1", "", answer{Text: "Hello", Finish: "stop"}},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			if k.want.Calls == nil {
				k.want.Calls = map[int]string{}
			}
			r := do(t, provider(t), chat(k.say, k.more))
			if d := cmp.Diff(k.want, read(t, r.Bytes())); d != "" || r.Counted().Known() != k.want.Usage {
				t.Errorf("whole: %s, usage %v", d, r.Counted())
			}
			if got := r.Header().Get("Content-Length"); got != fmt.Sprint(len(r.Bytes())) {
				t.Errorf("Content-Length %s of %d", got, len(r.Bytes()))
			}
			r = do(t, provider(t), chat(k.say, k.more+withUsage))
			k.want.Done = true
			if d := cmp.Diff(k.want, read(t, r.Bytes())); d != "" || r.Counted().Known() != k.want.Usage {
				t.Errorf("stream: %s, usage %v", d, r.Counted())
			}
			r = do(t, provider(t), chat(k.say, k.more+stream))
			if read(t, r.Bytes()).Usage {
				t.Error("counts were told that nobody asked for")
			}
		})
	}
}

func TestUsageCounts(t *testing.T) {
	r := do(t, provider(t), chat("one two loopback: tokens=5 reasoning=2", ""))
	u := r.Counted()
	if *u.Input != 2+5 || *u.Output != 7 || *u.Reasoning != 2 { // "be kind" and five words
		t.Errorf("%d %d %d", *u.Input, *u.Output, *u.Reasoning)
	}
}

func TestRefusals(t *testing.T) {
	cases := map[string]struct {
		req    *execution.TunnelRequest
		status int
		text   string
	}{
		"unknown directive": {chat("loopback: tokens=1 wibble=2", ""), 400, "wibble=2: unknown directive"},
		"no number":         {chat("loopback: tokens=x", ""), 400, "tokens=x"},
		"negative":          {chat("loopback: cut=-1", ""), 400, "cut=-1"},
		"no duration":       {chat("loopback: delay=5", ""), 400, "delay=5"},
		"usage":             {chat("loopback: usage=maybe", ""), 400, "on or off"},
		"status":            {chat("loopback: fail=200", ""), 400, "from 400 to 599"},
		"garbage=1":         {chat("loopback: garbage=1", ""), 400, "takes no value"},
		"mark":              {chat("loopback: mark=", ""), 400, "mark="},
		"tools, none there": {chat("loopback: tools", ""), 400, "the request has no tools"},
		"not JSON":          {adaptertest.Post("/v1/chat/completions", "{"), 400, "JSON"},
		"no messages":       {adaptertest.Post("/v1/chat/completions", `{"model":"loopback"}`), 400, "messages"},
		"no prompt":         {adaptertest.Post("/v1/completions", `{"model":"loopback"}`), 400, "prompt"},
		"no input":          {adaptertest.Post("/v1/responses", `{"model":"loopback"}`), 400, "input"},
		"embeddings":        {adaptertest.Post("/v1/embeddings", `{"model":"loopback","input":[]}`), 400, "input"},
		"dimensions":        {adaptertest.Post("/v1/embeddings", `{"model":"loopback","input":"x","dimensions":0}`), 400, "dimensions"},
		"method":            {adaptertest.Get("/v1/chat/completions"), 405, "POST"},
		"method of models":  {adaptertest.Post("/v1/models", "{}"), 405, "GET"},
		"fail":              {chat("loopback: fail=500", ""), 500, "fail=500"},
		"fail, streamed":    {chat("loopback: fail=429", stream), 429, "fail=429"},
		"model":             {adaptertest.Post("/v1/chat/completions", `{"model":"other","messages":[{"role":"user","content":"x"}]}`), 404, "model"},
	}
	p := provider(t, "loopback", "second")
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			r := do(t, p, k.req)
			var v struct {
				Error struct{ Message, Type string }
			}
			if err := json.Unmarshal(r.Bytes(), &v); err != nil || r.Status() != k.status || !strings.Contains(v.Error.Message, k.text) || v.Error.Type == "" {
				t.Errorf("%d %s", r.Status(), r.Bytes())
			}
			if limited := k.status == 429; (r.Header().Get("Retry-After") != "") != limited {
				t.Errorf("Retry-After %q", r.Header().Get("Retry-After"))
			}
		})
	}
	for _, path := range []string{"/v1/other", "/v1/chat/completions/", "", "//v1/models"} {
		_, err := adaptertest.Do(t, t.Context(), p, adaptertest.Post(path, "{}"))
		if f, ok := err.(*execution.Failure); !ok || f.Code != execution.CodeBadRequest || !f.NothingSent {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestNew(t *testing.T) {
	for name, cfg := range map[string]Config{
		"allow_paths": {AllowPaths: []string{"/x"}},
		"speed":       {Options: map[string]string{"speed": "1"}},
		"wibble":      {Options: map[string]string{"defaults": "wibble"}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	want := execution.Capabilities{Available: true, Version: "embedded", Models: []execution.Model{{Name: "a", Loaded: true}, {Name: "b", Loaded: true}}}
	if d := cmp.Diff(want, provider(t, "a", "b").Probe(t.Context())); d != "" {
		t.Error(d)
	}
	r := do(t, provider(t), adaptertest.Get("/v1/models"))
	if !strings.Contains(string(r.Bytes()), `"id":"loopback"`) {
		t.Errorf("%s", r.Bytes())
	}
	// Without targets every model is answered under its own name.
	r = do(t, provider(t), adaptertest.Post("/v1/completions", `{"model":"any","prompt":"x"}`))
	if r.Status() != 200 || !strings.Contains(string(r.Bytes()), `"model":"any"`) {
		t.Errorf("%s", r.Bytes())
	}
}

func TestCompletions(t *testing.T) {
	for _, more := range []string{"", withUsage} {
		r := do(t, provider(t), adaptertest.Post("/v1/completions", `{"model":"m","prompt":["x","loopback: tokens=2"]`+more+`}`))
		got := read(t, r.Bytes())
		if got.Text != "Hello from" || got.Finish != "stop" || !got.Usage || got.Done != (more != "") {
			t.Errorf("%+v", got)
		}
	}
}

func TestResponses(t *testing.T) {
	input := `{"model":"m","max_output_tokens":2,"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]`
	r := do(t, provider(t), adaptertest.Post("/v1/responses", input+`}`))
	if s := string(r.Bytes()); !strings.Contains(s, `"text":"Hello from"`) || !strings.Contains(s, `"status":"incomplete"`) || !strings.Contains(s, `"input_tokens":1`) {
		t.Errorf("%s", s)
	}
	r = do(t, provider(t), adaptertest.Post("/v1/responses", `{"model":"m","stream":true,"input":"loopback: tokens=2"}`))
	var names []string
	for event := range strings.SplitSeq(strings.TrimSpace(string(r.Bytes())), "\n\n") {
		name, data, _ := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
		names = append(names, name)
		var v struct {
			Type string
			Seq  int `json:"sequence_number"`
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil || v.Type != name || v.Seq != len(names)-1 {
			t.Errorf("%v: %s", err, event)
		}
	}
	want := []string{"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
		"response.output_text.delta", "response.output_text.delta", "response.output_text.done", "response.content_part.done",
		"response.output_item.done", "response.completed"}
	if d := cmp.Diff(want, names); d != "" {
		t.Error(d)
	}
	if last := string(r.Bytes()); !strings.Contains(last[strings.Index(last, "event: response.completed"):], `"output_tokens":2`) {
		t.Error("no counts at the end")
	}
}

func TestEmbeddings(t *testing.T) {
	type list struct {
		Data []struct{ Embedding any }
	}
	ask := func(more string) (l list) {
		r := do(t, provider(t), adaptertest.Post("/v1/embeddings", `{"model":"m","input":["a","b","a"]`+more+`}`))
		if err := json.Unmarshal(r.Bytes(), &l); err != nil || len(l.Data) != 3 {
			t.Fatal(err, string(r.Bytes()))
		}
		return l
	}
	l := ask("")
	if len(l.Data[0].Embedding.([]any)) != defaultDimensions || !cmp.Equal(l.Data[0], l.Data[2]) || cmp.Equal(l.Data[0], l.Data[1]) {
		t.Errorf("%v", l)
	}
	packed, err := base64.StdEncoding.DecodeString(ask(`,"dimensions":3,"encoding_format":"base64"`).Data[0].Embedding.(string))
	if err != nil || len(packed) != 12 {
		t.Error(err, len(packed))
	}
	r := do(t, provider(t), adaptertest.Post("/v1/embeddings", `{"model":"m","input":[1,2,3]}`))
	if r.Status() != 200 {
		t.Errorf("tokens: %s", r.Bytes())
	}
}

// Pauses, limits and cancel on a clock that costs nothing.
func TestPace(t *testing.T) {
	cases := map[string]struct {
		say, more string
		timers    execution.Timers
		cancel    time.Duration
		took      time.Duration
		code      execution.Code
	}{
		"default stream":       {"loopback: tokens=5", stream, execution.Timers{}, 0, 5 * defaultDelay, 0},
		"default whole":        {"loopback: tokens=5", "", execution.Timers{}, 0, 0, 0},
		"asked for":            {"loopback: tokens=5 delay=1s first=2s", stream, execution.Timers{FirstByte: 2 * time.Second, Idle: time.Second}, 0, 7 * time.Second, 0},
		"asked for, whole":     {"loopback: tokens=5 delay=1s", "", execution.Timers{}, 0, 5 * time.Second, 0},
		"first byte too late":  {"loopback: first=2s", stream, execution.Timers{FirstByte: time.Second}, 0, time.Second, execution.CodeFirstByteTimeout},
		"whole too late":       {"loopback: tokens=5 delay=1s", "", execution.Timers{FirstByte: time.Second}, 0, time.Second, execution.CodeFirstByteTimeout},
		"stall":                {"loopback: tokens=5 stall=2 delay=0s", stream, execution.Timers{Idle: time.Second}, 0, time.Second, execution.CodeIdleTimeout},
		"stall at the end":     {"loopback: tokens=5 stall=5 delay=0s", stream, execution.Timers{Idle: time.Second}, 0, time.Second, execution.CodeIdleTimeout},
		"stall, whole":         {"loopback: tokens=5 stall=2", "", execution.Timers{Idle: time.Second}, 0, time.Second, execution.CodeIdleTimeout},
		"stall and cancel":     {"loopback: stall=0", stream, execution.Timers{}, time.Minute, time.Minute, execution.CodeClientGone},
		"cancel before a head": {"loopback: first=1h", stream, execution.Timers{FirstByte: 2 * time.Hour}, time.Second, time.Second, execution.CodeClientGone},
		"cancel in a stream":   {"loopback: tokens=1000", stream, execution.Timers{}, time.Second, time.Second, execution.CodeClientGone},
		"cut":                  {"loopback: tokens=5 cut=2 delay=1s", stream, execution.Timers{}, 0, 2 * time.Second, execution.CodeUpstreamTruncated},
		"cut at the end":       {"loopback: tokens=5 cut=5 delay=0s", stream, execution.Timers{}, 0, 0, execution.CodeUpstreamTruncated},
		"cut, whole":           {"loopback: cut=2", "", execution.Timers{}, 0, 0, execution.CodeUpstreamTruncated},
		"garbage":              {"loopback: garbage", stream, execution.Timers{}, 0, 0, 0},
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		k := cases[name]
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, err := New(Config{})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if k.cancel > 0 {
					time.AfterFunc(k.cancel, func() { cancel(execution.CauseClientGone) })
				}
				req := chat(k.say, k.more)
				req.Timers = k.timers
				began := time.Now()
				r, err := adaptertest.Do(t, ctx, p, req)
				if code, took := adaptertest.Code(t, err), time.Since(began); code != k.code || took != k.took {
					t.Errorf("%v after %v (%v), want %v after %v", code, took, err, k.code, k.took)
				}
				if err != nil && r.Counted().Known() {
					t.Error("counts of an answer that wasn't whole")
				}
			})
		})
	}
}

// A request whose body doesn't come, fails or is of another length.
func TestRequestBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(execution.CauseDeadline) })
		req := chat("hi", "")
		req.Body = &silent{make(chan struct{})}
		if _, err := adaptertest.Do(t, ctx, provider(t), req); err != execution.CauseDeadline {
			t.Error(err)
		}
	})
	req := chat("hi", "")
	req.ContentLength += 3
	if _, err := adaptertest.Do(t, t.Context(), provider(t), req); adaptertest.Code(t, err) != execution.CodeBadRequest {
		t.Error(err)
	}
}

type silent struct{ closed chan struct{} }

func (s *silent) Read([]byte) (int, error) {
	<-s.closed
	return 0, context.Canceled
}

func (s *silent) Close() error {
	close(s.closed)
	return nil
}

// FuzzTunnel: no request panics, and every outcome is one.
func FuzzTunnel(f *testing.F) {
	f.Add("/v1/chat/completions", `{"messages":[{"role":"user","content":"loopback: tokens=2 tools=3"}],"stream":true,"tools":[{"function":{"parameters":{"properties":{"a":{"type":7,"enum":[]}}}}}]}`)
	f.Add("/v1/responses", `{"input":[{"content":[{"text":"x"}]}],"max_output_tokens":-1}`)
	f.Add("/v1/embeddings", `{"input":[[1,2]],"dimensions":4}`)
	f.Add("/v1/completions", `{"prompt":[null,1,{}]}`)
	f.Fuzz(func(t *testing.T, path, body string) {
		p, err := New(Config{Options: map[string]string{"defaults": "delay=0s tokens=2"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, execution.CauseDeadline)
		defer cancel()
		_, err = adaptertest.Do(t, ctx, p, adaptertest.Post(path, body))
		adaptertest.Code(t, err)
	})
}
