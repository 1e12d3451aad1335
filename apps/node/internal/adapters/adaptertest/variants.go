package adaptertest

import (
	"bytes"
	"strings"

	"iop/apps/node/internal/adapters/sse"
)

// SSEVariants writes an event stream in the other forms that the WHATWG allows, by their names. Data is split over two
// lines where JSON allows a line end. (ST-07)
func SSEVariants(stream []byte) map[string][]byte {
	var events []sse.Event
	r := sse.New(0, func(e sse.Event) error {
		events = append(events, sse.Event{Name: e.Name, Data: bytes.Clone(e.Data)})
		return nil
	})
	if err := r.Feed(stream); err != nil || len(events) == 0 {
		return nil // it isn't one
	}
	out := map[string][]byte{}
	for name, form := range map[string]struct {
		begin, colon, end, before string
		split                     bool
	}{
		"LF":               {"", ": ", "\n", "", false},
		"CRLF":             {"", ": ", "\r\n", "", false},
		"CR":               {"", ": ", "\r", "", false},
		"no blank":         {"", ":", "\n", "", false},
		"two data lines":   {"", ": ", "\n", "", true},
		"two, CRLF, tight": {"", ":", "\r\n", "", true},
		"mark, comments":   {"\ufeff", ": ", "\n", ": ping\n\nid: 7\nretry: 10\n:\n", false},
	} {
		var b strings.Builder
		b.WriteString(form.begin)
		for _, e := range events {
			b.WriteString(form.before)
			if e.Name != "" {
				b.WriteString("event" + form.colon + e.Name + form.end)
			}
			for _, line := range dataLines(string(e.Data), form.split) {
				b.WriteString("data" + form.colon + line + form.end)
			}
			b.WriteString(form.end)
		}
		out[name] = []byte(b.String())
	}
	return out
}

// dataLines returns the lines that data is written as; split breaks it after its first comma outside a string.
func dataLines(data string, split bool) []string {
	inString := false
	for i := 0; split && i < len(data); i++ {
		switch c := data[i]; {
		case c == '\\' && inString:
			i++
		case c == '"':
			inString = !inString
		case c == ',' && !inString:
			return append(strings.Split(data[:i+1], "\n"), strings.Split(data[i+1:], "\n")...)
		}
	}
	return strings.Split(data, "\n")
}
