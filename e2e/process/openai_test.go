//go:build e2e

package process

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"iop/e2e/procs"
)

// The OpenAI smoke: a real llama-server behind the node, with models whose text is known.

// llama is a running llama-server.
type llama struct {
	*procs.Process
	addr, model string
	args        []string
}

func startLlama(t *testing.T, model string, args ...string) *llama {
	t.Helper()
	addr, err := procs.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	l := &llama{addr: addr, model: model, args: args}
	l.restart(t)
	l.healthy(t)
	return l
}

// restart starts it again where it was, and doesn't wait for its model.
func (l *llama) restart(t *testing.T) {
	t.Helper()
	p, err := procs.StartLlama(background(t), llamaDir, l.model, l.addr, l.args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	l.Process = p
}

func (l *llama) healthy(t *testing.T) {
	t.Helper()
	if err := procs.Healthy(background(t), l.Process, l.addr); err != nil {
		t.Fatal(err)
	}
}

// busy is how many slots of the server itself are generating.
func (l *llama) busy(t *testing.T) int {
	t.Helper()
	return strings.Count(string(get(t, nil, l.addr, "/slots")), `"is_processing":true`)
}

// site starts edge and node in front of the server.
func (l *llama) site(t *testing.T, places int) *site {
	t.Helper()
	return l.siteWith(t, places, "")
}

func (l *llama) siteWith(t *testing.T, places int, node string) *site {
	t.Helper()
	return newSite(t, procs.SiteConfig{Node: node,
		Adapters: "[" + adapter("llama", "http://"+l.addr, places) + "]",
		Routes:   "[{model: tiny, adapter: llama, target: tiny}]",
		Edge:     "timers: {" + quickTimers + "}",
	})
}

const greeting = "Hello from the tiny test model. It streams one piece at a time: naïve café, 한국어 🙂\ndata: not an event\n\ndone!"

// ask is a chat request of the known model.
func ask(text string, stream bool, more string) string {
	return chatBody(fmt.Sprintf(`{"model":"tiny","stream":%t,"messages":[{"role":"user","content":"%s"}]%s}`, stream, text, more))
}

// chunks are the events of a streamed chat answer.
type chunks struct {
	text, finish, toolName, toolArguments string
	usage                                 struct{ Prompt, Completion int }
	done                                  bool
}

func parse(t *testing.T, stream string) chunks {
	t.Helper()
	var all chunks
	for event := range strings.SplitSeq(stream, "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			all.done = true
			continue
		}
		var e struct {
			Choices []struct {
				Delta struct {
					Content string
					Calls   []struct {
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				Finish string `json:"finish_reason"`
			}
			Usage struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%v in %q", err, data)
		}
		for _, c := range e.Choices {
			all.text, all.finish = all.text+c.Delta.Content, all.finish+c.Finish
			for _, call := range c.Delta.Calls {
				all.toolName, all.toolArguments = all.toolName+call.Function.Name, all.toolArguments+call.Function.Arguments
			}
		}
		if e.Usage.Completion > 0 {
			all.usage = struct{ Prompt, Completion int }(e.Usage)
		}
	}
	return all
}

// A real engine's tokens arrive one by one, whole, and counted.
func TestLlamaStreams(t *testing.T) {
	l := startLlama(t, "tiny.gguf")
	s := l.site(t, 4)
	whole := func(request string) chunks {
		t.Helper()
		c := s.ask(request)
		got := parse(t, c.text())
		if c.status != 200 || c.err != nil || !got.done {
			t.Fatalf("not whole: %s", c)
		}
		return got
	}
	const usage = `,"stream_options":{"include_usage":true}`

	hi := whole(ask("hi", true, usage))
	if hi.text != greeting || hi.finish != "stop" || hi.usage.Prompt == 0 || hi.usage.Completion == 0 {
		t.Errorf("%+v", hi)
	}
	line := said(t, s.Edge, "run ended", 1)
	if line.Str("output_tokens") != fmt.Sprint(hi.usage.Completion) || line.Str("input_tokens") != fmt.Sprint(hi.usage.Prompt) {
		t.Errorf("the provider counts %+v, the edge %v", hi.usage, line)
	}
	direct := begin(t, nil, l.addr, "directly", ask("hi", true, usage)).await(t, limit)
	if d := parse(t, direct.text()); d != hi {
		t.Errorf("directly %+v, through the edge %+v", d, hi)
	}

	count := " " + strings.TrimSpace(whole(ask("count", true, `,"max_tokens":2000`)).text)
	for n := 1; n <= 400; n++ {
		rest, ok := strings.CutPrefix(count, fmt.Sprintf(" %d", n))
		if count = rest; !ok {
			t.Fatalf("the count breaks at %d: %.40q", n, rest)
		}
	}

	const tool = `,"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"unit":{"type":"string"}}}}}]`
	call := whole(ask("weather in Seoul?", true, tool))
	if call.toolName != "get_weather" || call.toolArguments != `{"city": "Seoul", "unit": "celsius"}` || call.finish != "tool_calls" {
		t.Errorf("%+v", call)
	}
}

// The model of slow.gguf takes 45 ms and more for a token: each must be there before the next is made.
func TestLlamaTokensArriveOneByOne(t *testing.T) {
	l := startLlama(t, "slow.gguf")
	s := l.site(t, 4)
	c := s.ask(ask("count", true, `,"max_tokens":12`))
	got := parse(t, c.text())
	if c.err != nil || !got.done || !strings.HasPrefix(strings.TrimSpace(got.text), "1 2 3") {
		t.Fatalf("%s", c)
	}
	apart := 0
	for i := 1; i < len(c.times); i++ {
		if c.times[i].Sub(c.times[i-1]) > 20*time.Millisecond {
			apart++
		}
	}
	if apart < 4 { // what reads them may be late for some
		t.Errorf("12 tokens in %d reads, %d of them apart", len(c.times), apart)
	}
	t.Logf("%d reads over %v", len(c.times), c.times[len(c.times)-1].Sub(c.times[0]).Round(time.Millisecond))
}

// A caller that leaves frees the GPU within a second: while streaming and before the first token; one that leaves the
// queue never reaches the provider. Where it doesn't stream, this llama-server works on although its client is gone (seen
// with FIN and with RST, without IOP): there the connection to it must be closed. (Rows 15 and 16 of the fault catalogue.)
func TestLlamaCancel(t *testing.T) {
	l := startLlama(t, "slow.gguf")
	s := l.site(t, 1)
	working := func() bool { return l.busy(t) == 1 }
	free := func() bool { return l.busy(t) == 0 }
	for _, tt := range []struct {
		name, request string
		ready         func(c *call)
		freed         func() bool
	}{
		{"while streaming", ask("loop", true, `,"max_tokens":100000`), func(c *call) { c.awaitText(t, "content") }, free},
		{"before the first token", ask(strings.Repeat("word ", 300), true, ""), func(*call) { eventually(t, limit, "the slot works", working) }, free},
		{"not streaming", ask("loop", false, `,"max_tokens":200`), func(*call) { eventually(t, limit, "the slot works", working) },
			func() bool { return established(t, l.addr) == 0 }},
	} {
		c := begin(t, nil, s.HTTP, tt.name, tt.request)
		tt.ready(c)
		waiting := begin(t, nil, s.HTTP, "in the queue", ask("hi", true, ""))
		eventually(t, limit, "one waits", func() bool { return s.metric("iop_queue_length") == 1 })
		waiting.leave(false)
		eventually(t, promise, "nobody waits", func() bool { return s.metric("iop_queue_length") == 0 })
		c.leave(false)
		took := eventually(t, promise, tt.name+": the provider is free", tt.freed)
		t.Logf("%s: the provider was free after %v", tt.name, took.Round(time.Millisecond))
		s.awaitFree(promise)
	}
	if c := s.ask(ask("hi", true, "")); parse(t, c.text()).text != greeting {
		t.Errorf("after the cancels: %s", c)
	}
	said(t, s.Node, "execution ended", 4)
	if n := s.Node.Count("execution ended"); n != 4 {
		t.Errorf("%d executions: a request that left the queue reached the node", n)
	}
}

// established counts the connections to an address of this machine that neither side has closed.
func established(t *testing.T, addr string) int {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(addr)
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for row := range strings.Lines(string(table)) {
		// sl local remote state …; state 01 is established
		if field := strings.Fields(row); len(field) > 3 && strings.HasSuffix(field[1], fmt.Sprintf(":%04X", number)) && field[3] == "01" {
			n++
		}
	}
	return n
}

// A provider that dies in the middle never looks like one that finished; the node stays, and serves again when it is
// back. While it loads its model, its own answer passes. (Row 19.)
func TestLlamaDiesAndComesBack(t *testing.T) {
	l := startLlama(t, "slow.gguf")
	// Nobody looks at the provider beside the callers, so the node goes on sending what it is asked for.
	s := l.siteWith(t, 4, "timers: {probe_interval: 1h}")
	c := begin(t, nil, s.HTTP, "the stream", ask("loop", true, `,"max_tokens":1000000`))
	c.awaitText(t, "content")
	from := time.Now()
	l.Kill()
	c.await(t, promise)
	if c.status != 200 || c.err == nil || strings.Contains(c.text(), "[DONE]") {
		t.Errorf("a dead provider's answer: %s", c)
	}
	t.Logf("the caller knew after %v", c.ended.Sub(from).Round(time.Millisecond))
	s.awaitFree(promise)
	said(t, s.Edge, "run ended", 1)
	if n := s.node(); n.State != "ready" {
		t.Errorf("the node is %s although only its provider died", n.State)
	}

	l.restart(t)
	// Who asks a provider that isn't there often enough in a row has to wait.
	eventually(t, limit, "the provider listens", func() bool {
		conn, err := net.DialTimeout("tcp", l.addr, limit)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	loading := false
	eventually(t, limit, "a request is served", func() bool {
		c := s.ask(ask("hi", false, ""))
		switch {
		case c.status == 503 && c.header.Get("X-Iop-Node") == procs.NodeID && c.code() == "503":
			loading = true
			if c.text() != `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}` {
				t.Fatalf("not the provider's own words: %s", c)
			}
		case c.status == 502:
			c.refused(t, 502, "upstream_connect", "upstream_truncated")
		case c.status != 200:
			t.Fatalf("%s", c)
		}
		return c.status == 200 && strings.Contains(c.text(), "Hello from the tiny test model")
	})
	t.Logf("seen while it loaded its model: %v", loading) // by chance: after five failures requests wait for a moment
	if n := len(s.Edge.Entries("node ready")); n != 1 {
		t.Errorf("the node became ready %d times", n)
	}
}

// What a provider refuses, it refuses in its own words. (Row 20.)
func TestLlamaChecksKeys(t *testing.T) {
	l := startLlama(t, "tiny.gguf", "--api-key", "provider-key-S3CR3T")
	s := l.site(t, 4)
	direct := begin(t, nil, l.addr, "directly", ask("hi", true, "")).await(t, limit)
	c := s.ask(ask("hi", true, ""))
	if direct.status != 401 || c.status != 401 || c.text() != direct.text() || c.header.Get("Content-Type") != direct.header.Get("Content-Type") {
		t.Errorf("directly %s\nthrough the edge %s", direct, c)
	}
	// A key that a caller sends is for the edge alone.
	key := chatBody(`{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`, "Authorization: Bearer provider-key-S3CR3T")
	if c := s.ask(key); c.status != 401 {
		t.Errorf("the caller's key reached the provider: %s", c)
	}
	if strings.Contains(s.Edge.Log()+s.Node.Log(), "S3CR3T") {
		t.Error("a key is in the logs")
	}
}
