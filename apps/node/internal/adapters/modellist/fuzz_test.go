package modellist

import "testing"

// Whatever a provider answers: no panic, and no model without a name or with a length below 0.
func FuzzRead(f *testing.F) {
	for _, s := range []string{`{"data":[{"id":"a","meta":{"n_ctx":4096}},{"id":"b","max_model_len":"many"}]}`, `{"data":null}`, `[]`, `{"data":[{"id":7}]}`,
		`{"data":[{"id":"a","status":[]},{}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		models, err := Read(answer)
		if err != nil && models != nil {
			t.Fatal("models and an error")
		}
		for _, m := range models {
			if m.ID == "" || m.Context < 0 {
				t.Fatalf("%+v", m)
			}
		}
	})
}
