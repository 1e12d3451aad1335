package execution

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// The bounds of the options. What lies within them a provider may still refuse.
const (
	maxTemperature = 2.0
	maxPenalty     = 2.0
	maxStops       = 16
	maxStopBytes   = 1 << 10
	maxWord        = 64 // of a text that is a word of some vocabulary
)

// ParseOptions reads the options of a run: one JSON object whose members are those of [Options], each at most once.
// Nothing, null, and a member that is null are the provider's own choice; stop may be one text. An error is a
// bad_request that names the option.
func ParseOptions(raw []byte) (Options, error) {
	var o Options
	members, err := objectMembers("options", raw)
	if err != nil {
		return o, err
	}
	for _, m := range members {
		if err := o.set(m.name, m.value); err != nil {
			return Options{}, invalid("options: %s: %v", shown(m.name), err)
		}
	}
	if err := o.check(); err != nil {
		return Options{}, err
	}
	return o, nil
}

// set reads one member.
func (o *Options) set(name string, value json.RawMessage) error {
	into, what := o.member(name)
	if into == nil {
		return errors.New("unknown; the options are " + strings.Join(optionNames(), ", "))
	}
	if bytes.Equal(value, []byte("null")) {
		return nil
	}
	if name == "stop" && value[0] == '"' {
		o.Stop = make([]string, 1)
		into = &o.Stop[0]
	}
	if json.Unmarshal(value, into) != nil {
		return errors.New("must be " + what)
	}
	return nil
}

// member returns where an option is kept and what its value must be, nil if there is no such option.
func (o *Options) member(name string) (into any, what string) {
	const integer, number = "a whole number", "a number"
	switch name {
	case "max_tokens":
		return &o.MaxTokens, integer
	case "temperature":
		return &o.Temperature, number
	case "top_p":
		return &o.TopP, number
	case "top_k":
		return &o.TopK, integer
	case "stop":
		return &o.Stop, "a text or a list of texts"
	case "seed":
		return &o.Seed, integer
	case "frequency_penalty":
		return &o.FrequencyPenalty, number
	case "presence_penalty":
		return &o.PresencePenalty, number
	case "parallel_tool_calls":
		return &o.ParallelToolCalls, "true or false"
	case "reasoning_effort":
		return &o.ReasoningEffort, "a text"
	case "reasoning_budget":
		return &o.ReasoningBudget, integer
	case "response_format":
		return &o.ResponseFormat, "an object"
	}
	return nil, ""
}

func optionNames() []string {
	return []string{"max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "frequency_penalty",
		"presence_penalty", "parallel_tool_calls", "reasoning_effort", "reasoning_budget", "response_format"}
}

// check refuses values that make no sense with any provider.
func (o *Options) check() error {
	for _, n := range []struct {
		name  string
		value *int64
		least int64
	}{{"max_tokens", o.MaxTokens, 1}, {"top_k", o.TopK, 0}, {"reasoning_budget", o.ReasoningBudget, 0}} {
		if n.value != nil && *n.value < n.least {
			return invalid("options: %s: must be at least %d", n.name, n.least)
		}
	}
	for _, n := range []struct {
		name     string
		value    *float64
		from, to float64
	}{
		{"temperature", o.Temperature, 0, maxTemperature}, {"top_p", o.TopP, 0, 1},
		{"frequency_penalty", o.FrequencyPenalty, -maxPenalty, maxPenalty},
		{"presence_penalty", o.PresencePenalty, -maxPenalty, maxPenalty},
	} {
		if n.value != nil && !(*n.value >= n.from && *n.value <= n.to) {
			return invalid("options: %s: must be from %v to %v", n.name, n.from, n.to)
		}
	}
	return o.checkTexts()
}

func (o *Options) checkTexts() error {
	if len(o.Stop) > maxStops {
		return invalid("options: stop: must have at most %d texts", maxStops)
	}
	for _, s := range o.Stop {
		if s == "" || len(s) > maxStopBytes {
			return invalid("options: stop: each text must have 1 to %d bytes", maxStopBytes)
		}
	}
	if o.ReasoningEffort != "" && !isWord(o.ReasoningEffort, "_-") {
		return invalid("options: reasoning_effort: must be a word, as in low, medium or high")
	}
	if len(o.ResponseFormat) > 0 {
		var format struct {
			Type string `json:"type"`
		}
		if !isObject(o.ResponseFormat) || json.Unmarshal(o.ResponseFormat, &format) != nil || format.Type == "" {
			return invalid("options: response_format: must be an object with a type, as in {\"type\":\"json_object\"}")
		}
	}
	return nil
}

// ParseToolChoice reads which tool a model must call: one of the words auto, none and required, or an object as
// [ToolChoice] has it. Nothing and null leave it to the provider. An error is a bad_request.
func ParseToolChoice(raw []byte) (ToolChoice, error) {
	var c ToolChoice
	if trimmed := bytes.TrimSpace(raw); len(trimmed) > 0 && trimmed[0] == '"' {
		if json.Unmarshal(trimmed, &c.Mode) != nil || c.Mode == "" || c.Mode == ToolNamed {
			return ToolChoice{}, invalid("tool_choice: must be auto, none, required, or an object with a mode and a name")
		}
		return c, c.check()
	}
	members, err := objectMembers("tool_choice", raw)
	if err != nil {
		return c, err
	}
	for _, m := range members {
		var into any
		switch m.name {
		case "mode":
			into = &c.Mode
		case "name":
			into = &c.Name
		default:
			return ToolChoice{}, invalid("tool_choice: %s: unknown; its members are mode and name", shown(m.name))
		}
		if json.Unmarshal(m.value, into) != nil {
			return ToolChoice{}, invalid("tool_choice: %s: must be a text", m.name)
		}
	}
	return c, c.check()
}

// check refuses a choice that says nothing sensible by itself.
func (c ToolChoice) check() error {
	switch c.Mode {
	case "", ToolAuto, ToolNone, ToolRequired:
		if c.Name != "" {
			return invalid("tool_choice: a name stands only with the mode %q", ToolNamed)
		}
	case ToolNamed:
		if c.Name == "" {
			return invalid("tool_choice: the mode %q needs a name", ToolNamed)
		}
	default:
		return invalid("tool_choice: the mode must be auto, none, required or tool")
	}
	return nil
}

type member struct {
	name  string
	value json.RawMessage
}

// objectMembers returns the members of a JSON object in their order; nothing and null have none.
func objectMembers(what string, raw []byte) ([]member, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	if !json.Valid(raw) || raw[0] != '{' {
		return nil, invalid("%s: must be a JSON object", what)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil {
		return nil, invalid("%s: must be a JSON object", what)
	}
	var out []member
	seen := map[string]bool{}
	for d.More() {
		var m member
		key, err := d.Token()
		if err == nil {
			err = d.Decode(&m.value)
		}
		if err != nil {
			return nil, invalid("%s: must be a JSON object", what)
		}
		m.name, _ = key.(string)
		if seen[m.name] {
			return nil, invalid("%s: %s: given twice", what, shown(m.name))
		}
		seen[m.name] = true
		out = append(out, m)
	}
	return out, nil
}

// invalid is the failure of a request that says something wrong; nothing of it was sent.
func invalid(format string, args ...any) *Failure {
	return &Failure{Code: CodeBadRequest, Origin: OriginCaller, Text: fmt.Sprintf(format, args...), NothingSent: true}
}

// shown makes a name that a caller chose fit to be repeated.
func shown(name string) string {
	if len(name) > maxWord {
		name = name[:maxWord] + "…"
	}
	return fmt.Sprintf("%q", strings.ToValidUTF8(name, "?"))
}

// isWord reports whether s is letters, digits and what else is allowed, up to maxWord bytes.
func isWord(s, more string) bool { return len(s) <= maxWord && isMadeOf(s, more) }

// isMadeOf reports whether s is letters, digits and what else is allowed, and not empty.
func isMadeOf(s, more string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if ('a' > c || c > 'z') && ('A' > c || c > 'Z') && ('0' > c || c > '9') && strings.IndexByte(more, c) < 0 {
			return false
		}
	}
	return true
}

// isObject reports whether raw is one JSON object.
func isObject(raw []byte) bool {
	return json.Valid(raw) && bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{"))
}
