package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// SQ-04: a journal that isn't a file is refused with the reason, in every way that SQLite has of asking for one.
func TestDSNRefused(t *testing.T) {
	for dsn, want := range map[string]string{
		":memory:":                          "can't be kept in memory",
		"file::memory:":                     "can't be kept in memory",
		"file::memory:?cache=shared":        "can't be kept in memory",
		"file:iop.db?mode=memory":           "mode=memory",
		"file:x?mode=memory&cache=shared":   "mode=memory",
		"file:":                             "names no file",
		"file:?mode=rwc":                    "names no file",
		"?mode=rwc":                         "names no file",
		"file:dir/":                         "names a directory",
		"file://host/iop.db":                "names a host",
		"file:%zz":                          "two hex digits",
		"file:a%00b":                        "zero byte",
		"file:iop.db?mode=ro":               "mode must be one of rwc, rw",
		"file:iop.db?immutable=1":           `unknown option "immutable"`,
		"file:iop.db?vfs=unix-none":         `unknown option "vfs"`,
		"file:iop.db?nolock=1":              `unknown option "nolock"`,
		"file:iop.db?_journal_mode=OFF":     `unknown option "_journal_mode"`,
		"file:iop.db?_synchronous=OFF":      "_synchronous must be one of",
		"file:iop.db?_busy_timeout=x":       "0 to 60000",
		"file:iop.db?cache=shared&cache=no": "stands there twice",
		"file:iop.db?a=%zz":                 "can't be read",
	} {
		_, err := Open(t.Context(), Config{Dir: t.TempDir(), DSN: dsn})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", dsn, err, want)
		}
	}
}

func TestDSNHoldsNoSecretInErrors(t *testing.T) {
	_, err := Open(t.Context(), Config{Dir: t.TempDir(), DSN: "file:iop.db?_auth_pass=S3CR3T-abcdef-123456"})
	if err == nil || strings.Contains(err.Error(), "S3CR3T") {
		t.Errorf("%v, want an error without the option's value", err)
	}
}

func TestDSNNamesAFile(t *testing.T) {
	dir := t.TempDir()
	for dsn, want := range map[string]string{
		"":                                   "iop.db",
		DefaultDSN:                           "iop.db",
		"plain.db":                           "plain.db",
		"sub/dir/x.db":                       "sub/dir/x.db",
		"file:a%20b%3Fc%23d%25e.db?mode=rwc": "a b?c#d%e.db",
		"file:" + dir + "/abs.db":            "abs.db",
		"file://" + dir + "/abs2.db":         "abs2.db",
		"file://localhost" + dir + "/h.db":   "h.db",
		"file:full.db?_synchronous=FULL&_busy_timeout=50&cache=private": "full.db",
	} {
		r := open(t, Config{Dir: dir, DSN: dsn})
		r.Begin(tunnel("one")).End(complete())
		r.close(t)
		want = filepath.Join(dir, want)
		if path, err := Path(dir, dsn); err != nil || path != want {
			t.Errorf("%s: Path is %s, %v; want %s", dsn, path, err, want)
		}
		if info, err := os.Stat(want); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want a file that only its owner can read", dsn, info, err)
		}
		reader, err := OpenReader(t.Context(), want)
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		if rows, err := reader.List(t.Context(), Query{}); err != nil || len(rows) == 0 {
			t.Errorf("%s: a reader finds %d rows, %v", dsn, len(rows), err)
		}
		_ = reader.Close()
	}
}

// The options of the DSN reach SQLite.
func TestDSNOptions(t *testing.T) {
	for dsn, want := range map[string]int{DefaultDSN: 1, "file:iop.db?_synchronous=FULL": 2} {
		r := open(t, Config{DSN: dsn})
		var synchronous int
		if err := r.file.db.QueryRow(`PRAGMA synchronous`).Scan(&synchronous); err != nil || synchronous != want {
			t.Errorf("%s: synchronous is %d, %v; want %d", dsn, synchronous, err, want)
		}
	}
}
