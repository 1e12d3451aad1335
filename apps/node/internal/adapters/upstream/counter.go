package upstream

import (
	"encoding/json"

	"iop/packages/go/execution"
)

// Counter keeps the token counts that one answer tells in its usage objects, in any of the dialects' shapes. What was
// counted later stands over what was counted before, member by member. The zero value knows nothing.
type Counter struct {
	input, output, cached, reasoning *int64
	// The Messages API counts what it reads from its cache and what it writes there beside the input, not as parts of it.
	read, written *int64
}

// counts is a usage object in any of the dialects' shapes.
type counts struct {
	Prompt       *int64 `json:"prompt_tokens"`     // chat, completions, embeddings
	Completion   *int64 `json:"completion_tokens"` //
	Input        *int64 `json:"input_tokens"`      // responses, messages
	Output       *int64 `json:"output_tokens"`     //
	CacheRead    *int64 `json:"cache_read_input_tokens"`
	CacheWritten *int64 `json:"cache_creation_input_tokens"`

	PromptDetails     details `json:"prompt_tokens_details"`
	InputDetails      details `json:"input_tokens_details"`
	CompletionDetails details `json:"completion_tokens_details"`
	OutputDetails     details `json:"output_tokens_details"`
}

type details struct {
	Cached    *int64 `json:"cached_tokens"`
	Reasoning *int64 `json:"reasoning_tokens"`
	Thinking  *int64 `json:"thinking_tokens"` // messages
}

// Add reads a usage object. A null, an all-zero record, and what isn't a usage object say nothing. (ST-28)
func (c *Counter) Add(object []byte) {
	var r counts
	if len(object) == 0 || object[0] != '{' || json.Unmarshal(object, &r) != nil {
		return
	}
	input, output := first(r.Input, r.Prompt), first(r.Output, r.Completion)
	if zero(input) && zero(output) && zero(r.CacheRead) && zero(r.CacheWritten) {
		return
	}
	c.input, c.output = first(input, c.input), first(output, c.output)
	c.cached = first(r.PromptDetails.Cached, r.InputDetails.Cached, c.cached)
	c.reasoning = first(r.CompletionDetails.Reasoning, r.OutputDetails.Reasoning, r.OutputDetails.Thinking, c.reasoning)
	if r.Prompt != nil { // gateways name the cache's part in the Messages API's word, too
		c.cached = first(c.cached, r.CacheRead)
		return
	}
	c.read, c.written = first(r.CacheRead, c.read), first(r.CacheWritten, c.written)
}

// Usage returns what was counted.
func (c *Counter) Usage() execution.Usage {
	u := execution.Usage{Input: c.input, Output: c.output, Cached: first(c.cached, c.read), Reasoning: c.reasoning}
	if c.input != nil && c.cached == nil {
		all := *c.input + value(c.read) + value(c.written)
		u.Input = first(&all, c.input) // a sum that overflows is none
	}
	return u
}

// ForgetOutput makes the answer's length unknown again, when what told it wasn't a count yet.
func (c *Counter) ForgetOutput() { c.output = nil }

// first returns the first count that is known and makes sense.
func first(counts ...*int64) *int64 {
	for _, n := range counts {
		if n != nil && *n >= 0 {
			return n
		}
	}
	return nil
}

func zero(n *int64) bool { return value(n) == 0 }

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
