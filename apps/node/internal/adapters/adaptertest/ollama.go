package adaptertest

import (
	"bytes"
	"slices"
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

// NDJSONVariants writes lines of JSON in the other forms that mean the same, by their names.
func NDJSONVariants(stream []byte) map[string][]byte {
	lines := strings.FieldsFunc(string(stream), func(r rune) bool { return r == '\n' })
	out := map[string][]byte{"no last line end": bytes.TrimRight(stream, "\n")}
	for name, form := range map[string]struct{ before, after string }{
		"LF":            {"", "\n"},
		"CRLF":          {"", "\r\n"},
		"blanks around": {" \t", " \t \n"},
		"blank lines":   {"\n\r\n \n", "\n\n"},
	} {
		var b strings.Builder
		for _, line := range lines {
			b.WriteString(form.before + line + form.after)
		}
		out[name] = []byte(b.String())
	}
	for name, form := range out {
		if slices.Equal(form, stream) {
			delete(out, name)
		}
	}
	return out
}
