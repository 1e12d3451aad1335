package anthropic

import (
	"bytes"
	"encoding/json"
	"math"

	"iop/apps/node/internal/adapters/jsonbody"
	"iop/packages/go/execution"
)

// maxTemperature is the dialect's highest; runs have a wider range.
const maxTemperature = 1.0

// checkOptions refuses what the dialect has no word for.
func checkOptions(o *execution.Options) error {
	for _, option := range []struct {
		name  string
		given bool
	}{
		{"seed", o.Seed != nil}, {"frequency_penalty", o.FrequencyPenalty != nil}, {"presence_penalty", o.PresencePenalty != nil},
	} {
		if option.given {
			return jsonbody.Refused("options: " + option.name + ": a provider of this kind can't be told; leave it out")
		}
	}
	if o.Temperature != nil && *o.Temperature > maxTemperature {
		return jsonbody.Refused("options: temperature: a provider of this kind takes 0 to 1")
	}
	return nil
}

// thoughts is how much a model is to think.
type thoughts struct {
	kind      string // of the member thinking; "" = the provider's own choice
	budget    int64  // with enabled
	effort    string // with adaptive: the word for it
	maxTokens int64  // the longest answer, thinking included
}

// The tokens to think with that stand for an effort; the least is the least that the API takes.
const (
	minimalBudget = 1024
	lowBudget     = 2048
	mediumBudget  = 8192
	highBudget    = 16384
)

// budgetOf returns the tokens that stand for an effort, 0 for a word of the provider's own.
func budgetOf(effort string) int64 {
	switch effort {
	case "minimal":
		return minimalBudget
	case "low":
		return lowBudget
	case "medium":
		return mediumBudget
	case "high":
		return highBudget
	}
	return 0
}

// effortOf returns the effort that stands for a number of tokens.
func effortOf(budget int64) string {
	switch {
	case budget < mediumBudget:
		return "low"
	case budget < highBudget:
		return "medium"
	}
	return "high"
}

// thinking returns how much to think, and with it how long an answer may be: the API wants room for an answer behind
// the thinking, so a limit that leaves none is raised by the budget.
//
// Models of one generation take a budget of tokens, those of the next take an effort and decide for themselves. Which
// one a target is only its provider knows; the configuration says it. A word without a budget goes as it is.
func thinking(o *execution.Options, how wording) thoughts {
	t := thoughts{maxTokens: how.maxTokens}
	if o.MaxTokens != nil {
		t.maxTokens = *o.MaxTokens
	}
	effort, budget := o.ReasoningEffort, budgetOf(o.ReasoningEffort)
	if told := o.ReasoningBudget; told != nil && effort != "none" {
		budget = *told
		if effort = "none"; budget > 0 {
			effort = effortOf(budget)
		}
	}
	switch {
	case effort == "":
	case effort == "none":
		t.kind = "disabled"
	case budget > 0 && !how.adaptive:
		t.kind, t.budget = "enabled", budget
	case effort == "minimal":
		t.kind, t.effort = "adaptive", "low" // the API's least
	default:
		t.kind, t.effort = "adaptive", effort
	}
	if t.maxTokens <= t.budget {
		t.maxTokens = t.budget + min(t.maxTokens, math.MaxInt64-t.budget)
	}
	return t
}

// output writes how much to think, and what form the answer must have.
func (b *body) output(o *execution.Options, t thoughts) error {
	switch t.kind {
	case "":
	case "enabled":
		b.Raw(`,"thinking":{"type":"enabled"`)
		b.Member("budget_tokens", t.budget)
		b.Raw("}")
	case "adaptive": // whose newest models keep their thoughts to themselves unless they are asked
		b.Raw(`,"thinking":{"type":"adaptive","display":"summarized"}`)
	default:
		b.Raw(`,"thinking":{"type":"` + t.kind + `"}`)
	}
	schema, err := answerSchema(o.ResponseFormat)
	if err != nil || schema == nil && t.effort == "" {
		return err
	}
	b.Raw(`,"output_config":{`)
	n := 0
	if t.effort != "" {
		b.Raw(`"effort":`)
		b.Value(t.effort)
		n++
	}
	if schema != nil {
		b.Comma(n)
		b.Raw(`"format":{"type":"json_schema","schema":`)
		b.Value(schema)
		b.Raw("}")
	}
	b.Raw("}")
	return nil
}

// answerSchema returns the schema that an answer must have, nil for none. Only a schema can be told: that the answer is
// just some JSON can't, and the name of a schema has no place.
func answerSchema(format json.RawMessage) (json.RawMessage, error) {
	const where = "options: response_format: "
	if len(format) == 0 {
		return nil, nil
	}
	var f struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	if json.Unmarshal(format, &f) != nil {
		return nil, jsonbody.Refused(where + "isn't one that a provider of this kind can be told")
	}
	switch f.Type {
	case "text":
		return nil, nil
	case "json_schema":
	default:
		return nil, jsonbody.Refused(where + "type: a provider of this kind can be told text or json_schema")
	}
	if !bytes.HasPrefix(f.JSONSchema.Schema, []byte("{")) {
		return nil, jsonbody.Refused(where + "json_schema: schema: must be a JSON object")
	}
	if f.JSONSchema.Description == "" {
		return f.JSONSchema.Schema, nil
	}
	text, err := json.Marshal(f.JSONSchema.Description)
	if err != nil {
		return nil, jsonbody.Refused(where + "json_schema: description: must be a text")
	}
	return withMember(f.JSONSchema.Schema, "description", string(text)), nil
}
