package ollama

import (
	"strings"
	"testing"

	"iop/apps/node/internal/adapters/upstream"
)

// Whatever an Ollama answers to what it is asked about itself: no panic, a version of one line, and no length below 0.
func FuzzProbe(f *testing.F) {
	for _, s := range []string{`{"version":"0.9.1"}`, `{"version":"a\u001b[2J\nb"}`, `{"model_info":{"general.architecture":"llama","llama.context_length":8192},"parameters":"num_ctx 4096"}`,
		`{"model_info":{"general.architecture":7}}`, `{"parameters":"num_ctx -1","model_info":{"general.architecture":"x","x.context_length":-5}}`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		answer := &upstream.Answer{Status: 200, Body: body}
		if v := readVersion(answer); v == "" || len(v) > len("ollama ")+maxVersion || strings.ContainsAny(v, "\r\n\x1b") {
			t.Fatalf("version %q", v)
		}
		if n := readContext(answer); n < 0 {
			t.Fatalf("context %d", n)
		}
	})
}
