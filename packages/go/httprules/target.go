package httprules

import (
	"errors"
	"strings"
)

// MaxPath is the longest path that is passed on, in bytes.
const MaxPath = 4 << 10

// The ways in which a target is refused. The text never repeats what was refused.
var (
	ErrPathForm    = errors.New("path must begin with one slash and be at most 4096 bytes")
	ErrPathByte    = errors.New("path holds a character that is not allowed in a path")
	ErrPathEscape  = errors.New("path holds an escape that is broken or hides a separator, a dot or a control character")
	ErrPathSegment = errors.New("path holds an empty or a dot segment")
	ErrQuery       = errors.New("query holds a character that is not allowed in a query")
)

// CheckTarget refuses every path that two programs could read differently: the allow-list sees the raw path, and so
// will the provider, which may unescape, merge slashes, resolve dots or strip parameters before it routes. What
// passes is origin-form, ASCII, without empty or dot segments and without an escape that hides one. rawQuery is passed
// on as it is, so only what could end the request line is refused. (HT-15, E32)
func CheckTarget(rawPath, rawQuery string) error {
	if rawPath == "" || rawPath[0] != '/' || len(rawPath) > MaxPath {
		return ErrPathForm
	}
	for i := 0; i < len(rawPath); i++ {
		switch c := rawPath[i]; {
		case c == '%':
			if !plainEscape(rawPath[i:]) {
				return ErrPathEscape
			}
			i += 2
		case !pathByte(c):
			return ErrPathByte
		}
	}
	for segment := range strings.SplitSeq(rawPath[1:], "/") {
		// A last empty segment is a trailing slash; a path of nothing but "/" is one too.
		if strings.Trim(segment, ".") == "" && (segment != "" || !strings.HasSuffix(rawPath, "/")) {
			return ErrPathSegment
		}
	}
	if strings.Contains(rawPath, "//") {
		return ErrPathSegment
	}
	return checkQuery(rawQuery)
}

// plainEscape reports whether s begins with an escape of a byte that means nothing to a router.
func plainEscape(s string) bool {
	if len(s) < 3 {
		return false
	}
	hi, ok1 := unhex(s[1])
	lo, ok2 := unhex(s[2])
	if !ok1 || !ok2 {
		return false
	}
	c := hi<<4 | lo
	return c > ' ' && c < 0x7f && strings.IndexByte(`./\%;?#`, c) < 0
}

func unhex(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// pathByte reports whether c may stand unescaped in a path: RFC 3986's pchar and the slash, but no semicolon, which
// some servers cut off together with what follows it.
func pathByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("/-._~!$&'()*+,=:@", c) >= 0
}

func checkQuery(q string) error {
	for i := range len(q) {
		if c := q[i]; c <= ' ' || c >= 0x7f || c == '#' {
			return ErrQuery
		}
	}
	return nil
}
