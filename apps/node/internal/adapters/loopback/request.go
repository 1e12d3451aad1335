package loopback

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
)

// request is what is read of a request, whatever its path; members that aren't here are ignored, as a provider would.
type request struct {
	Model    string          `json:"model"`
	Stream   bool            `json:"stream"`
	Messages []message       `json:"messages"` // chat
	Prompt   texts           `json:"prompt"`   // completions
	Input    json.RawMessage `json:"input"`    // responses, embeddings

	MaxTokens           *int `json:"max_tokens"`
	MaxCompletionTokens *int `json:"max_completion_tokens"`
	MaxOutputTokens     *int `json:"max_output_tokens"`

	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Tools      []tool          `json:"tools"`
	ToolChoice json.RawMessage `json:"tool_choice"`

	Dimensions     *int   `json:"dimensions"` // embeddings
	EncodingFormat string `json:"encoding_format"`
}

type message struct {
	Role    string `json:"role"`
	Content texts  `json:"content"`
}

// texts is a text, a list of texts, or a list of parts of which some are texts.
type texts []string

// UnmarshalJSON implements [json.Unmarshaler]. Parts without a text (images) are passed over.
func (t *texts) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		if string(b) != "null" {
			*t = texts{one}
		}
		return nil
	}
	var many []json.RawMessage
	if json.Unmarshal(b, &many) != nil {
		return errors.New("neither a text nor a list")
	}
	for _, raw := range many {
		var part struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(raw, &one) == nil {
			*t = append(*t, one)
		} else if json.Unmarshal(raw, &part) == nil && part.Text != "" {
			*t = append(*t, part.Text)
		}
	}
	return nil
}

func (t texts) String() string { return strings.Join(t, "\n") }

// tool is a function that the caller offers: in the form of chat, or flat as the responses API has it.
type tool struct {
	Name     string `json:"name"`
	Function struct {
		Name       string `json:"name"`
		Parameters schema `json:"parameters"`
	} `json:"function"`
}

type schema struct {
	Properties map[string]struct {
		Type any   `json:"type"`
		Enum []any `json:"enum"`
	} `json:"properties"`
}

// job is a request that was read, and the plan for its answer.
type job struct {
	request
	plan
	id     string // of the answer; the same for the same request
	prompt []string
}

// take reads a request and plans its answer. ask returns the texts of the prompt, and the one that may hold
// directives. done says that the answer is over already: the request was refused, or the plan wants none.
func (p *Provider) take(w *writer, body []byte, ask func(*request) (prompt []string, say string, err error)) (x *job, done bool, err error) {
	x = &job{plan: p.defaults}
	if json.Unmarshal(body, &x.request) != nil {
		return nil, true, w.refuse(http.StatusBadRequest, "body is not the JSON object of this path")
	}
	if !p.knows(x.Model) {
		return nil, true, w.refuse(http.StatusNotFound, "the model does not exist")
	}
	var say string
	if x.prompt, say, err = ask(&x.request); err != nil {
		return nil, true, w.refuse(http.StatusBadRequest, err.Error())
	}
	if err := x.direct(say, body); err != nil {
		return nil, true, w.refuse(http.StatusBadRequest, err.Error())
	}
	done, err = w.misbehave(&x.plan)
	return x, done, err
}

// direct applies the directives of say to the plan. The answer's id depends on content alone.
func (x *job) direct(say string, content []byte) error {
	if err := x.apply(directives(say)); err != nil {
		return err
	}
	if x.tools > 0 && len(x.Tools) == 0 {
		return errors.New("loopback: tools: the request has no tools")
	}
	if x.tools == 0 && x.forced() {
		x.tools = 1
	}
	sum := sha256.Sum256(content)
	x.id = hex.EncodeToString(sum[:8])
	return nil
}

// forced reports whether the request wants a tool to be called without the prompt's saying so.
func (x *job) forced() bool {
	if len(x.Tools) == 0 || len(x.ToolChoice) == 0 {
		return false
	}
	var word string
	if json.Unmarshal(x.ToolChoice, &word) == nil {
		return word == "required"
	}
	return true // it names one
}

// answer returns the tokens of the answer, how many of reasoning come before, and why it ends.
func (x *job) answer() (tokens []string, reason string) {
	n := x.tokens
	if n < 0 {
		n = len(sentence())
	}
	if x.mark != "" {
		tokens = append(tokens, "["+x.mark+"] ")
		n = max(n, 1) - 1
	}
	tokens = append(tokens, words(n)...)
	for _, limit := range []*int{x.MaxTokens, x.MaxCompletionTokens, x.MaxOutputTokens} {
		if limit != nil && *limit >= 0 && *limit < len(tokens) {
			return tokens[:*limit], "length"
		}
	}
	return tokens, "stop"
}

// thoughts returns the tokens of the reasoning.
func (x *job) thoughts() []string {
	out := make([]string, x.reasoning)
	for i := range out {
		out[i] = " hm" + itoa(i+1)
	}
	return out
}

// counts returns the token counts of the request and an answer with n tokens.
func (x *job) counts(n int) counted {
	c := counted{output: n + x.reasoning, reasoning: x.reasoning}
	for _, text := range x.prompt {
		c.input += len(strings.Fields(text))
	}
	return c
}

// call is a call of a tool.
type call struct{ id, name, arguments string }

// calls returns the calls that the answer makes: the tools in turn, or the one that the request names.
func (x *job) calls() []call {
	var named struct {
		Function struct{ Name string }
	}
	_ = json.Unmarshal(x.ToolChoice, &named)
	offered := x.Tools
	if i := slices.IndexFunc(offered, func(t tool) bool { return t.Function.Name == named.Function.Name }); i >= 0 && named.Function.Name != "" {
		offered = offered[i : i+1]
	}
	out := make([]call, x.tools)
	for i := range out {
		t := offered[i%len(offered)]
		out[i] = call{id: "call_" + x.id[:8] + "_" + itoa(i), name: t.Function.Name, arguments: t.Function.Parameters.example()}
	}
	return out
}

// example returns an object that has every property of the schema.
func (s schema) example() string {
	out := object{}
	for name, p := range s.Properties {
		switch {
		case len(p.Enum) > 0:
			out[name] = p.Enum[0]
		case p.Type == "string":
			out[name] = "loopback"
		case p.Type == "integer", p.Type == "number":
			out[name] = 1
		case p.Type == "boolean":
			out[name] = true
		case p.Type == "array":
			out[name] = []any{}
		case p.Type == "object":
			out[name] = object{}
		default:
			out[name] = nil
		}
	}
	text, err := encode(out)
	if err != nil {
		return "{}"
	}
	return string(text)
}

// lastOf makes the last text of a prompt the one that may hold directives.
func lastOf(prompt []string, err error) ([]string, string, error) {
	if err != nil {
		return nil, "", err
	}
	return prompt, prompt[len(prompt)-1], nil
}
