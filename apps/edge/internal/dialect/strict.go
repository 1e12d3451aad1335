package dialect

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// Refusal says what is wrong with a request's body. Its text repeats nothing of what the caller sent but names.
type Refusal struct {
	Field string // the path of the member at fault, as in messages[2].content; "" = the body itself
	Text  string // what is wrong and what to do, naming the field
}

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

// Refuse returns a refusal.
func Refuse(field, text string) *Refusal { return &Refusal{Field: field, Text: text} }

// Reader reads itself from JSON that has been checked to be valid. At is where the value stands in the body.
type Reader interface {
	ReadJSON(at string, raw []byte) *Refusal
}

// Ignored stands for a member that is accepted and says nothing that the answer depends on, whatever its value.
type Ignored struct{}

// ReadJSON implements [Reader].
func (Ignored) ReadJSON(string, []byte) *Refusal { return nil }

// Object reads the members of a JSON object into what member returns for each name: a [Reader], or whatever
// encoding/json can fill; nil refuses the name. A name that comes twice is refused, and null is as if it weren't there.
func Object(at string, raw []byte, member func(name string) any) *Refusal {
	if !json.Valid(raw) {
		return Refuse(at, "the body isn't valid JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return Refuse(at, Join(at, "")+"must be an object")
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		var value json.RawMessage
		if err != nil || !ok || dec.Decode(&value) != nil {
			return Refuse(at, Join(at, "")+"must be an object")
		}
		into := member(name)
		switch {
		case into == nil:
			return Refuse(at, Join(at, "")+"has an unknown member "+quoteShort(name))
		case seen[name]:
			return Refuse(Join(at, name), Join(at, name)+": stands there twice")
		}
		seen[name] = true
		if string(value) == "null" {
			continue
		}
		if ref := fill(Join(at, name), value, into); ref != nil {
			return ref
		}
	}
	return nil
}

func fill(at string, value json.RawMessage, into any) *Refusal {
	if r, ok := into.(Reader); ok {
		return r.ReadJSON(at, value)
	}
	if err := json.Unmarshal(value, into); err != nil {
		return Refuse(at, at+": is of the wrong type")
	}
	return nil
}

// List reads the elements of a JSON array.
func List(at string, raw []byte, element func(at string, raw []byte) *Refusal) *Refusal {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return Refuse(at, at+": must be a list")
	}
	for i, e := range elements {
		if ref := element(Index(at, i), e); ref != nil {
			return ref
		}
	}
	return nil
}

// Join names a member of the object at a path; "" is the body itself, and a name of "" the object in a sentence.
func Join(at, name string) string {
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

// Index names an element of the list at a path.
func Index(at string, i int) string { return at + "[" + strconv.Itoa(i) + "]" }

// quoteShort shows a member's name without letting a caller fill a line with it.
func quoteShort(name string) string {
	if len(name) > 64 {
		name = name[:64]
	}
	return strconv.Quote(strings.ToValidUTF8(name, "\uFFFD"))
}
