package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// surface is an endpoint that a run can serve, as its clients use it.
type surface struct {
	name, path   string
	whole        string // a request for one object
	stream       string // the same as a stream
	refused      string // one with a member that no run can carry, named refusedAt
	refusedAt    string
	media        string // of a stream
	end          string // what only a whole stream has
	failed       string // how a stream that began tells that it failed
	text         string // where the answer's text stands in a whole answer
	kind         string // of an adapter that carries the path
	kindOfOthers string // of one that doesn't
}

func surfaces() []surface {
	messages := `"messages":[{"role":"user","content":"hi"}]`
	return []surface{
		{"OpenAI", "/v1/chat/completions", `{"model":"small",` + messages + `}`, `{"model":"small","stream":true,` + messages + `}`,
			`{"model":"small","logprobs":true,` + messages + `}`, "logprobs", "text/event-stream", "data: [DONE]", `data: {"error":`, `"content":"Hello you"`,
			"openai", "anthropic"},
		{"Anthropic", "/v1/messages", `{"model":"small","max_tokens":9,` + messages + `}`, `{"model":"small","max_tokens":9,"stream":true,` + messages + `}`,
			`{"model":"small","max_tokens":9,"container":"x",` + messages + `}`, "container", "text/event-stream", "event: message_stop", "event: error", `"text":"Hello you"`,
			"anthropic", "openai"},
		{"Ollama chat", "/api/chat", `{"model":"small","stream":false,` + messages + `}`, `{"model":"small",` + messages + `}`,
			`{"model":"small","stream":false,"options":{"mirostat":1},` + messages + `}`, "", "application/x-ndjson", `"done":true`, `{"error":`, `"content":"Hello you"`,
			"ollama", "openai"},
		{"Ollama generate", "/api/generate", `{"model":"small","stream":false,"prompt":"hi"}`, `{"model":"small","prompt":"hi"}`,
			`{"model":"small","stream":false,"prompt":"hi","raw":true}`, "", "application/x-ndjson", `"done":true`, `{"error":`, `"response":"Hello you"`,
			"ollama", "openai"},
	}
}

// fleet is a configuration whose nodes have one adapter each, of these kinds, with a route to all of them.
func fleet(kinds ...string) *config.Edge {
	e := open()
	for i, kind := range kinds {
		e.Nodes = append(e.Nodes, config.NodeRecord{ID: "n" + itoa(i), Enabled: true, Adapters: []config.Adapter{{Name: "x", Kind: kind}}})
	}
	return e
}

func (c *caller) postTo(path, headers, body string) {
	c.t.Helper()
	c.send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers +
		"Content-Length: " + itoa(len(body)) + "\r\n\r\n" + body)
}

// askAt sends one request on a connection of its own.
func (g *rig) askAt(path, headers, body string) (*http.Response, string) {
	g.t.Helper()
	c := g.dial()
	c.postTo(path, headers, body)
	return c.response()
}

// asRun is a node that takes requests as runs, and says this.
func asRun(o service.Outcome, events ...execution.Event) script {
	return func(_ context.Context, t *service.Tunnel, _ service.Sink) *service.Outcome {
		o := o
		o.Kind, o.Attempts = execution.KindRun, 1
		t.Run.Events.Placed(service.Placement{Node: "gpu-1", Queued: 12 * time.Millisecond})
		for i, e := range events {
			if err := t.Run.Events.Event(uint64(i+1), e); err != nil {
				o.Failure = execution.AsFailure(err, execution.OriginEdge)
				break
			}
			o.HeadSent = true
		}
		return &o
	}
}

func text(s string) execution.Event { return execution.Event{Kind: execution.EventDelta, Text: s} }

func count(n int64) *int64 { return &n }

// A run is answered in the API that the caller speaks: as one object of a known length, or as a stream whose pieces
// arrive when they come and which has its end mark.
func TestRunsAreAnsweredInTheCallersAPI(t *testing.T) {
	for _, s := range surfaces() {
		t.Run(s.name, func(t *testing.T) {
			g := start(t, fleet(s.kindOfOthers), nil)
			done := service.Outcome{FinishReason: "stop", Usage: execution.Usage{Input: count(3), Output: count(2)}}
			g.answer(asRun(done, execution.Event{Kind: execution.EventStart, Model: "real"}, text("Hello"), text(" you")))
			resp, body := g.askAt(s.path, "", s.whole)
			if resp.StatusCode != 200 || resp.ContentLength != int64(len(body)) || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") ||
				!strings.Contains(body, s.text) || !json.Valid([]byte(body)) {
				t.Errorf("%s %v %s", resp.Status, resp.Header, body)
			}
			for name, want := range map[string]string{"X-Iop-Node": "gpu-1", "X-Iop-Queue-Ms": "12", "X-Iop-Run-Id": g.last().RunID} {
				if resp.Header.Get(name) != want {
					t.Errorf("%s: %q, want %q", name, resp.Header.Get(name), want)
				}
			}
			got := g.last()
			if got.Path != s.path || string(got.body) != s.whole || got.Run.Input.Messages[0].Parts[0].Text != "hi" {
				t.Errorf("%+v", got)
			}
			resp, body = g.askAt(s.path, "", s.stream)
			if resp.StatusCode != 200 || resp.ContentLength != -1 || !strings.HasPrefix(resp.Header.Get("Content-Type"), s.media) ||
				strings.Count(body, s.end) != 1 || !strings.Contains(body, "Hello") || strings.Contains(body, "Hello you") {
				t.Errorf("%s %v %s", resp.Status, resp.Header, body)
			}
			g.wantNothingHeld()
		})
	}
}

// ST-01 for runs: a piece is with the caller before the next one exists, and so is what the model thinks.
func TestEventsArriveAsTheyCome(t *testing.T) {
	for _, s := range surfaces() {
		t.Run(s.name, func(t *testing.T) {
			g := start(t, fleet(s.kindOfOthers), nil)
			next := make(chan struct{})
			g.answer(func(_ context.Context, t *service.Tunnel, _ service.Sink) *service.Outcome {
				var err error
				for i, piece := range []string{"one", "two", "three"} {
					err = errors.Join(err, t.Run.Events.Event(uint64(i+1), text(piece)))
					<-next
				}
				return &service.Outcome{Kind: execution.KindRun, HeadSent: true, FinishReason: "stop", Failure: execution.AsFailure(err, execution.OriginEdge)}
			})
			c := g.dial()
			c.postTo(s.path, "", s.stream)
			resp, err := http.ReadResponse(c.r, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			piece := make([]byte, 4096)
			for _, want := range []string{"one", "two", "three"} {
				for !strings.Contains(got.String(), want) {
					n, err := resp.Body.Read(piece)
					if got.Write(piece[:n]); err != nil {
						t.Fatalf("%v after %q", err, got.String())
					}
				}
				next <- struct{}{}
			}
			if rest, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(rest), s.end) {
				t.Errorf("%q %v", rest, err)
			}
		})
	}
}

// What fails before anything was written is an error response of the API with the status of the table; what fails later
// is told in the stream, has no end mark, and its connection is cut (ST-13). HTTP/1.0 is reset.
func TestRunsThatFail(t *testing.T) {
	failure := execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "the provider's answer was cut")
	for _, s := range surfaces() {
		t.Run(s.name, func(t *testing.T) {
			g := start(t, fleet(s.kindOfOthers), nil)
			// A whole answer of which nothing was sent is still an error response.
			for _, events := range [][]execution.Event{nil, {text("Hello")}} {
				g.answer(asRun(service.Outcome{Failure: failure}, events...))
				resp, body := g.askAt(s.path, "", s.whole)
				if resp.StatusCode != 502 || !strings.Contains(body, `"code":"upstream_truncated"`) || resp.Header.Get("X-Should-Retry") != "false" || resp.Header.Get("X-Iop-Node") != "gpu-1" {
					t.Errorf("%s %v %s", resp.Status, resp.Header, body)
				}
			}
			g.answer(asRun(service.Outcome{Failure: failure}))
			if resp, body := g.askAt(s.path, "", s.stream); resp.StatusCode != 502 || !strings.Contains(body, `"code":"upstream_truncated"`) {
				t.Errorf("%s %s", resp.Status, body)
			}
			g.answer(asRun(service.Outcome{Failure: failure}, text("Hello")))
			c := g.dial()
			c.postTo(s.path, "", s.stream)
			resp, err := http.ReadResponse(c.r, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(string(body), "Hello") || !strings.Contains(string(body), s.failed) || strings.Contains(string(body), s.end) {
				t.Errorf("%v after %s", err, body)
			}
			read := make(chan struct{})
			g.answer(func(ctx context.Context, t *service.Tunnel, sink service.Sink) *service.Outcome {
				o := asRun(service.Outcome{Failure: failure}, text("Hello"))(ctx, t, sink)
				<-read // a reset may throw away what the caller hasn't read
				return o
			})
			c = g.dial()
			c.send("POST " + s.path + " HTTP/1.0\r\nContent-Length: " + itoa(len(s.stream)) + "\r\n\r\n" + s.stream)
			c.head()
			if _, err := c.r.Peek(5); err != nil {
				t.Fatal(err)
			}
			close(read)
			if _, err := io.ReadAll(c.r); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a cut answer ended with %v", err)
			}
		})
	}
}

// What no API can tell of an answer that was whole is a failure, too.
func TestAnswerThatCantBeTold(t *testing.T) {
	g := start(t, fleet("openai"), nil)
	call := execution.Event{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{ID: "c1", Name: "f", Arguments: "{not JSON"}}
	g.answer(asRun(service.Outcome{FinishReason: "tool_calls"}, call))
	resp, body := g.askAt("/api/chat", "", surfaces()[2].whole)
	if resp.StatusCode != 502 || !strings.Contains(body, `"code":"adapter_decode"`) || resp.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// CA-01, CA-02: a caller that leaves ends its run, before the first token and in the middle.
func TestCallerLeavesARun(t *testing.T) {
	for _, s := range surfaces() {
		for _, begun := range []bool{false, true} {
			g := start(t, fleet(s.kindOfOthers), nil)
			cause, there := make(chan error, 1), make(chan struct{})
			g.answer(func(ctx context.Context, t *service.Tunnel, _ service.Sink) *service.Outcome {
				if begun {
					_ = t.Run.Events.Event(1, text("Hello"))
				}
				close(there)
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return &service.Outcome{Kind: execution.KindRun, HeadSent: begun, Failure: execution.Failf(execution.CodeClientGone, execution.OriginCaller, "gone")}
			})
			c := g.dial()
			c.postTo(s.path, "", s.stream)
			<-there
			_ = c.Close()
			select {
			case got := <-cause:
				if got != execution.CauseClientGone {
					t.Errorf("%s, begun %v: %v", s.name, begun, got)
				}
			case <-time.After(patience.Limit):
				t.Fatalf("%s, begun %v: it goes on", s.name, begun)
			}
		}
	}
}

// A body is read as a run only where an adapter may need it as one. What a run can't carry is refused by name, unless an
// adapter takes the request as it is.
func TestWhenABodyIsRead(t *testing.T) {
	for _, s := range surfaces() {
		for _, tt := range []struct {
			name   string
			kinds  []string
			body   string
			status int
			asRun  bool
		}{
			{"all carry it", []string{s.kind, s.kind}, s.whole, 200, false},
			{"all carry what no run can", []string{s.kind}, s.refused, 200, false},
			{"some carry it", []string{s.kind, s.kindOfOthers}, s.whole, 200, true},
			{"some carry what no run can", []string{s.kindOfOthers, s.kind}, s.refused, 200, false},
			{"none carries it", []string{s.kindOfOthers}, s.whole, 200, true},
			{"none carries what no run can", []string{s.kindOfOthers}, s.refused, 400, false},
			{"nobody is there", nil, s.refused, 200, false},
		} {
			g := start(t, fleet(tt.kinds...), nil)
			resp, body := g.askAt(s.path, "", tt.body)
			if resp.StatusCode != tt.status {
				t.Errorf("%s, %s: %s %s", s.name, tt.name, resp.Status, body)
				continue
			}
			if tt.status == 400 {
				if !strings.Contains(body, `"code":"bad_request"`) || !strings.Contains(body, s.refusedAt) || len(g.tunnels()) != 0 {
					t.Errorf("%s, %s: %s", s.name, tt.name, body)
				}
				continue
			}
			if got := g.last(); (got.Run != nil) != tt.asRun || string(got.body) != tt.body {
				t.Errorf("%s, %s: %+v", s.name, tt.name, got)
			}
		}
	}
}

// An adapter that has told its models counts only for those.
func TestOnlyWhoHasTheModelCounts(t *testing.T) {
	edge := fleet("ollama", "openai")
	edge.Routes = []config.Route{{Model: "*"}}
	offers := []Offer{{Node: "n0", Adapter: "x", Models: []execution.Model{{Name: "native"}}},
		{Node: "n1", Adapter: "x", Models: []execution.Model{{Name: "foreign"}}}}
	g := start(t, edge, func(cfg *Config) { cfg.Offers = func() []Offer { return offers } })
	for model, asRun := range map[string]bool{"native": false, "foreign": true} {
		if resp, body := g.askAt("/api/chat", "", strings.Replace(surfaces()[2].whole, "small", model, 1)); resp.StatusCode != 200 {
			t.Fatalf("%s %s", resp.Status, body)
		}
		all := g.tunnels()
		if got := all[len(all)-1]; (got.Run != nil) != asRun {
			t.Errorf("%s: %+v", model, got.Run)
		}
	}
	// What can't be a run needs an adapter that carries it and has the model.
	before := len(g.tunnels())
	resp, body := g.askAt("/api/embed", "", `{"model":"foreign","input":"x"}`)
	if resp.StatusCode != 400 || !strings.Contains(body, "/api/embed") || len(g.tunnels()) != before {
		t.Errorf("%s %s", resp.Status, body)
	}
	if resp, _ := g.askAt("/api/embed", "", `{"model":"native","input":"x"}`); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

// The answer is that of the configuration in force, also for a route that it left as it was.
func TestWhenABodyIsReadAfterAReload(t *testing.T) {
	s := surfaces()[0]
	carries, doesnt := fleet(s.kind), fleet(s.kindOfOthers)
	doesnt.Routes = carries.Routes // the very same
	states := []*config.State{config.NewState(carries, 1, nil)}
	states = append(states, config.NewState(doesnt, 2, states[0]))
	var version int
	g := start(t, open(), func(cfg *Config) { cfg.State = func() *config.State { return states[version] } })
	for i, want := range []bool{false, true, false} {
		version = i % 2
		if resp, body := g.askAt(s.path, "", s.whole); resp.StatusCode != 200 {
			t.Fatalf("%s %s", resp.Status, body)
		}
		if got := g.tunnels()[i]; (got.Run != nil) != want {
			t.Errorf("request %d: %+v", i, got.Run)
		}
	}
}

// HT-09 for every surface: under an alias only the bytes of the model change, and the run is asked for the target.
func TestAliasOnEverySurface(t *testing.T) {
	for _, s := range surfaces() {
		g := start(t, fleet(s.kind, s.kindOfOthers), nil)
		body := strings.Replace(s.whole, "small", "alias", 1)
		g.askAt(s.path, "", body)
		got := g.last()
		if want := strings.Replace(s.whole, "small", "org/real:7b", 1); string(got.body) != want || got.Target != "org/real:7b" || got.Run.Input.Target != "org/real:7b" || got.Model != "alias" {
			t.Errorf("%s: %s, %+v", s.name, got.body, got.Tunnel)
		}
	}
}

// What a run is made of counts against the budget of bodies; where it doesn't fit, adapters that take the request as it
// is still may.
func TestReadBodiesCount(t *testing.T) {
	s := surfaces()[0]
	long := strings.Replace(s.whole, "hi", strings.Repeat("x", 4000), 1)
	limit := func(cfg *Config) {
		cfg.Limits.Body, cfg.Limits.BodyInMemory, cfg.Limits.BodyMemory = 5000, 5000, 10_000
	}
	g := start(t, fleet(s.kindOfOthers), limit)
	resp, body := g.askAt(s.path, "", long)
	wantError(t, resp, body, 413, "body_too_large")
	g.wantNothingHeld()
	short := strings.Replace(s.whole, "hi", strings.Repeat("x", 2500), 1)
	held, proceed := make(chan struct{}), make(chan struct{})
	g.answer(func(ctx context.Context, t *service.Tunnel, sink service.Sink) *service.Outcome {
		close(held)
		<-proceed
		return asRun(service.Outcome{}, text("x"))(ctx, t, sink)
	})
	c := g.dial()
	c.postTo(s.path, "", short)
	<-held
	resp, body = g.askAt(s.path, "", short) // there would be room for two bodies, but not for what is made of them
	wantError(t, resp, body, 503, "overloaded")
	close(proceed)
	c.response()
	g.wantNothingHeld()
	g = start(t, fleet(s.kindOfOthers, s.kind), limit)
	if resp, body := g.askAt(s.path, "", long); resp.StatusCode != 200 || g.last().Run != nil {
		t.Errorf("%s %s", resp.Status, body)
	}
	g.wantNothingHeld()
}
