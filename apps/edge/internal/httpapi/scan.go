package httpapi

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

const (
	maxModelName = 256   // bytes of a model name after decoding
	maxDepth     = 10000 // nesting that encoding/json takes; deeper bodies are refused there too
	scanPiece    = 32 << 10
	longestKey   = 64 // raw bytes of a key that are kept; "model" with every letter escaped has 30
)

// request is what the surface must know of a JSON request body. Everything else in it is the provider's business.
type request struct {
	model      string // decoded
	start, end int64  // the bytes of the model's value in the body, quotes included
	stream     bool   // "stream": true
	background bool   // background is neither false nor null
}

// scanError says why a body isn't a request. Its text never holds bytes of the body.
type scanError struct {
	param string // the field at fault, "" = the body as a whole
	text  string
}

// Error implements error.
func (e *scanError) Error() string { return e.text }

var errCut = errors.New("the JSON ends too early")

// scanner walks a JSON text once, checks all of its syntax and keeps nothing but the top-level model, stream and background. It
// reads piece by piece, so that a body on disk is never loaded whole.
type scanner struct {
	src   io.Reader // nil = all of the text is in piece
	piece []byte
	pos   int   // in piece, the next byte
	base  int64 // offset of piece in the body
	depth []byte
	kept  []byte // raw spelling of the last short string
}

// scan reads the request in a body.
func scan(b *body) (request, error) {
	s := scanner{piece: b.memory}
	if b.file != nil {
		s.src, s.piece = io.NewSectionReader(b.file, 0, b.size), make([]byte, 0, scanPiece)
	}
	return s.request()
}

func (s *scanner) request() (request, error) {
	var q request
	c, err := s.token()
	if err != nil {
		if errors.Is(err, errCut) {
			return q, &scanError{text: "request body: empty where a JSON object is due"}
		}
		return q, err
	}
	if c != '{' {
		// The syntax error of a text that is no JSON at all helps more than "not an object".
		if err := s.value(c, 0); err != nil {
			return q, err
		}
		return q, &scanError{text: "request body: not a JSON object"}
	}
	if err := s.members(&q); err != nil {
		return q, err
	}
	if _, err := s.token(); !errors.Is(err, errCut) {
		if err != nil {
			return q, err
		}
		return q, &scanError{text: "request body: data after the JSON object"}
	}
	if q.model == "" {
		return q, &scanError{param: "model", text: "request body: no model; name one that GET /v1/models lists"}
	}
	return q, nil
}

// members reads the rest of the top-level object after its brace.
func (s *scanner) members(q *request) error {
	c, err := s.token()
	if err != nil {
		return s.cut(err)
	}
	if c == '}' {
		return nil
	}
	for {
		if c != '"' {
			return s.syntax()
		}
		if err := s.member(q); err != nil {
			return err
		}
		if c, err = s.token(); err != nil {
			return s.cut(err)
		}
		if c == '}' {
			return nil
		}
		if c != ',' {
			return s.syntax()
		}
		if c, err = s.token(); err != nil {
			return s.cut(err)
		}
	}
}

// member reads one key, after its quote, and its value.
func (s *scanner) member(q *request) error {
	short, err := s.text(longestKey)
	if err != nil {
		return err
	}
	var key string
	if short {
		key = decode(s.kept)
	}
	if err := s.expect(':'); err != nil {
		return err
	}
	c, err := s.token()
	if err != nil {
		return s.cut(err)
	}
	switch {
	case key == "model":
		return s.model(q, c)
	case strings.EqualFold(key, "model"):
		// Providers written in Go take "Model" for "model": it would run what the caller wasn't checked for.
		return &scanError{param: "model", text: `request body: a key that differs from "model" only in case; spell it "model"`}
	case key == "stream":
		q.stream = c == 't'
	case strings.EqualFold(key, "background"):
		q.background = q.background || c != 'f' && c != 'n' // some providers take 1 and "yes" for true
	}
	return s.value(c, 1)
}

func (s *scanner) model(q *request, c byte) error {
	if q.model != "" {
		return &scanError{param: "model", text: "request body: model is given twice"}
	}
	if c != '"' {
		if err := s.value(c, 1); err != nil {
			return err
		}
		return &scanError{param: "model", text: "request body: model is not a string"}
	}
	start := s.offset() - 1
	short, err := s.text(6 * maxModelName)
	if err != nil {
		return err
	}
	name := decode(s.kept)
	switch {
	case !short || len(name) > maxModelName:
		return &scanError{param: "model", text: "request body: model is longer than 256 bytes"}
	case name == "":
		return &scanError{param: "model", text: "request body: model is empty"}
	case !validModel(name):
		return &scanError{param: "model", text: "request body: model has a control character or is not valid UTF-8"}
	}
	q.model, q.start, q.end = name, start, s.offset()
	return nil
}

// validModel reports whether a name can travel to a node and into a log line. U+FFFD stands for what couldn't be
// decoded.
func validModel(name string) bool {
	if !utf8.ValidString(name) || len(name) > maxModelName || name == "" {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError })
}

// decode returns the string that a checked raw spelling stands for.
func decode(raw []byte) string {
	if strings.IndexByte(string(raw), '\\') < 0 && utf8.Valid(raw) {
		return string(raw)
	}
	quoted := make([]byte, 0, len(raw)+2)
	quoted = append(append(append(quoted, '"'), raw...), '"')
	var text string
	if err := json.Unmarshal(quoted, &text); err != nil {
		return "\uFFFD" // not a checked spelling after all: no name either
	}
	return text
}

// offset is the place in the body of the next byte.
func (s *scanner) offset() int64 { return s.base + int64(s.pos) }

// next takes one byte; errCut at the end of the text.
func (s *scanner) next() (byte, error) {
	if s.pos == len(s.piece) {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	c := s.piece[s.pos]
	s.pos++
	return c, nil
}

func (s *scanner) fill() error {
	if s.src == nil {
		return errCut
	}
	s.base += int64(len(s.piece))
	s.piece, s.pos = s.piece[:0], 0
	for {
		n, err := s.src.Read(s.piece[:cap(s.piece)])
		if n > 0 {
			s.piece = s.piece[:n]
			return nil
		}
		if err == io.EOF {
			return errCut
		}
		if err != nil {
			return err
		}
	}
}

// token takes the next byte that isn't white space.
func (s *scanner) token() (byte, error) {
	for {
		c, err := s.next()
		if err != nil {
			return 0, err
		}
		switch c {
		case ' ', '\t', '\r', '\n':
		default:
			return c, nil
		}
	}
}

func (s *scanner) expect(want byte) error {
	c, err := s.token()
	if err != nil {
		return s.cut(err)
	}
	if c != want {
		return s.syntax()
	}
	return nil
}
