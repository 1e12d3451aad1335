package openai

import (
	"encoding/json"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// request is a chat completions request as it is read.
type request struct {
	dialect.Request
	maxTokens           *int64
	maxCompletionTokens *int64 // its newer name
	messages            messages
}

// parse reads the body of a chat completions request.
func parse(body []byte) (*dialect.Request, *dialect.Refusal) {
	var q request
	if ref := dialect.Object("", body, q.member); ref != nil {
		return nil, ref
	}
	if q.Model == "" {
		return nil, dialect.Refuse("model", "model: is missing")
	}
	if q.Input.Messages = q.messages.list; len(q.Input.Messages) == 0 {
		return nil, dialect.Refuse("messages", "messages: is missing or says nothing")
	}
	if ref := q.limit(); ref != nil {
		return nil, ref
	}
	q.Names = q.names()
	if ref := q.check(); ref != nil {
		return nil, ref
	}
	return &q.Request, nil
}

// member returns where a member of the request is kept.
func (q *request) member(name string) any {
	o := &q.Input.Options
	switch name {
	case "model":
		return &q.Model
	case "messages":
		return &q.messages
	case "tools":
		return (*tools)(&q.Input.Tools)
	case "tool_choice":
		return (*toolChoice)(&q.Input.ToolChoice)
	case "parallel_tool_calls":
		return &o.ParallelToolCalls
	case "stream":
		return &q.Stream
	case "stream_options":
		return (*streamOptions)(&q.IncludeUsage)
	case "max_tokens":
		return &q.maxTokens
	case "max_completion_tokens":
		return &q.maxCompletionTokens
	case "temperature":
		return &o.Temperature
	case "top_p":
		return &o.TopP
	case "top_k": // not OpenAI's, but most providers and clients of the field have it
		return &o.TopK
	case "stop":
		return (*stop)(&o.Stop)
	case "seed":
		return &o.Seed
	case "frequency_penalty":
		return &o.FrequencyPenalty
	case "presence_penalty":
		return &o.PresencePenalty
	case "reasoning_effort":
		return &o.ReasoningEffort
	case "response_format":
		return (*responseFormat)(&o.ResponseFormat)
	}
	return notCarried(name)
}

// notCarried returns what becomes of a member that no run has; nil is unknown. docs/dialects.md lists them.
func notCarried(name string) any {
	switch name {
	// Who asks, bookkeeping, what a cache may do, how soon: the answer is the same with and without them.
	case "user", "safety_identifier", "metadata", "store", "service_tier", "prediction",
		"prompt_cache_key", "prompt_cache_retention", "prompt_cache_options":
		return dialect.Ignored{}
	case "n":
		return dialect.Only{Value: "1", Why: "ask once for each answer"}
	case "logprobs":
		return dialect.Only{Value: "false", Why: noLogprobs}
	case "top_logprobs":
		return dialect.Only{Value: "0", Why: noLogprobs}
	case "logit_bias":
		return dialect.Only{Value: "{}", Why: "tokens are the provider's own"}
	case "modalities":
		return dialect.Only{Value: `["text"]`, Why: "a run answers in text"}
	case "verbosity":
		return dialect.Only{Value: `"medium"`, Why: "say it in the prompt"}
	case "audio":
		return dialect.Unsupported{Why: "a run answers in text"}
	case "functions", "function_call":
		return dialect.Unsupported{Why: "use tools and tool_choice"}
	case "reasoning", "thinking", "enable_thinking":
		return dialect.Unsupported{Why: "use reasoning_effort"}
	case "moderation", "web_search_options", "min_p", "repetition_penalty", "chat_template_kwargs":
		return dialect.Unsupported{Why: "it reaches only providers that speak this API themselves"}
	}
	return nil
}

const noLogprobs = "a run has no probabilities"

// limit settles which of the two limits of an answer counts.
func (q *request) limit() *dialect.Refusal {
	switch {
	case q.maxCompletionTokens == nil:
		q.Input.Options.MaxTokens = q.maxTokens
	case q.maxTokens != nil && *q.maxTokens != *q.maxCompletionTokens:
		return dialect.Refuse("max_tokens", "max_tokens: is the older name of max_completion_tokens, and they differ; give one of them")
	default:
		q.Input.Options.MaxTokens = q.maxCompletionTokens
	}
	return nil
}

// check refuses what no provider could make sense of, in the words of this API.
func (q *request) check() *dialect.Refusal {
	in := q.Input
	in.Target = q.Model
	err := in.Check()
	if err == nil {
		return nil
	}
	place, why := dialect.Place(execution.AsFailure(err, execution.OriginCaller).Text)
	field := q.Names.Of(place)
	return dialect.Refuse(field, field+": "+why)
}

// names are what this API calls the places of the run.
func (q *request) names() dialect.Names {
	words := map[string]string{"target": "model", "messages.parts": "content", "messages.tool_calls.name": "function.name",
		"messages.tool_calls.arguments": "function.arguments",
		"tools.name":                    "function.name", "tools.description": "function.description", "tools.parameters": "function.parameters"}
	if q.maxTokens == nil {
		words["max_tokens"] = "max_completion_tokens"
	}
	return dialect.Names{Messages: q.messages.places, Words: words}
}

// stop is one text or a list of texts.
type stop []string

// ReadJSON implements [dialect.Reader].
func (s *stop) ReadJSON(at string, raw []byte) *dialect.Refusal {
	if raw[0] == '"' {
		*s = make([]string, 1)
		return readText(at, raw, &(*s)[0])
	}
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var text string
		ref := readText(at, raw, &text)
		*s = append(*s, text)
		return ref
	})
}

// streamOptions keeps whether usage is asked for.
type streamOptions bool

// ReadJSON implements [dialect.Reader].
func (s *streamOptions) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.Object(at, raw, func(name string) any {
		switch name {
		case "include_usage":
			return (*bool)(s)
		case "include_obfuscation": // padding against those who count bytes on the way
			return dialect.Ignored{}
		}
		return nil
	})
}

// responseFormat is kept as it came, since a run has it in this form; text is the same as none.
type responseFormat json.RawMessage

// ReadJSON implements [dialect.Reader].
func (f *responseFormat) ReadJSON(at string, raw []byte) *dialect.Refusal {
	var kind string
	var schema json.RawMessage
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "type":
			return &kind
		case "json_schema":
			return &schema
		}
		return nil
	})
	switch {
	case ref != nil:
		return ref
	case kind != "json_schema" && schema != nil:
		return dialect.Refuse(at+".json_schema", at+`.json_schema: goes with the type "json_schema" only`)
	}
	switch kind {
	case "text":
		return nil
	case "json_schema":
		if ref := checkSchema(at+".json_schema", schema); ref != nil {
			return ref
		}
	case "json_object":
	default:
		return dialect.Refuse(at+".type", at+`.type: must be "text", "json_object" or "json_schema"`)
	}
	*f = append((*f)[:0], raw...)
	return nil
}

func checkSchema(at string, raw []byte) *dialect.Refusal {
	var name, description string
	var schema json.RawMessage
	var strict bool
	if raw == nil {
		return dialect.Refuse(at, at+": is missing")
	}
	ref := dialect.Object(at, raw, func(member string) any {
		switch member {
		case "name":
			return &name
		case "description":
			return &description
		case "schema":
			return &schema
		case "strict":
			return &strict
		}
		return nil
	})
	switch {
	case ref != nil:
		return ref
	case name == "":
		return dialect.Refuse(at+".name", at+".name: is missing")
	case len(schema) == 0 || schema[0] != '{':
		return dialect.Refuse(at+".schema", at+".schema: must be an object")
	}
	return nil
}
