package anthropic

import (
	"encoding/json"
	"slices"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// The bounds of stop_sequences.
const (
	maxStops     = 16
	maxStopBytes = 1 << 10
)

// parser reads a request.
type parser struct {
	model     string
	maxTokens *int64
	stream    bool
	system    []execution.Part
	messages  messageList
	tools     toolList
	choice    choice
	thinking  thinking
	output    outputConfig
	context   contextManagement
	options   execution.Options // what needs no second look
}

// member returns where a member of the body is kept.
func (p *parser) member(name string) any {
	switch name {
	case "model":
		return &p.model
	case "max_tokens":
		return &p.maxTokens
	case "stream":
		return &p.stream
	case "system":
		return (*texts)(&p.system)
	case "messages":
		return &p.messages
	case "tools":
		return &p.tools
	case "tool_choice":
		return &p.choice
	case "thinking":
		return &p.thinking
	case "output_config":
		return &p.output
	case "output_format": // where the format stood before there was output_config
		return &p.output.format
	case "temperature":
		return &p.options.Temperature
	case "top_p":
		return &p.options.TopP
	case "top_k":
		return &p.options.TopK
	case "stop_sequences":
		return (*stops)(&p.options.Stop)
	}
	return p.special(name)
}

// special returns what becomes of a member that isn't kept.
func (p *parser) special(name string) any {
	switch name {
	case "metadata", "cache_control", "service_tier", "speed", "diagnostics", "betas":
		return dialect.Ignored{}
	case "context_management":
		return &p.context
	case "mcp_servers":
		return dialect.Only{Value: "[]", Why: "call servers of tools yourself and name their tools in tools"}
	case "container":
		return dialect.Unsupported{Why: "it is for tools that run on Anthropic's servers"}
	case "inference_geo":
		return dialect.Unsupported{Why: "where a request goes is configured"}
	case "fallbacks":
		return dialect.Unsupported{Why: "name one model"}
	case "compaction", "thread":
		return dialect.Unsupported{Why: "send the whole conversation"}
	}
	return nil
}

// finish puts the request together and refuses what makes no sense as a whole.
func (p *parser) finish() (*dialect.Request, *dialect.Refusal) {
	switch {
	case p.model == "":
		return nil, dialect.Refuse("model", "model: missing")
	case p.maxTokens == nil:
		return nil, dialect.Refuse("max_tokens", "max_tokens: missing; say how many tokens the answer may have")
	case *p.maxTokens < 1:
		return nil, dialect.Refuse("max_tokens", "max_tokens: must be at least 1")
	case len(p.messages.out) == 0:
		return nil, dialect.Refuse("messages", "messages: missing or empty")
	}
	if ref := checkNumbers(&p.options); ref != nil {
		return nil, ref
	}
	r := &dialect.Request{Model: p.model, Stream: p.stream, IncludeUsage: true, HideReasoning: p.thinking.hidden()}
	in := &r.Input
	r.Names = p.names()
	if len(p.system) > 0 {
		in.Messages = append(in.Messages, execution.Message{Role: execution.RoleSystem, Parts: p.system})
		r.Names.Messages = append(r.Names.Messages, "system")
	}
	p.context.apply(&p.messages)
	in.Messages = append(in.Messages, p.messages.out...)
	r.Names.Messages = append(r.Names.Messages, p.messages.places...)
	in.Tools = p.tools
	in.Options = p.options
	in.Options.MaxTokens = p.maxTokens
	p.thinking.set(&in.Options, p.output.effort)
	in.Options.ResponseFormat = p.output.format.format
	if ref := p.setChoice(in); ref != nil {
		return nil, ref
	}
	return r, check(r)
}

// names are what this API calls the places of the run.
func (p *parser) names() dialect.Names {
	effort := "output_config.effort"
	if p.thinking.kind == "disabled" {
		effort = "thinking"
	}
	return dialect.Names{Words: map[string]string{"target": "model", "stop": "stop_sequences", "response_format": "output_config.format",
		"reasoning_effort": effort, "reasoning_budget": "thinking.budget_tokens", "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
		"messages.parts": "content", "messages.tool_calls": "content", "messages.tool_calls.arguments": "input", "tools.parameters": "input_schema"}}
}

func (p *parser) setChoice(in *execution.Request) *dialect.Refusal {
	named := func(t execution.Tool) bool { return t.Name == p.choice.Name }
	switch {
	case p.choice.Mode == execution.ToolRequired && len(in.Tools) == 0:
		return dialect.Refuse("tool_choice.type", "tool_choice.type: requires a tool, and there are none in tools")
	case p.choice.Mode == execution.ToolNamed && !slices.ContainsFunc(in.Tools, named):
		return dialect.Refuse("tool_choice.name", "tool_choice.name: names a tool that isn't in tools")
	}
	in.ToolChoice = p.choice.ToolChoice
	if p.choice.single {
		in.Options.ParallelToolCalls = new(bool)
	}
	return nil
}

func checkNumbers(o *execution.Options) *dialect.Refusal {
	within := func(n *float64, least, most float64) bool { return n == nil || *n >= least && *n <= most }
	switch {
	case !within(o.Temperature, 0, 2): // the API says 1, other providers 2
		return dialect.Refuse("temperature", "temperature: must be from 0 to 2")
	case !within(o.TopP, 0, 1):
		return dialect.Refuse("top_p", "top_p: must be from 0 to 1")
	case o.TopK != nil && *o.TopK < 0:
		return dialect.Refuse("top_k", "top_k: must be at least 0")
	}
	return nil
}

// check leaves nothing to be found out later. What it refuses itself are very many messages or images; the rest was
// refused before, with the caller's own path to it.
func check(r *dialect.Request) *dialect.Refusal {
	in := r.Input
	in.Target = r.Model
	if err := in.Check(); err != nil {
		return dialect.Refuse("", execution.AsFailure(err, execution.OriginCaller).Text)
	}
	return nil
}

// texts is one text or a list of text blocks. Empty ones say nothing and are left out.
type texts []execution.Part

// ReadJSON implements [dialect.Reader].
func (t *texts) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return readBlocks(at, raw, func(at, kind string, raw []byte) *dialect.Refusal {
		if kind != "text" {
			return dialect.Refuse(at+".type", at+`.type: must be "text" here`)
		}
		text, ref := readText(at, raw)
		if text != "" {
			*t = append(*t, execution.Part{Text: text})
		}
		return ref
	})
}

// stops is stop_sequences.
type stops []string

// ReadJSON implements [dialect.Reader].
func (s *stops) ReadJSON(at string, raw []byte) *dialect.Refusal {
	ref := dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var text string
		if err := json.Unmarshal(raw, &text); err != nil || text == "" || len(text) > maxStopBytes {
			return dialect.Refuse(at, at+": must be a text of 1 to 1024 bytes")
		}
		*s = append(*s, text)
		return nil
	})
	if ref == nil && len(*s) > maxStops {
		return dialect.Refuse(at, at+": has more than 16 texts")
	}
	return ref
}
