package httpapi

import (
	"strings"

	"iop/packages/go/httprules"
)

// modelPath is the one prefix behind which names stand that aren't ours: model names have slashes, clients escape them,
// and nothing of them leaves the edge in a path.
const modelPath = modelsPath + "/"

const modelsPath = "/v1/models"

// splitTarget checks a raw request target before anything is routed by it, and splits it at the question mark. What
// two programs could read differently is refused, whatever a path means today: the targets that absolute URLs,
// backslashes, doubled slashes, dot segments and escapes make (HT-15, CR-09). A tunnel then takes the path of its table
// row, never one that a caller composed.
func splitTarget(raw string) (path, query string, ref *refusal) {
	path, query, _ = strings.Cut(raw, "?")
	checked, name := path, ""
	if rest, ok := strings.CutPrefix(path, modelPath); ok {
		checked, name = modelPath, rest
	}
	if err := httprules.CheckTarget(checked, query); err != nil {
		return "", "", badRequest("", "request target: "+err.Error())
	}
	if name != "" {
		if _, ok := unescapeModel(name); !ok {
			return "", "", badRequest("", "request target: the model's name is not one, or badly escaped")
		}
	}
	return path, query, nil
}

// unescapeModel decodes the name behind /v1/models/, once. What would be a path of its own with a dot or an empty
// segment, or is still escaped afterwards, is refused.
func unescapeModel(raw string) (string, bool) {
	var out strings.Builder
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c <= ' ' || c >= 0x7f || c == '\\' || c == '#' {
			return "", false
		}
		if c == '%' {
			if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
				return "", false
			}
			c = unhex(raw[i+1])<<4 | unhex(raw[i+2])
			i += 2
			if c == '%' || c == '\\' {
				return "", false
			}
		}
		out.WriteByte(c)
	}
	name := out.String()
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || strings.Trim(segment, ".") == "" {
			return "", false
		}
	}
	return name, validModel(name)
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
