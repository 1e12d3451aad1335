// Package config turns the programs' YAML files into checked, immutable values: [Edge], [Node], and the Edge's runtime
// view [State]. It owns the schema, its defaults, the secret type, and how tokens and keys are made and looked up.
//
// It is strict: what it doesn't know, what can't work and what this version doesn't support is refused, all at once,
// each with file, line and path. It starts nothing, watches nothing and logs nothing, and no error of it holds a
// secret. yaml is imported here and nowhere else.
package config

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// pipeLimit is how long a configuration may take that comes by a pipe.
const pipeLimit = 10 * time.Second

// maxFile is the longest configuration file: thousands of nodes, and nothing that exhausts memory.
const maxFile = 4 << 20

// LoadEdge reads and checks an Edge's configuration, and that the files of its identity can be used. A refusal is an
// [*Errors].
func LoadEdge(path string) (*Edge, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return parseEdge(path, data, (*decoder).openEdgeIdentity)
}

// ReloadEdge is LoadEdge for a program that runs: the files of its identity are watched by themselves, and may be half
// replaced just now.
func ReloadEdge(path string) (*Edge, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return ParseEdge(path, data)
}

// LoadNode reads and checks a node's configuration, reads its token, and checks that the files of its identity can be
// used. A refusal is an [*Errors].
func LoadNode(path string) (*Node, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return parseNode(path, data, (*decoder).openNodeIdentity)
}

// ReadNode is LoadNode without a look at the files of the identity, for whoever looks at them by themselves.
func ReadNode(path string) (*Node, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return ParseNode(path, data)
}

// ParseEdge checks data as if it were the content of the file at path. It doesn't look at the files of the identity.
func ParseEdge(path string, data []byte) (*Edge, error) {
	return parseEdge(path, data, func(*decoder, *Edge) {})
}

func parseEdge(path string, data []byte, more func(*decoder, *Edge)) (*Edge, error) {
	d, err := newDecoder(path, data)
	if err != nil {
		return nil, err
	}
	e := &Edge{Path: path}
	if d.decode(data, e) {
		d.checkEdge(e)
		more(d, e)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	e.Files = append([]string{path}, d.files...)
	return e, nil
}

// ParseNode checks data as if it were the content of the file at path, and reads the node's token. It doesn't look at
// the files of the identity.
func ParseNode(path string, data []byte) (*Node, error) {
	return parseNode(path, data, func(*decoder, *Node) {})
}

func parseNode(path string, data []byte, more func(*decoder, *Node)) (*Node, error) {
	d, err := newDecoder(path, data)
	if err != nil {
		return nil, err
	}
	n := &Node{Path: path}
	if d.decode(data, n) {
		d.checkNode(n)
		more(d, n)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return n, nil
}

func newDecoder(path string, data []byte) (*decoder, error) {
	if len(data) > maxFile {
		return nil, fileError(path, "is longer than 4 MiB, so it isn't a configuration")
	}
	// Absolute, so that what a path means doesn't hang on the working directory, now or later.
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fileError(path, "has no directory: "+err.Error())
	}
	return &decoder{problems: newProblems(path), dir: dir}, nil
}

func readFile(path string) ([]byte, error) {
	if path == "" {
		return nil, &Errors{List: []Problem{{Text: "no configuration file named; give one with -c FILE"}}}
	}
	// Without waiting: a pipe that stands in the file's place for a moment would hold up a program that reloads until
	// somebody writes into it, and with it every later reload and the end of the program.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		text := "can't be read: " + plainError(err).Error()
		if errors.Is(err, fs.ErrNotExist) {
			text = "doesn't exist; give the file with -c FILE"
		}
		return nil, fileError(path, text)
	}
	defer f.Close()
	_ = f.SetReadDeadline(time.Now().Add(pipeLimit)) // a regular file has none, and needs none
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fileError(path, "can't be read: "+plainError(err).Error())
	}
	return data, nil
}

func fileError(path, text string) error {
	return &Errors{List: []Problem{{File: path, Text: text}}}
}
