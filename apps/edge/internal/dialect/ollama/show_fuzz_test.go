package ollama

import "testing"

// Whatever is asked to be shown, and whatever an Ollama lists: no panic, a model's name or a refusal, no entry without a
// name.
func FuzzShow(f *testing.F) {
	for _, s := range []string{`{"model":"a"}`, `{"name":"a","model":""}`, `{"model":"a","options":{}}`, `{"model":7}`, `{"models":[{"name":"a"},{"name":7},null]}`, `{}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		model, ref := ParseShow(body)
		if (model == "") == (ref == nil) {
			t.Fatalf("model %q and refusal %v", model, ref)
		}
		for name, entry := range Entries(body) {
			if name == "" || entryName(entry) != name {
				t.Fatalf("%q is %s", name, entry)
			}
		}
	})
}
