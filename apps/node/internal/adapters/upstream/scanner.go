package upstream

// maxCapture is the largest usage object that is read; a larger one is none.
const maxCapture = 4 << 10

// scanner finds usage objects, and the counts that Ollama puts at the top instead, in a JSON text that comes in pieces
// cut anywhere. It follows strings and nesting, and keeps only the key that it reads and the object that it captures,
// so that a text of any size costs the same memory. It takes valid JSON for granted: what isn't valid may be misread,
// and is never more than wasted time.
type scanner struct {
	found   func(object []byte)
	counted func(what keyKind, n int64)

	depth    int  // open objects and arrays
	inString bool //
	escaped  bool // the string's next byte is escaped
	isKey    bool // the string is a key that matters
	wantKey  bool // the next string is a key that matters
	inner    bool // the container at depth 2 is an object in which "usage" may stand
	next     keyKind

	key       [maxKey]byte
	keyLen    int
	capturing int // depth inside the captured object, 0 = nothing is captured
	capture   []byte

	counting keyKind // the number that is being read is this count
	count    int64   // its digits so far, -1 = it is no count
}

type keyKind uint8

const (
	keyOther  keyKind = iota
	keyUsage          // its value is what is looked for
	keyParent         // in its value, what is looked for may stand
	keyInput          // its value is a count
	keyOutput         // the same
)

const maxKey = len("prompt_eval_count")

// maxCount is the largest count that is taken for one.
const maxCount = 1 << 50

// untouched reports whether the scanner is between two texts.
func (s *scanner) untouched() bool { return s.depth == 0 && !s.inString }

// reset forgets a text; the next byte begins a new one.
func (s *scanner) reset() { *s = scanner{found: s.found, counted: s.counted, capture: s.capture[:0]} }

// write takes the next piece of the text.
func (s *scanner) write(p []byte) {
	from := 0
	for i := 0; i < len(p); {
		if s.inString {
			i = s.str(p, i)
			continue
		}
		if number(p[i]) { // most of an embedding
			begin := i
			for i++; i < len(p) && number(p[i]); i++ {
			}
			if s.counting != keyOther || s.next >= keyInput {
				s.digits(p[begin:i])
			}
			s.next = keyOther
			continue
		}
		if s.counting != keyOther {
			s.endCount(p[i])
		}
		before := s.capturing
		s.value(p[i])
		i++
		switch {
		case before == 0 && s.capturing > 0:
			from = i - 1
		case before > 0 && s.capturing == 0:
			if s.keep(p[from:i]) {
				s.found(s.capture)
			}
			s.capture = s.capture[:0]
		}
	}
	if s.capturing > 0 {
		s.keep(p[from:])
	}
}

// number reports whether c is a digit, a sign or a point.
func number(c byte) bool { return '+' <= c && c <= '9' && c != ',' }

// digits takes digits of a count.
func (s *scanner) digits(p []byte) {
	if s.counting == keyOther {
		s.counting, s.count = s.next, 0
	}
	for _, c := range p {
		if c < '0' || c > '9' || s.count < 0 || s.count > maxCount {
			s.count = -1
			return
		}
		s.count = 10*s.count + int64(c-'0')
	}
}

// endCount tells a count, if what follows its digits ends a number.
func (s *scanner) endCount(next byte) {
	switch next {
	case ',', '}', ' ', '\t', '\r', '\n':
		if s.count >= 0 {
			s.counted(s.counting, s.count)
		}
	}
	s.counting = keyOther
}

// keep appends to the capture; one that grows too large is given up.
func (s *scanner) keep(p []byte) bool {
	if len(s.capture)+len(p) > maxCapture {
		s.capturing = 0
		s.capture = s.capture[:0]
		return false
	}
	s.capture = append(s.capture, p...)
	return true
}

// str takes bytes of a string and returns the index of the first one not taken.
func (s *scanner) str(p []byte, i int) int {
	if s.escaped {
		s.escaped = false
		s.keyLen = maxKey + 1 // no key that matters is escaped
		return i + 1
	}
	from := i
	for i < len(p) && p[i] != '"' && p[i] != '\\' {
		i++
	}
	if s.isKey {
		s.addKey(p[from:i])
	}
	if i == len(p) {
		return i
	}
	if p[i] == '\\' {
		s.escaped = true
		return i + 1
	}
	s.inString = false
	return i + 1
}

func (s *scanner) addKey(p []byte) {
	if s.keyLen+len(p) > maxKey {
		s.keyLen = maxKey + 1
		return
	}
	s.keyLen += copy(s.key[s.keyLen:], p)
}

// value takes one byte outside a string.
func (s *scanner) value(c byte) {
	switch c {
	case '"':
		s.inString, s.isKey, s.keyLen = true, s.wantKey, 0
		s.next = keyOther
	case ':':
		if s.isKey {
			s.next = s.kind()
			s.isKey, s.wantKey = false, false
		}
	case ',':
		s.next = keyOther
		s.wantKey = s.watched()
	case '{', '[':
		s.open(c)
	case '}', ']':
		s.close()
	case ' ', '\t', '\r', '\n':
	default:
		s.next = keyOther
	}
}

// watched reports whether the keys of the innermost container matter. At depth 1 they do even if it is an array, where
// no string is followed by a colon.
func (s *scanner) watched() bool {
	return s.capturing == 0 && (s.depth == 1 || s.depth == 2 && s.inner)
}

func (s *scanner) kind() keyKind {
	if s.keyLen > maxKey {
		return keyOther
	}
	switch key := string(s.key[:s.keyLen]); {
	case key == "usage":
		return keyUsage
	case s.depth != 1:
	case key == "response" || key == "message":
		return keyParent
	case key == "prompt_eval_count":
		return keyInput
	case key == "eval_count":
		return keyOutput
	}
	return keyOther
}

func (s *scanner) open(c byte) {
	s.depth++
	switch {
	case s.capturing > 0:
		s.capturing++
	case c == '{' && s.next == keyUsage:
		s.capturing = 1
	case s.depth == 2:
		s.inner = c == '{' && s.next == keyParent
	}
	s.next = keyOther
	s.wantKey = c == '{' && s.watched()
}

func (s *scanner) close() {
	if s.depth == 0 {
		return
	}
	s.depth--
	if s.capturing > 0 {
		s.capturing--
	}
	if s.depth < 2 {
		s.inner = false
	}
	s.next, s.wantKey = keyOther, false
}
