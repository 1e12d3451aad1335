package dialect

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A text comes back as it was, whatever is in it.
func TestAppendText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[\x00-\x1f"\\</>a&]*`),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		raw := AppendText([]byte("x"), text)
		var back string
		if err := json.Unmarshal(raw[1:], &back); err != nil {
			t.Fatalf("%q became %s: %v", text, raw, err)
		}
		var want string
		for _, r := range text { // range makes of each byte that isn't UTF-8 what encoding/json does
			want += string(r)
		}
		if back != want {
			t.Fatalf("%q came back as %q", text, back)
		}
	})
	if got := string(AppendText(nil, "a<b>&c é\u2028")); got != `"a<b>&c é`+"\u2028"+`"` || strings.Contains(got, `\u`) {
		t.Errorf("needless escapes: %s", got)
	}
}
