package dialect

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
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

// Reader reads itself from JSON that has been checked to be valid. At is where the value stands in the body. Raw is a
// piece of the body: what is kept of it must be a copy.
type Reader interface {
	ReadJSON(at string, raw []byte) *Refusal
}

// Ignored stands for a member that is accepted and says nothing that the answer depends on, whatever its value.
type Ignored struct{}

// ReadJSON implements [Reader].
func (Ignored) ReadJSON(string, []byte) *Refusal { return nil }

// Object reads the members of a JSON object into what member returns for each name: a [Reader], or whatever
// encoding/json can fill; nil refuses the name. A name that comes twice is refused, and null is as if it weren't there.
// The body itself, at "", is checked to be JSON first.
func Object(at string, raw []byte, member func(name string) any) *Refusal {
	if at == "" {
		if ref := checkBody(raw); ref != nil {
			return ref
		}
	}
	w := walker{raw: raw}
	if !w.open('{') {
		return Refuse(at, Join(at, "")+"must be an object")
	}
	seen := map[string]bool{}
	for w.more('}') {
		name := w.name()
		value := w.value()
		into := member(name)
		switch {
		case len(value) == 0: // it wasn't valid
			return Refuse(at, Join(at, "")+"must be an object")
		case into == nil:
			return unknown(at, name)
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

// checkBody refuses what isn't JSON. The JSON package would put replacement characters where a text isn't UTF-8.
func checkBody(raw []byte) *Refusal {
	switch {
	case !utf8.Valid(raw):
		return Refuse("", "the body isn't UTF-8")
	case !json.Valid(raw):
		return Refuse("", "the body isn't valid JSON")
	}
	return nil
}

// unknown refuses a name that nobody knows, by its path if that is one that can be shown.
func unknown(at, name string) *Refusal {
	field := at
	if name != "" && len(name) <= maxShown && !strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) {
		field = Join(at, name)
	}
	return Refuse(field, Join(at, "")+"has an unknown member "+quoteShort(name))
}

func fill(at string, value []byte, into any) *Refusal {
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
	w := walker{raw: raw}
	if !w.open('[') {
		return Refuse(at, at+": must be a list")
	}
	for i := 0; w.more(']'); i++ {
		value := w.value()
		if len(value) == 0 { // it wasn't valid
			return Refuse(at, at+": must be a list")
		}
		if ref := element(Index(at, i), value); ref != nil {
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

// maxShown is how much of a name that a caller made up is shown, in bytes.
const maxShown = 64

// quoteShort shows a member's name without letting a caller fill a line with it.
func quoteShort(name string) string {
	if len(name) > maxShown {
		name = name[:maxShown]
	}
	return strconv.Quote(strings.ToValidUTF8(name, "\uFFFD"))
}
