package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// heard is what a caller understood of an answer, whatever its dialect.
type heard struct {
	Text, Reasoning string
	Calls           []fakeprovider.Call
	Finish          string              // stop, length, tool_calls, content_filter or a word of the provider's; "" = untold
	Usage           *fakeprovider.Usage // nil = untold
	Failed          string              // the code of the failure that the answer tells, or what else it says of one
	Whole           bool                // the dialect's own end came
}

// speech is a dialect as its callers have it. Reading is strict: what a client of the dialect could stumble over is an
// error.
type speech struct {
	name, path string
	write      func(q *fakeprovider.Asked) string              // the body of a request
	whole      func(body []byte, exact bool) (heard, error)    // reads an answer that is one object
	stream     func(body []byte, exact bool) (heard, error)    // reads a stream, as far as it goes
	refusal    func(body []byte) (code, text string, ok error) // reads an error response
	media      string                                          // the content type of a stream
}

// speeches are the dialects that callers speak. The runs API is one, too; it asks the adapter "gpu".
func speeches() []speech {
	return []speech{
		{"OpenAI", "/v1/chat/completions", writeOpenAI, readOpenAI, readOpenAIStream, readOpenAIError, "text/event-stream"},
		{"Anthropic", "/v1/messages", writeAnthropic, readAnthropic, readAnthropicStream, readAnthropicError, "text/event-stream"},
		{"Ollama", "/api/chat", writeOllama, readOllama, readOllamaStream, readOllamaError, "application/x-ndjson"},
		{"Ollama generate", "/api/generate", writeGenerate, readOllama, readOllamaStream, readOllamaError, "application/x-ndjson"},
		{"runs", "/iop/v1/runs", writeRun, readRun, readRunStream, readRunError, "text/event-stream"},
	}
}

// request is a whole request.
func (s *speech) request(q *fakeprovider.Asked, headers ...string) string {
	return harness.Post(s.path, s.write(q), headers...)
}

// read reads an answer with status 200.
func (s *speech) read(a *harness.Answer, stream, exact bool) (heard, error) {
	kind, want, read := a.Header.Get("Content-Type"), "application/json", s.whole
	if stream {
		want, read = s.media, s.stream
	}
	h, err := read(a.Bytes, exact)
	switch {
	case a.StatusCode != 200:
		err = fmt.Errorf("status %d: %s", a.StatusCode, a.Bytes)
	case !strings.HasPrefix(kind, want):
		err = errors.Join(err, fmt.Errorf("content type %q, want %s", kind, want))
	case a.Cut != nil && h.Whole:
		err = errors.Join(err, fmt.Errorf("the answer has its end, but %w", a.Cut))
	}
	return h, err
}

// exactly reads one JSON value; in an exact reading it has no member that into hasn't.
func exactly(raw []byte, into any, exact bool) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if exact {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w in %s", err, shorten(raw))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("more behind %s", shorten(raw))
	}
	return nil
}

// frame is a server-sent event.
type frame struct{ name, data string }

// frames splits a stream of events, each of which is whole. In an exact reading there is nothing but events.
func frames(body []byte, exact bool) ([]frame, error) {
	var out []frame
	rest := string(body)
	for rest != "" {
		text, more, whole := strings.Cut(rest, "\n\n")
		if !whole {
			return out, fmt.Errorf("half an event: %.200q", text)
		}
		rest = more
		var e frame
		for line := range strings.SplitSeq(text, "\n") {
			field, value, _ := strings.Cut(line, ": ")
			switch {
			case field == "event" && e.name == "" && e.data == "":
				e.name = value
			case field == "data" && e.data == "":
				e.data = value
			case exact || !strings.HasPrefix(line, ":"):
				return out, fmt.Errorf("not a line of an event: %.200q", line)
			}
		}
		if e.data != "" {
			out = append(out, e)
		}
	}
	return out, nil
}

// raw are options as they stand in a request, under their common names.
func raw(options map[string]string) map[string]any {
	out := map[string]any{}
	for name, value := range options {
		out[name] = json.RawMessage(value)
	}
	return out
}

// move gives an option the name that a dialect has for it.
func move(options map[string]any, from, to string) {
	if value, has := options[from]; has {
		delete(options, from)
		options[to] = value
	}
}

// takeOption takes an option out, "" = there is none.
func takeOption(options map[string]any, name string) string {
	value, has := options[name].(json.RawMessage)
	delete(options, name)
	if !has {
		return ""
	}
	return string(value)
}

// encode spells v as JSON, in the order of the alphabet.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// object is JSON.
type object = map[string]any

// cutImage returns an image's media type and its bytes in base64.
func cutImage(image string) (mediaType, data string) {
	mediaType, data, _ = strings.Cut(image, ":")
	return mediaType, base64.StdEncoding.EncodeToString([]byte(data))
}

// textOf puts the texts of a message together.
func textOf(m *fakeprovider.Message) string {
	var b strings.Builder
	for _, c := range m.Content {
		b.WriteString(c.Text)
	}
	return b.String()
}

// images are those of a message, in base64.
func images(m *fakeprovider.Message) []string {
	var out []string
	for _, c := range m.Content {
		if c.Image != "" {
			_, data := cutImage(c.Image)
			out = append(out, data)
		}
	}
	return out
}

// openAIFormat is the form of an answer as OpenAI's callers and those of the runs API write it.
func openAIFormat(options object) {
	switch format := takeOption(options, "format"); format {
	case "":
	case `"json"`:
		options["response_format"] = object{"type": "json_object"}
	default:
		options["response_format"] = object{"type": "json_schema", "json_schema": object{"name": "answer", "schema": json.RawMessage(format)}}
	}
}

// number is a token count that is there or not.
type number = *int64

func count(input, output, cached number) *fakeprovider.Usage {
	if input == nil && output == nil {
		return nil
	}
	value := func(n number) int64 {
		if n == nil {
			return -1 // untold
		}
		return *n
	}
	return &fakeprovider.Usage{Input: value(input), Output: value(output), Cached: max(value(cached), 0)}
}
