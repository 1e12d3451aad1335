package node_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"iop/apps/edge/internal/node"
)

// Whatever stands in the file of generations: it is refused, or the numbers that come are above the one in it, and grow.
func FuzzGenerations(f *testing.F) {
	for _, s := range []string{`{"edge_id":"e","reserved_generation":7}`, `{"edge_id":"e","reserved_generation":18446744073709551615}`,
		`{"edge_id":"e","reserved_generation":9223372036854775807}`, `{"edge_id":"","reserved_generation":1}`, `{"reserved_generation":-1}`, ``, `null`} {
		f.Add([]byte(s))
	}
	const file = "generation.json"
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
		g, err := node.OpenGenerations(dir)
		if err != nil {
			return
		}
		defer g.Close()
		last := uint64(0)
		if m := regexp.MustCompile(`"reserved_generation": ?([0-9]+)`).FindSubmatch(content); m != nil {
			last, _ = strconv.ParseUint(string(m[1]), 10, 64)
		}
		for range 3 {
			next, err := g.Next()
			if err != nil {
				return
			}
			if next <= last {
				t.Fatalf("%d after %d", next, last)
			}
			last = next
		}
	})
}
