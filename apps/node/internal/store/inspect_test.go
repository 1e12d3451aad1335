package store

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// What a start would set aside is found beforehand, by the same signs, and the file is left as it is.
func TestInspectFindsDamage(t *testing.T) {
	for name, damage := range damages() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			seed(t, dir)
			path := dbPath(dir)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			damage(t, path, info.Size())
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			state, err := Inspect(t.Context(), path)
			if state != FileDamaged || err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("%s, %v", state, err)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}

// A sound journal is found sound, also while a node writes it; what is another program's, or of a later version, isn't
// damaged: a start refuses it and leaves it where it is.
func TestInspectOfOthers(t *testing.T) {
	dir := t.TempDir()
	seed(t, dir)
	if state, err := Inspect(t.Context(), dbPath(dir)); state != FileSound || err != nil {
		t.Errorf("closed: %s, %v", state, err)
	}
	r := start(t, Config{Dir: dir})
	r.Begin(tunnel("live")).End(complete())
	if state, err := Inspect(t.Context(), dbPath(dir)); state != FileSound || err != nil {
		t.Errorf("in use: %s, %v", state, err)
	}
	r.close(t)
	execute(t, dbPath(dir), `PRAGMA user_version = 99`)
	if state, err := Inspect(t.Context(), dbPath(dir)); state != FileUnfit || err == nil || !strings.Contains(err.Error(), "newer iop-node") {
		t.Errorf("of a later version: %s, %v", state, err)
	}
	theirs := dbPath(t.TempDir())
	execute(t, theirs, `CREATE TABLE theirs (x)`)
	if state, err := Inspect(t.Context(), theirs); state != FileUnfit || err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("another program's: %s, %v", state, err)
	}
}
