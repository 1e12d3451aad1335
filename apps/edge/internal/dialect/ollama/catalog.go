package ollama

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"iop/apps/edge/internal/dialect"
)

// APIVersion is the version of Ollama whose API this package speaks; its clients ask for features by version.
const APIVersion = "0.17.4"

// Model is what there is to say of one model in a list or an answer to /api/show.
type Model struct {
	Name    string
	Kind    string          // of the adapter that serves it: openai, anthropic, …; "" = unknown
	Loaded  bool            // in memory now
	Context int64           // longest context in tokens, 0 = unknown
	Entry   json.RawMessage // what an Ollama says of it in the same list, as Entries returns it; nil = nothing
}

// details is what Ollama says of a model's make. Of a model that no Ollama serves only the provider's kind is known; it
// stands where the architecture does, since clients look for the context length under that name.
type details struct {
	ParentModel       string   `json:"parent_model"`
	Format            string   `json:"format"`
	Family            string   `json:"family"`
	Families          []string `json:"families"`
	ParameterSize     string   `json:"parameter_size"`
	QuantizationLevel string   `json:"quantization_level"`
}

func (m *Model) family() string {
	if m.Kind == "" {
		return "unknown"
	}
	return m.Kind
}

func (m *Model) details() details {
	return details{Family: m.family(), Families: []string{m.family()}}
}

// digest stands for a model's content: the command line shows its first twelve digits and takes for granted that there
// are as many. It is the same for the same model everywhere.
func (m *Model) digest() string {
	sum := sha256.Sum256([]byte("iop model\n" + m.family() + "\n" + m.Name))
	return hex.EncodeToString(sum[:])
}

// Tags is the body of GET /api/tags. Since is when the models without an entry count as changed: when the program began.
func Tags(models []Model, since time.Time) []byte {
	type entry struct {
		Name       string    `json:"name"`
		Model      string    `json:"model"`
		ModifiedAt time.Time `json:"modified_at"`
		Size       int64     `json:"size"` // 0: nobody knows
		Digest     string    `json:"digest"`
		Details    details   `json:"details"`
	}
	return list(models, func(m *Model) any {
		return entry{Name: m.Name, Model: m.Name, ModifiedAt: since.UTC(), Digest: m.digest(), Details: m.details()}
	})
}

// Running is the body of GET /api/ps: those of the models that are loaded.
func Running(models []Model) []byte {
	type entry struct {
		Name          string    `json:"name"`
		Model         string    `json:"model"`
		Size          int64     `json:"size"`
		Digest        string    `json:"digest"`
		Details       details   `json:"details"`
		ExpiresAt     time.Time `json:"expires_at"`
		SizeVRAM      int64     `json:"size_vram"`
		ContextLength int64     `json:"context_length"`
	}
	// The command line says "Stopping..." of a time that has passed, and "Forever" of one in centuries. More memory at
	// the GPU than altogether it calls an unknown processor, which is what it is; none would be "100% CPU".
	forever := time.Date(2300, time.January, 1, 0, 0, 0, 0, time.UTC)
	var loaded []Model
	for _, m := range models {
		if m.Loaded {
			loaded = append(loaded, m)
		}
	}
	return list(loaded, func(m *Model) any {
		return entry{Name: m.Name, Model: m.Name, Digest: m.digest(), Details: m.details(), ExpiresAt: forever,
			SizeVRAM: 1, ContextLength: m.Context}
	})
}

// list returns the models as Ollama lists them: by their entries where they have one, else as made says.
func list(models []Model, made func(*Model) any) []byte {
	body := struct {
		Models []any `json:"models"`
	}{Models: []any{}}
	for i := range models {
		m := &models[i]
		if m.Entry != nil {
			body.Models = append(body.Models, m.renamed())
			continue
		}
		body.Models = append(body.Models, made(m))
	}
	return encode(body)
}

// renamed returns the entry under the model's name: a route may have given it another. Ollama's own name of a model has
// a tag that may be left out.
func (m *Model) renamed() json.RawMessage {
	var entry map[string]json.RawMessage
	if json.Unmarshal(m.Entry, &entry) != nil {
		return m.Entry
	}
	name := entryName(m.Entry)
	if name == m.Name || name == m.Name+":latest" {
		return m.Entry
	}
	entry["name"] = encode(m.Name)
	entry["model"] = entry["name"]
	return encode(entry)
}

// Version is the body of GET /api/version. A version of "" is APIVersion.
func Version(version string) []byte {
	if version == "" {
		version = APIVersion
	}
	return encode(struct {
		Version string `json:"version"`
	}{version})
}

// Show is the body of the answer to POST /api/show for a model that no Ollama serves. Since is as in [Tags].
func Show(m Model, since time.Time) []byte {
	info := map[string]any{"general.architecture": m.family()}
	if m.Context > 0 {
		info[m.family()+".context_length"] = m.Context
	}
	return encode(struct {
		Modelfile    string         `json:"modelfile"`
		Parameters   string         `json:"parameters"`
		Template     string         `json:"template"`
		Details      details        `json:"details"`
		ModelInfo    map[string]any `json:"model_info"`
		Capabilities []string       `json:"capabilities"`
		ModifiedAt   time.Time      `json:"modified_at"`
	}{Details: m.details(), ModelInfo: info, Capabilities: m.capabilities(), ModifiedAt: since.UTC()})
}

// capabilities says what a model can surely be asked for. Thinking isn't among it although many models can: who reads it
// asks for it unasked (the command line does), and then those that can't refuse.
func (m *Model) capabilities() []string {
	if m.Kind == "anthropic" {
		return []string{"completion", "tools", "vision"}
	}
	return []string{"completion", "tools"}
}

// ParseShow reads the body of POST /api/show: the model that is asked for, which may stand under its old name, name, as
// the command line sends it, beside an empty model.
func ParseShow(body []byte) (model string, ref *dialect.Refusal) {
	var name string
	ref = dialect.Object("", body, func(member string) any {
		switch member {
		case "model":
			return &model
		case "name":
			return &name
		case "verbose": // asks for more of what there is; there is no more
			return dialect.Ignored{}
		case "system", "template", "options":
			return silent{"the model is shown as it is"}
		}
		return nil
	})
	switch {
	case ref != nil:
		return "", ref
	case model == "":
		model = name
	}
	if model == "" {
		return "", dialect.Refuse("model", "model: missing; name the model")
	}
	return model, nil
}

// Entries reads an Ollama's answer to /api/tags or /api/ps: what it says of each model, by name. An answer that isn't
// one has none.
func Entries(answer []byte) map[string]json.RawMessage {
	var body struct {
		Models []json.RawMessage `json:"models"`
	}
	if json.Unmarshal(answer, &body) != nil {
		return nil
	}
	out := make(map[string]json.RawMessage, len(body.Models))
	for _, entry := range body.Models {
		if name := entryName(entry); name != "" {
			out[name] = entry
		}
	}
	return out
}

func entryName(entry []byte) string {
	var e struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(entry, &e) != nil {
		return ""
	}
	return e.Name
}
