package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// Every mutant can be planted, has a name of its own, and names tests. That the tests catch it is what make mutants
// finds out.
func TestMutantsApply(t *testing.T) {
	t.Chdir("../..")
	names := map[string]bool{}
	for _, m := range mutants() {
		if _, err := m.changed(); err != nil {
			t.Error(err)
		}
		if names[m.Name] || !regexp.MustCompile(`^[a-z0-9-]+$`).MatchString(m.Name) {
			t.Errorf("mutant %q: its name isn't one, or another's, too", m.Name)
		}
		names[m.Name] = true
		if m.Promise == "" || len(m.Tests) == 0 || m.Old == m.New {
			t.Errorf("mutant %s says nothing, changes nothing or has no test", m.Name)
		}
		for _, test := range m.Tests {
			if _, err := os.Stat(test.Package); err != nil || test.Run == "" || test.Layer == "" {
				t.Errorf("mutant %s: %+v: %v", m.Name, test, err)
			}
		}
	}
	if len(names) < 14 {
		t.Errorf("%d mutants are too few", len(names))
	}
}

// A file that was changed in the place that a mutant replaces is an error, not a mutant without effect.
func TestMutantThatIsStale(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.go")
	if err := os.WriteFile(file, []byte("package a\n\nvar b, c = 1, 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for old, ok := range map[string]bool{"b, c": true, "d": false, "1": false} {
		if _, err := (Mutant{File: file, Old: old}).changed(); (err == nil) != ok {
			t.Errorf("%q: %v", old, err)
		}
	}
}

// Within a few days every mutant is among the first third.
func TestRotation(t *testing.T) {
	all := mutants()
	first := map[string]bool{}
	for day := range len(all) {
		for _, m := range rotate(all, time.Unix(int64(day)*24*60*60, 0))[:len(all)/3] {
			first[m.Name] = true
		}
	}
	if len(first) != len(all) {
		t.Errorf("%d of %d mutants come first on some day", len(first), len(all))
	}
}
