package config

import (
	"reflect"
	"strings"
)

// reloadable are the keys of an Edge that take effect without a restart.
func reloadable(key string) bool {
	switch key {
	case "nodes", "principals", "routes", "admin_key_hashes", "profiles", "slots", "lease.ttl":
		return true
	}
	return false
}

// partly are the sections of which some keys take effect without a restart.
func partly(key string) bool { return key == "lease" }

// NeedsRestart returns the keys in which next differs from e and that only a restart can change, in the order of the
// file.
func (e *Edge) NeedsRestart(next *Edge) []string {
	is := *next
	// Who moves state_dir moves what lies in it by default, and isn't told of a key that isn't in the file.
	if e.Lease.SigningKey == signingKeyIn(e.StateDir) && is.Lease.SigningKey == signingKeyIn(is.StateDir) {
		is.Lease.SigningKey = e.Lease.SigningKey
	}
	return differing(reflect.ValueOf(e).Elem(), reflect.ValueOf(&is).Elem(), "", false)
}

// Differs returns the keys in which next differs from e and that a reload changes.
func (e *Edge) Differs(next *Edge) []string {
	return differing(reflect.ValueOf(e).Elem(), reflect.ValueOf(next).Elem(), "", true)
}

func differing(was, is reflect.Value, section string, reload bool) (keys []string) {
	for i := range was.NumField() {
		tag, _, _ := strings.Cut(was.Type().Field(i).Tag.Get("yaml"), ",")
		if tag == "" || !was.Type().Field(i).IsExported() {
			continue
		}
		key := join(section, tag)
		switch {
		case partly(key):
			keys = append(keys, differing(was.Field(i), is.Field(i), key, reload)...)
		case reloadable(key) == reload && !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()):
			keys = append(keys, key)
		}
	}
	return keys
}
