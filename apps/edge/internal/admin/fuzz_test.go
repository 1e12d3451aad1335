package admin

import (
	"net/http"
	"testing"
)

// Whatever stands in the body of a request to the admin API: no panic; what isn't the object that is due is a 400 with a
// reason.
func FuzzBodies(f *testing.F) {
	for _, s := range []string{`{}`, `{"type":"CAPABILITIES"}`, `{"type":"OLLAMA_API","method":"POST","path":"/api/show","body":{"model":"a"}}`,
		`{"undo":true}`, `{"undo":1}`, `{"undo":true,"undo":true}`, `[`, `{"node":"a","adapter":"b","run_id":"c","force":null}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		q, refused := parseCommand(body)
		if (q == nil) == (refused == nil) {
			t.Fatal("neither a command nor a refusal, or both")
		}
		var undo, force bool
		var node, adapter, run string
		for _, r := range []*refusal{refused, parseObject(body, map[string]any{"undo": &undo}),
			parseObject(body, map[string]any{"node": &node, "adapter": &adapter, "run_id": &run, "force": &force})} {
			if r != nil && (r.status != http.StatusBadRequest || r.text == "" || r.detail == "") {
				t.Fatalf("%+v", r)
			}
		}
	})
}
