package ollama

import (
	"encoding/json"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// toolList is the functions that a model may call.
type toolList []execution.Tool

// ReadJSON implements [dialect.Reader].
func (l *toolList) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.List(at, raw, func(at string, raw []byte) *dialect.Refusal {
		var t execution.Tool
		ref := dialect.Object(at, raw, func(name string) any {
			switch name {
			case "type":
				return dialect.Only{Value: `"function"`, Why: "tools are functions"}
			case "items":
				return silent{"tools are functions"}
			case "function":
				return (*declaration)(&t)
			}
			return nil
		})
		*l = append(*l, t)
		return ref
	})
}

// declaration is one function's.
type declaration execution.Tool

// ReadJSON implements [dialect.Reader].
func (d *declaration) ReadJSON(at string, raw []byte) *dialect.Refusal {
	return dialect.Object(at, raw, func(name string) any {
		switch name {
		case "name":
			return &d.Name
		case "description":
			return &d.Description
		case "parameters":
			return (*schema)(&d.Parameters)
		case "type": // the JavaScript client's types have it, Ollama doesn't read it
			return dialect.Ignored{}
		}
		return nil
	})
}

// schema is the JSON schema of a function's parameters. Ollama's Go client writes members that say nothing
// (`"type":""`, `"properties":null`), which other providers refuse as a wrong schema.
type schema json.RawMessage

// ReadJSON implements [dialect.Reader].
func (s *schema) ReadJSON(at string, raw []byte) *dialect.Refusal {
	var members []byte
	ref := dialect.Object(at, raw, func(name string) any {
		return readerFunc(func(_ string, value []byte) *dialect.Refusal {
			if name == "type" && string(value) == `""` {
				return nil
			}
			members = append(append(dialect.AppendText(append(members, ','), name), ':'), value...)
			return nil
		})
	})
	if ref != nil || len(members) == 0 { // takes nothing
		return ref
	}
	members[0] = '{'
	*s = append(members, '}')
	return nil
}

// readerFunc is a [dialect.Reader] that is one function.
type readerFunc func(at string, raw []byte) *dialect.Refusal

// ReadJSON implements [dialect.Reader].
func (f readerFunc) ReadJSON(at string, raw []byte) *dialect.Refusal { return f(at, raw) }
