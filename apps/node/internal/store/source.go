package store

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// DefaultDSN is where the journal is kept when the configuration doesn't say: a file in the node's data directory.
const DefaultDSN = "file:iop.db?cache=shared&mode=rwc"

// source is a checked DSN.
type source struct {
	path string // absolute
	uri  string // what SQLite is asked to open for writing
}

// Path returns the file that a DSN means: its path, relative to dir.
func Path(dir, dsn string) (string, error) {
	src, err := resolve(dir, dsn)
	return src.path, err
}

// resolve checks a DSN: file:PATH?OPTIONS or a bare path, relative to dir. An error names the option at fault and
// never its value.
func resolve(dir, dsn string) (source, error) {
	if dsn == "" {
		dsn = DefaultDSN
	}
	name, query, _ := strings.Cut(dsn, "?")
	path, err := filePath(name)
	if err != nil {
		return source{}, fmt.Errorf("journal: dsn: %w", err)
	}
	options, err := url.ParseQuery(query)
	if err != nil {
		return source{}, errors.New("journal: dsn: its options can't be read; write file:PATH?key=value&key=value")
	}
	if err := checkOptions(options); err != nil {
		return source{}, fmt.Errorf("journal: dsn: %w", err)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	if path, err = filepath.Abs(path); err != nil {
		return source{}, fmt.Errorf("journal: dsn: %w", err)
	}
	options.Set("_txlock", "immediate") // a transaction that reads first must not find itself unable to write: SQ-02
	if !options.Has("_busy_timeout") {
		options.Set("_busy_timeout", strconv.Itoa(int(busyTimeout.Milliseconds())))
	}
	return source{path, fileURI(path, options)}, nil
}

// filePath returns the path in the part of a DSN before its options.
func filePath(name string) (string, error) {
	path, isURI := strings.CutPrefix(name, "file:")
	if isURI {
		var err error
		if path, err = url.PathUnescape(path); err != nil {
			return "", errors.New("its path can't be read: a % must be followed by two hex digits")
		}
		if rest, ok := strings.CutPrefix(path, "//"); ok {
			slash := strings.IndexByte(rest, '/')
			if slash < 0 || rest[:slash] != "" && rest[:slash] != "localhost" {
				return "", errors.New("it names a host; write file:PATH or file:///PATH")
			}
			path = rest[slash:]
		}
	}
	switch {
	case path == "":
		return "", errors.New("it names no file: a journal without one would be empty after each restart; write file:PATH")
	case path == ":memory:":
		return "", errors.New("the journal can't be kept in memory: it would be empty after each restart; write file:PATH")
	case strings.HasSuffix(path, "/"):
		return "", errors.New("it names a directory; write file:PATH of a file")
	case strings.ContainsRune(path, 0):
		return "", errors.New("its path holds a zero byte")
	}
	return path, nil
}

// knownOptions lists what a DSN may say, and which values. Everything else would break what the journal promises: a
// read-only or immutable file, another locking scheme, no fsync at all.
func knownOptions() map[string][]string {
	return map[string][]string{
		"cache":         {"shared", "private"},
		"mode":          {"rwc", "rw"},
		"_synchronous":  {"NORMAL", "FULL", "EXTRA"},
		"_busy_timeout": nil,
	}
}

func checkOptions(options url.Values) error {
	known := knownOptions()
	for key, values := range options {
		allowed, ok := known[key]
		switch {
		case key == "mode" && slices.Contains(values, "memory"):
			return errors.New("the journal can't be kept in memory (mode=memory): it would be empty after each restart; use mode=rwc")
		case !ok:
			return fmt.Errorf("unknown option %q; known here: cache, mode, _synchronous, _busy_timeout", key)
		case len(values) != 1:
			return fmt.Errorf("option %s stands there twice", key)
		case key == "_busy_timeout":
			if ms, err := strconv.Atoi(values[0]); err != nil || ms < 0 || ms > 60_000 {
				return errors.New("option _busy_timeout must be 0 to 60000 milliseconds")
			}
		case !slices.Contains(allowed, values[0]):
			return fmt.Errorf("option %s must be one of %s", key, strings.Join(allowed, ", "))
		}
	}
	return nil
}

// fileURI writes the URI of a file so that SQLite reads the same path back, whatever characters it has.
func fileURI(path string, options url.Values) string {
	return "file:" + (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath() + "?" + options.Encode()
}
