package dialect

import (
	"strconv"
	"strings"
)

// Names are what an API calls the places of a run, so that what an adapter refuses can be told in the caller's words.
type Names struct {
	// Messages is where each message of the run stands in the body.
	Messages []string
	// Words are the API's words for others, by the run's own names without numbers: "stop", "messages.parts",
	// "messages.tool_calls.arguments".
	Words map[string]string
}

// Of returns what the API calls a place of the run, as in "messages[2].parts[0]". What has no word of its own is the
// same.
func (n *Names) Of(place string) string {
	head, rest, deeper := strings.Cut(place, ".")
	path, number, _ := strings.Cut(strings.TrimSuffix(head, "]"), "[")
	if word, known := n.Words[path]; known {
		return word
	}
	if i, err := strconv.Atoi(number); err == nil && path == "messages" && i < len(n.Messages) {
		head = n.Messages[i]
	}
	for deeper {
		var member string
		member, rest, deeper = strings.Cut(rest, ".")
		name, _, _ := strings.Cut(member, "[")
		path += "." + name
		if word, known := n.Words[path]; known {
			member = word
		}
		head = Join(head, member)
	}
	return head
}

// Place splits the text with which a run is refused, as in "options: seed: must be …" or "messages[2].parts[0]: …", into
// the place that it names and the rest. The place is "" when it names none.
func Place(text string) (place, why string) {
	text = strings.TrimPrefix(text, "options: ")
	for {
		name, rest, more := strings.Cut(text, ": ")
		if !more || !isPlace(name) {
			return place, text
		}
		if place != "" {
			name = Join(place, name)
		}
		place, text = name, rest
	}
}

// isPlace reports whether s can be a place, which no sentence can: it has no blanks.
func isPlace(s string) bool {
	return s != "" && 'a' <= s[0] && s[0] <= 'z' &&
		!strings.ContainsFunc(s, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("_.[]", r)
		})
}
