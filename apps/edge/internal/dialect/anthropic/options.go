package anthropic

import (
	"encoding/json"
	"strconv"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// toolList is the tools that a model may call: those of the caller's own.
type toolList []execution.Tool

// ReadJSON implements [dialect.Reader].
func (l *toolList) ReadJSON(at string, raw []byte) *dialect.Refusal {
	names := map[string]bool{}
	list := at
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		if len(*l) == execution.MaxTools {
			return dialect.Refuse(list, list+": more than "+strconv.Itoa(execution.MaxTools))
		}
		kind, ref := readType(at, raw)
		if ref == nil && kind != "" && kind != "custom" {
			at = dialect.Join(at, "type")
			return dialect.Refuse(at, at+": "+shown(kind)+" isn't supported here, only tools of your own are; give it a name and an input_schema")
		}
		if ref != nil {
			return ref
		}
		t, ref := readTool(at, raw)
		switch {
		case ref != nil:
			return ref
		case !execution.IsToolName(t.Name):
			return dialect.Refuse(at+".name", at+".name: must have 1 to 128 letters, digits or any of _-.:/")
		case names[t.Name]:
			return dialect.Refuse(at+".name", at+".name: another tool has it")
		}
		names[t.Name] = true
		*l = append(*l, t)
		return nil
	})
}

func readTool(at string, raw []byte) (execution.Tool, *dialect.Refusal) {
	var t execution.Tool
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "name":
			return &t.Name
		case "description":
			return &t.Description
		case "input_schema":
			return (*schema)(&t.Parameters)
		case "eager_input_streaming": // in which pieces arguments come
			return dialect.Ignored{}
		case "strict":
			return dialect.Only{Value: "false", Why: "a run doesn't hold a model to a schema"}
		case "defer_loading":
			return dialect.Only{Value: "false", Why: "a run shows a model all tools"}
		case "allowed_callers":
			return dialect.Only{Value: `["direct"]`, Why: "a run knows no tools that call tools"}
		case "input_examples":
			return dialect.Only{Value: "[]", Why: "put examples in the description"}
		}
		return common(name)
	})
	return t, ref
}

// schema is a JSON schema, which is kept as it is.
type schema json.RawMessage

// ReadJSON implements [dialect.Reader].
func (s *schema) ReadJSON(at string, raw []byte) *dialect.Refusal {
	if raw[0] != '{' {
		return dialect.Refuse(at, at+": must be an object")
	}
	*s = append(schema(nil), raw...) // the body isn't kept
	return nil
}

// choice is tool_choice.
type choice struct {
	execution.ToolChoice
	single bool // one call at a time
}

// ReadJSON implements [dialect.Reader].
func (c *choice) ReadJSON(at string, raw []byte) *dialect.Refusal {
	var kind string
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "type":
			return &kind
		case "name":
			return &c.Name
		case "disable_parallel_tool_use":
			return &c.single
		}
		return nil
	})
	if ref != nil {
		return ref
	}
	switch kind {
	case "auto":
		c.Mode = execution.ToolAuto
	case "any":
		c.Mode = execution.ToolRequired
	case "tool":
		c.Mode = execution.ToolNamed
	case "none":
		c.Mode = execution.ToolNone
	default:
		return dialect.Refuse(at+".type", at+".type: must be auto, any, tool or none")
	}
	if named := c.Mode == execution.ToolNamed; named != (c.Name != "") {
		return dialect.Refuse(at+".name", at+`.name: goes with the type "tool", and only with it`)
	}
	return nil
}

// thinking is how much a model is to think, and whether the caller wants to see it.
type thinking struct {
	kind    string
	budget  *int64
	display string
}

// ReadJSON implements [dialect.Reader].
func (t *thinking) ReadJSON(at string, raw []byte) *dialect.Refusal {
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "type":
			return &t.kind
		case "budget_tokens":
			return &t.budget
		case "display":
			return &t.display
		}
		return nil
	})
	enabled := t.kind == "enabled"
	switch {
	case ref != nil:
		return ref
	case !enabled && t.kind != "disabled" && t.kind != "adaptive":
		return dialect.Refuse(at+".type", at+".type: must be enabled, disabled or adaptive here")
	case enabled && (t.budget == nil || *t.budget < 1):
		return dialect.Refuse(at+".budget_tokens", at+".budget_tokens: must be at least 1")
	case !enabled && t.budget != nil:
		return dialect.Refuse(at+".budget_tokens", at+`.budget_tokens: goes with the type "enabled" only`)
	case t.display != "" && t.display != "summarized" && t.display != "omitted":
		return dialect.Refuse(at+".display", at+".display: must be summarized or omitted")
	}
	return nil
}

// hidden reports whether the answer is to leave the thinking out.
func (t *thinking) hidden() bool { return t.display == "omitted" }

// set says it as a run does. How hard to try is a matter of thinking there, so it says nothing where there is to be
// none; a model that thinks as it sees fit is one that was told nothing.
func (t *thinking) set(o *execution.Options, effort string) {
	o.ReasoningBudget = t.budget
	o.ReasoningEffort = effort
	if t.kind == "disabled" {
		o.ReasoningEffort = "none"
	}
}

// outputConfig is output_config.
type outputConfig struct {
	effort string
	format outputFormat
}

// ReadJSON implements [dialect.Reader].
func (c *outputConfig) ReadJSON(at string, raw []byte) *dialect.Refusal {
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "effort":
			return &c.effort
		case "format":
			return &c.format
		case "task_budget":
			return dialect.Unsupported{Why: "max_tokens limits an answer"}
		}
		return nil
	})
	switch c.effort {
	case "", "low", "medium", "high", "xhigh", "max":
		return ref
	}
	return dialect.Refuse(at+".effort", at+".effort: must be low, medium, high, xhigh or max")
}

// outputFormat is the form that an answer must have, as a run has it.
type outputFormat struct{ format json.RawMessage }

// ReadJSON implements [dialect.Reader].
func (f *outputFormat) ReadJSON(at string, raw []byte) *dialect.Refusal {
	var kind string
	var s schema
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "type":
			return &kind
		case "schema":
			return &s
		}
		return nil
	})
	switch {
	case ref != nil:
		return ref
	case kind != "json_schema":
		return dialect.Refuse(at+".type", at+".type: must be json_schema")
	case s == nil:
		return dialect.Refuse(at+".schema", at+".schema: missing")
	case f.format != nil:
		return dialect.Refuse(at, at+": the format was given already")
	}
	// OpenAI's form wants a name; strict, since this API promises an answer that keeps to the schema.
	f.format = append(append([]byte(`{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":`), s...), "}}"...)
	return nil
}

// contextManagement is what to leave out of the conversation. Of that a run's caller may ask for the thinking of old
// turns, which agents do in each request; the rest is for a server that counts tokens.
type contextManagement struct {
	clear bool
	keep  int // turns that keep their thinking, the last ones, with clear
}

// ReadJSON implements [dialect.Reader].
func (c *contextManagement) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.Object(at, raw, func(name string) any {
		if name == "edits" {
			return (*contextEdits)(c)
		}
		return nil
	})
}

type contextEdits contextManagement

// ReadJSON implements [dialect.Reader].
func (c *contextEdits) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		kind, ref := readType(at, raw)
		switch {
		case ref != nil:
			return ref
		case kind != "clear_thinking_20251015":
			at = dialect.Join(at, "type")
			return dialect.Refuse(at, at+": "+shown(kind)+" isn't supported here, only clear_thinking_20251015 is")
		}
		c.clear, c.keep = true, 1
		return dialect.Object(at, raw, func(name string) any {
			if name == "keep" {
				return (*keptThinking)(c)
			}
			return common(name)
		})
	})
}

// keptThinking is "all", {"type":"all"} or {"type":"thinking_turns","value":N}.
type keptThinking contextManagement

// ReadJSON implements [dialect.Reader].
func (c *keptThinking) ReadJSON(at string, raw []byte) *dialect.Refusal {
	if string(raw) == `"all"` {
		c.clear = false
		return nil
	}
	var kind string
	var value *int
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "type":
			return &kind
		case "value":
			return &value
		}
		return nil
	})
	switch {
	case ref != nil:
		return ref
	case kind == "all" && value == nil:
		c.clear = false
	case kind == "thinking_turns" && value != nil && *value > 0:
		c.keep = *value
	default:
		return dialect.Refuse(at, at+`: must be "all" or thinking_turns with a value of at least 1`)
	}
	return nil
}

// apply leaves out what was thought before the last turns of the assistant. A turn goes on while tools answer.
func (c *contextManagement) apply(l *messageList) {
	if !c.clear {
		return
	}
	turns, within := 0, false
	for i := len(l.out) - 1; i >= 0; i-- {
		m := &l.out[i]
		switch {
		case m.Role == execution.RoleUser:
			within = false
		case m.Reasoning == "":
		case !within && turns == c.keep:
			l.forget(i + 1)
			return
		case !within:
			within = true
			turns++
		}
	}
}

// forget leaves out what was thought in the first n messages, and those that say nothing else.
func (l *messageList) forget(n int) {
	kept, places := l.out[:0], l.places[:0]
	for i, m := range l.out {
		if i < n && m.Reasoning != "" {
			if m.Reasoning = ""; len(m.Parts)+len(m.ToolCalls) == 0 {
				continue
			}
		}
		kept, places = append(kept, m), append(places, l.places[i])
	}
	l.out, l.places = kept, places
}
