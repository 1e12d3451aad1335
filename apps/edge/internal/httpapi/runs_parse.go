package httpapi

import (
	"encoding/base64"
	"encoding/json"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// The shapes of a run's content in JSON. Each reads itself strictly: a member that isn't known is refused by name.
type (
	messageList []execution.Message
	toolList    []execution.Tool
	toolChoice  execution.ToolChoice
	options     execution.Options
)

func (l *messageList) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var m execution.Message
		var role string
		ref := dialect.Object(at, raw, func(name string) any {
			switch name {
			case "role":
				return &role
			case "content":
				return (*content)(&m.Parts)
			case "tool_calls":
				return (*callList)(&m.ToolCalls)
			case "tool_call_id":
				return &m.ToolCallID
			case "name":
				return &m.Name
			case "reasoning":
				return &m.Reasoning
			case "failed":
				return &m.Failed
			}
			return nil
		})
		m.Role = execution.Role(role)
		*l = append(*l, m)
		return ref
	})
}

// content is one text, or a list of parts.
type content []execution.Part

func (p *content) ReadJSON(at string, raw []byte) *dialect.Refusal {
	if raw[0] == '"' {
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return dialect.Refuse(at, at+": must be a text or a list of parts")
		}
		*p = append(*p, execution.Part{Text: text})
		return nil
	}
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var kind, text, mediaType, data string
		ref := dialect.Object(at, raw, func(name string) any {
			switch name {
			case "type":
				return &kind
			case "text":
				return &text
			case "media_type":
				return &mediaType
			case "data":
				return &data
			}
			return nil
		})
		if ref != nil {
			return ref
		}
		switch kind {
		case "text":
			*p = append(*p, execution.Part{Text: text})
		case "image":
			picture, err := base64.StdEncoding.DecodeString(data)
			if err != nil {
				return dialect.Refuse(at+".data", at+".data: must be the image's bytes in base64")
			}
			*p = append(*p, execution.Part{Image: &execution.Image{MediaType: mediaType, Data: picture}})
		default:
			return dialect.Refuse(at+".type", at+`.type: must be "text" or "image"`)
		}
		return nil
	})
}

type callList []execution.ToolCall

func (l *callList) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var t execution.ToolCall
		ref := dialect.Object(at, raw, func(name string) any {
			switch name {
			case "id":
				return &t.ID
			case "name":
				return &t.Name
			case "arguments":
				return &t.Arguments
			}
			return nil
		})
		*l = append(*l, t)
		return ref
	})
}

func (l *toolList) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var t execution.Tool
		ref := dialect.Object(at, raw, func(name string) any {
			switch name {
			case "name":
				return &t.Name
			case "description":
				return &t.Description
			case "parameters":
				return &t.Parameters
			}
			return nil
		})
		*l = append(*l, t)
		return ref
	})
}

func (t *toolChoice) ReadJSON(at string, raw []byte) *dialect.Refusal {
	choice, err := execution.ParseToolChoice(raw)
	*t = toolChoice(choice)
	return parsed(at, err)
}

func (o *options) ReadJSON(at string, raw []byte) *dialect.Refusal {
	parsedOptions, err := execution.ParseOptions(raw)
	*o = options(parsedOptions)
	return parsed(at, err)
}

func parsed(at string, err error) *dialect.Refusal {
	if err == nil {
		return nil
	}
	return dialect.Refuse(at, execution.AsFailure(err, execution.OriginCaller).Text)
}
