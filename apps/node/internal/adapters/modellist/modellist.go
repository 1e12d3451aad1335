// Package modellist reads the answer to GET /v1/models, which servers of several dialects have in common and extend
// each in its own way. It does no I/O.
package modellist

import "encoding/json"

// Model is one model of a list.
type Model struct {
	ID      string
	OwnedBy string // llamacpp, vllm, library (Ollama), or whoever made it
	// State is how llama.cpp, when it serves several models, says which are in memory; "" = it doesn't tell.
	State   string
	Context int64 // longest context in tokens, 0 = it isn't told
}

// Read returns the models that have an id. An error says that the answer isn't a list of models; of what stands beside
// the ids anything else than expected is as if it weren't told.
func Read(answer []byte) ([]Model, error) {
	var list struct {
		Data []struct {
			ID       string                       `json:"id"`
			OwnedBy  string                       `json:"owned_by"`
			MaxModel told[int64]                  `json:"max_model_len"`    // vLLM
			MaxInput told[int64]                  `json:"max_input_tokens"` // Anthropic
			Meta     told[map[string]told[int64]] `json:"meta"`             // llama.cpp
			Status   told[struct {
				Value string `json:"value"`
			}] `json:"status"` // llama.cpp
		} `json:"data"`
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		return nil, err
	}
	models := make([]Model, 0, len(list.Data))
	for _, m := range list.Data {
		if m.ID == "" {
			continue
		}
		models = append(models, Model{
			ID: m.ID, OwnedBy: m.OwnedBy, State: m.Status.value.Value,
			// n_ctx is what a request gets, n_ctx_train what the model could have.
			Context: length(m.MaxModel, m.MaxInput, m.Meta.value["n_ctx"], m.Meta.value["n_ctx_train"]),
		})
	}
	return models, nil
}

// told is a value that nothing depends on: what isn't one is the zero value.
type told[T any] struct{ value T }

// UnmarshalJSON implements [json.Unmarshaler].
func (t *told[T]) UnmarshalJSON(b []byte) error {
	var v T
	if json.Unmarshal(b, &v) == nil {
		t.value = v
	}
	return nil
}

// length returns the first number that is a length, 0 if none is.
func length(numbers ...told[int64]) int64 {
	for _, n := range numbers {
		if n.value > 0 {
			return n.value
		}
	}
	return 0
}
