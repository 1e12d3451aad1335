package httpapi

import (
	"errors"
	"fmt"
)

// The part of the scanner that checks values which nobody needs. It accepts exactly what encoding/json accepts.

// syntax is the error for the byte that was just taken.
func (s *scanner) syntax() error {
	return &scanError{text: fmt.Sprintf("request body: invalid JSON at byte %d", s.offset()-1)}
}

// cut turns the end of the text, where more is due, into the caller's error; a read error stays what it is.
func (s *scanner) cut(err error) error {
	if errors.Is(err, errCut) {
		return &scanError{text: fmt.Sprintf("request body: the JSON ends too early, at byte %d", s.offset())}
	}
	return err
}

// value checks one value whose first byte is c, inside outer open containers.
func (s *scanner) value(c byte, outer int) error {
	s.depth = s.depth[:0]
	for {
		ended := true
		switch c {
		case '{', '[':
			if len(s.depth)+outer == maxDepth {
				return &scanError{text: fmt.Sprintf("request body: nested deeper than %d", maxDepth)}
			}
			s.depth = append(s.depth, c)
			var err error
			if c, ended, err = s.open(c); err != nil {
				return err
			}
		default:
			if err := s.scalar(c); err != nil {
				return err
			}
		}
		if ended {
			more, err := s.closeUp()
			if err != nil || !more {
				return err
			}
			if c, err = s.token(); err != nil {
				return s.cut(err)
			}
		}
	}
}

// open looks into a container that was just entered: it is empty and left again, or first is its first value's byte.
func (s *scanner) open(kind byte) (first byte, empty bool, err error) {
	c, err := s.token()
	if err != nil {
		return 0, false, s.cut(err)
	}
	if c == kind+2 { // '}' is '{'+2, ']' is '['+2
		s.depth = s.depth[:len(s.depth)-1]
		return 0, true, nil
	}
	if kind == '[' {
		return c, false, nil
	}
	if err := s.key(c); err != nil {
		return 0, false, err
	}
	c, err = s.token()
	return c, false, s.cut(err)
}

// key checks a key, whose first byte is c, and the colon behind it.
func (s *scanner) key(c byte) error {
	if c != '"' {
		return s.syntax()
	}
	if _, err := s.text(0); err != nil {
		return err
	}
	return s.expect(':')
}

// closeUp leaves the containers that end after a value; more says that another value follows.
func (s *scanner) closeUp() (more bool, err error) {
	for len(s.depth) > 0 {
		kind := s.depth[len(s.depth)-1]
		c, err := s.token()
		switch {
		case err != nil:
			return false, s.cut(err)
		case c == ',' && kind == '[':
			return true, nil
		case c == ',':
			if c, err = s.token(); err != nil {
				return false, s.cut(err)
			}
			return true, s.key(c)
		case c != kind+2:
			return false, s.syntax()
		}
		s.depth = s.depth[:len(s.depth)-1]
	}
	return false, nil
}

func (s *scanner) scalar(c byte) error {
	switch c {
	case '"':
		_, err := s.text(0)
		return err
	case 't':
		return s.literal("rue")
	case 'f':
		return s.literal("alse")
	case 'n':
		return s.literal("ull")
	}
	return s.number(c)
}

func (s *scanner) literal(rest string) error {
	for i := range len(rest) {
		c, err := s.next()
		if err != nil {
			return s.cut(err)
		}
		if c != rest[i] {
			return s.syntax()
		}
	}
	return nil
}

// number checks a number whose first byte is c. It ends before the first byte that can't belong to it.
func (s *scanner) number(c byte) error {
	var err error
	if c == '-' {
		if c, err = s.next(); err != nil {
			return s.cut(err)
		}
	}
	switch {
	case c == '0':
	case '1' <= c && c <= '9':
		s.digits()
	default:
		return s.syntax()
	}
	if c, ok := s.peek(); ok && c == '.' {
		s.pos++
		if err := s.fraction(); err != nil {
			return err
		}
	}
	if c, ok := s.peek(); ok && (c == 'e' || c == 'E') {
		s.pos++
		if c, ok := s.peek(); ok && (c == '+' || c == '-') {
			s.pos++
		}
		return s.fraction()
	}
	return nil
}

// fraction takes one digit or more.
func (s *scanner) fraction() error {
	c, err := s.next()
	if err != nil {
		return s.cut(err)
	}
	if c < '0' || c > '9' {
		return s.syntax()
	}
	s.digits()
	return nil
}

func (s *scanner) digits() {
	for {
		c, ok := s.peek()
		if !ok || c < '0' || c > '9' {
			return
		}
		s.pos++
	}
}

// peek shows the next byte without taking it; not ok at the end of the text, whose cause the next take tells.
func (s *scanner) peek() (byte, bool) {
	if s.pos == len(s.piece) && s.fill() != nil {
		return 0, false
	}
	return s.piece[s.pos], true
}

// text checks a string after its opening quote and keeps its raw spelling in kept when that has at most limit bytes;
// short says that it was kept whole.
func (s *scanner) text(limit int) (short bool, err error) {
	s.kept, short = s.kept[:0], true
	for {
		run := s.piece[s.pos:]
		n := 0
		for n < len(run) && run[n] >= ' ' && run[n] != '"' && run[n] != '\\' {
			n++
		}
		s.pos += n
		short = s.keep(run[:n], limit) && short
		c, err := s.next()
		switch {
		case err != nil:
			return false, s.cut(err)
		case c == '"':
			return short, nil
		case c == '\\':
			if err := s.escape(limit, &short); err != nil {
				return false, err
			}
		case c < ' ':
			return false, s.syntax()
		default: // the first byte of the next piece
			s.pos--
		}
	}
}

func (s *scanner) keep(p []byte, limit int) bool {
	if len(s.kept)+len(p) > limit {
		return false
	}
	s.kept = append(s.kept, p...)
	return true
}

// escape checks what follows a backslash.
func (s *scanner) escape(limit int, short *bool) error {
	c, err := s.next()
	if err != nil {
		return s.cut(err)
	}
	raw := append(make([]byte, 0, 6), '\\', c)
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
	case 'u':
		for range 4 {
			if c, err = s.next(); err != nil {
				return s.cut(err)
			}
			if !isHex(c) {
				return s.syntax()
			}
			raw = append(raw, c)
		}
	default:
		return s.syntax()
	}
	*short = s.keep(raw, limit) && *short
	return nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
