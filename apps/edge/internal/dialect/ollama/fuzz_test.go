package ollama

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// Whatever a caller sends is a request or a refusal that says what is wrong; and a request's calls and answers can be
// told apart.
func FuzzParse(f *testing.F) {
	f.Add(false, []byte(`{"model":"m","messages":[{"role":"user","content":"hi","images":["iVBORw0KGgo="]},
		{"role":"assistant","thinking":"hm","tool_calls":[{"function":{"name":"look","arguments":{"a":[1]}}}]},{"role":"tool","tool_name":"look"}],
		"tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}],"options":{"num_predict":-1,"stop":["a"]},
		"think":true,"format":{"type":"object"},"keep_alive":"5m","stream":false}`))
	f.Add(true, []byte(`{"model":"m","prompt":"hi","system":"be kind","suffix":"","context":[],"raw":false,"options":{"num_ctx":1},"format":"json"}`))
	f.Add(true, []byte(`{"model":"m","keep_alive":0}`))
	f.Fuzz(func(t *testing.T, generate bool, body []byte) {
		e := Chat()
		if generate {
			e = Generate()
		}
		sent := slices.Clone(body)
		r, ref := e.Parse(sent)
		if (r == nil) == (ref == nil) {
			t.Fatalf("%+v and %v", r, ref)
		}
		if !slices.Equal(sent, body) {
			t.Fatal("the body was changed")
		}
		if ref != nil {
			if ref.Text == "" {
				t.Fatal("a refusal without a text")
			}
			return
		}
		again, _ := e.Parse(body)
		clear(sent) // what the request kept of it is a copy
		if diff := cmp.Diff(again, r); diff != "" {
			t.Fatal(diff)
		}
		checkParsed(t, r)
	})
}

func checkParsed(t *testing.T, r *dialect.Request) {
	t.Helper()
	if (r.AtOnce == "") != (len(r.Input.Messages) > 0) {
		t.Fatalf("%+v", r)
	}
	for _, m := range r.Input.Messages {
		if m.Role == execution.RoleTool && m.ToolCallID == "" {
			t.Fatalf("%+v answers nothing", m)
		}
		for _, c := range m.ToolCalls {
			if c.ID == "" || !json.Valid([]byte(c.Arguments)) || c.Arguments[0] != '{' {
				t.Fatalf("%+v", c)
			}
		}
	}
	for _, tool := range r.Input.Tools {
		if len(tool.Parameters) > 0 && !json.Valid(tool.Parameters) {
			t.Fatalf("%s", tool.Parameters)
		}
	}
	if format := r.Input.Options.ResponseFormat; len(format) > 0 && !json.Valid(format) {
		t.Fatalf("%s", format)
	}
}
