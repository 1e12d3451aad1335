package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// keptAside is how many bad files stay; a disk that damages file after file must not be filled by them.
const keptAside = 3

// fileSuffixes lists the files that make up one database. The database itself is the last, so that a crash half way
// through moving them leaves the bad file to be found again.
func fileSuffixes() []string { return []string{"-journal", "-shm", "-wal", ""} }

// setAside moves a bad database away under a time stamp, together with its log: what can still be read of it is for a
// person to try. It returns the new path.
func setAside(path string, now time.Time) (string, error) {
	aside := path + ".bad-" + now.UTC().Format("20060102T150405.000Z")
	for _, suffix := range fileSuffixes() {
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	thinOut(path)
	return aside, nil
}

// thinOut deletes all but the latest bad files.
func thinOut(path string) {
	found, err := filepath.Glob(escapeGlob(path) + ".bad-*Z")
	if err != nil || len(found) <= keptAside {
		return
	}
	slices.Sort(found)
	for _, bad := range found[:len(found)-keptAside] {
		removeFiles(bad)
	}
}

func removeFiles(path string) {
	for _, suffix := range fileSuffixes() {
		_ = os.Remove(path + suffix)
	}
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
