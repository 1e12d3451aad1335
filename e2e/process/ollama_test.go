//go:build e2e

package process

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"iop/e2e/procs"
)

// The Ollama job: a real Ollama behind the node, with the same models as llama-server's. It runs where there is one.

// ollamaDir has the program, by scripts/install-ollama.sh.
var ollamaDir = os.Getenv("IOP_OLLAMA")

// startOllama starts an Ollama with the models tiny and slow; "" = on a free port.
func startOllama(t *testing.T, addr string, env ...string) *procs.OllamaServer {
	t.Helper()
	if _, err := os.Stat(filepath.Join(ollamaDir, "ollama")); ollamaDir == "" || err != nil {
		t.Skip("no Ollama in IOP_OLLAMA; scripts/install-ollama.sh builds one")
	}
	o, err := procs.Ollama(background(t), procs.OllamaConfig{Dir: ollamaDir, Addr: addr, Env: env, Models: map[string]string{
		"tiny": filepath.Join(llamaDir, "tiny.gguf"), "slow": filepath.Join(llamaDir, "slow.gguf")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the Ollama:\n%s", tail(o.Log()))
		}
		if err := o.Stop(); err != nil {
			t.Error(err)
		}
	})
	return o
}

// ollamaSite starts edge and node in front of it.
func ollamaSite(t *testing.T, o *procs.OllamaServer, places int) *site {
	t.Helper()
	return newSite(t, procs.SiteConfig{
		Adapters: fmt.Sprintf("[{name: ollama, kind: ollama, base_url: %q, max_concurrency: %d}]", "http://"+o.Addr, places),
		Edge:     "timers: {" + quickTimers + "}",
	})
}

// native is a request of Ollama's own API.
func native(path, body string) string {
	return strings.Replace(chatBody(body), "/v1/chat/completions", path, 1)
}

// nativePiece is one line of an answer of Ollama's own API.
type nativePiece struct {
	Message struct{ Content string }
	Done    bool
	Reason  string `json:"done_reason"`
	In      int    `json:"prompt_eval_count"`
	Out     int    `json:"eval_count"`
	Error   string
}

// spoken puts a streamed answer together: all texts, and the last line.
func spoken(t *testing.T, stream string) (text string, last nativePiece) {
	t.Helper()
	for piece := range strings.Lines(stream) {
		last = nativePiece{}
		if err := json.Unmarshal([]byte(piece), &last); err != nil {
			t.Fatalf("%v in %q", err, piece)
		}
		text += last.Message.Content
	}
	return text, last
}

// A model that must be loaded first is waited for, its tokens arrive whole, and the edge counts what the Ollama counts.
// (OL-01)
func TestOllamaStreams(t *testing.T) {
	o := startOllama(t, "")
	s := ollamaSite(t, o, 4)
	if runners, err := o.Runners(); err != nil || len(runners) > 0 {
		t.Fatalf("a model is loaded already: %v, %v", runners, err)
	}
	for nth, tt := range []struct {
		model, question, more, text string
		in, out                     int
	}{
		{"tiny", "hi", "", greeting, 6, 39},
		{"tiny:latest", "think", `,"think":true`, "The answer is forty-two.\n\n", 9, 22},
		{"slow", "hi", "", greeting, 6, 39},
	} {
		c := s.ask(native("/api/chat", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]%s}`, tt.model, tt.question, tt.more)))
		text, last := spoken(t, c.text())
		if c.err != nil || text != tt.text || !last.Done || last.Reason != "stop" || last.In != tt.in || last.Out != tt.out {
			t.Errorf("%s", c)
		}
		line := said(t, s.Edge, "run ended", nth+1)
		if line.Str("input_tokens") != fmt.Sprint(tt.in) || line.Str("output_tokens") != fmt.Sprint(tt.out) {
			t.Errorf("the edge counts %v", line)
		}
	}
	if c := parse(t, s.ask(ask("hi", true, `,"stream_options":{"include_usage":true}`)).text()); c.text != greeting || !c.done || c.usage.Completion != 39 {
		t.Errorf("in OpenAI's words: %+v", c)
	}
}

// A caller that leaves ends the generation, and the loading of a model that nobody else waits for harms nobody: the only
// slot serves the next request. (CA-01, CA-02)
func TestOllamaCancel(t *testing.T) {
	o := startOllama(t, "", "OLLAMA_NUM_PARALLEL=1")
	s := ollamaSite(t, o, 1)
	const loop = `{"model":"slow","messages":[{"role":"user","content":"loop"}]}`
	next := func() {
		t.Helper()
		c := s.ask(native("/api/chat", `{"model":"slow","messages":[{"role":"user","content":"hi"}],"options":{"num_predict":2}}`))
		if text, last := spoken(t, c.text()); c.err != nil || text != "Hello from" || last.Reason != "length" {
			t.Errorf("the next request: %s", c)
		}
	}
	loading := begin(t, nil, s.HTTP, "while the model is loaded", native("/api/chat", loop))
	eventually(t, limit, "the model is being loaded", func() bool { runners, err := o.Runners(); return err == nil && len(runners) > 0 })
	loading.leave(false)
	s.awaitFree(limit)
	next()
	for _, path := range []string{"/api/chat", "/v1/chat/completions"} {
		c := begin(t, nil, s.HTTP, path, native(path, strings.Replace(loop, "{", `{"stream":true,`, 1)))
		c.awaitText(t, "tack")
		waiting := begin(t, nil, s.HTTP, "in the queue", native("/api/chat", loop))
		eventually(t, limit, "one waits", func() bool { return s.metric("iop_queue_length") == 1 })
		waiting.leave(false)
		c.leave(true)
		s.awaitFree(promise)
		next()
	}
}

// When the engine dies, the Ollama says so in its own way, or by not ending as an answer does. A tunnel has its bytes as
// they are; a run is a failure, whatever was said before. The next request has a new engine.
func TestOllamaEngineDies(t *testing.T) {
	o := startOllama(t, "")
	s := ollamaSite(t, o, 4)
	const loop = `"messages":[{"role":"user","content":"loop"}],"stream":true}`
	for _, tt := range []struct {
		name, request string
		check         func(c *call) bool
	}{
		{"native", native("/api/chat", `{"model":"slow",`+loop), func(c *call) bool {
			_, last := spoken(t, c.text())
			return c.err == nil && last.Error != "" && !last.Done
		}},
		{"OpenAI's", native("/v1/chat/completions", `{"model":"slow",`+loop), func(c *call) bool { return c.err == nil && !strings.Contains(c.text(), "[DONE]") }},
		{"a run", native("/iop/v1/runs", `{"adapter":"ollama","target":"slow",`+loop), func(c *call) bool {
			return strings.Contains(c.text(), "event: error\n") && strings.Contains(c.text(), "upstream_") && !strings.Contains(c.text(), "event: complete")
		}},
	} {
		c := begin(t, nil, s.HTTP, tt.name, tt.request)
		c.awaitText(t, "tack")
		runners, err := o.Runners()
		if err != nil || len(runners) == 0 {
			t.Fatalf("%v, %v", runners, err)
		}
		for _, pid := range runners {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if c.await(t, limit); c.status != 200 || !tt.check(c) {
			t.Errorf("%s", c)
		}
		s.awaitFree(promise)
		if n := s.node(); n.State != "ready" || !n.Adapters[0].Available {
			t.Errorf("%s: after its engine died: %+v", tt.name, n)
		}
	}
	eventually(t, limit, "a new engine answers", func() bool {
		c := s.ask(native("/api/chat", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":false}`))
		return c.status == 200 && strings.Contains(c.text(), `"done":true`)
	})
}

// More than it can hold an Ollama refuses in its own words, and stays in use. (OL-02)
func TestOllamaBusy(t *testing.T) {
	o := startOllama(t, "", "OLLAMA_NUM_PARALLEL=1", "OLLAMA_MAX_QUEUE=1")
	s := ollamaSite(t, o, 8)
	const loop = `{"model":"slow","messages":[{"role":"user","content":"loop"}]}`
	first := begin(t, nil, s.HTTP, "the first", native("/api/chat", loop))
	first.awaitText(t, "tack")
	var calls []*call
	var refused *call
	eventually(t, limit, "the Ollama refuses", func() bool {
		if len(calls) < 7 {
			calls = append(calls, begin(t, nil, s.HTTP, fmt.Sprintf("one of many, %d", len(calls)), native("/api/chat", strings.Replace(loop, "slow", "tiny", 1))))
		}
		for _, c := range calls {
			if c.over() && c.status == 503 {
				refused = c
			}
		}
		return refused != nil
	})
	if refused.text() != `{"error":"server busy, please try again.  maximum pending requests exceeded"}` || refused.header.Get("X-Iop-Node") != procs.NodeID {
		t.Errorf("not the Ollama's own words: %s", refused)
	}
	if n := s.node(); n.State != "ready" || !n.Adapters[0].Available {
		t.Errorf("an Ollama that is busy isn't broken: %+v", n)
	}
	for _, c := range append(calls, first) {
		c.leave(true)
	}
	s.settled()
	if c := s.ask(native("/api/chat", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`)); !strings.Contains(c.text(), `"done":true`) {
		t.Errorf("afterwards: %s", c)
	}
}

// The kind auto finds an Ollama on its own port when one comes, and does without it when it goes.
func TestOllamaFoundByItself(t *testing.T) {
	const port = "127.0.0.1:11434"
	listener, err := net.Listen("tcp", port)
	if err != nil {
		t.Skipf("Ollama's own port is taken on this machine: %v", err)
	}
	listener.Close()
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: found, kind: auto, max_concurrency: 4}]", Routes: `[{model: "*", fail_fast: true}]`})
	hi := native("/api/chat", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`)
	if a := s.node().Adapters[0]; a.Available || !strings.Contains(a.Reason, port) {
		t.Errorf("before there is one: %+v", a)
	}
	if c := s.ask(hi); c.status != 503 || !strings.Contains(c.text(), `"code":"no_node"`) {
		t.Errorf("before there is one: %s", c)
	}
	o := startOllama(t, port)
	eventually(t, limit, "it is found, with its models", func() bool { return strings.Contains(string(get(t, nil, s.HTTP, "/api/tags")), `"tiny:latest"`) })
	if text, last := spoken(t, s.ask(hi).text()); text != greeting || !last.Done {
		t.Errorf("%q, %+v", text, last)
	}
	if err := o.Process.Stop(limit); err != nil && !strings.Contains(err.Error(), "signal") {
		t.Log(err)
	}
	eventually(t, limit, "it is missed", func() bool { return !s.node().Adapters[0].Available })
	if err := o.Restart(background(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, limit, "it is found again", func() bool { return s.node().Adapters[0].Available })
	if text, _ := spoken(t, s.ask(hi).text()); text != greeting {
		t.Errorf("%q", text)
	}
}
