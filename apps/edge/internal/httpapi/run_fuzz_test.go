package httpapi

import (
	"net/http"
	"testing"
)

// Whatever is asked for as a run: no panic, and a run that is sound in itself, or a 400 that says why.
func FuzzRun(f *testing.F) {
	for _, s := range []string{`{"adapter":"a","target":"t","messages":[{"role":"user","content":"hi"}]}`,
		`{"adapter":"a","target":"t","messages":[{"role":"user","content":[{"type":"image","media_type":"image/png","data":"AA=="}]}],"tools":[{"name":"f","parameters":{}}],"tool_choice":{"mode":"tool","name":"f"}}`,
		`{"messages":[]}`, `{"deadline_ms":-1}`, `{"run_id":"a b"}`, `{"options":{"stop":7}}`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		run, refused := parseRun(body)
		if refused != nil {
			if refused.status != http.StatusBadRequest || refused.failure == nil || refused.failure.Text == "" {
				t.Fatalf("%+v", refused)
			}
			return
		}
		if run.Adapter == "" || run.Target == "" || run.DeadlineMS < 0 || len(run.Input.Messages) == 0 {
			t.Fatalf("%+v", run)
		}
	})
}
