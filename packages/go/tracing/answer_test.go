package tracing

import (
	"net/http"
	"strings"
	"testing"
)

func TestAnswerWords(t *testing.T) {
	const events, lines, whole = "text/event-stream", "application/x-ndjson", "application/json; charset=utf-8"
	for _, c := range []struct{ name, kind, body, model, finish string }{
		{"OpenAI", whole, `{"id":"x","model":"tiny","choices":[{"message":{"content":"\"model\":\"no\""},"finish_reason":"length"}]}`, "tiny", "length"},
		{"OpenAI, streamed", events, "data: {\"model\":\"tiny\",\"choices\":[{\"delta\":{},\"finish_reason\":null}]}\n\n" +
			"data: {\"model\":\"tiny\",\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\r\n\r\ndata: [DONE]\n\n", "tiny", "stop"},
		{"OpenAI's responses", events, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"model\":\"r\",\"status\":\"in_progress\"}}\n\n" +
			"data: {\"type\":\"response.completed\",\"response\":{\"model\":\"r\",\"status\":\"completed\"}}\n\n", "r", "completed"},
		{"Anthropic", whole, `{"type":"message","model":"c","stop_reason":"end_turn"}`, "c", "end_turn"},
		{"Anthropic, streamed", events, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"c\",\"stop_reason\":null}}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\"}}\n\n", "c", "max_tokens"},
		{"Ollama", lines, "{\"model\":\"o\",\"message\":{\"content\":\"a\"},\"done\":false}\n{\"model\":\"o\",\"done\":true,\"done_reason\":\"stop\"}\n", "o", "stop"},
		{"Ollama's generate", lines, "{\"model\":\"o\",\"response\":\"a\",\"done\":true,\"done_reason\":\"stop\"}", "o", "stop"},
		{"what a tool is called with", whole, `{"choices":[{"message":{"tool_calls":[{"function":{"arguments":{"model":"secret"}}}]}}]}`, "", ""},
		{"a text in a name's place", whole, `{"model":"the prompt was: hello"}`, "", ""},
		{"a long name", whole, `{"model":"` + strings.Repeat("m", 200) + `"}`, "", ""},
		{"a long line", events, "data: {\"model\":\"" + strings.Repeat("m", maxLine) + "\"}\n\ndata: {\"model\":\"m\"}\n\n", "m", ""},
		{"a long body", whole, `{"model":"m","x":"` + strings.Repeat("m", maxWhole) + `"}`, "", ""},
		{"no JSON", whole, "model", "", ""},
		{"another kind", "text/plain", `{"model":"m"}`, "", ""},
		{"no kind", "", `{"model":"m"}`, "", ""},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			a := NewAnswer(200, http.Header{"Content-Type": {c.kind}})
			for p := []byte(c.body); len(p) > 0; {
				n := min(size, len(p))
				a.Write(p[:n])
				p = p[n:]
			}
			if model, finish := a.Words(); model != c.model || finish != c.finish {
				t.Errorf("%s, in pieces of %d: model %q, finish %q", c.name, size, model, finish)
			}
			if cap(a.line) > 4*maxWhole {
				t.Errorf("%s: %d bytes are kept", c.name, cap(a.line))
			}
		}
	}
}

func TestAnswersThatArentRead(t *testing.T) {
	for name, a := range map[string]*Answer{
		"an error":   NewAnswer(500, http.Header{"Content-Type": {"application/json"}}),
		"compressed": NewAnswer(200, http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}),
	} {
		a.Write([]byte(`{"model":"m"}`))
		if model, _ := a.Words(); model != "" {
			t.Errorf("%s is read", name)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte("data: {\"model\":\"m\"}\n\n"), 3)
	f.Fuzz(func(t *testing.T, body []byte, cut int) {
		for _, kind := range []string{"text/event-stream", "application/json"} {
			a := NewAnswer(200, http.Header{"Content-Type": {kind}})
			n := min(max(cut, 0), len(body))
			a.Write(body[:n])
			a.Write(body[n:])
			if model, finish := a.Words(); len(model) > maxWord || len(finish) > maxWord || strings.ContainsAny(model+finish, " \n") {
				t.Fatalf("%q, %q", model, finish)
			}
		}
	})
}

func TestOperation(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/chat/completions": "chat", "/v1/messages": "chat", "/v1/responses": "chat", "/api/chat": "chat",
		"/v1/completions": "text_completion", "/api/generate": "text_completion",
		"/v1/embeddings": "embeddings", "/api/embed": "embeddings", "/api/embeddings": "embeddings",
		"/v1/messages/count_tokens": "", "/v1/models": "", "/api/tags": "",
	} {
		if got := Operation(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
