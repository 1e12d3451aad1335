package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// decoder walks a file's nodes beside the schema and fills the values in. It keeps going after a problem.
type decoder struct {
	files []string // that hashes were read from
	*problems
	dir  string       // what relative paths start at
	root reflect.Type // for hints where a key belongs
}

// decode fills the struct that into points to from the file's content and its defaults. False: the file as a whole
// can't be understood, so that there is nothing to check further.
func (d *decoder) decode(data []byte, into any) bool {
	v := reflect.ValueOf(into).Elem()
	d.root = v.Type()
	setDefaults(v)
	doc := d.parse(data)
	if doc == nil {
		return false
	}
	if doc.Kind != yaml.MappingNode {
		d.at(doc.Line, "", "must be lines of key: value; see the commented example in configs/")
		return false
	}
	if other := d.otherFile(doc); other != "" {
		d.at(doc.Line, "", "is %s", other)
		return false
	}
	d.section(doc, "", v)
	return true
}

// otherFile says whose file this is if it has keys of the other program's and none that only this one has.
func (d *decoder) otherFile(doc *yaml.Node) string {
	theirs, name := reflect.TypeFor[Node](), "a node's file, not an Edge's; use iop-node"
	if d.root == theirs {
		theirs, name = reflect.TypeFor[Edge](), "an Edge's file, not a node's; use iop-edge"
	}
	found := false
	for i := 0; i+1 < len(doc.Content); i += 2 {
		key := doc.Content[i].Value
		here, there := hasKey(d.root, key), hasKey(theirs, key)
		if here && !there {
			return ""
		}
		found = found || there && !here
	}
	if !found {
		return ""
	}
	return name
}

func hasKey(t reflect.Type, key string) bool {
	return slices.ContainsFunc(fieldsOf(t), func(f field) bool { return f.key == key })
}

// parse returns the content of the file's only document, nil after a problem.
func (d *decoder) parse(data []byte) (content *yaml.Node) {
	// The parser panics on what its authors didn't foresee; a configuration must not end the program.
	defer func() {
		if r := recover(); r != nil {
			d.at(0, "", "isn't valid YAML")
			content = nil
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		d.at(0, "", "is empty; see the commented example in configs/")
		return nil
	case err != nil:
		d.syntax(err)
		return nil
	}
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		d.syntax(err)
		return nil
	default:
		d.at(second.Line, "", "a second document starts here; put everything into one, without ---")
		return nil
	}
	if len(doc.Content) != 1 || isNull(doc.Content[0]) {
		d.at(0, "", "is empty; see the commented example in configs/")
		return nil
	}
	return doc.Content[0]
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// The parser of yaml.v3, unlike its scanner, counts lines from 0; these are its texts.
var countsFromZero = regexp.MustCompile(`^did not find expected (',' or|key|'-' indicator|node content|<)`)

// syntax turns the parser's error into a problem. Of its texts only the one about anchors quotes the file.
func (d *decoder) syntax(err error) {
	m := yamlLine.FindStringSubmatch(err.Error())
	if m == nil {
		d.at(0, "", "isn't valid YAML")
		return
	}
	line, _ := strconv.Atoi(m[1])
	text := m[2]
	if countsFromZero.MatchString(text) {
		line++
	}
	if strings.Contains(text, "anchor") {
		text = "an alias (*name) without its anchor; aliases aren't supported, write the value out"
	}
	d.at(line, "", "isn't valid YAML: %s", text)
}

// plain refuses what a configuration doesn't need and what hides where a value comes from.
func (d *decoder) plain(n *yaml.Node, path string) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		d.add(path, "is an alias; aliases aren't supported, write the value out")
	case n.Anchor != "":
		d.add(path, "has an anchor; anchors and aliases aren't supported, write the values out")
	case n.Style&yaml.TaggedStyle != 0:
		d.add(path, "has a YAML tag (!); tags aren't supported, remove it")
	default:
		return true
	}
	return false
}

// section fills a struct from a mapping.
func (d *decoder) section(n *yaml.Node, path string, v reflect.Value) {
	if !d.plain(n, path) || isNull(n) {
		return
	}
	fields := fieldsOf(v.Type())
	if n.Kind != yaml.MappingNode {
		d.add(path, "must be a section with keys (%s)", keyList(fields))
		return
	}
	d.pairs(n, path, func(key string, keyNode, value *yaml.Node) {
		p := join(path, key)
		for i := range fields {
			if f := &fields[i]; f.key == key {
				if f.is("later") {
					d.later(value, p)
				} else {
					d.value(value, p, f, v.Field(f.index))
				}
				return
			}
		}
		d.unknown(keyNode, path, fields, v.Type())
	})
}

// pairs calls each for the keys of a mapping that are plain texts and appear once.
func (d *decoder) pairs(n *yaml.Node, path string, each func(key string, keyNode, value *yaml.Node)) {
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, value := n.Content[i], n.Content[i+1]
		switch {
		case k.Tag == "!!merge":
			d.at(k.Line, path, "holds a merge key (<<); merge keys aren't supported, write the values out")
			continue
		case k.Kind != yaml.ScalarNode || k.Anchor != "" || k.Style&yaml.TaggedStyle != 0 || k.Value == "":
			d.at(k.Line, path, "holds a key that isn't a plain word")
			continue
		}
		p := join(path, showKey(k.Value))
		if first, twice := seen[k.Value]; twice {
			d.at(k.Line, p, "appears twice, first on line %d; remove one", first)
			continue
		}
		seen[k.Value] = k.Line
		d.lines[p] = k.Line
		each(k.Value, k, value)
	}
}

// later refuses a key that this version doesn't support, unless it is written down as unused.
func (d *decoder) later(n *yaml.Node, path string) {
	unused := isNull(n) || n.Kind == yaml.ScalarNode && n.Value == "" ||
		(n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode) && len(n.Content) == 0
	if !unused {
		d.add(path, "isn't supported by this version; remove it")
	}
}

// unknown refuses a key and says what was probably meant.
func (d *decoder) unknown(k *yaml.Node, path string, fields []field, section reflect.Type) {
	p := join(path, showKey(k.Value))
	var keys []string
	for i := range fields {
		if !fields[i].is("later") {
			keys = append(keys, fields[i].key)
		}
	}
	if near := nearest(k.Value, keys); near != "" {
		d.add(p, "unknown key; did you mean %q?", near)
		return
	}
	if place := d.belongs(k.Value, section); place != "" {
		d.add(p, "unknown key here; it belongs %s", place)
		return
	}
	d.add(p, "unknown key; known here: %s", keyList(fields))
}

// belongs says where in the schema a key has its place, "" if nowhere.
func (d *decoder) belongs(key string, section reflect.Type) string {
	best := ""
	walkSchema(d.root, "", func(path string, f *field) {
		if f.key == key && (best == "" || strings.Count(path, ".") < strings.Count(best, ".")) {
			best = path
		}
	})
	switch {
	case best == key:
		return "at the top of the file, without indentation"
	case best != "":
		return "under " + strings.TrimSuffix(best, "."+key)
	case section != d.root:
		return ""
	}
	if hasKey(reflect.TypeFor[Node](), key) {
		return "into a node's file"
	}
	if hasKey(reflect.TypeFor[Edge](), key) {
		return "into an Edge's file"
	}
	return ""
}

// value fills one field.
func (d *decoder) value(n *yaml.Node, path string, f *field, v reflect.Value) {
	if !d.plain(n, path) {
		return
	}
	switch t := v.Type(); {
	case t.Kind() == reflect.Pointer:
		if !isNull(n) {
			v.Set(reflect.New(t.Elem()))
			setDefaults(v.Elem())
			d.section(n, path, v.Elem())
		}
	case t == sourceType:
		v.Set(reflect.ValueOf(d.source(n, path)))
	case t.Kind() == reflect.Struct && t != timeType && t != secretType:
		d.section(n, path, v)
	case t.Kind() == reflect.Slice:
		d.list(n, path, f, v)
	case t.Kind() == reflect.Map:
		d.texts(n, path, v)
	default:
		d.scalar(n, path, f, v)
	}
}

// list fills a slice of texts or of sections.
func (d *decoder) list(n *yaml.Node, path string, f *field, v reflect.Value) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.add(path, "must be a list: [a, b], or lines that start with -")
		return
	}
	list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		p := fmt.Sprintf("%s[%d]", path, i)
		d.lines[p] = item.Line
		elem := list.Index(i)
		if elem.Kind() != reflect.Struct {
			if d.plain(item, p) {
				d.scalar(item, p, f, elem)
			}
			continue
		}
		setDefaults(elem)
		if isNull(item) {
			d.add(p, "is empty; fill it in or remove its line")
			continue
		}
		d.section(item, p, elem)
	}
	v.Set(list)
}

// texts fills a map of names to texts; numbers and truth values are taken as they are written.
func (d *decoder) texts(n *yaml.Node, path string, v reflect.Value) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.add(path, "must be a section of names and values")
		return
	}
	m := map[string]string{}
	d.pairs(n, path, func(key string, _, value *yaml.Node) {
		p := join(path, showKey(key))
		if !d.plain(value, p) {
			return
		}
		if value.Kind != yaml.ScalarNode || isNull(value) {
			d.add(p, "must be one value")
			return
		}
		if d.clean(p, value.Value) {
			m[key] = value.Value
		}
	})
	v.Set(reflect.ValueOf(m))
}

// resolve makes a relative path start at the directory of the configuration file.
func (d *decoder) resolve(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(d.dir, path)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// showKey is a key as errors show it: what isn't formed like a key could be anything, a secret too.
func showKey(key string) string {
	if len(key) > 40 || looksSecret(key) {
		return "?"
	}
	for _, c := range key {
		if c <= ' ' || c > '~' {
			return "?"
		}
	}
	return key
}

func keyList(fields []field) string {
	var keys []string
	for i := range fields {
		if !fields[i].is("later") {
			keys = append(keys, fields[i].key)
		}
	}
	return strings.Join(keys, ", ")
}
