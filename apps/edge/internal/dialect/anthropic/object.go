package anthropic

// objectEnd tells when a JSON object that comes in pieces is complete. What isn't an object never is.
type objectEnd struct {
	depth    int
	begun    bool
	other    bool // it began with something else
	inString bool
	escaped  bool
}

func (e *objectEnd) complete() bool { return e.begun && !e.other && e.depth == 0 }

func (e *objectEnd) write(s string) {
	for i := range len(s) {
		c := s[i]
		if !e.begun {
			if isBlank(c) {
				continue
			}
			e.begun, e.other = true, c != '{'
		}
		switch {
		case e.escaped:
			e.escaped = false
		case e.inString:
			e.escaped, e.inString = c == '\\', c != '"'
		case c == '"':
			e.inString = true
		case c == '{' || c == '[':
			e.depth++
		case c == '}' || c == ']':
			e.depth = max(e.depth-1, 0)
		}
	}
}
