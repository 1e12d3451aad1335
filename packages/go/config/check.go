package config

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Anonymous is the principal of callers without a key, where no principals are configured.
const Anonymous = "anonymous"

var idPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// ValidID reports whether s can name a node, an adapter or a principal: 1 to 64 characters of A-Z a-z 0-9 . _ -
func ValidID(s string) bool { return idPattern.MatchString(s) }

// id checks a name that travels on the wire and into metrics.
func (d *decoder) id(path, s string) bool {
	switch {
	case s == "":
		d.add(path, "is missing")
	case !ValidID(s):
		d.add(path, "%s can't be a name: 1 to 64 characters of A-Z a-z 0-9 . _ -", quote(s))
	default:
		return true
	}
	return false
}

// idOr is an id as an example in an error shows it.
func idOr(id, fallback string) string {
	if ValidID(id) && !looksSecret(id) {
		return id
	}
	return fallback
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// modelName reports whether s can name a model: it becomes a JSON value, a metric label and a path segment.
func modelName(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\ufffd' })
}

// unique finds what is given twice.
type unique struct {
	d    *decoder
	what string
	seen map[string]string
}

func newUnique(d *decoder, what string) *unique {
	return &unique{d: d, what: what, seen: map[string]string{}}
}

// add remembers a value; show is what an error may say of it.
func (u *unique) add(path, value, show string) {
	if first, twice := u.seen[value]; twice {
		u.d.add(path, "%s is the same %s as %s (line %d); each must differ", quoteOr(show), u.what, first,
			u.d.lineOf(first))
		return
	}
	u.seen[value] = path
}

func quoteOr(show string) string {
	if strings.HasPrefix(show, "this ") {
		return show
	}
	return quote(show)
}

// dangling refuses a reference to what isn't there; missing says so, up to the name.
func (d *decoder) dangling(path, missing, name string, known []string) {
	hint := ""
	if near := nearest(name, known); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	} else if len(known) == 0 {
		hint = "; none is configured"
	}
	d.add(path, "%s %s%s", missing, quote(name), hint)
}

// unknownWord refuses a word that isn't one of a closed list.
func (d *decoder) unknownWord(path, what, word string, known ...string) {
	if near := nearest(word, known); near != "" {
		d.add(path, "%s isn't a %s; did you mean %q?", quote(word), what, near)
		return
	}
	d.add(path, "%s isn't a %s; use %s", quote(word), what, strings.Join(known, ", "))
}

func (d *decoder) rangeOf(path string, v, low, high int64) {
	if v < low || v > high {
		d.add(path, "must be %d to %d", low, high)
	}
}

// address checks host:port. A listener's host may be empty (all interfaces) and its port 0 (any free one).
func (d *decoder) address(path, s string, listen bool) bool {
	if s == "" {
		d.add(path, "is empty; write host:port")
		return false
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		d.add(path, "%s isn't an address; write host:port, and an IPv6 host in [ ]", quote(s))
		return false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || number == 0 && !listen:
		d.add(path, "%s has no valid port; ports are 1 to 65535", quote(s))
	case host == "" && !listen:
		d.add(path, "%s names no host", quote(s))
	case host != "" && !hostName(host):
		d.add(path, "%s has no valid host", quote(s))
	default:
		return true
	}
	return false
}

func hostName(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	if len(host) > 253 || strings.HasPrefix(host, ".") || strings.HasPrefix(host, "-") {
		return false
	}
	return !strings.ContainsFunc(host, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_')
	})
}

// Loopback reports whether a listener's address can be reached from its own machine only. What isn't an address counts
// as such: it is refused for that already.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// timers checks that every time limit of a section is one; those named may be 0.
func (d *decoder) timers(path string, section any, zero ...string) {
	v := reflect.ValueOf(section).Elem()
	for _, f := range fieldsOf(v.Type()) {
		if f.typ != durationType || v.Field(f.index).Int() != 0 {
			continue
		}
		mayBeZero := false
		for _, z := range zero {
			mayBeZero = mayBeZero || z == f.key
		}
		if !mayBeZero {
			d.add(join(path, f.key), "must be more than 0")
		}
	}
}

func (d *decoder) checkLog(l *Log) {
	switch l.Level {
	case "trace", "debug", "info", "warn", "error":
	default:
		d.unknownWord("log.level", "level", l.Level, "trace", "debug", "info", "warn", "error")
	}
	switch l.Format {
	case "auto", "json", "console":
	default:
		d.unknownWord("log.format", "format", l.Format, "auto", "json", "console")
	}
}
