package openai

import (
	"encoding/json"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// The only type of tools, calls and choices that a run has.
const typeFunction = "function"

const onlyFunctions = "a run's tools are functions"

// tools are those that a request offers.
type tools []execution.Tool

// ReadJSON implements [dialect.Reader].
func (l *tools) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var kind string
		var t function
		ref := dialect.Object(at, raw, func(name string) any {
			switch name {
			case "type":
				return &kind
			case "function":
				return &t
			case "custom":
				return dialect.Unsupported{Why: onlyFunctions}
			}
			return nil
		})
		switch {
		case ref != nil:
			return ref
		case kind != typeFunction:
			return dialect.Refuse(at+".type", at+`.type: must be "function"; `+onlyFunctions)
		case !t.given:
			return dialect.Refuse(at+".function", at+".function: is missing")
		}
		*l = append(*l, t.Tool)
		return nil
	})
}

// function is what a tool is.
type function struct {
	execution.Tool
	given bool
}

// ReadJSON implements [dialect.Reader].
func (f *function) ReadJSON(at string, raw []byte) *dialect.Refusal {
	f.given = true
	return dialect.Object(at, raw, func(name string) any {
		switch name {
		case "name":
			return &f.Name
		case "description":
			return &f.Description
		case "parameters":
			return (*json.RawMessage)(&f.Parameters)
		case "strict":
			// It promises arguments that keep to the schema, and a caller that asks for it needn't check them.
			return dialect.Only{Value: "false", Why: "a run can't promise that arguments keep to their schema"}
		}
		return nil
	})
}

// toolChoice says which tool must be called.
type toolChoice execution.ToolChoice

// ReadJSON implements [dialect.Reader].
func (c *toolChoice) ReadJSON(at string, raw []byte) *dialect.Refusal {
	if raw[0] == '"' {
		var word string
		if ref := readText(at, raw, &word); ref != nil {
			return ref
		}
		switch c.Mode = execution.ToolMode(word); c.Mode {
		case execution.ToolAuto, execution.ToolNone, execution.ToolRequired:
			return nil
		}
		return dialect.Refuse(at, at+": must be none, auto, required, or name a function")
	}
	var kind string
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "type":
			return &kind
		case "function":
			return (*chosen)(&c.Name)
		case "allowed_tools":
			return dialect.Unsupported{Why: "offer only the tools that are allowed"}
		case "custom":
			return dialect.Unsupported{Why: onlyFunctions}
		}
		return nil
	})
	switch {
	case ref != nil:
		return ref
	case kind != typeFunction:
		return dialect.Refuse(at+".type", at+`.type: must be "function"`)
	case c.Name == "":
		return dialect.Refuse(at+".function", at+".function: must name a function")
	}
	c.Mode = execution.ToolNamed
	return nil
}

// chosen is the name of the function that must be called.
type chosen string

// ReadJSON implements [dialect.Reader].
func (c *chosen) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.Object(at, raw, func(name string) any {
		if name == "name" {
			return (*string)(c)
		}
		return nil
	})
}

// toolCalls are those that an assistant made.
type toolCalls []execution.ToolCall

// ReadJSON implements [dialect.Reader].
func (l *toolCalls) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var t call
		ref := dialect.Object(at, raw, func(name string) any {
			switch name {
			case "id":
				return &t.ID
			case "type":
				return &t.kind
			case "function":
				return &t
			case "custom":
				return dialect.Unsupported{Why: onlyFunctions}
			case "index": // of an answer that is sent back as it came
				return dialect.Ignored{}
			}
			return nil
		})
		switch {
		case ref != nil:
			return ref
		case t.kind != "" && t.kind != typeFunction:
			return dialect.Refuse(at+".type", at+`.type: must be "function"; `+onlyFunctions)
		case t.ID == "":
			return dialect.Refuse(at+".id", at+".id: is missing")
		case t.Name == "":
			return dialect.Refuse(at+".function.name", at+".function.name: is missing")
		}
		*l = append(*l, t.ToolCall)
		return nil
	})
}

// call is one of them; its function is read into it.
type call struct {
	execution.ToolCall
	kind string
}

// ReadJSON implements [dialect.Reader].
func (c *call) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.Object(at, raw, func(name string) any {
		switch name {
		case "name":
			return &c.Name
		case "arguments":
			return &c.Arguments
		}
		return nil
	})
}
