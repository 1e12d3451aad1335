package fakeprovider

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

// chats are the recorded chats of a dialect that were answered.
func chats(t *testing.T, path string) []*Fixture {
	t.Helper()
	list, err := LoadFixtures(func(method, p string) bool { return method == "POST" && p == path })
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(f *Fixture) bool {
		status, _, _, _, err := f.Answer()
		return err != nil || status != 200
	})
}

var chatPaths = map[string]int{"/v1/chat/completions": 40, "/v1/messages": 8, "/api/chat": 11, "/api/generate": 3}

// What real providers understood is understood here, but for what nobody but they have.
func TestRecordedRequestsAreUnderstood(t *testing.T) {
	for path, least := range chatPaths {
		read := 0
		for _, f := range chats(t, path) {
			_, body, err := f.Parsed()
			if err != nil {
				t.Fatal(f.Name, err)
			}
			q, err := DialectOf(path).Read(body)
			switch _, name, _ := strings.Cut(f.Name, "/"); {
			case strings.Contains(name, "n2"), strings.Contains(name, "logprobs"), name == "request-1300k", name == "native-generate-raw", name == "native-generate-70k-ndjson-line":
				if err == nil {
					t.Errorf("%s: nothing is missed", f.Name)
				}
				continue
			case err != nil:
				t.Errorf("%s: %v", f.Name, err)
				continue
			case len(q.Messages) == 0 && name != "load-empty-prompt" && name != "unload":
				t.Errorf("%s: no messages", f.Name)
			}
			if read++; strings.Contains(string(body), `"tools"`) && (len(q.Tools) != 1 || q.Tools[0].Name != "get_weather") {
				t.Errorf("%s: %+v", f.Name, q)
			}
		}
		if read < least {
			t.Errorf("%s: only %d requests were read", path, read)
		}
	}
}

// What is written here has no member that no real provider has.
func TestAnswersHaveMembersOfRecordedOnes(t *testing.T) {
	said := &Said{Model: "tiny", Pieces: []Piece{{Reasoning: "hm"}, {Text: "a"}, {ID: "c1", Name: "f"}, {Call: 0, Arguments: `{}`}}, Finish: "tool_calls",
		Usage: &Usage{Input: 5, Output: 3, Cached: 2}}
	// Real, but recorded in the streams of another provider only, or part of the API that neither provider fills in.
	more := map[string]bool{"type=ping": true, ".content_block.signature": true, ".delta.signature": true, "type=signature_delta": true}
	for path := range chatPaths {
		d := DialectOf(path)
		known := map[string]bool{}
		for _, f := range chats(t, path) {
			_, _, body, _, _ := f.Answer()
			eachObject(string(body), func(v any) { paths("", v, known) })
		}
		if path == "/api/generate" { // has at the top what a chat has in its message
			for _, f := range chats(t, "/api/chat") {
				_, _, body, _, _ := f.Answer()
				eachObject(string(body), func(v any) { paths("", v.(map[string]any)["message"], known) })
			}
		}
		ours := map[string]bool{}
		eachObject(d.Whole(said)+"\n"+strings.Join(d.Stream(said, &Asked{Count: true}), ""), func(v any) { paths("", v, ours) })
		if len(ours) < 8 {
			t.Fatalf("%s: the test read nothing: %v", path, ours)
		}
		for _, member := range slices.Sorted(maps.Keys(ours)) {
			// A whole message has the blocks that a streamed one begins with.
			begun := strings.Replace(member, ".content.", ".content_block.", 1)
			if !known[member] && !known[begun] && !more[member] && !more[begun] {
				t.Errorf("%s: no recorded answer has %s", path, member)
			}
		}
	}
}

// eachObject finds the JSON objects of a body: a whole one, events, or lines.
func eachObject(body string, do func(v any)) {
	for line := range strings.Lines(body) {
		line = strings.TrimPrefix(line, "data: ")
		var v map[string]any
		if json.Unmarshal([]byte(line), &v) == nil {
			do(v)
		}
	}
}

// paths adds the members of a value, and the types that objects name.
func paths(at string, v any, into map[string]bool) {
	switch v := v.(type) {
	case []any:
		for _, element := range v {
			paths(at, element, into)
		}
	case map[string]any:
		for name, value := range v {
			into[at+"."+name] = true
			if kind, ok := value.(string); ok && name == "type" {
				into["type="+kind] = true
			}
			if name != "input" && name != "arguments" {
				paths(at+"."+name, value, into)
			}
		}
	}
}
