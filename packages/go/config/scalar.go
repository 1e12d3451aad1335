package config

import (
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

const (
	maxText     = 4096
	maxDuration = 30 * 24 * time.Hour
)

// scalar fills a field that holds one value.
func (d *decoder) scalar(n *yaml.Node, path string, f *field, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.add(path, "must be one value, not a list or a section")
		return
	}
	if isNull(n) {
		d.add(path, "has no value; give one or remove the line")
		return
	}
	switch t := v.Type(); {
	case t == durationType:
		d.duration(n, path, v)
	case t == timeType:
		d.instant(n, path, v)
	case t.Kind() == reflect.Bool:
		if n.Tag != "!!bool" {
			d.add(path, "must be true or false")
			return
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case f.is("size"):
		d.size(n, path, v)
	case t.Kind() == reflect.Int:
		i, err := strconv.ParseInt(n.Value, 10, 32)
		if err != nil || n.Tag != "!!int" {
			d.add(path, "must be a whole number")
			return
		}
		v.SetInt(i)
	default:
		d.text(n, path, f, v)
	}
}

func (d *decoder) text(n *yaml.Node, path string, f *field, v reflect.Value) {
	if n.Tag != "!!str" && !f.is("hash") && !f.is("serial") { // hex may look like a number
		d.add(path, "must be a text; put it in quotes")
		return
	}
	if !d.clean(path, n.Value) {
		return
	}
	switch {
	case v.Type() == secretType:
		v.Set(reflect.ValueOf(NewSecret(n.Value)))
	case f.is("hash"):
		v.SetString(d.hash(path, n.Value))
	case f.is("serial"):
		v.SetString(d.serial(path, n.Value))
	case f.is("path"):
		if strings.HasPrefix(n.Value, "~") {
			d.add(path, "starts with ~, which isn't expanded here; write the whole path")
			return
		}
		v.SetString(d.resolve(n.Value))
	default:
		v.SetString(n.Value)
	}
}

// clean refuses texts that no field has a use for.
func (d *decoder) clean(path, s string) bool {
	if len(s) > maxText {
		d.add(path, "is longer than %d bytes", maxText)
		return false
	}
	for _, c := range s {
		if c < ' ' || c == 0x7f {
			d.add(path, "holds a line break or another control character")
			return false
		}
	}
	return true
}

func (d *decoder) duration(n *yaml.Node, path string, v reflect.Value) {
	t, err := time.ParseDuration(n.Value)
	switch {
	case err != nil && n.Tag == "!!int":
		d.add(path, "needs a unit: %ss, or ms, m, h", n.Value)
	case err != nil:
		d.add(path, "%s isn't a duration; write it like 500ms, 30s, 10m or 1h30m", quote(n.Value))
	case t < 0:
		d.add(path, "must not be negative")
	case t > maxDuration:
		d.add(path, "is longer than %dh", int(maxDuration.Hours()))
	default:
		v.SetInt(int64(t))
	}
}

func (d *decoder) instant(n *yaml.Node, path string, v reflect.Value) {
	t, err := time.Parse(time.RFC3339, n.Value)
	if err != nil {
		d.add(path, "%s isn't a time; write it like 2027-01-31T18:00:00Z", quote(n.Value))
		return
	}
	v.Set(reflect.ValueOf(t.UTC()))
}

func (d *decoder) size(n *yaml.Node, path string, v reflect.Value) {
	digits := strings.TrimRight(n.Value, " BKMGTabcdefghijklmnopqrstuvwxyz")
	unit := strings.TrimSpace(n.Value[len(digits):])
	count, err := strconv.ParseInt(digits, 10, 64)
	shift := map[string]uint{"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30}
	bits, known := shift[unit]
	switch {
	case err != nil || count < 0:
		d.add(path, "%s isn't a size; write it like 64MiB, 256KiB or a number of bytes", quote(n.Value))
	case !known:
		d.add(path, "%s isn't a unit; use KiB, MiB or GiB", quote(unit))
	case count > math.MaxInt64>>(bits+10):
		d.add(path, "is too large")
	default:
		v.SetInt(count << bits)
	}
}

// setDefaults writes the defaults of a section and of the sections inside it.
func setDefaults(v reflect.Value) {
	for _, f := range fieldsOf(v.Type()) {
		fv := v.Field(f.index)
		if f.is("later") {
			continue
		}
		if section, _ := sectionOf(f.typ); section == f.typ {
			setDefaults(fv)
		}
		if f.def != "" {
			setDefault(fv, &f)
		}
	}
}

// setDefault reads a default as if it stood in a file. A test loads every one, so that a wrong tag can't be shipped.
func setDefault(v reflect.Value, f *field) {
	d := &decoder{problems: newProblems("default")}
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: f.def}
	n.Tag = n.ShortTag()
	plain := *f
	plain.options = nil // a default path is resolved with the rest of the file
	if f.is("size") {
		plain.options = []string{"size"}
	}
	d.scalar(n, f.key, &plain, v)
}

// Default returns the values that an empty section stands for.
func Default[T Limits | EdgeTimers | NodeTimers | Queue | Listen | Log | Slot | Lease]() T {
	var section T
	setDefaults(reflect.ValueOf(&section).Elem())
	return section
}
