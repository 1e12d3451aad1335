package credential

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever stands in the file of slot states: no panic, and it is read whole or refused by its name. A file that was cut
// is never an empty one: keys that were revoked would be good again.
func FuzzBook(f *testing.F) {
	install := strings.Repeat("ab", installSize)
	for _, s := range []string{`{"version":1,"fingerprint_key":"` + install + `","slots":{}}`, `{"version":1,"fingerprint_key":"` + install + `","slots":{"a":{}}}` + "\n",
		`{"version":2}`, `{}`, ``, `{"version":1,"fingerprint_key":"` + install + `","slots":{}}x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), bookFile)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		install, records, err := readBook(path)
		switch {
		case err != nil && !strings.Contains(err.Error(), path):
			t.Fatalf("%v names no file", err)
		case err == nil && (len(install) != installSize || records == nil):
			t.Fatalf("%d bytes, %v", len(install), records)
		}
	})
}
