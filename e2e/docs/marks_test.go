//go:build e2e

package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// marks are the info strings that blocks may have; a reason may be behind "skip: ".
var marks = regexp.MustCompile(`^(text|(sh|go|js) clients|sh (run( background)?|site|synopsis|systemd|compose)|yaml (edge|node)|(sh|yaml) skip: \S.+)$`)

// Issue 9: every command in the documents is run by a test, or is marked with the reason why it can't be.
func TestEachBlockIsMarked(t *testing.T) {
	skipped := 0
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if !marks.MatchString(b.info) {
				t.Errorf("%s:%d: what becomes of a block of %q? docs_test.go has the marks", d.name, b.line, b.info)
			}
			if strings.Contains(b.info, "skip:") {
				skipped++
				t.Logf("%s:%d: %s", d.name, b.line, b.info)
			}
			if b.info == "text" && regexp.MustCompile(`(?m)^ *(\$ |(bin/)?iop-(edge|node) [a-z]|make |curl |git |docker|systemctl|apt|export |sudo )`).MatchString(b.text) {
				t.Errorf("%s:%d: commands in a block of text", d.name, b.line)
			}
		}
	}
	if skipped > 4 {
		t.Errorf("%d blocks are skipped", skipped)
	}
}

// span is a piece of code inside a text.
var span = regexp.MustCompile("`([^`\n]+)`")

// command is what is said about a program inside a text or a block that isn't run.
type command struct {
	where string
	words []string
}

// mentioned are the commands of the two programs that the documents name without running them.
func mentioned(t *testing.T) (all []command) {
	t.Helper()
	add := func(where, line string) {
		line, _, _ = strings.Cut(line, "  ") // what it does stands behind
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimPrefix(strings.TrimSpace(line), "bin/")
		if strings.HasPrefix(line, "ctl ") {
			line = "iop-edge " + line
		}
		if words := strings.Fields(line); len(words) > 1 && (words[0] == "iop-edge" || words[0] == "iop-node") {
			all = append(all, command{where, words})
		}
	}
	for _, d := range documents(t) {
		if d.name == "ARCHITECTURE.md" {
			continue // tells of what isn't for its readers to call
		}
		prose := strings.Builder{}
		fenced := false
		for line := range strings.Lines(d.text) {
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
			} else if !fenced {
				prose.WriteString(line)
			}
		}
		for _, m := range span.FindAllStringSubmatch(prose.String(), -1) {
			add(d.name, m[1])
		}
		for _, b := range d.blocks {
			if strings.HasPrefix(b.info, "sh s") && b.info != "sh site" { // synopsis, skip, systemd
				for line := range strings.Lines(b.text) {
					add(fmt.Sprintf("%s:%d", d.name, b.line), line)
				}
			}
		}
	}
	return all
}

// helper asks the programs what they know, each command once.
type helper struct{ said map[string]string }

func (h *helper) help(t *testing.T, words []string) string {
	t.Helper()
	key := strings.Join(words, " ")
	if text, ok := h.said[key]; ok {
		return text
	}
	text, err := exec.Command(filepath.Join(bin, words[0]), append(slices.Clone(words[1:]), "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s --help: %v", key, err)
	}
	h.said[key] = string(text)
	return string(text)
}

// has reports whether the help of a command lists another below it.
func has(help, name string) bool {
	return regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(name) + ` {2,}`).MatchString(help)
}

var plainWord = regexp.MustCompile(`^[a-z][a-z-]*$`)

// Commands that the documents only name are there, with the flags that they are said to have.
func TestMentionedCommandsAreThere(t *testing.T) {
	h := &helper{said: map[string]string{}}
	n := 0
	for _, c := range mentioned(t) {
		for _, words := range alternatives(c.words) {
			n++
			at := 1
			for at < len(words) && plainWord.MatchString(words[at]) && has(h.help(t, words[:at]), words[at]) {
				at++
			}
			help := h.help(t, words[:at])
			if at < len(words) && plainWord.MatchString(words[at]) && strings.Contains(help, "[command]") {
				t.Errorf("%s: %s has no command %q", c.where, strings.Join(words[:at], " "), words[at])
			}
			for _, flag := range regexp.MustCompile(`(?:^| )\[?(--?[a-z][a-z-]*)`).FindAllStringSubmatch(strings.Join(words[at:], " "), -1) {
				if !regexp.MustCompile(`(?m)^ +(-\w, )?` + flag[1] + `\b|^ +` + flag[1] + `, `).MatchString(help) {
					t.Errorf("%s: %s has no flag %s", c.where, strings.Join(words[:at], " "), flag[1])
				}
			}
		}
	}
	if n < 60 {
		t.Errorf("only %d commands were found", n)
	}
}

// alternatives takes words that stand for several, as in disable|enable, apart.
func alternatives(words []string) [][]string {
	for i, w := range words {
		if names := strings.Split(w, "|"); len(names) > 1 && plainWord.MatchString(names[0]) {
			var all [][]string
			for _, name := range names {
				all = append(all, slices.Concat(words[:i], []string{name}, words[i+1:]))
			}
			return all
		}
	}
	return [][]string{words}
}

// Targets of make that the documents name are there.
func TestMentionedTargetsAreThere(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents(t) {
		for _, m := range regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z0-9-]*)").FindAllStringSubmatch(d.text, -1) {
			if !regexp.MustCompile(`(?m)^` + m[1] + `:`).Match(makefile) {
				t.Errorf("%s: there is no make %s", d.name, m[1])
			}
		}
	}
}

// What the documents show of clients' code is what e2e/clients runs.
func TestClientSnippetsAreRun(t *testing.T) {
	var code strings.Builder
	for _, pattern := range []string{"../clients/*.go", "../clients/npm/*.mjs"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %d files", pattern, err, len(files))
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
	}
	calls := regexp.MustCompile(`\b([A-Za-z]+(?:\.[A-Z][A-Za-z]+)?)\(|\b(baseURL|baseUrl|anthropicApiUrl|configuration|host|apiKey|headers|includeUsage|maxTokens):`)
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.info != "go clients" && b.info != "js clients" {
				continue
			}
			for _, m := range calls.FindAllStringSubmatch(b.text, -1) {
				if name := m[1] + m[2]; !strings.Contains(code.String(), name) {
					t.Errorf("%s:%d: nothing in e2e/clients uses %s", d.name, b.line, name)
				}
			}
		}
	}
}

// Each document is one line of the README's list.
func TestReadmeListsEachDocument(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(readme), "## Read on")
	if !ok {
		t.Fatal("README.md has no such section")
	}
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := "](docs/" + filepath.Base(file) + ")"; !strings.Contains(list, name) {
			t.Errorf("README.md's list lacks %s", file)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([a-zA-Z./_-]+)(?:#[^)]*)?\)`).FindAllStringSubmatch(string(readme), -1) {
		if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
			t.Errorf("README.md: %v", err)
		}
	}
}
