package ollama

import (
	"slices"
	"strings"
	"testing"

	"iop/packages/go/execution"
)

// pairs writes a conversation's calls and answers short: "1: a=look b=now" for calls, "2<a" for an answer to a.
func pairs(messages []execution.Message) string {
	var out []string
	for _, m := range messages {
		switch {
		case m.Role == execution.RoleTool:
			out = append(out, "<"+m.ToolCallID)
		case len(m.ToolCalls) > 0:
			for _, c := range m.ToolCalls {
				out = append(out, c.ID+"="+c.Name)
			}
		default:
			out = append(out, string(m.Role[0]))
		}
	}
	return strings.Join(out, " ")
}

// Clients say in four ways which call a tool's answer belongs to, and some in none.
func TestToolAnswersFindTheirCalls(t *testing.T) {
	const user = `{"role":"user","content":"hi"}`
	calls := func(calls ...string) string {
		for i, c := range calls {
			id, name, _ := strings.Cut(c, "=")
			calls[i] = `{"id":"` + id + `","function":{"name":"` + name + `","index":9,"arguments":{}}}`
			if id == "" {
				calls[i] = `{"type":"function","function":{"name":"` + name + `"}}`
			}
		}
		return `{"role":"assistant","content":"","tool_calls":[` + strings.Join(calls, ",") + `]}`
	}
	tool := func(id, name string) string {
		return `{"role":"tool","content":"x","tool_call_id":"` + id + `","tool_name":"` + name + `"}`
	}
	for _, tt := range []struct {
		name string
		in   []string
		want string
	}{
		{"by id", []string{calls("a=look", "b=look"), tool("b", ""), tool("a", "")}, "a=look b=look <b <a"},
		{"by id, whatever the name", []string{calls("a=look"), tool("a", "now")}, "a=look <a"},
		{"by name", []string{user, calls("=look", "=now", "=look"), tool("", "now"), tool("", "look"), tool("", "look")},
			"u call_1_0=look call_1_1=now call_1_2=look <call_1_1 <call_1_0 <call_1_2"},
		{"in order", []string{user, calls("=look", "=now"), tool("", ""), tool("", "")}, "u call_1_0=look call_1_1=now <call_1_0 <call_1_1"},
		{"names and order mixed", []string{calls("=look", "=now", "=look"), tool("", "look"), tool("", ""), tool("", "")},
			"call_0_0=look call_0_1=now call_0_2=look <call_0_0 <call_0_1 <call_0_2"},
		{"calls with ids, answers without", []string{calls("a=look", "b=now"), tool("", "now"), tool("", "")}, "a=look b=now <b <a"},
		{"calls without ids, answers with", []string{calls("=look", "=now"), tool("x", "now"), tool("y", "")}, "call_0_0=look call_0_1=now <call_0_1 <call_0_0"},
		{"a call a message", []string{calls("=look"), calls("=now"), tool("", ""), tool("", "")}, "call_0_0=look call_1_0=now <call_0_0 <call_1_0"},
		{"an answer to nothing is the provider's", []string{calls("a=look"), tool("z", "look"), tool("a", "")}, "a=look <z <a"},
		{"a call that nobody answered", []string{calls("=look"), user, calls("=look"), tool("", "look")}, "call_0_0=look u call_2_0=look <call_2_0"},
		{"the made up id is somebody's", []string{calls("=look"), tool("", ""), calls("call_0_0=now"), tool("call_0_0", "")},
			"call_0_0x=look <call_0_0x call_0_0=now <call_0_0"},
	} {
		body := `{"model":"m","messages":[` + strings.Join(tt.in, ",") + `]}`
		got, ref := Chat().Parse([]byte(body))
		if ref != nil {
			t.Errorf("%s: %v", tt.name, ref)
			continue
		}
		if p := pairs(got.Input.Messages); p != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, p, tt.want)
		}
		// The next turn begins with the same messages: a provider that remembers them must find them the same.
		longer, ref := Chat().Parse([]byte(strings.TrimSuffix(body, "]}") + "," + user + "]}"))
		if ref != nil || !strings.HasPrefix(pairs(longer.Input.Messages), tt.want) {
			t.Errorf("%s: the next turn: %+v, %v", tt.name, longer, ref)
		}
	}
}

// A body may hold very many calls: finding each one's answer takes no longer for that.
func TestManyCallsArePaired(t *testing.T) {
	const n = 100_000
	call := `{"function":{"name":"look"}}`
	for _, answer := range []string{`{"role":"tool","tool_name":"look"}`, `{"role":"tool"}`} {
		body := `{"model":"m","messages":[{"role":"assistant","tool_calls":[` + strings.Join(slices.Repeat([]string{call}, n), ",") + `]},` +
			strings.Join(slices.Repeat([]string{answer}, n), ",") + `]}`
		got, ref := Chat().Parse([]byte(body))
		if ref != nil {
			t.Fatal(ref)
		}
		for i, m := range got.Input.Messages[1:] {
			if m.ToolCallID != got.Input.Messages[0].ToolCalls[i].ID {
				t.Fatalf("answer %d is to %s", i, m.ToolCallID)
			}
		}
	}
}
