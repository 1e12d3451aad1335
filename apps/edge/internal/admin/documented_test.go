package admin

import (
	"os"
	"path"
	"strings"
	"testing"
)

// Each endpoint but the console's files has a row in docs/ctl.md; a row may have several that differ in their end.
func TestEndpointsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/ctl.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range Endpoints()[len(consoleEndpoints()):] {
		n++
		found := false
		for line := range strings.Lines(string(text)) {
			row, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
			found = found || strings.HasPrefix(line, "| `") && strings.Contains(row, "`"+e.Method+" "+path.Dir(e.Path)) &&
				strings.Contains(row, "/"+path.Base(e.Path)+"`")
		}
		if !found {
			t.Errorf("docs/ctl.md has no row for %s %s", e.Method, e.Path)
		}
	}
	if n < 20 {
		t.Errorf("only %d endpoints", n)
	}
}
