package adaptertest

import (
	"bytes"
	"encoding/json"
	"strings"

	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// Ollama is what the kinds ollama and auto speak: Ollama's native dialect, and those of OpenAI and Anthropic beside it.
func Ollama() Dialect {
	return Dialect{
		Request: func(body string) *execution.TunnelRequest { return Post("/api/chat", body) },
		Owns:    func(_, path string) bool { return httprules.Carries("ollama", nil, path) },
		Plain:   "ollama-0.17.4/native-chat",
		Stream:  "ollama-0.17.4/native-chat-stream-length",
	}
}

// NDJSONVariants writes lines of JSON in the other forms that mean the same, by their names. What stands after the last
// line end stays as it is.
func NDJSONVariants(stream []byte) map[string][]byte {
	end := bytes.LastIndexByte(stream, '\n') + 1
	lines := strings.FieldsFunc(string(stream[:end]), func(r rune) bool { return r == '\n' })
	if len(lines) == 0 {
		return nil
	}
	out := map[string][]byte{}
	for name, form := range map[string]struct{ before, after string }{
		"LF":            {"", "\n"},
		"CRLF":          {"", "\r\n"},
		"blanks around": {" \t", " \t \n"},
		"blank lines":   {"\n\r\n \n", "\n\n"},
	} {
		var b bytes.Buffer
		for _, line := range lines {
			b.WriteString(form.before + line + form.after)
		}
		b.Write(stream[end:])
		out[name] = b.Bytes()
	}
	if last := lines[len(lines)-1]; end == len(stream) && json.Valid([]byte(last)) {
		out["no last line end"] = stream[:end-1]
	}
	return out
}
