package ollama

import (
	"encoding/json"
	"time"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// The finish reasons of requests that only load or unload a model.
const (
	loaded   = "load"
	unloaded = "unload"
)

func parseChat(body []byte) (*dialect.Request, *dialect.Refusal) {
	c := newCommon()
	var talk conversation
	ref := dialect.Object("", body, func(name string) any {
		switch name {
		case "messages":
			return &talk
		case "tools":
			return (*toolList)(&c.out.Input.Tools)
		}
		return c.member(name)
	})
	switch {
	case ref != nil:
		return nil, ref
	case talk.given == 0:
		return c.atOnce(), nil
	case len(talk.said) == 0:
		return nil, dialect.Refuse("messages", "messages: none of them says anything")
	}
	if c.out.Input.Messages, ref = talk.pair(); ref != nil {
		return nil, ref
	}
	c.out.Names = names(nil)
	for i := range talk.said {
		c.out.Names.Messages = append(c.out.Names.Messages, talk.said[i].at)
	}
	return c.out, nil
}

func parseGenerate(body []byte) (*dialect.Request, *dialect.Refusal) {
	c := newCommon()
	var prompt, system string
	var pictures imageList
	ref := dialect.Object("", body, func(name string) any {
		switch name {
		case "prompt":
			return &prompt
		case "system":
			return &system
		case "images":
			return &pictures
		case "suffix":
			return silent{"no other provider fills in a middle; send the prompt alone"}
		case "template", "raw", "context":
			return silent{"the provider makes the prompt; use /api/chat with messages"}
		case "width", "height", "steps":
			return silent{"a run makes no pictures"}
		}
		return c.member(name)
	})
	if ref != nil {
		return nil, ref
	}
	if prompt == "" {
		return c.atOnce(), nil
	}
	c.out.Names = names([]string{"prompt"})
	if system != "" {
		c.out.Names = names([]string{"system", "prompt"})
		c.out.Input.Messages = append(c.out.Input.Messages,
			execution.Message{Role: execution.RoleSystem, Parts: []execution.Part{{Text: system}}})
	}
	c.out.Input.Messages = append(c.out.Input.Messages,
		execution.Message{Role: execution.RoleUser, Parts: append(pictures, execution.Part{Text: prompt})})
	return c.out, nil
}

// names are what this API calls the places of a run whose messages stand at these.
func names(messages []string) dialect.Names {
	words := map[string]string{"target": "model", "max_tokens": "options.num_predict", "response_format": "format", "reasoning_effort": "think",
		"messages.parts": "images", "messages.tool_calls.name": "function.name", "messages.tool_calls.arguments": "function.arguments",
		"tools.name": "function.name", "tools.description": "function.description", "tools.parameters": "function.parameters"}
	for _, option := range []string{"temperature", "top_p", "top_k", "seed", "stop", "frequency_penalty", "presence_penalty"} {
		words[option] = "options." + option
	}
	return dialect.Names{Messages: messages, Words: words}
}

// common is what chat and generate requests share.
type common struct {
	out       *dialect.Request
	keepAlive keepAlive
}

// newCommon returns the request that says nothing: it asks for a stream.
func newCommon() *common { return &common{out: &dialect.Request{Stream: true}} }

// member returns where a member is kept, nil if there is no such member.
func (c *common) member(name string) any {
	o := &c.out.Input.Options
	switch name {
	case "model":
		return &c.out.Model
	case "stream":
		return &c.out.Stream
	case "options":
		return (*options)(o)
	case "format":
		return (*format)(&o.ResponseFormat)
	case "think":
		return (*think)(&o.ReasoningEffort)
	case "keep_alive":
		return &c.keepAlive
	case "truncate", "shift":
		return dialect.Only{Value: "true", Why: "what becomes of a conversation that is too long is the provider's choice"}
	case "logprobs", "top_logprobs":
		return silent{"a run doesn't tell the probabilities of its tokens"}
	case "_debug_render_only":
		return silent{"the prompt is made at the provider"}
	}
	return nil
}

// atOnce is the request of somebody who sent nothing to generate from: Ollama loads the model, or unloads it when it
// shall not be kept. What other providers have loaded nobody can tell them, and there is nothing to wait for.
func (c *common) atOnce() *dialect.Request {
	c.out.Input = execution.Request{}
	c.out.AtOnce = loaded
	if c.keepAlive.none {
		c.out.AtOnce = unloaded
	}
	return c.out
}

// silent stands for a member that a run can't carry and that clients send although it says nothing: false, 0, or empty.
type silent struct{ why string }

// ReadJSON implements [dialect.Reader].
func (s silent) ReadJSON(at string, raw []byte) *dialect.Refusal {
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return dialect.Refuse(at, at+": is of the wrong type")
	}
	says := false
	switch v := v.(type) {
	case bool:
		says = v
	case float64:
		says = v != 0
	case string:
		says = v != ""
	case []any:
		says = len(v) > 0
	case map[string]any:
		says = len(v) > 0
	}
	if says {
		return dialect.Unsupported{Why: s.why}.ReadJSON(at, raw)
	}
	return nil
}

// think says whether, or how much, a model reasons before it answers. Ollama takes true for medium where a model has
// levels.
type think string

// ReadJSON implements [dialect.Reader].
func (t *think) ReadJSON(at string, raw []byte) *dialect.Refusal {
	switch string(raw) {
	case "true", `"medium"`:
		*t = "medium"
	case "false":
		*t = "none"
	case `"low"`:
		*t = "low"
	case `"high"`:
		*t = "high"
	default:
		return dialect.Refuse(at, at+`: must be true, false, "low", "medium" or "high"`)
	}
	return nil
}

// format is the form of the answer: "json", or a JSON schema. Runs have it as OpenAI does. The schema isn't called
// strict: OpenAI's strict mode refuses schemas that Ollama takes.
type format json.RawMessage

// ReadJSON implements [dialect.Reader].
func (f *format) ReadJSON(at string, raw []byte) *dialect.Refusal {
	switch {
	case string(raw) == `""`:
	case string(raw) == `"json"`:
		*f = format(`{"type":"json_object"}`)
	case raw[0] == '{':
		text := append([]byte(`{"type":"json_schema","json_schema":{"name":"answer","schema":`), raw...)
		*f = append(text, "}}"...)
	default:
		return dialect.Refuse(at, at+`: must be "json" or a JSON schema`)
	}
	return nil
}

// keepAlive is for how long an Ollama keeps the model in memory after the request: seconds, or a duration as in "5m".
// Nobody else has a use for it, but a caller that sends no prompt and 0 wants the model unloaded.
type keepAlive struct{ none bool }

// ReadJSON implements [dialect.Reader].
func (k *keepAlive) ReadJSON(at string, raw []byte) *dialect.Refusal {
	var seconds float64
	if json.Unmarshal(raw, &seconds) == nil {
		k.none = seconds == 0
		return nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		if d, err := time.ParseDuration(text); err == nil {
			k.none = d == 0
			return nil
		}
	}
	return dialect.Refuse(at, at+`: must be a number of seconds or a duration, as in "5m"`)
}
