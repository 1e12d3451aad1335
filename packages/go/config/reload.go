package config

import (
	"reflect"
	"strings"
)

// reloadable are the top-level keys of an Edge that take effect without a restart.
func reloadable(key string) bool {
	switch key {
	case "nodes", "principals", "routes", "admin_key_hashes":
		return true
	}
	return false
}

// NeedsRestart returns the top-level keys in which next differs from e and that only a restart can change, in the order
// of the file.
func (e *Edge) NeedsRestart(next *Edge) []string { return e.differing(next, false) }

// Differs returns the top-level keys in which next differs from e and that a reload changes.
func (e *Edge) Differs(next *Edge) []string { return e.differing(next, true) }

func (e *Edge) differing(next *Edge, reload bool) (keys []string) {
	was, is := reflect.ValueOf(e).Elem(), reflect.ValueOf(next).Elem()
	for i := range was.NumField() {
		key, _, _ := strings.Cut(was.Type().Field(i).Tag.Get("yaml"), ",")
		if key == "" || !was.Type().Field(i).IsExported() || reloadable(key) != reload {
			continue
		}
		if !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			keys = append(keys, key)
		}
	}
	return keys
}
