//go:build e2e

package process

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"iop/e2e/procs"
)

// The way of somebody who sets it up by hand: token and key by the commands, files with what they print, both programs
// at the most talkative log level.
func TestEdgeNodeSmoke(t *testing.T) {
	h := setUpByHand(t)
	h.healthy(t)
	h.withoutKey(t)
	h.streams(t)
	h.stops(t)
	h.logsAreClean(t)
}

// byHand is a site whose files a person wrote.
type byHand struct {
	dir               string
	edge, node        *procs.Process
	http, admin       string
	token, key, other string // secrets: the node's, a caller's, one of nobody
}

const prompt = "a-prompt-that-no-log-may-hold"

func setUpByHand(t *testing.T) *byHand {
	t.Helper()
	h := &byHand{dir: t.TempDir()}
	token := run(t, h.dir, "iop-edge", "token", "new", "gpu-1")
	key := run(t, h.dir, "iop-edge", "key", "new", "alice")
	h.token, h.key = found(t, `\n  (iop1\.\S+)`, token.stdout), found(t, `\n  (sk-iop-\S+)`, key.stdout)
	h.other = found(t, `\n  (sk-iop-\S+)`, run(t, h.dir, "iop-edge", "key", "new", "mallory").stdout)
	write(t, h.dir, "node.token", h.token+"\n")
	write(t, h.dir, "edge.yaml", fmt.Sprintf(`listen: {nodes: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0"}
nodes:
  - id: gpu-1
    token_hashes: [{sha256: %s}]
    adapters: [{name: loopback, kind: loopback, max_concurrency: 4}]
principals:
  - {id: alice, key_hashes: [%s]}
routes: [{model: "*"}]
log: {level: trace}
`, found(t, `sha256: (\w+)`, token.stdout), found(t, `key_hashes: \[(\w+)\]`, key.stdout)))
	if r := run(t, h.dir, "iop-edge", "check", "-c", "edge.yaml"); r.code != 0 {
		t.Fatalf("the printed hashes don't check: %+v", r)
	}
	h.edge = start(t, "edge", nil, program("iop-edge"), "serve", "-c", filepath.Join(h.dir, "edge.yaml"))
	listening := said(t, h.edge, "edge is listening", 1)
	h.http, h.admin = listening.Str("http"), listening.Str("admin")
	write(t, h.dir, "node.yaml", fmt.Sprintf("edges: [%q]\ntoken: file:./node.token\nadmin: {listen: \"127.0.0.1:0\"}\nlog: {level: trace}\n", listening.Str("nodes")))
	if r := run(t, h.dir, "iop-node", "check", "-c", "node.yaml"); r.code != 0 {
		t.Fatalf("the node's file doesn't check: %+v", r)
	}
	h.node = start(t, "node", nil, program("iop-node"), "serve", "-c", filepath.Join(h.dir, "node.yaml"))
	said(t, h.edge, "node ready", 1)
	return h
}

func (h *byHand) healthy(t *testing.T) {
	t.Helper()
	for path, part := range map[string]string{
		"/healthz":        `"ok"`,
		"/readyz":         `"ready":true`,
		"/metrics":        "\niop_nodes{state=\"ready\"} 1\n",
		"/admin/v1/nodes": `"id":"gpu-1","state":"ready"`,
		"/admin/v1/queue": `"queued":0`,
	} {
		if text := string(get(t, nil, h.admin, path)); !strings.Contains(text, part) {
			t.Errorf("the edge's %s lacks %s:\n%s", path, part, tail(text))
		}
	}
	admin := said(t, h.node, "admin listens", 1).Str("address")
	for path, part := range map[string]string{
		"/healthz":         "ok",
		"/metrics":         "iop_node_link_up",
		"/admin/v1/status": `"state":"serving"`,
	} {
		if text := string(get(t, nil, admin, path)); !strings.Contains(text, part) {
			t.Errorf("the node's %s lacks %s:\n%s", path, part, tail(text))
		}
	}
}

func (h *byHand) withoutKey(t *testing.T) {
	t.Helper()
	for _, headers := range [][]string{nil, {"Authorization: Bearer " + h.other}, {"Authorization: Bearer "}} {
		c := begin(t, nil, h.http, "a request without the key", chat("loopback", "hi", headers...))
		c.await(t, limit).refused(t, 401, "unauthorized")
		if c.header.Get("Www-Authenticate") != "Bearer" {
			t.Errorf("a 401 without a challenge: %s", c)
		}
	}
	if n := len(h.edge.Entries("run ended")); n != 0 {
		t.Errorf("%d runs of callers without a key", n)
	}
}

// streams reads a paced answer as people do, with curl -N if there is one.
func (h *byHand) streams(t *testing.T) {
	t.Helper()
	const tokens, delay = 12, 40 * time.Millisecond
	body := fmt.Sprintf(`{"model":"loopback","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"%s loopback: tokens=%d delay=%v"}]}`,
		prompt, tokens, delay)
	lines := curl(t, "http://"+h.http+"/v1/chat/completions", h.key, body)
	var text, usage string
	var when []time.Time
	for _, l := range lines {
		data, ok := strings.CutPrefix(l.text, "data: {")
		if !ok {
			continue
		}
		var event struct {
			Choices []struct{ Delta struct{ Content string } }
			Usage   json.RawMessage
		}
		if err := json.Unmarshal([]byte("{"+data), &event); err != nil {
			t.Fatal(err)
		}
		if len(event.Choices) > 0 && event.Choices[0].Delta.Content != "" {
			text, when = text+event.Choices[0].Delta.Content, append(when, l.at)
		}
		if len(event.Usage) > 0 {
			usage = string(event.Usage)
		}
	}
	if last := lines[len(lines)-1].text; last != "data: [DONE]" {
		t.Errorf("the stream ends with %q", last)
	}
	if len(when) != tokens || text == "" {
		t.Errorf("%d tokens: %q", len(when), text)
	}
	if spread := when[len(when)-1].Sub(when[0]); spread < tokens/2*delay { // what reads them may be late for the first ones
		t.Errorf("%d tokens of %v each came within %v: not one by one", len(when), delay, spread)
	}
	if !strings.Contains(usage, fmt.Sprintf(`"completion_tokens":%d`, tokens)) {
		t.Errorf("usage %s", usage)
	}
	line := said(t, h.edge, "run ended", 1)
	for field, want := range map[string]string{"principal": "alice", "node_id": "gpu-1", "adapter": "loopback", "code": "ok", "status": "200",
		"output_tokens": fmt.Sprint(tokens)} {
		if line.Str(field) != want {
			t.Errorf("the run's line has %s %q, want %q", field, line.Str(field), want)
		}
	}
}

// line is one line of a stream, and when it came.
type line struct {
	text string
	at   time.Time
}

// curl posts a body and returns the answer's lines that aren't empty.
func curl(t *testing.T, url, key, body string) []line {
	t.Helper()
	path, err := exec.LookPath("curl")
	if err != nil {
		t.Log("curl isn't installed; the test reads the socket itself")
		addr, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
		c := begin(t, nil, addr, "the stream", chatBody(body, "Authorization: Bearer "+key)).await(t, limit)
		var lines []line
		for i, text := range strings.Split(c.text(), "\n\n") {
			if text != "" {
				lines = append(lines, line{text, c.times[min(i, len(c.times)-1)]})
			}
		}
		return lines
	}
	cmd := exec.CommandContext(t.Context(), path, "-sS", "-N", "--fail-with-body", "--max-time", "30", "-H", "Authorization: Bearer "+key,
		"-H", "Content-Type: application/json", "-d", body, url)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []line
	for scan := bufio.NewScanner(stdout); scan.Scan(); {
		if scan.Text() != "" {
			lines = append(lines, line{scan.Text(), time.Now()})
		}
	}
	if err := cmd.Wait(); err != nil || len(lines) == 0 {
		t.Fatalf("curl: %v, %d lines", err, len(lines))
	}
	return lines
}

// stops ends the node and then the edge as an operator does.
func (h *byHand) stops(t *testing.T) {
	t.Helper()
	for _, p := range []*procs.Process{h.node, h.edge} {
		if err := p.Stop(limit); err != nil {
			t.Errorf("%s: SIGTERM with nothing running: %v", p.Name, err)
		}
	}
	if fenced := said(t, h.edge, "node fenced", 1); fenced.Str("node_id") != "gpu-1" || fenced.Str("code") != "left" {
		t.Errorf("the node left, and the edge says %v", fenced)
	}
}

// logsAreClean checks that every line is JSON, and that no secret and no prompt is in any.
func (h *byHand) logsAreClean(t *testing.T) {
	t.Helper()
	secret := h.secrets(t)
	for _, p := range []*procs.Process{h.edge, h.node} {
		for l := range strings.Lines(p.Log()) {
			var entry map[string]any
			if err := json.Unmarshal([]byte(l), &entry); err != nil || entry["level"] == nil || entry["time"] == nil || entry["message"] == nil {
				t.Errorf("%s: a line that isn't a log entry: %s", p.Name, l)
			}
		}
		for name, text := range secret {
			if strings.Contains(p.Log(), text) {
				t.Errorf("%s: the log has %s", p.Name, name)
			}
		}
	}
}

// secrets are what must not be in a log.
func (h *byHand) secrets(t *testing.T) map[string]string {
	t.Helper()
	bare := struct{ Token string }{}
	if err := json.Unmarshal(unbase64(t, strings.TrimPrefix(h.token, "iop1.")), &bare); err != nil || len(bare.Token) < 20 {
		t.Fatalf("the join string holds no token: %v", err)
	}
	return map[string]string{"the join string": h.token, "the token": bare.Token, "the key": h.key, "a refused key": h.other, "the prompt": prompt}
}

// A second signal ends at once, whatever runs, and says so by exit code 1.
func TestSecondSignal(t *testing.T) {
	for _, who := range []string{"edge", "node"} {
		t.Run(who, func(t *testing.T) {
			s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 4}]"})
			c := s.ask0("loopback: tokens=100000 delay=10ms")
			c.awaitText(t, "data:")
			p := map[string]*procs.Process{"edge": s.Edge, "node": s.Node}[who]
			signal := func() {
				t.Helper()
				if err := p.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			signal()
			said(t, p, "stopping: running requests may finish; a second signal ends them", 1)
			select {
			case <-p.Done():
				t.Fatalf("the first signal ended %s although a request runs", who)
			case <-c.done:
				t.Fatalf("the first signal ended the request: %s", c)
			case <-time.After(300 * time.Millisecond):
			}
			from := time.Now()
			signal()
			if code := p.ExitCode(); code != 1 || time.Since(from) > promise {
				t.Errorf("ended with %d after %v", code, time.Since(from))
			}
			c.await(t, promise)
			if c.err == nil {
				t.Errorf("a clean end of a cut answer: %s", c)
			}
		})
	}
}

// ask0 begins a streamed request of the loopback adapter.
func (s *site) ask0(prompt string) *call {
	s.t.Helper()
	return begin(s.t, s.edgeSide, s.HTTP, "a request", chat("loopback", prompt))
}

// Row 45 of the fault catalogue: what isn't a node is closed within a second and leaves nothing behind.
func TestStrangersAtTheNodePort(t *testing.T) {
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 4}]"})
	before := s.edgeSize()
	running := s.ask0("loopback: tokens=200 delay=5ms")
	strangers := map[string]string{
		"an HTTP request":  "GET / HTTP/1.1\r\nHost: edge\r\n\r\n",
		"a TLS hello":      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x5a", 500),
		"a huge frame":     "\xff\xff\xff\xff",
		"an empty frame":   "\x00\x00\x00\x00",
		"random protobuf":  "\x00\x00\x00\x10" + strings.Repeat("\xa7", 16),
		"a frame too long": "\x00\x00\x40\x01" + strings.Repeat("\x0a", 100),
	}
	for name, bytes := range strangers {
		conn, err := dialer(nil).connect(s.Nodes)
		if err != nil {
			t.Fatal(err)
		}
		from := time.Now()
		if _, err := io.WriteString(conn, bytes); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := conn.SetReadDeadline(from.Add(limit)); err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, conn)
		if took := time.Since(from); took > promise {
			t.Errorf("%s: closed after %v (%v)", name, took, err)
		}
		conn.Close()
	}
	if c := running.await(t, limit); c.err != nil || !strings.HasSuffix(c.text(), doneEvent) {
		t.Errorf("a request beside strangers: %s", c)
	}
	s.settled()
	sameSize(t, "the edge", before, s.edgeSize)
	if n := s.metric("iop_node_registrations_refused_total"); int(n) != len(strangers) {
		t.Errorf("%v of %d strangers were counted", n, len(strangers))
	}
}
