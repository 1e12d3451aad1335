package config

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// The kinds of a [SecretSource].
const (
	SourceFile = "file"
	SourceCred = "cred"
	SourceEnv  = "env"
	SourceExec = "exec"
)

const (
	sourceForms = "file:PATH, cred:NAME (systemd), env:NAME, or exec:[PROGRAM, ARGUMENT, ...]"
	maxArgs     = 64
)

// String shows the kind of source and which one it is. Of a program it shows the name and not the arguments.
func (s SecretSource) String() string {
	switch {
	case s.Kind == "":
		return ""
	case s.Kind == SourceExec && len(s.Argv) > 0:
		return SourceExec + ":" + s.Argv[0]
	}
	return s.Kind + ":" + s.Name
}

// source reads where a secret comes from: file:PATH, or the same as a mapping with one key. What is written in its place
// is probably the secret itself, so that no error repeats a part of it, and not what stands before a colon either.
func (d *decoder) source(n *yaml.Node, path string) (s SecretSource) {
	switch {
	case isNull(n):
		d.add(path, "has no value; give %s", sourceForms)
	case n.Kind == yaml.MappingNode && len(n.Content) == 2:
		d.pairs(n, path, func(kind string, _, value *yaml.Node) { s = d.sourceOf(path, kind, value) })
	case n.Kind == yaml.MappingNode:
		d.add(path, "must have exactly one of file, cred, env and exec")
	case n.Kind != yaml.ScalarNode:
		d.add(path, "must be one of %s", sourceForms)
	case d.clean(path, n.Value):
		kind, rest, _ := strings.Cut(n.Value, ":")
		value := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: rest}
		if kind == SourceExec {
			if value = flowList(rest); value == nil {
				d.add(path, "exec: must be followed by a list: [PROGRAM, ARGUMENT, ...]")
				return s
			}
		}
		s = d.sourceOf(path, kind, value)
	}
	return s
}

// sourceOf reads what follows the kind.
func (d *decoder) sourceOf(path, kind string, value *yaml.Node) SecretSource {
	s := SecretSource{Kind: kind}
	known := slices.Contains([]string{SourceFile, SourceCred, SourceEnv, SourceExec}, kind)
	switch {
	case !known:
		d.add(path, "must say where the key is, not what it is: give %s", sourceForms)
		return SecretSource{}
	case kind == SourceExec:
		s.Argv = d.argv(path, value)
		return s
	case value.Kind != yaml.ScalarNode || isNull(value):
		d.add(path, "%s: must be followed by one name", kind)
	case !d.plain(value, path) || !d.clean(path, value.Value):
	case kind == SourceFile && (value.Value == "" || strings.HasPrefix(value.Value, "~")):
		d.add(path, "file: must be followed by a path; ~ isn't expanded here")
	case kind == SourceCred && !credName.MatchString(value.Value):
		d.add(path, "cred: must be followed by the name of a systemd credential")
	case kind == SourceEnv && !envName.MatchString(value.Value):
		d.add(path, "env: must be followed by the name of an environment variable")
	case kind == SourceFile:
		s.Name = d.resolve(value.Value)
	default:
		s.Name = value.Value
	}
	return s
}

// argv reads a program and its arguments. A program that is a path starts at the file's directory, one that is a name is
// looked up where it is started.
func (d *decoder) argv(path string, n *yaml.Node) (argv []string) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || len(n.Content) > maxArgs {
		d.add(path, "exec: must be followed by a list of a program and at most %d arguments", maxArgs-1)
		return nil
	}
	for _, arg := range n.Content {
		if !d.plain(arg, path) {
			return nil
		}
		if arg.Kind != yaml.ScalarNode || isNull(arg) {
			d.add(path, "exec: each argument must be one value; put it in quotes")
			return nil
		}
		if !d.clean(path, arg.Value) {
			return nil
		}
		argv = append(argv, arg.Value)
	}
	if argv[0] == "" || strings.HasPrefix(argv[0], "~") {
		d.add(path, "exec: must name a program; ~ isn't expanded here")
	}
	if strings.ContainsRune(argv[0], filepath.Separator) {
		argv[0] = d.resolve(argv[0])
	}
	return argv
}

// flowList parses a list in brackets, nil if s isn't one.
func flowList(s string) (list *yaml.Node) {
	defer func() { // as in parse
		if recover() != nil {
			list = nil
		}
	}()
	var doc, second yaml.Node
	dec := yaml.NewDecoder(strings.NewReader(s))
	if !strings.HasPrefix(s, "[") || dec.Decode(&doc) != nil || len(doc.Content) != 1 || !errors.Is(dec.Decode(&second), io.EOF) {
		return nil
	}
	return doc.Content[0]
}
