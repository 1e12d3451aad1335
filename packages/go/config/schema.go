package config

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// The schema is the exported struct types: a field's yaml tag is its key, and words after it say how it is read:
//
//	path   a file or directory; relative ones start at the directory of the configuration file
//	size   bytes, written 64MiB
//	serial a certificate's serial number in hex
//	hash   a SHA-256 in hex, or file:PATH of a file that holds one
//	later  the key is settled, but this version refuses it; such fields are blank
//
// The default tag is written as it would be in the file. A field without a yaml tag isn't part of the file.
type field struct {
	key     string
	def     string
	options []string
	index   int
	typ     reflect.Type
}

func (f *field) is(option string) bool { return slices.Contains(f.options, option) }

// fieldsOf returns the keys of a section, in the order of its type.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		sf := t.Field(i)
		tag, ok := sf.Tag.Lookup("yaml")
		if !ok {
			continue
		}
		words := strings.Split(tag, ",")
		fields = append(fields, field{
			key: words[0], options: words[1:], def: sf.Tag.Get("default"), index: i, typ: sf.Type,
		})
	}
	return fields
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	timeType     = reflect.TypeFor[time.Time]()
	secretType   = reflect.TypeFor[Secret]()
	sourceType   = reflect.TypeFor[SecretSource]()
)

// sectionOf returns the struct type that a field's value consists of, and how a path shows the way to it; nil for a
// field that holds plain values.
func sectionOf(t reflect.Type) (section reflect.Type, suffix string) {
	switch {
	case t == timeType || t == secretType || t == sourceType:
		return nil, ""
	case t.Kind() == reflect.Struct:
		return t, ""
	case t.Kind() == reflect.Pointer:
		return sectionOf(t.Elem())
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return t.Elem(), "[]"
	}
	return nil, ""
}

// walkSchema calls visit for every key below t, later ones included, with its path (nodes[].adapters[].kind).
func walkSchema(t reflect.Type, path string, visit func(path string, f *field)) {
	for _, f := range fieldsOf(t) {
		p := join(path, f.key)
		visit(p, &f)
		if f.is("later") {
			continue
		}
		if section, suffix := sectionOf(f.typ); section != nil {
			walkSchema(section, p+suffix, visit)
		}
	}
}

// join appends a key to a path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// nearest returns the candidate that s was probably meant to be, "" if none is near.
func nearest(s string, candidates []string) string {
	best, found := 1+min(2, len(s)/3), ""
	for _, c := range candidates {
		if d := distance(strings.ToLower(s), strings.ToLower(c)); d < best {
			best, found = d, c
		}
	}
	return found
}

// distance counts the insertions, deletions, replacements and swaps of neighbours that turn a into b.
func distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	older, old, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		old[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(old[j]+1, row[j-1]+1, old[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
		older, old, row = old, row, older
	}
	return old[len(b)]
}
