package dialect

import (
	"bytes"
	"encoding/json"
)

// walker goes through one JSON object or list that has been checked to be valid, and gives out its pieces where they
// stand. Nothing is copied: a body with pictures is large, and each of its levels is read once more.
type walker struct {
	raw   []byte
	pos   int
	begun bool // an element was taken, so a comma is due before the next
}

// open takes the bracket that a value begins with; false = it begins otherwise.
func (w *walker) open(bracket byte) bool {
	if w.peek() != bracket {
		return false
	}
	w.pos++
	return true
}

// more reports whether another element stands before the closing bracket, and goes there.
func (w *walker) more(closing byte) bool {
	c := w.peek()
	if w.begun && c == ',' {
		w.pos++
		c = w.peek()
	}
	w.begun = true
	return c != closing && c != 0
}

// name takes a member's name and the colon behind it.
func (w *walker) name() string {
	raw := w.value()
	if w.peek() == ':' {
		w.pos++
	}
	if len(raw) >= 2 && bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var name string
	if json.Unmarshal(raw, &name) != nil {
		return ""
	}
	return name
}

// value takes the next value without the blanks around it.
func (w *walker) value() []byte {
	w.peek()
	start := w.pos
	for depth := 0; w.pos < len(w.raw); {
		switch c := w.raw[w.pos]; c {
		case '"':
			w.string()
		case '{', '[':
			depth++
			w.pos++
			continue
		case '}', ']':
			depth--
			w.pos++
		case ',', ':', ' ', '\t', '\r', '\n':
			w.pos++
			continue
		default:
			w.word()
		}
		if depth <= 0 {
			break
		}
	}
	return w.raw[start:w.pos]
}

// string goes behind the text that begins here.
func (w *walker) string() {
	for w.pos++; w.pos < len(w.raw); {
		i := bytes.IndexByte(w.raw[w.pos:], '"')
		if i < 0 {
			w.pos = len(w.raw)
			return
		}
		end := w.pos + i
		w.pos = end + 1
		escapes := 0
		for escapes < i && w.raw[end-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return
		}
	}
}

// word goes behind the number, true, false or null that begins here.
func (w *walker) word() {
	for w.pos < len(w.raw) && bytes.IndexByte([]byte(",:]} \t\r\n"), w.raw[w.pos]) < 0 {
		w.pos++
	}
}

// peek goes to the next byte that isn't blank and returns it, 0 = there is none.
func (w *walker) peek() byte {
	for ; w.pos < len(w.raw); w.pos++ {
		switch c := w.raw[w.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// Values returns how many values a JSON text has at least one bracket or comma for: what is read of it takes memory for
// each of them, and of a value of one byte much more than its own length. The text needn't be valid.
func Values(raw []byte) int64 {
	n := int64(1)
	for w := (walker{raw: raw}); w.pos < len(raw); {
		switch raw[w.pos] {
		case '"':
			w.string()
			continue
		case ',', '{', '[':
			n++
		}
		w.pos++
	}
	return n
}
