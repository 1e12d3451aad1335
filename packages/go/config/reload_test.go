package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func edgeFrom(t *testing.T, text string) *Edge {
	t.Helper()
	e, err := ParseEdge("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestWhatAReloadChanges(t *testing.T) {
	const old = "routes: [{model: a}]\ntimers: {dead: 45s}\n"
	cases := map[string]struct{ restart, reload string }{
		old:                      {"", ""},
		"routes: [{model: a}]\n": {"", ""}, // the same by its defaults
		"routes: [{model: b}]\n": {"", "routes"},
		"routes: [{model: a}]\nlog: {level: debug}\n":                                    {"log", ""},
		"timers: {dead: 50s}\nlisten: {http: 127.0.0.1:1}":                               {"listen,timers", "routes"},
		"routes: [{model: a}]\nlease: {ttl: 61s}\n":                                      {"", "lease.ttl"},
		"routes: [{model: a}]\nlease: {ttl: 61s, signing_key: /x}\n":                     {"lease.signing_key", "lease.ttl"},
		"routes: [{model: a}]\nstate_dir: /other\n":                                      {"state_dir", ""}, // and not lease.signing_key, which lies in it by default
		"routes: [{model: a}]\nprofiles: [{id: p, origin: https://h, paths: [GET /]}]\n": {"", "profiles"},
		leasing + oneSlot + "routes: [{model: a}]\n":                                     {"mode,tls", "nodes,profiles,slots"},
		"admin_key_hashes: [" + hashA + "]\nprincipals: [{id: p, key_hashes: [" + hashB + "]}]\nnodes: [{id: n, token_hashes: [{sha256: " + strings.Repeat("c", 64) + "}]}]\nroutes: [{model: a}]": {
			"", "nodes,principals,admin_key_hashes"},
	}
	for text, want := range cases {
		was, is := edgeFrom(t, old), edgeFrom(t, text)
		if got := strings.Join(was.NeedsRestart(is), ","); got != want.restart {
			t.Errorf("%q needs a restart for %q, want %q", text, got, want.restart)
		}
		if got := strings.Join(was.Differs(is), ","); got != want.reload {
			t.Errorf("%q reloads %q, want %q", text, got, want.reload)
		}
	}
}

// Every key of the file is one or the other, or a change of it would go by unseen.
func TestEveryKeyIsReloadedOrNeedsARestart(t *testing.T) {
	typ := reflect.TypeFor[Edge]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Name == "_" || f.Name == "Path" || f.Name == "Files" {
			continue
		}
		if f.Tag.Get("yaml") == "" {
			t.Errorf("%s has no key", f.Name)
		}
	}
}

func TestFilesOfAConfiguration(t *testing.T) {
	dir := t.TempDir()
	hash := filepath.Join(dir, "node.sha256")
	if err := os.WriteFile(hash, []byte(hashA), 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "edge.yaml")
	if err := os.WriteFile(name, []byte("nodes: [{id: n, token_hashes: [{file: ./node.sha256}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := LoadEdge(name)
	if err != nil || !slices.Equal(e.Files, []string{name, hash}) {
		t.Errorf("%v, %v", e.Files, err)
	}
}
