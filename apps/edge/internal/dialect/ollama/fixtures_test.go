package ollama

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"iop/apps/edge/internal/dialect"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

// recorded is one exchange with the real Ollama.
type recorded struct {
	name string
	path string
	body []byte // that was sent
	resp *http.Response
	text []byte // that came back, as far as it did
}

// recordings returns the exchanges on the paths, by their short names.
func recordings(t *testing.T, paths ...string) map[string]*recorded {
	t.Helper()
	fixtures, err := fakeprovider.LoadFixtures(func(_, path string) bool { return slices.Contains(paths, path) })
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*recorded{}
	for _, f := range fixtures {
		if name, ok := strings.CutPrefix(f.Name, "ollama-0.17.4/"); ok {
			out[name] = read(t, name, f)
		}
	}
	if len(out) == 0 {
		t.Fatalf("no recordings of %q", paths)
	}
	return out
}

func read(t *testing.T, name string, f *fakeprovider.Fixture) *recorded {
	t.Helper()
	req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(f.Request)))
	if err != nil {
		t.Fatal(name, err)
	}
	r := &recorded{name: name, path: req.URL.Path}
	if r.body, err = io.ReadAll(req.Body); err != nil {
		t.Fatal(name, err)
	}
	if r.resp, err = http.ReadResponse(bufio.NewReader(bytes.NewReader(f.Response)), req); err != nil {
		t.Fatal(name, err)
	}
	r.text, _ = io.ReadAll(r.resp.Body) // some are cut
	return r
}

func (r *recorded) endpoint() dialect.Endpoint {
	if r.path == "/api/generate" {
		return Generate()
	}
	return Chat()
}

// varying is what of a line depends on the moment, or what only the machine that runs the model knows.
var varying = regexp.MustCompile(`,?"(created_at|total_duration|load_duration|prompt_eval_duration|eval_duration|context)":("[^"]*"|\d+|\[[\d,]*\])`)

var wholeTime = regexp.MustCompile(`"total_duration":(\d+)`)

// lasting returns a line without that.
func lasting(line string) string { return varying.ReplaceAllString(line, "") }

// told is a recorded line as far as the events behind it can be told from it.
type told struct {
	Message  *said
	Response string
	Thinking string
	Done     bool
	Reason   string `json:"done_reason"`
	Input    *int64 `json:"prompt_eval_count"`
	Output   *int64 `json:"eval_count"`
	Error    string
}

// events gives an answer what a recorded line says and returns what it writes.
func (l *told) events(t *testing.T, a dialect.Answer) []byte {
	t.Helper()
	if l.Message == nil {
		l.Message = &said{Content: l.Response, Thinking: l.Thinking}
	}
	events := []execution.Event{{Kind: execution.EventReasoning, Text: l.Message.Thinking}, {Kind: execution.EventDelta, Text: l.Message.Content}}
	for _, c := range l.Message.ToolCalls {
		text := string(c.Function.Arguments)
		for i, fragment := range []string{text[:5], text[5:]} {
			d := execution.ToolCallDelta{Index: c.Function.Index, Arguments: fragment}
			if i == 0 {
				d.ID, d.Name = c.ID, c.Function.Name
			}
			events = append(events, execution.Event{Kind: execution.EventToolCall, ToolCall: d})
		}
	}
	var out []byte
	var err error
	for _, e := range events {
		if out, err = a.Event(out, e); err != nil {
			t.Fatal(err)
		}
	}
	switch {
	case l.Error != "":
		out = a.Fail(out, execution.Failf(execution.CodeUpstreamError, execution.OriginProvider, "%s", l.Error))
	case l.Done:
		if out, err = a.End(out, execution.Completion{FinishReason: l.Reason, Usage: execution.Usage{Input: l.Input, Output: l.Output}}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// What the real Ollama answered is what comes out for the same events, but for times: each line in its place, with the
// same members in the same order.
func TestRecordedAnswers(t *testing.T) {
	count := 0
	for name, r := range recordings(t, "/api/chat", "/api/generate") {
		if r.resp.StatusCode != http.StatusOK || name == "native-generate-raw" {
			continue
		}
		count++
		t.Run(name, func(t *testing.T) {
			req, ref := r.endpoint().Parse(r.body)
			if name == "native-generate-70k-ndjson-line" { // its long line needs an option that no run carries
				req, ref = &dialect.Request{Model: "tiny", Stream: true}, nil
			}
			if ref != nil {
				t.Fatal(ref)
			}
			a := r.endpoint().Answer(req, dialect.About{RunID: "run-1", Model: req.Model, Created: time.Now().Add(-time.Second)})
			if got, want := a.ContentType(), r.resp.Header.Get("Content-Type"); got != want {
				t.Errorf("content type %q, want %q", got, want)
			}
			if req.AtOnce != "" {
				got, err := a.End(nil, execution.Completion{FinishReason: req.AtOnce})
				if err != nil || lasting(string(got)) != lasting(string(r.text)) || bytes.Contains(got, []byte("duration")) {
					t.Errorf("%s, %v, want %s", got, err, r.text)
				}
				return
			}
			var got []byte
			for line := range bytes.Lines(r.text) {
				var l told
				if err := json.Unmarshal(line, &l); err != nil {
					t.Fatal(err)
				}
				got = append(got, l.events(t, a)...)
			}
			// The code beside an error is ours.
			text := strings.ReplaceAll(string(got), `,"code":"upstream_error"}`, `}`)
			if diff := cmp.Diff(lasting(string(r.text)), lasting(text)); diff != "" {
				t.Errorf("the real one's (-), ours (+):\n%s", diff)
			}
			took := wholeTime.FindSubmatch(got)
			if done := bytes.Contains(got, []byte(`"done":true`)); done != (took != nil) {
				t.Error("the whole time is told at the end, and only there")
			} else if done && len(took[1]) < len("1000000000") { // it began a second ago
				t.Errorf("it took %s ns", took[1])
			}
		})
	}
	if count < 12 {
		t.Errorf("%d answers compared", count)
	}
}

// What the recorded requests say.
func TestRecordedRequests(t *testing.T) {
	want := map[string]string{ // what is wrong with a request, "" = nothing
		"native-generate-raw":             "raw: isn't supported here; the provider makes the prompt; use /api/chat with messages",
		"native-generate-70k-ndjson-line": "options.num_ctx: isn't supported here; " + whyLoader,
		"native-chat-400-bad-type":        "messages: must be a list",
		"native-chat-400-empty-body":      "the body isn't valid JSON",
		"native-chat-400-invalid-json":    "the body isn't valid JSON",
	}
	for name, r := range recordings(t, "/api/chat", "/api/generate") {
		_, ref := r.endpoint().Parse(r.body)
		got := ""
		if ref != nil {
			got = ref.Text
		}
		if got != want[name] {
			t.Errorf("%s: %q, want %q", name, got, want[name])
		}
	}
	r := recordings(t, "/api/chat")["native-chat-tool-result"]
	got, ref := Chat().Parse(r.body)
	if ref != nil {
		t.Fatal(ref)
	}
	text := func(s string) []execution.Part { return []execution.Part{{Text: s}} }
	wantRun := &dialect.Request{Model: "tiny", Input: execution.Request{
		Messages: []execution.Message{
			{Role: execution.RoleUser, Parts: text("weather?")},
			{Role: execution.RoleAssistant, ToolCalls: []execution.ToolCall{{ID: "call_1_0", Name: "get_weather", Arguments: `{"city":"Seoul"}`}}},
			{Role: execution.RoleTool, Parts: text("21"), ToolCallID: "call_1_0"},
		},
		Tools: []execution.Tool{{Name: "get_weather", Description: "Weather of a city", Parameters: json.RawMessage(
			`{"type":"object","properties":{"city":{"type":"string"},"unit":{"type":"string","enum":["celsius","fahrenheit"]}},"required":["city"]}`)}},
	}}
	got.Names = dialect.Names{}
	if diff := cmp.Diff(wantRun, got); diff != "" {
		t.Error(diff)
	}
}

// An error's body is an object whose error is a text, as the real one's.
func TestRecordedErrors(t *testing.T) {
	for name, r := range recordings(t, "/api/chat", "/api/show") {
		if r.resp.StatusCode < 400 {
			continue
		}
		var real, ours map[string]any
		if err := json.Unmarshal(r.text, &real); err != nil {
			t.Fatal(name, err)
		}
		text := Chat().EncodeError(r.resp.StatusCode, execution.Failf(execution.CodeBadRequest, execution.OriginCaller, "%s", real["error"]), "model")
		if err := json.Unmarshal(text, &ours); err != nil {
			t.Fatal(name, err)
		}
		real["code"] = "bad_request"
		if diff := cmp.Diff(real, ours); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
