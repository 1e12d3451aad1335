package execution

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// refusal returns the text of a bad_request, "" if err is something else.
func refusal(err error) string {
	var f *Failure
	if !errors.As(err, &f) || f.Code != CodeBadRequest || f.Origin != OriginCaller || !f.NothingSent {
		return ""
	}
	return f.Text
}

func TestParseOptions(t *testing.T) {
	full := `{"max_tokens":9,"temperature":0.5,"top_p":1,"top_k":0,"stop":["a","b"],"seed":-7,"frequency_penalty":-2,` +
		`"presence_penalty":2,"parallel_tool_calls":false,"reasoning_effort":"low","reasoning_budget":0,"response_format":{"type":"json_object"}}`
	o, err := ParseOptions([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	back, err := json.Marshal(o)
	if err != nil || string(back) != full {
		t.Errorf("%v\n%s, want\n%s", err, back, full)
	}
	for text, want := range map[string]Options{
		"": {}, " \n": {}, "null": {}, "{}": {}, ` { "stop" : "x" } `: {Stop: []string{"x"}},
		`{"temperature":null,"stop":null,"response_format":null,"reasoning_effort":null}`: {},
	} {
		if got, err := ParseOptions([]byte(text)); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	if names := optionNames(); len(names) != strings.Count(full, `":`)-1 { // the type of response_format is none
		t.Errorf("the list of names has %d: %v", len(names), names)
	}
}

func TestParseOptionsRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`[]`: "options: must be a JSON object", `{`: "options: must be a JSON object", `{}{}`: "options: must be a JSON object",
		`"x"`: "options: must be a JSON object", `{"seed":1} x`: "options: must be a JSON object",
		`{"n":2}`:                               `options: "n": unknown; the options are max_tokens`,
		`{"Temperature":1}`:                     `options: "Temperature": unknown`,
		`{"` + strings.Repeat("x", 70) + `":1}`: `options: "` + strings.Repeat("x", 64) + `…": unknown`,
		`{"seed":1,"seed":1}`:                   `options: "seed": given twice`,
		`{"max_tokens":"9"}`:                    `options: "max_tokens": must be a whole number`,
		`{"max_tokens":1.5}`:                    `options: "max_tokens": must be a whole number`,
		`{"max_tokens":0}`:                      "options: max_tokens: must be at least 1",
		`{"max_tokens":1e400}`:                  `options: "max_tokens": must be a whole number`,
		`{"seed":9223372036854775808}`:          `options: "seed": must be a whole number`,
		`{"top_k":-1}`:                          "options: top_k: must be at least 0",
		`{"temperature":2.1}`:                   "options: temperature: must be from 0 to 2",
		`{"temperature":1e999}`:                 `options: "temperature": must be a number`,
		`{"top_p":-0.1}`:                        "options: top_p: must be from 0 to 1",
		`{"frequency_penalty":3}`:               "options: frequency_penalty: must be from -2 to 2",
		`{"presence_penalty":-3}`:               "options: presence_penalty: must be from -2 to 2",
		`{"stop":7}`:                            `options: "stop": must be a text or a list of texts`,
		`{"stop":[7]}`:                          `options: "stop": must be a text or a list of texts`,
		`{"stop":[""]}`:                         "options: stop: each text",
		`{"stop":""}`:                           "options: stop: each text",
		`{"stop":[` + strings.Repeat(`"a",`, 16) + `"a"]}`: "options: stop: must have at most 16",
		`{"parallel_tool_calls":"no"}`:                     `options: "parallel_tool_calls": must be true or false`,
		`{"reasoning_effort":"a b"}`:                       "options: reasoning_effort: must be a word",
		`{"reasoning_effort":3}`:                           `options: "reasoning_effort": must be a text`,
		`{"response_format":"json"}`:                       "options: response_format: must be an object with a type",
		`{"response_format":{"typ":"json"}}`:               "options: response_format: must be an object with a type",
	} {
		o, err := ParseOptions([]byte(text))
		if got := refusal(err); !strings.HasPrefix(got, want) || !cmp.Equal(o, Options{}) {
			t.Errorf("%s: %v (%+v), want %q", text, err, o, want)
		}
	}
}

func TestParseToolChoice(t *testing.T) {
	for text, want := range map[string]ToolChoice{
		"": {}, "null": {}, "{}": {}, `"auto"`: {Mode: ToolAuto}, ` "none" `: {Mode: ToolNone}, `"required"`: {Mode: ToolRequired},
		`{"mode":"auto"}`: {Mode: ToolAuto}, `{"mode":"tool","name":"f"}`: {Mode: ToolNamed, Name: "f"},
	} {
		got, err := ParseToolChoice([]byte(text))
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		back, _ := json.Marshal(got)
		if again, err := ParseToolChoice(back); err != nil || again != want {
			t.Errorf("%s: %+v, %v", back, again, err)
		}
	}
	for text, want := range map[string]string{
		`"tool"`: "tool_choice: must be", `"any"`: "tool_choice: the mode must be", `""`: "tool_choice: must be", `"auto`: "tool_choice: must be",
		`7`: "tool_choice: must be a JSON object", `{"mode":"tool"}`: `tool_choice: the mode "tool" needs a name`,
		`{"mode":"auto","name":"f"}`: "tool_choice: a name stands only", `{"name":"f"}`: "tool_choice: a name stands only",
		`{"mode":7}`: "tool_choice: mode: must be a text", `{"type":"function"}`: `tool_choice: "type": unknown`,
		`{"mode":"auto","mode":"auto"}`: `tool_choice: "mode": given twice`,
	} {
		if _, err := ParseToolChoice([]byte(text)); !strings.HasPrefix(refusal(err), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Whatever JSON comes: no panic, and what was taken says the same when it is written and read again.
func FuzzOptions(f *testing.F) {
	for _, s := range []string{`{"max_tokens":9,"stop":"x"}`, `{"response_format":{"type":"a","b":[1e9]}}`, `null`, `{"a":{}}`, `{"stop":["\ud800"]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if c, err := ParseToolChoice(raw); err == nil {
			back, _ := json.Marshal(c)
			if again, err := ParseToolChoice(back); err != nil || again != c {
				t.Fatalf("%s: %+v, %v", back, again, err)
			}
		}
		o, err := ParseOptions(raw)
		if err != nil {
			if refusal(err) == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		back, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseOptions(back)
		if err != nil {
			t.Fatalf("%s: %v", back, err)
		}
		if twice, _ := json.Marshal(again); string(twice) != string(back) {
			t.Fatalf("%s, then %s", back, twice)
		}
	})
}
