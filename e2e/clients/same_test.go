package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// same writes everything that a client saw, with what must differ from one request to the next put out of the way: times
// and durations become words, and ids are numbered as they come, so that one that changes within an answer still shows.
func same(t *testing.T, a answer) string {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	v, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.MarshalIndent(plain(v, "", map[string]string{}), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

var (
	ids       = regexp.MustCompile(`^((chatcmpl|cmpl|msg|call|toolu|resp|rs|fc|req|run)[-_][A-Za-z0-9_-]+|[A-Za-z0-9]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)
	moments   = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d`)
	requests  = regexp.MustCompile(`req_[0-9a-f]{24}`) // within the text of an error
	durations = regexp.MustCompile(`^created(_at|At)?$|^completed_at$|_duration$|_ms$|_per_second$`)
)

func decode(text []byte) (v any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err = decoder.Decode(&v)
	return v, err
}

// plain replaces ids, times and durations below v, which stands under key.
func plain(v any, key string, seen map[string]string) any {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			v[key] = plain(v[key], key, seen)
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i], key, seen)
		}
	case string:
		switch object, err := decode([]byte(v)); {
		case err == nil && strings.HasPrefix(v, "{"): // arguments, whose members Ollama writes in any order, or an error's body
			return plain(object, key, seen)
		case key == "parameters" || key == "modelfile": // an Ollama shows them in any order
			lines := strings.Split(v, "\n")
			slices.Sort(lines)
			return strings.Join(lines, "\n")
		case moments.MatchString(v):
			return "a time"
		case ids.MatchString(v):
			if seen[v] == "" {
				seen[v] = fmt.Sprintf("id %d", len(seen)+1)
			}
			return seen[v]
		}
		return requests.ReplaceAllString(v, "a request")
	case json.Number:
		if durations.MatchString(key) {
			return "a time"
		}
	}
	return v
}

// difference shows where two texts part.
func difference(got, want string) string {
	gots, wants := strings.Split(got, "\n"), strings.Split(want, "\n")
	at := 0
	for at < len(gots) && at < len(wants) && gots[at] == wants[at] {
		at++
	}
	around := func(lines []string) string {
		return strings.Join(lines[min(max(0, at-4), len(lines)):min(at+12, len(lines))], "\n")
	}
	return fmt.Sprintf("from line %d, through the edge:\n%s\ndirectly:\n%s", at+1, around(gots), around(wants))
}
