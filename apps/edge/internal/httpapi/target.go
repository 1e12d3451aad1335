package httpapi

import "strings"

// modelPath is the only place where a percent sign may stand in a path: model names have slashes, clients escape them,
// and nothing behind it leaves the edge.
const modelPath = "/v1/models/"

// splitTarget checks a raw request target before anything is routed by it, and splits it at the question mark. What
// two programs could read differently is refused, whatever a path means today: the targets that absolute URLs,
// backslashes, doubled slashes, dot segments and escapes make (HT-15, CR-09). A tunnel then takes the path of its table
// row, never one that a caller composed.
func splitTarget(raw string) (path, query string, ref *refusal) {
	if raw == "" || raw[0] != '/' {
		return "", "", badTarget("it must start with a slash")
	}
	for i := range len(raw) {
		switch c := raw[i]; {
		case c <= ' ' || c >= 0x7f:
			return "", "", badTarget("it has a blank, a control character or a byte outside ASCII")
		case c == '\\' || c == '#':
			return "", "", badTarget("it has a backslash or a number sign")
		}
	}
	path, query, _ = strings.Cut(raw, "?")
	if text := checkPath(path); text != "" {
		return "", "", badTarget(text)
	}
	return path, query, nil
}

func badTarget(text string) *refusal { return badRequest("", "request target: "+text) }

// checkPath returns what is wrong with a path of printable ASCII.
func checkPath(path string) string {
	rest, isModel := strings.CutPrefix(path, modelPath)
	if !isModel {
		if strings.IndexByte(path, '%') >= 0 {
			return "its path is escaped; no path here needs that"
		}
		rest = path[1:]
	} else {
		decoded, ok := unescapeModel(rest)
		if !ok {
			return "its model name is badly escaped"
		}
		rest = decoded
	}
	if rest == "" {
		return ""
	}
	// One slash at the end makes an unknown path, but a clear one.
	for segment := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), "/") {
		name, _, _ := strings.Cut(segment, ";") // servlet containers drop what follows
		if segment == "" || name == "." || name == ".." {
			return "its path has an empty segment or a dot segment"
		}
	}
	return ""
}

// unescapeModel decodes the name behind /v1/models/ once. What is still escaped afterwards is refused.
func unescapeModel(raw string) (string, bool) {
	if strings.IndexByte(raw, '%') < 0 {
		return raw, true
	}
	var out strings.Builder
	for i := 0; i < len(raw); i++ {
		if raw[i] != '%' {
			out.WriteByte(raw[i])
			continue
		}
		if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
			return "", false
		}
		c := unhex(raw[i+1])<<4 | unhex(raw[i+2])
		if c == '%' || c == '\\' || c < ' ' || c == 0x7f {
			return "", false
		}
		out.WriteByte(c)
		i += 2
	}
	return out.String(), validModel(out.String())
}

func unhex(c byte) byte {
	switch {
	case c >= 'a':
		return c - 'a' + 10
	case c >= 'A':
		return c - 'A' + 10
	}
	return c - '0'
}
