package dialect

import "testing"

// What a run calls a place is said in the API's words, and what is no place stays a sentence.
func TestNames(t *testing.T) {
	n := Names{Messages: []string{"system", "messages[0]", "messages[2].content"}, Words: map[string]string{
		"stop": "stop_sequences", "response_format": "output_config.format", "messages.parts": "content", "messages.tool_calls.arguments": "function.arguments",
		"tools.parameters": "input_schema"}}
	for _, tt := range []struct{ text, field, why string }{
		{"options: stop: has too many", "stop_sequences", "has too many"},
		{"options: response_format: type: can't be told", "output_config.format", "can't be told"},
		{"options: seed: can't be told; leave it out", "seed", "can't be told; leave it out"},
		{"tool_choice: can't be told", "tool_choice", "can't be told"},
		{"messages[0]: empty", "system", "empty"},
		{"messages[1].parts[3]: an image: too large", "messages[0].content", "an image: too large"},
		{"messages[1].tool_calls[4]: arguments: aren't an object", "messages[0].tool_calls[4].function.arguments", "aren't an object"},
		{"messages[2]: name: can't be told", "messages[2].content.name", "can't be told"},
		{"messages[7]: name: can't be told", "messages[7].name", "can't be told"},
		{"messages: none says anything", "messages", "none says anything"},
		{"tools[5]: parameters: must be an object", "tools[5].input_schema", "must be an object"},
		{"a provider says: no", "", "a provider says: no"},
		{"", "", ""},
	} {
		place, why := Place(tt.text)
		if place != "" {
			place = n.Of(place)
		}
		if place != tt.field || why != tt.why {
			t.Errorf("%q: %q and %q, want %q and %q", tt.text, place, why, tt.field, tt.why)
		}
	}
	if got := (&Names{}).Of("messages[1].parts[0]"); got != "messages[1].parts[0]" {
		t.Errorf("without names it is %q", got)
	}
}
