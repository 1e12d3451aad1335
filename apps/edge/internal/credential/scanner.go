package credential

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
)

// scanned is how much of a body is looked at.
const scanned = 64 << 10

// Scanner looks for a lease's key in what the provider answers to the request that had it: as it is, in JSON,
// percent-encoded, or in base64. What is compressed isn't seen. It is for one goroutine, and after [Lease.Close] it finds
// nothing.
type Scanner struct {
	key  *key // nil = closed
	seen int  // of the body
	held []byte
	room []byte // of what was held and the piece after it
	done bool
}

// Format implements fmt.Formatter: what is held back may be a part of the key, and isn't shown.
func (Scanner) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[scanner]")) }

// Head reports whether any name or value of a header holds the key. Names are compared without regard to case.
func (s *Scanner) Head(h http.Header) bool {
	if s.key == nil {
		return false
	}
	forms := s.key.forms()
	for name, values := range h {
		if len(forms) > 0 && holdsFolded(name, forms[0]) {
			return true
		}
		for _, value := range values {
			if holds(value, forms) {
				return true
			}
		}
	}
	return false
}

// Text reports whether a text holds the key.
func (s *Scanner) Text(text string) bool { return s.key != nil && holds(text, s.key.forms()) }

func holds(text string, forms [][]byte) bool {
	for _, form := range forms {
		for rest := text; ; rest = rest[1:] {
			at := strings.IndexByte(rest, form[0])
			if at < 0 || len(rest)-at < len(form) {
				break
			}
			if rest = rest[at:]; rest[:len(form)] == string(form) {
				return true
			}
		}
	}
	return false
}

// holdsFolded is for names of headers, whose case is changed on their way.
func holdsFolded(name string, form []byte) bool {
	for at := 0; at+len(form) <= len(name); at++ {
		n := 0
		for n < len(form) && lower(name[at+n]) == lower(form[n]) {
			n++
		}
		if n == len(form) {
			return true
		}
	}
	return false
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// Pass takes the next piece of a body and returns what may go on of what there is so far. Of the first 64 KiB it holds back an
// end with which the key may begin; nothing of a key that comes in pieces gets out. After reflected nothing more may go
// on. out is valid until the next call and as long as p is.
func (s *Scanner) Pass(p []byte) (out []byte, reflected bool) {
	if s.done || s.key == nil {
		return p, false
	}
	forms := s.key.forms()
	s.seen += len(p)
	if len(s.held) > 0 {
		s.room = append(append(s.room[:0], s.held...), p...)
		p = s.room
	}
	longest := 0
	for _, form := range forms {
		if bytes.Contains(p, form) {
			s.held = s.held[:0]
			return nil, true
		}
		longest = max(longest, len(form))
	}
	if s.seen >= scanned+longest { // what began within the first 64 KiB is seen to its end
		s.end()
		return p, false
	}
	keep := 0
	for _, form := range forms {
		keep = max(keep, begun(p, form))
	}
	if s.seen >= scanned && keep == 0 {
		s.end()
		return p, false
	}
	out = p[:len(p)-keep]
	s.held = append(s.held[:0], p[len(p)-keep:]...)
	return out, false
}

// begun returns the length of the longest end of p with which form begins.
func begun(p, form []byte) int {
	for tail := p[max(0, len(p)-len(form)+1):]; len(tail) > 0; tail = tail[1:] {
		at := bytes.IndexByte(tail, form[0])
		if at < 0 {
			return 0
		}
		if tail = tail[at:]; bytes.HasPrefix(form, tail) {
			return len(tail)
		}
	}
	return 0
}

// Rest returns what Pass still holds back, at the body's end. It is valid until the next call of Pass.
func (s *Scanner) Rest() []byte {
	rest := s.held
	s.held = nil
	return rest
}

// end stops looking. What was held is in room, which its reader still has.
func (s *Scanner) end() { s.done, s.held = true, nil }

func (s *Scanner) close() {
	clear(s.held)
	s.key, s.held, s.room = nil, nil, nil
}
