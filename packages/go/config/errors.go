package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Errors is everything that is wrong with a configuration, in the order of its lines.
type Errors struct{ List []Problem }

// Problem is one thing that is wrong. Text says what, and what to do; it never holds a secret.
type Problem struct {
	File string
	Line int // 0 = the file as a whole
	Path string
	Text string
}

// maxShown is how many problems Error prints; a file that isn't a configuration at all would flood the terminal.
const maxShown = 50

// Error lists the problems, one a line.
func (e *Errors) Error() string {
	lines := make([]string, 0, min(len(e.List), maxShown+1))
	for i, p := range e.List {
		if i == maxShown {
			lines = append(lines, fmt.Sprintf("… and %d more", len(e.List)-maxShown))
			break
		}
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// String is file:line: path: text.
func (p Problem) String() string {
	if p.File == "" {
		return p.Text
	}
	s := p.File
	if p.Line > 0 {
		s += ":" + strconv.Itoa(p.Line)
	}
	s += ": "
	if p.Path != "" {
		s += p.Path + ": "
	}
	return s + p.Text
}

// problems collects what is wrong. It knows on which line each path of the file stands, and keeps the first problem of
// a path and none of what is below it: what follows from that would mislead.
type problems struct {
	file  string
	list  []Problem
	lines map[string]int
	bad   map[string]bool
}

func newProblems(file string) *problems {
	return &problems{file: file, lines: map[string]int{}, bad: map[string]bool{}}
}

// at adds a problem on a given line.
func (p *problems) at(line int, path, format string, args ...any) {
	p.list = append(p.list, Problem{File: p.file, Line: line, Path: path, Text: fmt.Sprintf(format, args...)})
}

// add adds a problem with the value at path, on its line or on that of the section that should hold it.
func (p *problems) add(path, format string, args ...any) {
	for at := path; at != ""; at = parent(at) {
		if p.bad[at] {
			return
		}
	}
	p.bad[path] = true
	p.at(p.lineOf(path), path, format, args...)
}

func (p *problems) lineOf(path string) int {
	for at := path; at != ""; at = parent(at) {
		if line, ok := p.lines[at]; ok {
			return line
		}
	}
	return 0
}

// parent returns the path of what holds the value at path.
func parent(path string) string { return path[:max(0, strings.LastIndexAny(path, ".["))] }

// err returns the problems in the order of the file, nil if there are none.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	slices.SortStableFunc(p.list, func(a, b Problem) int { return a.Line - b.Line })
	return &Errors{List: p.list}
}

// quote shows a value in an error, unless it is long or could be a secret that got into the wrong place.
func quote(s string) string {
	if len(s) > 64 || looksSecret(s) {
		return "the value"
	}
	return strconv.Quote(s)
}

// looksSecret reports whether s is formed like a key or token: a known mark, or a long word of letters and digits that
// changes between them more often than names do.
func looksSecret(s string) bool {
	lower := strings.ToLower(s)
	for _, mark := range []string{joinPrefix, "sk-", "bearer ", "password", "secret", "@"} {
		if strings.Contains(lower, mark) {
			return true
		}
	}
	const word, changes = 20, 8
	length, changed, last := 0, 0, rune(0)
	for _, c := range s {
		class := classOf(c)
		if class == 0 {
			length, changed, last = 0, 0, 0
			continue
		}
		length++
		if class != '-' && last != '-' && last != 0 && class != last {
			changed++
		}
		if last = class; length >= word && changed >= changes {
			return true
		}
	}
	return false
}

// classOf sorts the characters of base64url; 0 is any other.
func classOf(c rune) rune {
	switch {
	case c >= '0' && c <= '9':
		return '0'
	case c >= 'a' && c <= 'z':
		return 'a'
	case c >= 'A' && c <= 'Z':
		return 'A'
	case c == '-' || c == '_':
		return '-'
	}
	return 0
}
