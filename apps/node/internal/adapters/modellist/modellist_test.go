package modellist

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"iop/e2e/fakeprovider"
)

func recorded(t *testing.T, name string) string {
	t.Helper()
	f, err := fakeprovider.LoadFixture(name)
	if err != nil {
		t.Fatal(err)
	}
	_, _, body, _, err := f.Answer()
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestRead(t *testing.T) {
	for name, k := range map[string]struct {
		answer string
		want   []Model
	}{
		"llama.cpp":          {recorded(t, "llamacpp-0.7.0/models"), []Model{{ID: "tiny", OwnedBy: "llamacpp", Context: 4096}}},
		"ollama":             {recorded(t, "ollama-0.17.4/models"), []Model{{ID: "slow:latest", OwnedBy: "library"}, {ID: "tiny:latest", OwnedBy: "library"}}},
		"llama.cpp, several": {`{"data":[{"id":"a","status":{"value":"loaded"},"meta":{"n_ctx_train":9}},{"id":"b","status":{"value":"unloaded"},"meta":null}]}`, []Model{{ID: "a", State: "loaded", Context: 9}, {ID: "b", State: "unloaded"}}},
		"vllm":               {`{"data":[{"id":"a","owned_by":"vllm","max_model_len":4096}]}`, []Model{{ID: "a", OwnedBy: "vllm", Context: 4096}}},
		"anthropic":          {`{"data":[{"type":"model","id":"claude","display_name":"C","max_input_tokens":200000}],"has_more":false}`, []Model{{ID: "claude", Context: 200000}}},
		"odd beside the id":  {`{"data":[{"id":"a","max_model_len":"4k","max_input_tokens":-1,"meta":["n_ctx"],"status":"loaded"},{"id":"b","meta":{"n_ctx":"x","n_ctx_train":3}}]}`, []Model{{ID: "a"}, {ID: "b", Context: 3}}},
		"no id":              {`{"data":[{"id":""},{}]}`, []Model{}},
		"nothing":            {`{"data":null}`, []Model{}},
	} {
		got, err := Read([]byte(k.answer))
		if d := cmp.Diff(k.want, got); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, d)
		}
	}
	for _, answer := range []string{"", "<html>", `{"data":7}`, `{"data":[{"id":7}]}`, `[]`} {
		if got, err := Read([]byte(answer)); err == nil {
			t.Errorf("%s: %+v", answer, got)
		}
	}
}
