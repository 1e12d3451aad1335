package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"iop/packages/go/execution"
)

// The shapes of a run's content in JSON. Each reads itself strictly: a member that isn't known is refused by name.
type (
	messageList []execution.Message
	toolList    []execution.Tool
	toolChoice  execution.ToolChoice
	options     execution.Options
)

func (l *messageList) read(at string, raw []byte) *refusal {
	return list(at, raw, func(at string, raw []byte) *refusal {
		var m execution.Message
		var role string
		ref := object(at, raw, func(name string) any {
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

func (p *content) read(at string, raw []byte) *refusal {
	if raw[0] == '"' {
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return badRequest(at, at+": must be a text or a list of parts")
		}
		*p = append(*p, execution.Part{Text: text})
		return nil
	}
	return list(at, raw, func(at string, raw []byte) *refusal {
		var kind, text, mediaType, data string
		ref := object(at, raw, func(name string) any {
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
				return badRequest(at+".data", at+".data: must be the image's bytes in base64")
			}
			*p = append(*p, execution.Part{Image: &execution.Image{MediaType: mediaType, Data: picture}})
		default:
			return badRequest(at+".type", at+`.type: must be "text" or "image"`)
		}
		return nil
	})
}

type callList []execution.ToolCall

func (l *callList) read(at string, raw []byte) *refusal {
	return list(at, raw, func(at string, raw []byte) *refusal {
		var t execution.ToolCall
		ref := object(at, raw, func(name string) any {
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

func (l *toolList) read(at string, raw []byte) *refusal {
	return list(at, raw, func(at string, raw []byte) *refusal {
		var t execution.Tool
		ref := object(at, raw, func(name string) any {
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

func (t *toolChoice) read(at string, raw []byte) *refusal {
	choice, err := execution.ParseToolChoice(raw)
	*t = toolChoice(choice)
	return parsed(at, err)
}

func (o *options) read(at string, raw []byte) *refusal {
	parsedOptions, err := execution.ParseOptions(raw)
	*o = options(parsedOptions)
	return parsed(at, err)
}

func parsed(at string, err error) *refusal {
	if err == nil {
		return nil
	}
	return &refusal{failure: execution.AsFailure(err, execution.OriginCaller), status: http.StatusBadRequest, param: at}
}

// reader reads itself from JSON that has been checked to be valid.
type reader interface {
	read(at string, raw []byte) *refusal
}

// object reads the members of a JSON object into what member returns for each name: a reader, or whatever
// encoding/json can fill; nil refuses the name. A name that comes twice is refused, and null is as if it weren't there.
func object(at string, raw []byte, member func(name string) any) *refusal {
	if !json.Valid(raw) {
		return badRequest(at, "the body isn't valid JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return badRequest(at, join(at, "")+"must be an object")
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		var value json.RawMessage
		if err != nil || !ok || dec.Decode(&value) != nil {
			return badRequest(at, join(at, "")+"must be an object")
		}
		into := member(name)
		switch {
		case into == nil:
			return badRequest(at, join(at, "")+"has an unknown member "+quoteShort(name))
		case seen[name]:
			return badRequest(join(at, name), join(at, name)+": stands there twice")
		}
		seen[name] = true
		if string(value) == "null" {
			continue
		}
		if ref := fill(join(at, name), value, into); ref != nil {
			return ref
		}
	}
	return nil
}

func fill(at string, value json.RawMessage, into any) *refusal {
	if r, ok := into.(reader); ok {
		return r.read(at, value)
	}
	if err := json.Unmarshal(value, into); err != nil {
		return badRequest(at, at+": is of the wrong type")
	}
	return nil
}

// list reads the elements of a JSON array.
func list(at string, raw []byte, element func(at string, raw []byte) *refusal) *refusal {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return badRequest(at, at+": must be a list")
	}
	for i, e := range elements {
		if ref := element(index(at, i), e); ref != nil {
			return ref
		}
	}
	return nil
}

// join names a member of the object at a path; "" is the body itself, and a name of "" the object in a sentence.
func join(at, name string) string {
	switch {
	case at == "" && name == "":
		return "the body "
	case name == "":
		return at + ": "
	case at == "":
		return name
	}
	return at + "." + name
}

func index(at string, i int) string { return at + "[" + strconv.Itoa(i) + "]" }

// quoteShort shows a member's name without letting a caller fill a line with it.
func quoteShort(name string) string {
	if len(name) > 64 {
		name = name[:64]
	}
	return strconv.Quote(strings.ToValidUTF8(name, "\uFFFD"))
}
