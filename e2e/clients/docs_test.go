package clients

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The versions that the document names are those that run here.
func TestDocumentedVersions(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	doc := read("../../docs/clients.md")
	var npm struct{ Dependencies map[string]string }
	if err := json.Unmarshal([]byte(read("npm/package.json")), &npm); err != nil {
		t.Fatal(err)
	}
	delete(npm.Dependencies, "@langchain/core") // a part of the others
	delete(npm.Dependencies, "zod")
	for _, m := range regexp.MustCompile(`(?m)^\t(github.com/(?:openai|anthropics|ollama)/\S+) v(\S+)$`).FindAllStringSubmatch(read("go.mod"), -1) {
		npm.Dependencies[m[1]] = m[2]
	}
	if len(npm.Dependencies) < 11 {
		t.Errorf("too few clients: %v", npm.Dependencies)
	}
	for name, version := range npm.Dependencies {
		rows := regexp.MustCompile(`(?m)^\|.*\x60`+regexp.QuoteMeta(name)+`(/api)?\x60.*$`).FindAllString(doc, -1)
		if !slices.ContainsFunc(rows, func(row string) bool { return strings.Contains(row, version) }) {
			t.Errorf("docs/clients.md says of %s, which is %s here: %q", name, version, rows)
		}
	}
}
