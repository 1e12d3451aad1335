package credential

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
)

// formsOf returns the ways in which an answer may repeat a key: as it is first, then as a percent-encoding, within JSON or HTML, and
// within base64 of a longer text, as "Bearer KEY" would be. Each is in memory of its own, made for it alone.
func formsOf(value []byte) [][]byte {
	forms := [][]byte{bytes.Clone(value)}
	add := func(form []byte) {
		for _, known := range forms {
			if bytes.Equal(known, form) {
				clear(form)
				return
			}
		}
		forms = append(forms, form)
	}
	for _, plain := range []string{"", "$&+=:@", "$&+=:@/", "!'()*", ";/?:@&=+$,#!'()*"} { // a query, a path segment, a path, JavaScript's two
		add(escaped(value, percent("%%%02X", plain)))
		add(escaped(value, percent("%%%02x", plain)))
	}
	add(escaped(value, inJSON("", "")))
	add(escaped(value, inJSON("/", "")))
	add(escaped(value, inJSON("", "<>&")))
	add(escaped(value, inJSON("", "<>&='"))) // as Gson does
	add(escaped(value, inHTML("")))
	add(escaped(value, inHTML("+"))) // as html/template does
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			add(within(encoding, before, value))
		}
	}
	return forms
}

// escaped writes each byte as escape says; "" leaves it as it is.
func escaped(value []byte, escape func(c byte) string) []byte {
	size := 0
	for _, c := range value {
		size += max(1, len(escape(c)))
	}
	out := make([]byte, 0, size)
	for _, c := range value {
		if e := escape(c); e != "" {
			out = append(out, e...)
		} else {
			out = append(out, c)
		}
	}
	return out
}

// percent escapes what isn't unreserved in a URL, nor left alone by who writes it.
func percent(format, plain string) func(byte) string {
	return func(c byte) string {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~", c) >= 0, strings.IndexByte(plain, c) >= 0:
			return ""
		}
		return fmt.Sprintf(format, c)
	}
}

// inJSON escapes what has to be in a string, what some put a backslash before, and what some write as a number.
func inJSON(backslash, number string) func(byte) string {
	return func(c byte) string {
		switch {
		case c == '"', c == '\\', strings.IndexByte(backslash, c) >= 0:
			return `\` + string(c)
		case strings.IndexByte(number, c) >= 0:
			return fmt.Sprintf(`\u%04x`, c)
		}
		return ""
	}
}

// inHTML escapes what has a meaning in HTML, and what else some write as a number. Quotes are written in numbers by most.
func inHTML(number string) func(byte) string {
	return func(c byte) string {
		switch {
		case c == '&':
			return "&amp;"
		case c == '<':
			return "&lt;"
		case c == '>':
			return "&gt;"
		case c == '"', c == '\'', strings.IndexByte(number, c) >= 0:
			return fmt.Sprintf("&#%d;", c)
		}
		return ""
	}
}

// within is what all base64 texts have in common that encode the value after as many bytes of something else, counted
// modulo 3, whatever follows it.
func within(encoding *base64.Encoding, before int, value []byte) []byte {
	padded := make([]byte, before+len(value))
	copy(padded[before:], value)
	all := make([]byte, encoding.EncodedLen(len(padded)))
	encoding.Encode(all, padded)
	clear(padded)
	const bits, byteBits = 6, 8 // a character has 6 bits; one that isn't of the value alone is left out
	first, end := (before*byteBits+bits-1)/bits, len(padded)*byteBits/bits
	form := bytes.Clone(all[first:end])
	clear(all)
	return form
}
